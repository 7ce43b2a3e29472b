"""Masks for many photographs: what `probseg predict` runs through Lightning's `Trainer`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Dataset

from probseg.data.prompts import PromptedImage, PromptedObject
from probseg.errors import DataError
from probseg.formats import run_lengths
from probseg.images import read_image
from probseg.interact import InteractionState, Mask, begin
from probseg.interact.photograph import Photograph, as_photograph
from probseg.interact.session import build_loop
from probseg.interact.states import fitted_box, with_crop
from probseg.models import Network, Segmenter


class Job(NamedTuple):
    """A photograph that is to be answered.

    Args:
        image: Its path and prompts; no prompts for classes.
        path: The file.
        digest: Of all that the answer depends on.
        refusal: Why the photograph is not answered; None where it is.
    """

    image: PromptedImage
    path: Path
    digest: str
    refusal: str | None = None


class Photo(NamedTuple):
    """A photograph, read.

    Args:
        job: What to do.
        pixels: RGB, uint8, shape `(H, W, 3)`; None where it cannot be read.
        error: Why it cannot be read.
    """

    job: Job
    pixels: npt.NDArray[np.uint8] | None
    error: str | None = None


class PhotoResult(NamedTuple):
    """Result of one photograph.

    Args:
        photo: The photograph.
        masks: Compressed run lengths of COCO by the places of objects among the prompts.
        labels: Class numbers, uint8, shape `(H, W)`; None of networks for clicks.
        failed: Reasons by the keys of objects that could not be answered.
        qualities: `Mask.quality` by the places of objects.
    """

    photo: Photo
    masks: dict[int, dict[str, Any]]
    labels: npt.NDArray[np.uint8] | None
    failed: dict[str, str]
    qualities: dict[int, float]


class Photographs(Dataset[Photo | None]):
    """Reads the photographs of jobs; the reason why one cannot be read is its answer.

    Args:
        jobs: What to read; None for nothing.
    """

    def __init__(self, jobs: Sequence[Job | None]) -> None:
        self.jobs = jobs

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self.jobs)

    def __getitem__(self, index: int) -> Photo | None:
        """Read one photograph."""
        job = self.jobs[index]
        if job is None:
            return None
        if job.refusal is not None:
            return Photo(job, None, job.refusal)
        try:
            pixels = read_image(job.path)
        except (DataError, OSError) as error:
            return Photo(job, None, str(error))
        if job.image.size not in (None, pixels.shape[:2]):
            reason = f"{job.path}: has the size {pixels.shape[:2]}, its entry {job.image.size}"
            return Photo(job, None, reason)
        return Photo(job, pixels)


def _without_gaps(photos: Sequence[Photo | None]) -> list[Photo]:
    return [photo for photo in photos if photo is not None]


class PredictionData(L.LightningDataModule):
    """Gives each process its share of the photographs, each of them to one process.

    Args:
        jobs: The same in all processes.
        batch_size: Photographs in memory together.
        num_workers: Processes that read photographs; 0 reads in the process that predicts.
    """

    def __init__(self, jobs: Sequence[Job], batch_size: int, num_workers: int) -> None:
        super().__init__()
        self.jobs = jobs
        self.batch_size = batch_size
        self.num_workers = num_workers

    def predict_dataloader(self) -> DataLoader[Photo | None]:
        """Return the share of this process; the trainer must not divide it again.

        Where there are more processes than photographs, the others get an empty batch: processes
        wait for each other, and without any batch Lightning leaves steps of that out.
        """
        assert self.trainer is not None, "Lightning attaches it"
        share = self.jobs[self.trainer.global_rank :: self.trainer.world_size]
        return DataLoader(
            Photographs(share or [None]),
            batch_size=self.batch_size,
            collate_fn=_without_gaps,
            num_workers=self.num_workers,
        )


class Prediction(L.LightningModule, ABC):
    """Base of the modules that answer photographs with a network, one for each task.

    Args:
        model: The network, in evaluation mode.
        batch_size: Most images that the network has in memory together.
    """

    def __init__(self, model: Network, batch_size: int) -> None:
        super().__init__()
        self.model = model
        self.batch_size = batch_size

    @abstractmethod
    def predict_step(self, batch: list[Photo], batch_idx: int) -> list[PhotoResult]:
        """Answer some photographs, one after the other."""


class ObjectPrediction(Prediction):
    """Masks of prompted objects.

    All prompts of an object are answered at once: the masks are those of one call of
    `Predictor.predict`, up to the rounding of batched kernels. Its zoom acts where the only prompt
    is a click on the object, which is answered at several scales.

    Args:
        model: The network, in evaluation mode.
        batch_size: Objects that are answered together.
    """

    def __init__(self, model: Segmenter, batch_size: int) -> None:
        super().__init__(model, batch_size)
        self._loop = build_loop(model, batch_size=batch_size)

    def predict_step(self, batch: list[Photo], batch_idx: int) -> list[PhotoResult]:
        """Answer the prompts of some photographs, so many objects at a time."""
        results = [PhotoResult(photo, {}, None, {}, {}) for photo in batch]
        waiting: list[tuple[PhotoResult, int, InteractionState]] = []
        for result in results:
            if result.photo.pixels is None:
                continue
            photograph = as_photograph(result.photo.pixels, self.device)
            for place, prompted in enumerate(result.photo.job.image.objects):
                try:
                    waiting.append((result, place, prompted_state(photograph, prompted)))
                except ValueError as error:
                    result.failed[prompted.key] = str(error)
                    continue
                if len(waiting) == self.batch_size:
                    self._answer(waiting)
                    waiting = []
        self._answer(waiting)
        return results

    def _answer(self, waiting: list[tuple[PhotoResult, int, InteractionState]]) -> None:
        answered = self._loop.answer([state for _, _, state in waiting])
        for (result, place, _), state in zip(waiting, answered, strict=True):
            answer = Mask(state.answer)
            mask = answer.binary
            if mask.any():
                result.masks[place] = run_lengths.encode(mask)
                result.qualities[place] = round(answer.quality, 3)
            else:
                key = result.photo.job.image.objects[place].key
                result.failed[key] = "the answer has no pixel; give more prompts"


def prompted_state(photograph: Photograph, prompted: PromptedObject) -> InteractionState:
    """Return the state of an interaction with all prompts of an object, before the answer.

    Args:
        photograph: The image.
        prompted: The prompts; see `fitted_box` for a box over the edge of the image.

    Raises:
        ValueError: If a click or the box is outside the image.
    """
    box = None if prompted.box is None else fitted_box(prompted.box, photograph.size)
    return with_crop(begin(photograph, box=box, clicks=prompted.clicks))
