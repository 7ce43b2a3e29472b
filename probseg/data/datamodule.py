"""Data modules: data sets to batches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import albumentations as A
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from probseg.data.base import InteractiveDataset
from probseg.data.folder import ImageMaskFolder
from probseg.data.layout import match_names
from probseg.data.loading import (
    CachedObjects,
    TrainingData,
    as_list,
    check_names,
    refuse_none,
    stack_crops,
)
from probseg.data.sampling import MixedOrder
from probseg.data.selection import checksum, held_out
from probseg.data.transforms import SMALLEST_CROP, TrainingCrop
from probseg.errors import DataError, check_least, require
from probseg.masks import Meaning
from probseg.texts import count, read_lines
from probseg.types import Sample


class TrainBatch(NamedTuple):
    """A batch of training crops.

    Args:
        images: RGB, uint8, shape `(B, 3, H, W)`.
        masks: uint8, shape `(B, H, W)`: 1 object, 0 background, 255 ignored.
        seeds: Of the random numbers of each crop and of its clicks, int64, shape `(B,)`.
        names: Of the objects.
        skipped: What was wrong with objects that could not be read.
    """

    images: Tensor
    masks: Tensor
    seeds: Tensor
    names: list[str]
    skipped: list[str]


class InteractiveDataModule(TrainingData):
    """Training crops, and whole objects for evaluation.

    Args:
        train: Objects to train on; several data sets are mixed.
        val: Objects that each validation clicks through, one data set or several.
        test: The same for testing.
        batch_size: Training crops per batch and device.
        crop_size: Side of the training crops in pixels.
        scale: Size of the padded object relative to the crop, smallest and largest.
        padding: Margin around the object relative to its box, smallest and largest.
        num_workers: Processes that read and augment training images; 0 reads in the main process.
        val_objects: Limit of objects of each validation set that a validation clicks through,
            evenly spread over it; None for all.
        eval_batch_size: Objects that an evaluation holds in memory and clicks through side by side,
            with all their trials. Their network calls are shared where sizes allow it.
        max_skipped: Limit of training objects that may turn out to be unreadable; others take their
            places. One more stops the training with a list of the files.
        proportions: The share of each training set in an epoch, e.g. `[0.7, 0.3]`; None for all
            objects of all sets. See `MixedOrder`.
        samples_per_epoch: Training crops per epoch of all sets and devices; None for as many as
            there are objects. RITM (Sofiiuk, Petrov and Konushin 2021) has 30000.
        augmentation: Changes crops and their masks, a transform of albumentations, instead of those
            of colours, sharpness and noise; see `probseg.data.transforms.Augmentation`.

    Raises:
        DataError: If two sets of `val`, or two of `test`, have the same name, or if
            `proportions` or `samples_per_epoch` do not fit the training sets.
        ValueError: If `val_objects` or `eval_batch_size` is below 1, or `max_skipped` is
            negative.
    """

    def __init__(
        self,
        train: InteractiveDataset | list[InteractiveDataset] | None = None,
        val: InteractiveDataset | list[InteractiveDataset] | None = None,
        test: InteractiveDataset | list[InteractiveDataset] | None = None,
        batch_size: int = 16,
        crop_size: int = 256,
        scale: tuple[float, float] = (0.6, 1.4),
        padding: tuple[float, float] = (0.1, 0.8),
        num_workers: int = 2,
        val_objects: int | None = None,
        eval_batch_size: int = 16,
        max_skipped: int = 10,
        proportions: list[float] | None = None,
        samples_per_epoch: int | None = None,
        augmentation: A.BasicTransform | A.BaseCompose | None = None,
    ) -> None:
        super().__init__(batch_size, num_workers, max_skipped)
        check_least("val_objects", val_objects)
        check_least("eval_batch_size", eval_batch_size)
        check_least("crop_size", crop_size, SMALLEST_CROP)
        self.save_hyperparameters()
        self.val_objects = val_objects
        self.eval_batch_size = eval_batch_size
        sets = as_list(train)
        self.order: MixedOrder | None = None
        if sets or proportions is not None:
            self.order = MixedOrder(sets, proportions, samples_per_epoch)
        self.train, self.val, self.test = sets, as_list(val), as_list(test)
        for dataset in (*self.train, *self.val, *self.test):
            if not type(dataset).__module__.startswith("probseg."):
                InteractiveDataset.check(dataset)
        for role, of_role in (("val", self.val), ("test", self.test)):
            check_names(
                role,
                [dataset.name for dataset in of_role],
                "give it another name, as ImageMaskFolder does by its `name` argument, or test it "
                "in a run of its own",
            )
        self.crop = TrainingCrop(crop_size, scale, padding, augmentation)

    def train_dataloader(self) -> DataLoader[TrainBatch]:
        """Shuffled training crops; the last incomplete batch is left out."""
        sets = [CachedObjects(dataset, self.crop) for dataset in self.train]
        collate = partial(stack_crops, TrainBatch)
        return self.training_loader(sets, self.crop, collate, of="objects", order=self.order)

    def val_dataloader(self) -> list[DataLoader[list[Sample]]]:
        """One loader of lists of objects per validation set."""
        return [
            _object_loader(spread(objects, self.val_objects), self.eval_batch_size)
            for objects in self.val
        ]

    def test_dataloader(self) -> list[DataLoader[list[Sample]]]:
        """One loader of lists of objects per test set."""
        refuse_none(self.test, "test", "test")
        return [_object_loader(objects, self.eval_batch_size) for objects in self.test]


_SMALL_EPOCH = 4  # batches of an epoch of a folder whose objects do not fill one
_LARGE_EPOCH = 200  # objects of an epoch of a folder that has more


class FolderDataModule(InteractiveDataModule):
    """Your own folder with `images/` and `masks/`, split into training and validation.

    See `split_folder`. The validation set is also the test set. A checkpoint has the names of the
    photographs that were trained on: whatever has become of the folder, none of them is validated
    or tested on by a run that continues, or is tested.

    Args:
        root: The folder; see `ImageMaskFolder` for its layout.
        val_fraction: Part of the images that is kept for validation, about: at least one image, and
            at least one is left for training. By default 15 %, and of less than 160 images as many
            as make some 24, up to a third: enough to say whether a training gained anything.
        split_seed: Decides, with their names, which images these are.
        group: What images of one video, patient or place have in common, which are on the same
            side: a regular expression that finds it in their names without suffix, such as
            `"^[^_]+"`, all before the first `_`; or a text file, relative to `root`, whose lines
            have the name of an image, a tab and its group. By default each image is by itself.
        batch_size: Training crops per batch and device.
        val_objects: Limit of objects that a validation clicks through, evenly spread; None for all.
        samples_per_epoch: Training crops per epoch of all devices. By default each object once;
            where the objects do not fill a batch, several times, in other crops: four batches; of
            more than 200 objects, others in each epoch: 200.
        masks: What masks mean, see `ImageMaskFolder`.
        **options: Other arguments of `InteractiveDataModule`.

    Raises:
        ValueError: If fewer than two images or groups have masks, `val_fraction` is not between 0
            and 1, `split_seed` is negative, or an image has no `group`.
        DataError: If all images that were held out were trained on in the meantime.
    """

    def __init__(
        self,
        root: Path | str,
        val_fraction: float | None = None,
        split_seed: int = 0,
        batch_size: int = 16,
        val_objects: int | None = 100,
        samples_per_epoch: int | None = None,
        group: str | None = None,
        masks: Meaning | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        train, val = split_folder(root, val_fraction, split_seed, group, masks)
        photographs, held_out = len(train.photographs), len(val.photographs)
        rank_zero_info(
            f"{root}: {count(len(train), 'object')} of {count(photographs, 'photograph')} to train "
            f"on, {len(val)} of {held_out} to validate on"
        )
        if samples_per_epoch is None and len(train) < batch_size:
            rounds = -(-_SMALL_EPOCH * batch_size // len(train))
            samples_per_epoch = rounds * len(train)
            rank_zero_info(
                f"{root}: an epoch has {count(len(train), 'training object')} "
                f"{count(rounds, 'time')}"
            )
        elif samples_per_epoch is None and len(train) > _LARGE_EPOCH:
            samples_per_epoch = _LARGE_EPOCH
        super().__init__(
            train,
            val,
            val,
            batch_size,
            val_objects=val_objects,
            samples_per_epoch=samples_per_epoch,
            **options,
        )
        self.root = root
        self._trained_on = {path.stem for path in train.photographs}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the base class, and the names of the photographs trained on."""
        return {**super().state_dict(), "trained_on": sorted(self._trained_on)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what a run trained on out of the validation and the test."""
        super().load_state_dict(state_dict)
        if "trained_on" not in state_dict:
            rank_zero_warn(
                f"{self.root}: the run began with an earlier version, which held out other "
                "photographs and did not say which: it has seen most of those that are held out now"
            )
        self._trained_on |= set(state_dict.get("trained_on", ()))
        (val,) = self.val
        assert isinstance(val, ImageMaskFolder), "a part of the folder"
        clean = {path for path in val.photographs if path.stem not in self._trained_on}
        left_out = len(val.photographs) - len(clean)
        if not clean:
            raise DataError(
                f"{self.root}: the run was trained on all that is held out now, "
                f"{count(left_out, 'photograph')}; add others, or test it with --folder on others"
            )
        if left_out:
            rank_zero_warn(
                f"{self.root}: {count(left_out, 'photograph')} of those held out now were trained "
                "on, and are left out: the folder or its settings have changed since"
            )
            self.val = self.test = [val.of_photographs(clean)]

    def test_dataloader(self) -> list[DataLoader[list[Sample]]]:
        """Say which photographs a test has; see the base class."""
        (val,) = self.test
        assert isinstance(val, ImageMaskFolder), "a part of the folder"
        rank_zero_info(
            f"the test has what a training on {self.root} holds out, "
            f"{count(len(val.photographs), 'photograph')}; --folder {self.root} instead of "
            "--data.root tests all of any folder"
        )
        return super().test_dataloader()


def split_folder(
    root: Path | str,
    val_fraction: float | None = None,
    split_seed: int = 0,
    group: str | None = None,
    masks: Meaning | None = None,
) -> tuple[ImageMaskFolder, ImageMaskFolder]:
    """Return the objects of a folder to train on, and those to validate on.

    The photographs are divided, at least one for each side, so that objects of one photograph or
    group are on the same side. Checksums of names decide, so that a photograph that is trained on
    stays there when others are added; see `FolderDataModule` for the arguments.
    """
    ok = val_fraction is None or 0 < val_fraction < 1
    require(ok, "val_fraction", "between 0 and 1, or None", val_fraction)
    check_least("split_seed", split_seed, 0)
    folder = ImageMaskFolder(root, masks=masks)
    members: dict[str, set[Path]] = defaultdict(set)
    listed = folder.root / (group or ".")
    column = _groups(listed, folder.photographs) if listed.is_file() else None
    forms = f"a pattern or a text file in {folder.root}"
    try:
        pattern = re.compile("^.*$" if group is None or column else group, re.DOTALL)
    except re.error as error:
        raise ValueError(f"`group` must be {forms}, got {group!r}: {error}") from error
    for path in folder.photographs:
        match = pattern.search(path.stem)
        name = match and match[0] if column is None else column.get(path.stem)
        if name is None:
            fits = f"{forms}, that fits each image"
            raise ValueError(f"`group` must be {fits}, got {group!r}: not {path.stem!r}")
        members[name].add(path)
    if len(members) < 2:
        of = "images" if group is None else f"groups of images (`group` {group!r})"
        raise ValueError(
            f"{root}: training and validation need at least 2 {of}, got {len(members)}"
        )
    places = {name: checksum(f"{split_seed}/{name}") / 2**256 for name in members}
    chosen = held_out(places, val_fraction)
    val = set().union(*(members[name] for name in chosen))
    train = set(folder.photographs) - val
    return folder.of_photographs(train), folder.of_photographs(val)


def _groups(path: Path, photographs: Sequence[Path]) -> dict[str, str]:
    """Read the groups of images, the second column of a list, by their stems."""
    known = ((photograph.stem, photograph) for photograph in photographs)
    matches, _ = match_names(path, "group", known)
    columns = {number: line.split("\t") for number, line in read_lines(path)}
    for number, cells in columns.items():
        if len(cells) < 2 or not cells[1].strip():
            raise DataError(
                f"{path}, line {number}: expected the name of an image, a tab and its group"
            )
    return {stem: columns[number][1].strip() for number, stem in matches.items()}


def spread(objects: Dataset[Sample], most: int | None) -> Dataset[Sample]:
    """Keep at most a given number of objects, evenly spread."""
    count = len(objects)  # type: ignore[arg-type]
    if most is None or count <= most:
        return objects
    return Subset(objects, [i * count // most for i in range(most)])


class _Blocks(Dataset[list[Sample]]):
    """Blocks of consecutive objects, independent of the number of processes.

    Batched kernels round by what is in the batch, so that its composition must not depend on the
    number of processes, nor on where an interrupted evaluation continues.
    """

    def __init__(self, objects: Dataset[Sample], size: int) -> None:
        self.objects = objects
        self.size = size

    def __len__(self) -> int:
        return -(-len(self.objects) // self.size)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> list[Sample]:
        last = min(len(self.objects), (index + 1) * self.size)  # type: ignore[arg-type]
        return [self.objects[i] for i in range(index * self.size, last)]


def _object_loader(objects: Dataset[Sample], size: int) -> DataLoader[list[Sample]]:
    # Reading an object takes a few per cent of clicking through it: no worker processes.
    blocks = _Blocks(objects, size)
    return DataLoader(blocks, batch_size=1, shuffle=False, collate_fn=itemgetter(0))
