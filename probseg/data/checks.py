"""Checks of all files of a data set, with a list of all faults."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.data.base import InteractiveDataset, PublishedDataset
from probseg.data.folder import check_layout, images_folder
from probseg.data.layout import sort_pictures, unread_folders
from probseg.data.pairs import ImageMaskPairs
from probseg.data.published import Full
from probseg.data.reading import in_threads
from probseg.errors import DataError, DatasetNotFoundError
from probseg.formats.mask_names import mask_names
from probseg.images import check_same_size, image_size, read_image
from probseg.masks import read_objects
from probseg.paths import Progress, silent
from probseg.picture_formats import IMAGE_SUFFIXES, LOSSLESS_SUFFIXES, refuse_only_unread
from probseg.types import IGNORE, Sample

TINY = 100
"""Objects with fewer pixels are reported."""

Pixels = npt.NDArray[np.uint8]


class Problem(NamedTuple):
    """A fault or a notice.

    Args:
        path: The file or folder.
        text: What is wrong with it.
        serious: False for what complete data sets are known to have, such as tiny objects.
    """

    path: str
    text: str
    serious: bool = True


class Report(NamedTuple):
    """Result of checking a data set.

    Args:
        dataset: Its name, with the split if there is one.
        root: Its folder.
        objects: Number of objects that could be read.
        photos: Number of photographs that could be read.
        with_objects: Number of photographs that could be read and have objects that could be read.
        problems: What was found, the serious first, each part in the order of the paths.
    """

    dataset: str
    root: str
    objects: int
    photos: int
    with_objects: int
    problems: list[Problem]

    @property
    def sound(self) -> bool:
        """Whether nothing serious was found."""
        return not any(problem.serious for problem in self.problems)


class _Findings(NamedTuple):
    """Findings about one photograph with its masks, or about one object."""

    photo: str
    path: str
    digest: bytes | None  # of the photograph's pixels; None if it cannot be read
    objects: int
    problems: list[Problem]
    notes: Sequence[Problem] = ()  # of what is not used


def check_dataset(
    dataset: type[PublishedDataset],
    root: Path,
    split: str | None = None,
    progress: Progress = silent,
) -> Report:
    """Check all objects of a published data set.

    Found are files without partner, files that cannot be read, masks of another size or with
    unexpected values, objects without a pixel, and numbers of objects and photographs that differ
    from the complete set; and, not as serious, objects of less than `TINY` pixels, objects without
    background, and photographs that are there twice.
    """
    name = dataset.name if split is None else f"{dataset.name} {split}"
    problems: list[Problem] = []
    checks: list[Callable[[], _Findings]] = []
    if issubclass(dataset, ImageMaskPairs):
        checks = _pair_checks(dataset, root, problems)
    if not problems:
        try:
            data = dataset.complete(root, split)
        except DataError as error:
            problems.append(_as_problem(error, root))
        else:
            checks = checks or [partial(_check_sample, data, root, i) for i in range(len(data))]
    seen = in_threads(lambda check: check(), checks, name, progress)
    full = dataset.source.full.get(split or "", Full())
    return _report(name, root, problems, seen, full)


def check_folder(root: Path, progress: Progress = silent) -> Report:
    """Look at all files of a folder of photographs and masks; see `ImageMaskFolder`.

    The problems are those of `check_dataset`, all of them serious except for an image without mask
    and a mask without an object, which are not used.
    """
    problems: list[Problem] = []
    check_layout(root)
    images = _files(root, images_folder(root), IMAGE_SUFFIXES, problems)
    masks = _files(root, "masks", LOSSLESS_SUFFIXES, problems)
    names = mask_names(root / images_folder(root))
    partners = _partners(images, masks, lambda stem: names.owner(stem) or stem, problems)
    unused = sorted(set(images.values()) - {image for image, _ in partners})
    notes = [Problem(str(image), "has no mask and is not used", False) for image in unused]
    folders = unread_folders(root / images_folder(root), root / "masks")
    notes += [Problem(str(path), reason, False) for path, reason in folders.items()]
    owned: dict[Path, list[Path]] = defaultdict(list)
    for image, mask in partners:
        owned[image].append(mask)
    checks = [
        partial(_check_files, image, owned[image], _read_objects, image.stem)
        for image in images.values()
    ]
    seen = in_threads(lambda check: check(), checks, root.name, progress)
    return _report("folder", root, problems, seen, None, notes)


def _pair_checks(
    kind: type[ImageMaskPairs], root: Path, problems: list[Problem]
) -> list[Callable[[], _Findings]]:
    """Pair the files of a test set, and report those without a partner."""
    images = _files(root, kind.image_folder, IMAGE_SUFFIXES, problems, kind.name)
    masks = _files(root, kind.mask_folder, IMAGE_SUFFIXES, problems, kind.name)
    partners = _partners(images, masks, kind.photo, problems)
    for image in sorted(set(images.values()) - {image for image, _ in partners}):
        problems.append(Problem(str(image), f"has no mask in {kind.mask_folder}/"))
    return [
        partial(
            _check_files,
            image,
            [mask],
            lambda path: {"object": kind.read_mask(path)},
            kind.photo(mask.stem),
        )
        for image, mask in partners
    ]


def _files(
    root: Path,
    folder: str,
    suffixes: tuple[str, ...],
    problems: list[Problem],
    dataset: str = "folder",
) -> dict[str, Path]:
    """Map the stems of the picture files of a folder to their paths."""
    place = root / folder
    found, refused = sort_pictures(place, suffixes, root)
    problems += [Problem(str(path), reason) for path, reason in refused.items()]
    if not found:
        refuse_only_unread(place)
        raise DatasetNotFoundError(
            dataset,
            root,
            f"pictures in the folder {folder}/",
            "Name the folder that has it, or fetch a data set of the field with `probseg data "
            "fetch`.",
        )
    return found


def _partners(
    images: Mapping[str, Path],
    masks: Mapping[str, Path],
    photo: Callable[[str], str],
    problems: list[Problem],
) -> list[tuple[Path, Path]]:
    """Return image and mask of each mask that has an image."""
    pairs = []
    for stem, path in masks.items():
        owner = images.get(stem, images.get(photo(stem)))
        if owner is None:
            problems.append(Problem(str(path), "has no image of the same name"))
        else:
            pairs.append((owner, path))
    return pairs


def _read_objects(path: Path) -> dict[str, Pixels]:
    """Read the objects of a mask of a folder."""
    found = read_objects(path)
    return {f"object {number}": found.mask(number) for number in found.numbers}


def _check_files(
    image_path: Path, mask_paths: list[Path], read: Callable[[Path], dict[str, Pixels]], photo: str
) -> _Findings:
    """Read a photograph and its masks, and go on with the others if one is broken."""
    problems: list[Problem] = []
    notes: list[Problem] = []
    image, objects = None, 0
    try:
        image = read_image(image_path)
    except DataError as error:
        problems.append(_as_problem(error, image_path))
    for path in mask_paths:
        try:
            masks = read(path)
            if image is not None:
                check_same_size(image.shape, image_size(path), image_path, path)
        except DataError as error:
            problems.append(_as_problem(error, path))
            continue
        if not masks:
            notes.append(Problem(str(path), "has no object and is not used", False))
        for name, mask in masks.items():
            problems += _problems_of(mask, str(path), name)
        objects += len(masks) if image is not None else 0
    digest = None if image is None else _digest(image)
    return _Findings(photo, str(image_path), digest, objects, problems, notes)


def _check_sample(data: InteractiveDataset, root: Path, index: int) -> _Findings:
    """Read one object by the data set itself."""
    try:
        sample: Sample = data[index]
    except DataError as error:
        return _Findings("", "", None, 0, [_as_problem(error, root)])
    path = f"{root} {sample.name}"
    problems = _problems_of(sample.mask, path, "object")
    if not np.isin(sample.mask, (0, 1, IGNORE)).all():
        problems.append(Problem(path, f"has the values {np.unique(sample.mask).tolist()[:5]}"))
    photo = sample.photo if sample.photo is not None else sample.name
    return _Findings(photo, f"{root} {photo}", _digest(sample.image), 1, problems)


def _problems_of(mask: Pixels, path: str, name: str) -> list[Problem]:
    """List what is odd about the pixels of one object."""
    area = int((mask == 1).sum())
    if area == 0:
        return [Problem(path, f"{name}: has no pixel")]
    problems = []
    if area < TINY:
        problems.append(Problem(path, f"{name}: has {area} pixels, fewer than {TINY}", False))
    if not (mask == 0).any():
        problems.append(Problem(path, f"{name}: fills the image, there is no background", False))
    return problems


def _digest(image: Pixels) -> bytes:
    return hashlib.blake2b(repr(image.shape).encode() + image.tobytes(), digest_size=16).digest()


def _as_problem(error: DataError, path: Path) -> Problem:
    """Turn an error into a problem; most messages begin with the file."""
    file, separator, text = str(error).partition(": ")
    return Problem(file, text) if separator else Problem(str(path), str(error))


def _report(
    name: str,
    root: Path,
    problems: list[Problem],
    seen: Iterable[_Findings],
    full: Full | None,
    notes: Sequence[Problem] = (),
) -> Report:
    """Combine the findings; in a folder, without `full`, all but `notes` are serious."""
    unused = [*notes]
    found = dict.fromkeys(problems)  # a broken file is met once for each of its objects
    photos: set[str] = set()
    with_objects: set[str] = set()
    first: dict[bytes, _Findings] = {}
    objects = 0
    for one in seen:
        found.update(dict.fromkeys(one.problems))
        objects += one.objects
        unused += one.notes
        if one.digest is None:
            continue
        photos.add(one.photo)
        if one.objects:
            with_objects.add(one.photo)
        twin = first.setdefault(one.digest, one)
        if twin.photo != one.photo:
            found[Problem(one.path, f"is the same picture as {twin.path}", False)] = None
    if full is None:
        found = {problem._replace(serious=True): None for problem in found}
    else:
        for what, number, wanted in zip(Full._fields, (objects, len(photos)), full, strict=True):
            if wanted is not None and number != wanted:
                text = f"{number} {what}, but the complete set has {wanted}"
                found[Problem(str(root), text)] = None
    ordered = sorted([*found, *unused], key=lambda problem: (not problem.serious, problem.path))
    return Report(name, str(root), objects, len(photos), len(with_objects), ordered)
