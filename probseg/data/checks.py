"""Checks of all files of a data set, with a list of all faults."""

from __future__ import annotations

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.data.base import InteractiveDataset, PublishedDataset
from probseg.data.cache import in_threads
from probseg.data.folder import ImageMaskPairs, check_layout, count_objects, images_folder, in_doubt
from probseg.data.layout import sort_pictures, unread_folders
from probseg.data.published import Full
from probseg.errors import DataError, DatasetNotFoundError
from probseg.formats.mask_names import mask_names
from probseg.images import check_same_size, image_size, read_image
from probseg.masks import DoubtError, Meaning, read_objects
from probseg.paths import Progress, silent
from probseg.picture_formats import IMAGE_SUFFIXES, LOSSLESS_SUFFIXES, refuse_only_unread
from probseg.types import IGNORE, Sample

TINY = 100  # objects with fewer pixels are reported

Pixels = npt.NDArray[np.uint8]


class Problem(NamedTuple):
    """A fault or a notice."""

    path: str  # the file or folder
    text: str  # what is wrong with it
    # false for what complete data sets are known to have, such as tiny objects
    serious: bool = True


class Report(NamedTuple):
    """Result of checking a data set."""

    dataset: str  # its name, with the split if there is one
    root: str  # its folder
    objects: int  # number of objects that could be read
    photos: int  # number of photographs that could be read
    # number of photographs that could be read and have objects that could be read
    with_objects: int
    # what was found, the serious first, each part in the order of the paths
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

    Reported are files without partner, files that cannot be read, masks of another size or with
    unexpected values, objects without a pixel, and numbers of objects and photographs that differ
    from the complete set; and, not as serious, objects of less than `TINY` pixels, objects without
    background, and photographs that are there twice.
    """
    name = dataset.name if split is None else f"{dataset.name} {split}"
    problems: list[Problem] = []
    checks: list[Callable[[], _Findings]] = []
    if issubclass(dataset, ImageMaskPairs):
        folders = dataset.image_folder, dataset.mask_folder
        images, pairs = _pairs(root, folders, IMAGE_SUFFIXES, dataset.photo, problems, dataset.name)
        for image in sorted(set(images) - {image for image, _ in pairs}):
            problems.append(Problem(str(image), f"has no mask in {dataset.mask_folder}/"))
        read = dataset.read_mask
        checks = [
            partial(_check_files, image, [mask], lambda p: {"object": read(p)}, dataset.photo(stem))
            for image, mask, stem in ((*pair, pair[1].stem) for pair in pairs)
        ]
    if not problems:
        try:
            data = dataset.complete(root, split)
        except DataError as error:
            problems.append(_as_problem(error, root))
        else:
            checks = checks or [partial(_check_sample, data, root, i) for i in range(len(data))]
    results = in_threads(lambda check: check(), checks, name, progress)
    full = dataset.source.full.get(split or "", Full())
    return _report(name, root, problems, results, full)


def check_folder(root: Path, progress: Progress = silent, meaning: Meaning | None = None) -> Report:
    """Look at all files of a folder of photographs and masks; see `ImageMaskFolder`.

    The problems are those of `check_dataset`, all of them serious except for an image without mask
    and a mask without an object, which are not used.
    """
    problems: list[Problem] = []
    check_layout(root)
    place = root / images_folder(root)
    names = mask_names(place)
    images, pairs = _pairs(
        root,
        (images_folder(root), "masks"),
        LOSSLESS_SUFFIXES,
        lambda stem: names.owner(stem) or stem,
        problems,
    )
    masks: dict[Path, list[Path]] = defaultdict(list)
    for image, mask in pairs:
        masks[image].append(mask)
    unused = sorted(set(images) - set(masks))
    notes = [Problem(str(image), "has no mask and is not used", False) for image in unused]
    folders = unread_folders(place, root / "masks")
    notes += [Problem(str(path), reason, False) for path, reason in folders.items()]

    @cache
    def in_doubt_by_others() -> list[Path]:
        rows = []
        for pair in pairs:
            with contextlib.suppress(DataError):
                areas = count_objects(meaning, pair)
                rows += [(pair, number, 1) for number in np.flatnonzero(areas).tolist()]
        return in_doubt(rows)

    def read(path: Path) -> dict[str, Pixels]:
        try:
            objects = read_objects(path, meaning)
        except DoubtError:
            if path in in_doubt_by_others():
                raise
            objects = read_objects(path, "numbers")
        return {f"object {number}": objects.mask(number) for number in objects.numbers}

    checks = [partial(_check_files, image, masks[image], read, image.stem) for image in images]
    results = in_threads(lambda check: check(), checks, root.name, progress)
    return _report("folder", root, problems, results, None, notes)


def _pairs(
    root: Path,
    folders: tuple[str, str],
    suffixes: tuple[str, ...],
    photo: Callable[[str], str],
    problems: list[Problem],
    dataset: str = "folder",
) -> tuple[list[Path], list[tuple[Path, Path]]]:
    """Return the images of a data set, and image and mask of each mask that has an image."""
    files: list[dict[str, Path]] = []
    for folder, accepted in zip(folders, (IMAGE_SUFFIXES, suffixes), strict=True):
        pictures, refused = sort_pictures(root / folder, accepted, root)
        problems += [Problem(str(path), reason) for path, reason in refused.items()]
        if not pictures:
            refuse_only_unread(root / folder)
            raise DatasetNotFoundError(
                dataset,
                root,
                f"pictures in the folder {folder}/",
                "Name the folder that has it, or fetch a data set of the field with `probseg data "
                "fetch`.",
            )
        files.append(pictures)
    images, masks = files
    pairs = []
    for stem, path in masks.items():
        owner = images.get(stem, images.get(photo(stem)))
        if owner is None:
            problems.append(Problem(str(path), "has no image of the same name"))
        else:
            pairs.append((owner, path))
    return list(images.values()), pairs


def _check_files(
    image_path: Path, mask_paths: list[Path], read: Callable[[Path], dict[str, Pixels]], photo: str
) -> _Findings:
    """Read a photograph and its masks, and continue with the others if one is broken."""
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
    results: Iterable[_Findings],
    full: Full | None,
    notes: Sequence[Problem] = (),
) -> Report:
    """Combine the findings; in a folder, without `full`, all but `notes` are serious."""
    unused = [*notes]
    faults = dict.fromkeys(problems)  # a broken file is met once for each of its objects
    photos: set[str] = set()
    with_objects: set[str] = set()
    first: dict[bytes, _Findings] = {}
    objects = 0
    for result in results:
        faults.update(dict.fromkeys(result.problems))
        objects += result.objects
        unused += result.notes
        if result.digest is None:
            continue
        photos.add(result.photo)
        if result.objects:
            with_objects.add(result.photo)
        twin = first.setdefault(result.digest, result)
        if twin.photo != result.photo:
            faults[Problem(result.path, f"is the same picture as {twin.path}", False)] = None
    if full is None:
        faults = {problem._replace(serious=True): None for problem in faults}
    else:
        for what, number, expected in zip(Full._fields, (objects, len(photos)), full, strict=True):
            if expected is not None and number != expected:
                text = f"{number} {what}, but the complete set has {expected}"
                faults[Problem(str(root), text)] = None
    ordered = sorted([*faults, *unused], key=lambda problem: (not problem.serious, problem.path))
    return Report(name, str(root), objects, len(photos), len(with_objects), ordered)
