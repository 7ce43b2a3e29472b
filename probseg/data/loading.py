"""What the data modules share: loaders of training crops, seeds of their processes, names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import lightning as L
import numpy as np
import torch
from lightning.fabric.utilities.seed import pl_worker_init_function
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from probseg.errors import DataError

Cut = tuple[np.ndarray, np.ndarray]
"""What an augmentation returns: image ``(H, W, 3)`` and labels or mask ``(H, W)``, both uint8."""

_Batch = TypeVar("_Batch")
_Set = TypeVar("_Set")


class Augmentation(Protocol):
    """Cuts a training crop out of a sample, with randomness of its own."""

    def seed(self, seed: int) -> None:
        """Restart the randomness."""

    def __call__(self, sample: Any) -> Cut:  # noqa: ANN401 # each takes the samples of its task
        """Return an image and its labels."""


class _Crops(Dataset[Cut]):
    """Samples seen through the training augmentation."""

    def __init__(self, samples: Dataset[Any], crop: Augmentation) -> None:
        self.samples = samples
        self.crop = crop

    def __len__(self) -> int:
        return len(self.samples)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Cut:
        return self.crop(self.samples[index])


def _seed_worker(worker: int) -> None:
    """Seed torch, numpy and random as Lightning does, then the augmentation of this worker."""
    pl_worker_init_function(worker)
    info = torch.utils.data.get_worker_info()
    assert info is not None, "called inside a worker process only"
    assert isinstance(info.dataset, _Crops), "only the training loader has workers"
    info.dataset.crop.seed(torch.initial_seed())


def training_loader(
    sets: Sequence[Dataset[Any]],
    crop: Augmentation,
    collate: Callable[[list[Cut]], _Batch],
    *,
    of: str,
    batch_size: int,
    num_workers: int,
    trainer: L.Trainer | None,
) -> DataLoader[_Batch]:
    """Load shuffled training crops; the last incomplete batch is left out.

    Args:
        sets: Data sets, which are joined.
        crop: The augmentation, which is seeded for every process and epoch.
        collate: Makes a batch of crops.
        of: What the samples are, in a word for the error.
        batch_size: Crops per batch and device.
        num_workers: Processes that read and augment; 0 reads in the main process.
        trainer: The trainer that asks for the loader, if there is one.

    Raises:
        DataError: If there is no data set, or fewer samples than a batch has.
    """
    if not sets:
        msg = "no training data: set `data.train` to a data set"
        raise DataError(msg)
    crops = _Crops(ConcatDataset(sets), crop)
    if len(crops) < batch_size:
        msg = (
            f"batch_size {batch_size} is larger than the {len(crops)} training {of}; use a "
            "smaller one"
        )
        raise DataError(msg)
    if num_workers == 0:  # worker processes get seeds of their own
        rank = trainer.global_rank if trainer else 0
        epoch = trainer.current_epoch if trainer else 0  # not 0 in a resumed run
        crop.seed(torch.initial_seed() + 1000 * rank + epoch)
    return DataLoader(
        crops,  # type: ignore[arg-type] # the stubs do not know of collate_fn
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        collate_fn=collate,
        num_workers=num_workers,
        worker_init_fn=_seed_worker,
        persistent_workers=num_workers > 0,
        pin_memory=torch.cuda.is_available(),
    )


def stack_cuts(cuts: list[Cut]) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack crops of one size.

    Returns:
        Images, uint8, shape ``(B, 3, H, W)``, and labels or masks, uint8, shape ``(B, H, W)``.
    """
    images = torch.from_numpy(np.stack([image for image, _ in cuts]))
    labels = torch.from_numpy(np.stack([labels for _, labels in cuts]))
    return images.permute(0, 3, 1, 2).contiguous(), labels


def as_list(sets: _Set | list[_Set] | None) -> list[_Set]:
    """Return the data sets that an argument gives: none, one or several."""
    if sets is None:
        return []
    return list(sets) if isinstance(sets, list) else [sets]


def check_names(role: str, names: Sequence[str], way_out: str) -> None:
    """Refuse data sets of one name: results are kept by the names of data sets.

    Args:
        role: The argument that has the data sets.
        names: Their names.
        way_out: What to do about two of one name.

    Raises:
        DataError: If two names are the same.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = (
            f"{role}: expected data sets of different names, got {', '.join(names)}; the scores of "
            f"one {twice[0]!r} would overwrite those of the other: {way_out}"
        )
        raise DataError(msg)
