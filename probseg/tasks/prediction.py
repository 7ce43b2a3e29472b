"""Masks for many photographs: what `probseg predict` runs through Lightning's `Trainer`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import lightning as L
import numpy as np
import numpy.typing as npt

from probseg.data.prompts import PromptedImage, PromptedObject
from probseg.errors import DataError
from probseg.formats.regions import Region, as_region
from probseg.images import read_image
from probseg.interact import InteractionState, Mask, begin
from probseg.interact.photograph import Photograph, as_photograph
from probseg.interact.session import (
    Answer,
    answer_prompts,
    build_loop,
    prepare_model,
    with_steps,
)
from probseg.models import Network, Segmenter


class Job(NamedTuple):
    """A photograph that is to be answered."""

    image: PromptedImage  # its path inside the folder, and its prompts; none for classes
    path: Path
    digest: str  # of all that the answer depends on
    refusal: str | None = None  # why the photograph is not answered; None where it is


class Photo(NamedTuple):
    """A photograph, read."""

    job: Job
    pixels: npt.NDArray[np.uint8] | None  # RGB `(H, W, 3)`; None where it cannot be read
    error: str | None = None  # why it cannot be read


class PhotoResult(NamedTuple):
    """Result of one photograph."""

    photo: Photo
    masks: dict[int, Region]  # objects by their places among the prompts; none is empty
    labels: npt.NDArray[np.uint8] | None  # class numbers `(H, W)`; None of networks for clicks
    failed: dict[str, str]  # reasons by the keys of objects that could not be answered
    qualities: dict[int, float]  # `Mask.quality` by the places of objects


def read_photo(job: Job) -> Photo:
    """Read the photograph of a job; the reason why it cannot be read is its answer."""
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


class PhotoBatches:
    """Batches of photographs; the next one is read while the last one is answered.

    Threads read, as decoders release the interpreter's lock: nothing is copied between processes.
    As many photographs as a batch has are read ahead. Without jobs there is one empty batch.
    """

    def __init__(self, jobs: Sequence[Job], batch_size: int, threads: int) -> None:
        self.jobs = jobs
        self.batch_size = batch_size
        self.threads = threads

    def __len__(self) -> int:
        """Return the number of batches."""
        return max(1, math.ceil(len(self.jobs) / self.batch_size))

    def __iter__(self) -> Iterator[list[Photo]]:
        """Read the photographs, in order."""
        jobs = iter(self.jobs)
        with ThreadPoolExecutor(self.threads) as pool:
            reading = deque(pool.submit(read_photo, job) for job in islice(jobs, self.batch_size))
            for _ in range(len(self)):
                batch: list[Photo] = []
                while reading and len(batch) < self.batch_size:
                    batch.append(reading.popleft().result())
                    reading.extend(pool.submit(read_photo, job) for job in islice(jobs, 1))
                yield batch


class PredictionData(L.LightningDataModule):
    """Gives each process its share of the photographs, each of them to one process.

    The jobs are the same in all processes; see `PhotoBatches` for the other arguments.
    """

    def __init__(self, jobs: Sequence[Job], batch_size: int, threads: int) -> None:
        super().__init__()
        self.jobs = jobs
        self.batch_size = batch_size
        self.threads = threads

    def predict_dataloader(self) -> PhotoBatches:
        """Return the share of this process; the trainer must not divide it again.

        Where there are more processes than photographs, the others get an empty batch: processes
        wait for each other, and without any batch Lightning leaves steps of that out.
        """
        assert self.trainer is not None, "Lightning attaches it"
        share = self.jobs[self.trainer.global_rank :: self.trainer.world_size]
        return PhotoBatches(share, self.batch_size, self.threads)


class Prediction(L.LightningModule, ABC):
    """Base of the modules that answer photographs with a network, one for each task.

    The network is in evaluation mode, and has at most `batch_size` images in memory together.
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
    """

    def __init__(self, model: Segmenter, batch_size: int) -> None:
        answering = prepare_model(model, model.mean.device)
        super().__init__(answering, batch_size)
        self._loop = build_loop(answering, batch_size=batch_size)

    def predict_step(self, batch: list[Photo], batch_idx: int) -> list[PhotoResult]:
        """Answer the prompts of some photographs, `batch_size` objects at a time."""
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
        answered = answer_prompts(self._loop, [state for _, _, state in waiting])
        for (result, place, _), state in zip(waiting, answered, strict=True):
            answer = Mask(state.answer)
            region = as_region(answer.binary)
            if region.inside.size:  # a copy, as the view holds the mask of the photograph
                result.masks[place] = region._replace(inside=region.inside.copy())
                result.qualities[place] = round(answer.quality, 3)
            else:
                key = result.photo.job.image.objects[place].key
                result.failed[key] = "the answer has no pixel; give more prompts"


def prompted_state(photograph: Photograph, prompted: PromptedObject) -> InteractionState:
    """Return the state of an interaction with all prompts of an object, before the answer."""
    return with_steps(Answer(begin(photograph)), prompted.steps).state
