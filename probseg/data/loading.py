"""Shared parts of the data modules: loaders of training crops, skipped samples, names."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import signal
import tempfile
import uuid
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import cv2
import lightning as L
import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from probseg.data.base import InteractiveDataset
from probseg.data.cache import available_cores
from probseg.data.sampling import DrawnSample, Order, Shuffled, TrainingSampler
from probseg.data.transforms import LARGE, Part, Picture, TrainingCrop
from probseg.errors import DataError, check_least
from probseg.images import image_size, read_image
from probseg.lightning_internals import position, recount_batches
from probseg.paths import HEARTBEAT, LONGEST_WAIT, replacing
from probseg.seeds import mix_seeds
from probseg.texts import count, one_line
from probseg.types import Sample

_logger = logging.getLogger(__name__)

# where processes that read leave their batches; a container has 64 MB by default
SHARED_MEMORY = Path("/dev/shm")
ROOM = 2_000_000_000  # bytes that stay free on the disk of parts of large photographs
MEGABYTE = 1 << 20  # bytes of shared memory with less than which no batch will come
READER_GRACE = 120  # seconds that a process that reads outlives SIGTERM
# result of an augmentation: image `(H, W, 3)` and labels or mask `(H, W)`, both uint8
Pixels = tuple[np.ndarray, np.ndarray]
# cuts image and labels of a training crop out of a sample, by a seed
Augmentation = Callable[[Any, int], Pixels]

_Batch = TypeVar("_Batch")
_Set = TypeVar("_Set")


class TrainCrop(NamedTuple):
    """A training crop."""

    image: np.ndarray  # uint8, shape `(H, W, 3)`
    labels: np.ndarray  # mask or class numbers, uint8, shape `(H, W)`
    seed: int  # of its random numbers, in [0, 2**63)
    name: str  # of the sample that it was cut from
    skipped: tuple[str, ...] = ()  # faults of the unreadable samples that it replaces


class _Crops(Dataset[TrainCrop]):
    """Samples seen through the training augmentation."""

    def __init__(self, samples: Dataset[Any], crop: Augmentation) -> None:
        self.samples = samples
        self.crop = crop

    def __len__(self) -> int:
        return len(self.samples)  # type: ignore[arg-type]

    def __getitem__(self, draw: DrawnSample | int) -> TrainCrop:
        if isinstance(draw, int):  # with `overfit_batches`, Lightning counts up instead
            draw = DrawnSample(draw, mix_seeds(draw))
        skipped: list[str] = []
        for number in (draw.number, *draw.instead):
            try:
                sample = self.samples[number]
                image, labels = self.crop(sample, draw.seed)
            except DataError as error:
                skipped.append(str(error))
            else:
                return TrainCrop(image, labels, draw.seed, sample.name, tuple(skipped))
        raise DataError(_message(skipped, "cannot be used, one after the other"))


class CachedObjects(Dataset[Sample]):
    """Objects of which those on large photographs are cut out once and kept until the process ends.

    To decode a photograph of 12 megapixels and its mask takes a hundred times as long as a crop.
    The parts are in a temporary folder, where that has room; with one of them, those are cut out
    that are halved as often.
    """

    def __init__(self, samples: InteractiveDataset, crop: TrainingCrop) -> None:
        self.samples = samples
        self.crop = crop
        self.folder = Path(tempfile.gettempdir(), f"probseg-crops-{uuid.uuid4().hex}")
        weakref.finalize(self, _remove, self.folder, os.getpid())

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Sample:
        if self._path(number).is_file():
            with np.load(self._path(number)) as kept:
                return Sample(kept["image"], kept["mask"], *kept["names"].tolist())
        file = self.samples.image_file(number)
        if file is None or math.prod(size := image_size(file)) < LARGE:
            whole = self.samples[number]
            part = self.crop.part(whole.mask)
            return whole if part is None else self._keep(number, part, whole.image)
        (mask,) = self.samples.read_masks([number])
        part = self.crop.part(mask)
        if part is None or mask.shape != size:
            return self.samples[number]  # raises, or the crop does
        image = read_image(file, coarse=part.step)
        sample = self._keep(number, part, image)
        others = [other for other in self._together[file] if not self._path(other).is_file()]
        if number in others:  # there is no room
            return sample
        with contextlib.suppress(DataError):  # raised when its object is asked for
            for other, mask in zip(others, self.samples.read_masks(others), strict=True):
                like = self.crop.part(mask)
                if like is not None and like.step == part.step:
                    self._keep(other, like, image)
        return sample

    @cached_property
    def _together(self) -> dict[Path | None, list[int]]:
        """The objects of each photograph."""
        together = defaultdict[Path | None, list[int]](list)
        for number in range(len(self)):
            together[self.samples.image_file(number)].append(number)
        return together

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.npz"

    def _keep(self, number: int, part: Part, image: Picture) -> Sample:
        """Return the part of an object, and write it into the folder where that has room."""
        names = (self.samples.object_name(number), self.samples.name)
        sample = Sample(part.cut(image), part.mask, *names)
        if shutil.disk_usage(self.folder.parent).free > ROOM:
            with contextlib.suppress(OSError):
                self.folder.mkdir(mode=0o700, exist_ok=True)
                with replacing(self._path(number)) as draft, draft.open("wb") as file:
                    np.savez(file, image=sample.image, mask=sample.mask, names=names)
        return sample


def _remove(folder: Path, process: int) -> None:
    """Remove a folder in the process that made it, not in those that read for it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


class SkipCounter:
    """Counts samples that cannot be read, and stops a training that has more than a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.messages: dict[str, None] = {}

    def add(self, messages: Sequence[str]) -> None:
        """Report new messages."""
        for message in messages:
            if message not in self.messages:
                self.messages[message] = None
                warnings.warn(f"left out of the training: {one_line(message)}", stacklevel=2)
        if len(self.messages) > self.limit:
            of = f"cannot be used, more than `max_skipped` ({self.limit})"
            raise DataError(_message(list(self.messages), of))


def _message(messages: Sequence[str], what: str) -> str:
    lines = "\n  ".join(messages)
    return (
        f"{count(len(messages), 'sample')} {what}:\n  {lines}\n"
        "Replace or remove the files (`probseg data check` looks at all of a data set), or raise "
        "`max_skipped` of the data module"
    )


class TrainingData(L.LightningDataModule):
    """Base of the data modules of both tasks.

    `seed` determines the order of the samples, their augmentation and their clicks; by default it
    is that of `seed_everything`. A resumed training uses the seed of its checkpoint.
    """

    def __init__(self, batch_size: int, num_workers: int, max_skipped: int) -> None:
        super().__init__()
        check_least("batch_size", batch_size)
        check_least("num_workers", num_workers, 0)
        check_least("max_skipped", max_skipped, 0)
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.skips = SkipCounter(max_skipped)
        self.seed = torch.initial_seed()
        self._global_batch_size: int | None = None  # of the training so far

    def setup(self, stage: str) -> None:
        """Take the seed of the first process in all of them."""
        if self.trainer is not None:
            self.seed = self.trainer.strategy.broadcast(torch.initial_seed())

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the seed, and the size of the global batch."""
        return {"seed": self.seed, "global_batch_size": self._global_batch_size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Use the seed of a checkpoint."""
        self.seed = state_dict["seed"]
        self._global_batch_size = state_dict["global_batch_size"]

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:  # noqa: ANN401
        """Count the samples that the loader of training crops skipped."""
        self.skips.add(getattr(batch, "skipped", ()))
        return batch

    def training_loader(
        self,
        sets: Sequence[Dataset[Any]],
        crop: Augmentation,
        collate: Callable[[list[TrainCrop]], _Batch],
        *,
        of: str,
        order: Order | None = None,
    ) -> DataLoader[_Batch]:
        """Load training crops in random order; the last incomplete batch is left out."""
        refuse_none(sets, "training", "train")
        crops = _Crops(ConcatDataset(sets), crop)
        order = Shuffled(len(crops)) if order is None else order
        processes = self.trainer.world_size if self.trainer else 1
        if len(order) < self.batch_size * processes:
            each = f" on each of {processes} devices" if processes > 1 else ""
            raise DataError(
                f"`batch_size`{each} must be at most {len(order) // processes}, with {len(order)} "
                f"training {of} in all, got {self.batch_size}"
            )
        sampler = TrainingSampler(
            order,
            seed=self.seed,
            batch_size=self.batch_size,
            processes=processes,
            rank=self.trainer.global_rank if self.trainer else 0,
        )
        if self.trainer is not None:
            before, now = self._global_batch_size, self.batch_size * processes
            if before is not None and before != now:
                recount_batches(self.trainer, before, now)
            self._global_batch_size = now
            sampler.go_to(*position(self.trainer))
        size = np.broadcast_to(getattr(crop, "size", 0), 2)
        # More than cores would take turns; crops do not depend on their number.
        workers = affordable_workers(
            min(self.num_workers, available_cores()),
            4 * int(size.prod()) * self.batch_size,
            processes,
        )
        loader: DataLoader[_Batch] = _TrainingLoader(
            crops,  # type: ignore[arg-type] # the stubs do not know of collate_fn
            batch_size=self.batch_size,
            sampler=sampler,
            drop_last=True,
            collate_fn=collate,
            num_workers=workers,
            worker_init_fn=_prepare_worker,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
            timeout=HEARTBEAT if workers else 0,
        )
        if self.trainer is not None:  # each epoch, however short, logs its loss
            limit, batches = self.trainer.limit_train_batches, len(loader)
            batches = min(limit, batches) if isinstance(limit, int) else int(limit * batches)
            steps = max(1, batches // self.trainer.accumulate_grad_batches)
            if self.trainer.max_steps > 0:
                steps = min(steps, self.trainer.max_steps)
            steps = min(self.trainer.log_every_n_steps, steps)  # type: ignore[attr-defined]
            self.trainer.log_every_n_steps = steps  # type: ignore[attr-defined]
        return loader


class _TrainingLoader(DataLoader[_Batch]):
    """A loader that can resume in the middle of an epoch, as Lightning checks.

    It does not wait without end: a process that finds no shared memory loses its batch silently.
    """

    def __iter__(self) -> Iterator[_Batch]:  # type: ignore[override]
        """Yield the batches; say so when one takes long."""
        batches, waited = super().__iter__(), 0.0
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                if not str(error).startswith("DataLoader timed out"):
                    raise
                waited += self.timeout
                text = f"no batch has come for {waited:.0f} s from the processes that read"
                free = _free_shared_memory()
                text += "" if free is None else f"; {SHARED_MEMORY} has {free / 1e6:.1f} MB free"
                if waited >= LONGEST_WAIT or (free is not None and free < MEGABYTE):
                    raise RuntimeError(text) from error
                _logger.warning(text)
            else:
                waited = 0.0
                yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the state of the trainer has the position."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing; the sampler was positioned when the loader was made."""


def _free_shared_memory() -> int | None:
    """Return the free bytes of `SHARED_MEMORY`; None on systems that have it elsewhere."""
    return shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None


def affordable_workers(workers: int, batch: int, processes: int = 1) -> int:
    """Return how many of the processes that read have room for their batches in shared memory.

    Each has two of them ready, of that size, and the training holds two. A notice says so if fewer
    are started.
    """
    free = _free_shared_memory()
    if free is None or workers == 0:
        return workers
    fitting = max(0, (free // (processes * max(1, batch)) - 2) // 2)
    if fitting < workers:
        _logger.warning(
            "%s has %.0f MB free, and a batch has %.0f MB: %d processes read instead of %d%s; for "
            "more, start the container with --shm-size=8g or --ipc=host",
            *(SHARED_MEMORY, free / 1e6, batch / 1e6, fitting, workers),
            "" if fitting else " (the training reads itself)",
        )
    return min(workers, fitting)


def _prepare_worker(worker: int) -> None:
    """Set up a worker process.

    OpenCV would start a thread for each processor. And signals often go to all processes of a
    group: a training that is asked to stop needs its readers until its batch has ended.
    """
    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(READER_GRACE))


def stack_crops(kind: Callable[..., _Batch], crops: Sequence[TrainCrop]) -> _Batch:
    """Stack crops of one size, and make a batch of them.

    `kind` takes images, uint8, shape `(B, 3, H, W)`; labels or masks, uint8, shape `(B, H, W)`;
    seeds, int64, shape `(B,)`; names; and what was skipped.
    """
    images = torch.from_numpy(np.stack([crop.image for crop in crops]))
    labels = torch.from_numpy(np.stack([crop.labels for crop in crops]))
    seeds = torch.tensor([crop.seed for crop in crops])
    skipped = [message for crop in crops for message in crop.skipped]
    names = [crop.name for crop in crops]
    return kind(images.permute(0, 3, 1, 2).contiguous(), labels, seeds, names, skipped)


def refuse_none(sets: Sequence[object], use: str, role: str) -> None:
    """Raise a `DataError` if there is no data set for a use."""
    if not sets:
        raise DataError(f"no {use} data: set `data.{role}` to a data set")


def as_list(sets: _Set | list[_Set] | None) -> list[_Set]:
    """Return the data sets that an argument gives: none, one or several."""
    if sets is None:
        return []
    return list(sets) if isinstance(sets, list) else [sets]


def check_names(role: str, names: Sequence[str], hint: str) -> None:
    """Refuse data sets of one name: results are kept by the names of data sets."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"{role}: expected data sets of different names, got {', '.join(names)}; the scores of "
            f"one {twice[0]!r} would overwrite those of the other: {hint}"
        )
