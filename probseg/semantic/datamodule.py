"""The data module of semantic segmentation: photographs to batches."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch import Tensor
from torch.utils.data import DataLoader

from probseg.data.loading import (
    TrainingData,
    as_list,
    check_names,
    refuse_none,
    stack_crops,
)
from probseg.data.transforms import Pair, check_scale, cut_window, rescale
from probseg.errors import DataError, require
from probseg.semantic.dataset import SemanticDataset, SemanticSample


class SemanticBatch(NamedTuple):
    """A batch of training crops.

    Args:
        images: RGB, uint8, shape `(B, 3, H, W)`.
        labels: Class numbers, uint8, shape `(B, H, W)`; 255 is ignored.
        seeds: Of the random numbers of each crop, int64, shape `(B,)`.
        names: Of the photographs.
        skipped: Faults of unreadable photographs.
    """

    images: Tensor
    labels: Tensor
    seeds: Tensor
    names: list[str]
    skipped: list[str]


class SemanticCrop:
    """Changes the scale of a photograph, cuts a fixed size out of it, and mirrors one in two.

    What lies outside the photograph is black in the image and ignored in the labels, so that it
    plays no part in the loss. Labels are never blended. The network fills whole photographs up
    with the mean colour instead: by less than its stride, on two sides, and what is predicted there
    is cut off. In both cases filled pixels only surround those that count; no class is learnt for
    black, and a strip of a few pixels has little to say in evaluation.

    The size is the side of the square result in pixels, or its height and width; the scale is the
    smallest and largest factor by which the photograph is scaled first.
    """

    def __init__(
        self, size: int | tuple[int, int] = 513, scale: tuple[float, float] = (0.5, 2.0)
    ) -> None:
        height, width = (size, size) if isinstance(size, int) else size
        require(min(height, width) >= 32, "size", "at least 32 pixels", size)
        check_scale(scale)
        self.size = (height, width)
        self.scale = scale

    def __call__(self, sample: SemanticSample, seed: int) -> Pair:
        """Cut an image `(height, width, 3)` and labels `(height, width)`, uint8, by a seed."""
        generator = np.random.default_rng(seed)
        scaled = rescale(sample.image, sample.labels, generator.uniform(*self.scale))
        return cut_window(*scaled, self.size, generator)


class SemanticDataModule(TrainingData):
    """Training crops, and whole photographs for evaluation.

    Args:
        train: Photographs to train on; several data sets are joined.
        val: Photographs of each validation, one data set or several.
        test: The same for testing.
        batch_size: Training crops per batch and device.
        crop_size: Side of the training crops in pixels, or their height and width.
        scale: Factor by which a training photograph is scaled before it is cropped, smallest and
            largest.
        num_workers: Processes that read and augment training images; 0 reads in the main process.
        max_skipped: Limit of training photographs that may turn out to be unreadable; others take
            their places. One more stops the training with a list of the files.

    Raises:
        DataError: If two sets of `val`, or two of `test`, have the same name.
        ValueError: If the size of the crops, their scale, or `max_skipped` is out of range.
    """

    def __init__(
        self,
        train: SemanticDataset | list[SemanticDataset] | None = None,
        val: SemanticDataset | list[SemanticDataset] | None = None,
        test: SemanticDataset | list[SemanticDataset] | None = None,
        batch_size: int = 16,
        crop_size: int | tuple[int, int] = 513,
        scale: tuple[float, float] = (0.5, 2.0),
        num_workers: int = 2,
        max_skipped: int = 10,
    ) -> None:
        super().__init__(batch_size, num_workers, max_skipped)
        self.save_hyperparameters()
        self.train = as_list(train)
        self.val = as_list(val)
        self.test = as_list(test)
        for role, sets in (("val", self.val), ("test", self.test)):
            check_names(role, [of.name for of in sets], "evaluate it in a run of its own")
        self.crop = SemanticCrop(crop_size, scale)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of all data sets, in the order of their numbers."""
        sets = [*self.train, *self.val, *self.test]
        if not sets:
            raise DataError("no data: set `data.train`, `data.val` or `data.test` to a data set")
        first = sets[0]
        for other in sets:
            if other.classes != first.classes:
                raise DataError(
                    f"expected data sets of the same classes, got {first.name} with "
                    f"{_summary(first.classes)} and {other.name} with {_summary(other.classes)}; "
                    "use them in runs of their own"
                )
        return first.classes

    def train_dataloader(self) -> DataLoader[SemanticBatch]:
        """Shuffled training crops; the last incomplete batch is left out."""
        collate = partial(stack_crops, SemanticBatch)
        return self.training_loader(self.train, self.crop, collate, of="photographs")

    def val_dataloader(self) -> list[DataLoader[list[SemanticSample]]]:
        """One loader per validation set, of lists of one photograph in its own size."""
        return [self._photographs(of) for of in self.val]

    def test_dataloader(self) -> list[DataLoader[list[SemanticSample]]]:
        """One loader per test set, of lists of one photograph in its own size."""
        refuse_none(self.test, "test", "test")
        return [self._photographs(of) for of in self.test]

    def _photographs(self, of: SemanticDataset) -> DataLoader[list[SemanticSample]]:
        processes = self.trainer.world_size if self.trainer else 1
        rank = self.trainer.global_rank if self.trainer else 0
        if len(of) < processes:  # one without any would skip the evaluation, and the others wait
            raise DataError(
                f"{of.name} has {len(of)} photographs for {processes} processes, but each needs at "
                "least one; use fewer devices"
            )
        # Reading a photograph takes a few per cent of segmenting it: no worker processes.
        return DataLoader(
            of,  # type: ignore[arg-type] # the stubs do not know of collate_fn
            batch_size=1,
            # each photograph once: torch's own sampler repeats some, which changes the score
            sampler=UnrepeatedDistributedSampler(of, processes, rank, shuffle=False),
            collate_fn=list,
        )


def _summary(classes: tuple[str, ...]) -> str:
    return f"{len(classes)} classes ({', '.join(classes[:3])}, ...)"
