"""Annotated images from one file format to another, with a list of what the other cannot hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.data.annotation_files import read_index
from probseg.data.folder import pair_masks
from probseg.data.layout import picture_files
from probseg.data.lists import read_classes
from probseg.errors import DataError
from probseg.formats import brush, coco, png, polygons, run_lengths, yolo
from probseg.formats.mask_names import mask_names, refuse_hidden
from probseg.images import check_same_size, image_size
from probseg.masks import read_objects
from probseg.metrics import iou
from probseg.paths import write_text
from probseg.texts import read_json, read_lines
from probseg.types import IGNORE

CLASSES = "classes.txt"
"""File with the names of the classes of YOLO, a line each, in the order of their numbers."""

NO_NAME = "object"
"""Class of objects of formats without names."""


class LabelledMask(NamedTuple):
    """One object.

    Args:
        mask: bool, shape `(H, W)`.
        label: Name of its class.
    """

    mask: npt.NDArray[np.bool_]
    label: str = NO_NAME


class AnnotatedImage(NamedTuple):
    """One image with its objects.

    Args:
        file: Path of the photograph inside the folder of images, with `/`.
        size: `(H, W)`.
        objects: In the order of the file.
    """

    file: str
    size: tuple[int, int]
    objects: list[LabelledMask]


@dataclass
class Losses:
    """Information that a conversion loses.

    Args:
        counts: Number of losses by their description.
        ious: IoU of each object that was written as outlines with what a reader makes of them.
    """

    counts: Counter[str] = field(default_factory=Counter)
    ious: list[float] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Describe the losses, one per line; none if there are none."""
        lines = [f"{what}: {count}" for what, count in self.counts.items()]
        changed = sum(iou < 1 for iou in self.ious)
        if changed:
            lines.append(
                f"masks changed by their outlines: {changed} of {len(self.ious)}, IoU of the round "
                f"trip {np.mean(self.ious):.4f} in the mean, {min(self.ious):.4f} at worst"
            )
        return lines


class Request(NamedTuple):
    """Options of a conversion.

    Args:
        images: Folder of the photographs, for formats that have neither their names nor sizes.
        tolerance: Of outlines, in pixels; see `probseg.formats.polygons.trace`.
    """

    images: Path | None = None
    tolerance: float = 1.0


Reader = Callable[[Path, Request, Losses], Iterator[AnnotatedImage]]
Writer = Callable[[Path, Iterable[AnnotatedImage], Request, Losses], None]


def read_pngs(place: Path, request: Request, losses: Losses) -> Iterator[AnnotatedImage]:
    """Read a folder of PNG masks, or its folder `masks/`, as `ImageMaskFolder` pairs them.

    `cat.png`, or `cat_1.png` and so on, are masks of `cat.jpg`: 0 is background, 1 to 254 are
    objects and 255 is ignored; with 0 and 255 only, 255 is the object.
    """
    photos = _photographs(request, "png")
    folder = place / "masks" if (place / "masks").is_dir() else place
    masks = {path.stem: path for path in sorted(folder.glob("*.png"))}
    files = pair_masks(photos, masks, place, next(iter(photos.values())).parent)
    for stem, photo in photos.items():
        size, objects = image_size(photo), []
        for path in files.get(stem, ()):
            labels, numbers = read_objects(path)
            check_same_size(size, labels.shape, photo, path)
            objects += [LabelledMask(labels == number) for number in numbers]
            if numbers != [IGNORE] and (labels == IGNORE).any():
                losses.counts["masks with ignored pixels, which become background"] += 1
        yield AnnotatedImage(photo.name, size, objects)


def write_binary(
    place: Path, images: Iterable[AnnotatedImage], request: Request, losses: Losses
) -> None:
    """Write `<stem>_<n>.png` for each object, 255 on it; see `probseg.formats.mask_names`.

    Names that would belong to another image are left out, those of the folder `request.images`
    too. The files get their names when all images are known.
    """
    place.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place, prefix=".") as unnamed:
        drawn: dict[str, list[Path]] = {}
        for number, (image, stem) in enumerate(_stems(images)):
            mine = drawn[str(stem)] = []
            for one in image.objects:
                _lose_label(one, losses)
                mine.append(Path(unnamed, f"{number}_{len(mine)}.png"))
                png.write_binary(mine[-1], one.mask)
        names = mask_names(request.images, drawn)
        for owner, paths in drawn.items():
            for path, name in zip(paths, names.first(owner, len(paths)), strict=True):
                target = place / f"{name}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)


def write_index(
    place: Path, images: Iterable[AnnotatedImage], request: Request, losses: Losses
) -> None:
    """Write `<stem>.png` for each image, with the numbers of its objects from 1 on.

    Raises:
        DataError: If an image has more than 254 objects.
    """
    for image, stem in _stems(images):
        if len(image.objects) >= IGNORE:
            msg = (
                f"{image.file}: has {len(image.objects)} objects, an index PNG holds 254 at most; "
                "convert to png"
            )
            raise DataError(msg)
        labels = np.zeros(image.size, dtype=np.uint8)
        for number, one in enumerate(image.objects, start=1):
            _lose_label(one, losses)
            if covered := int((labels[one.mask] > 0).sum()):
                losses.counts["pixels of several objects, which the last one gets"] += covered
            labels[one.mask] = number
        png.write_index(place / f"{stem}.png", labels)


def read_coco(place: Path, request: Request, losses: Losses) -> Iterator[AnnotatedImage]:
    """Read a JSON file in the format of COCO; polygons are drawn as pycocotools does."""
    index = read_index("COCO", place, lambda entry: str(entry["file_name"]))
    names = index.categories()
    if strays := int((index.owners < 0).sum()):
        losses.counts["annotations of images that the file does not list"] += strays
    if crowds := int(index.crowds.sum()):
        losses.counts["crowds, which become objects"] += crowds
    order = np.argsort(index.owners, kind="stable")
    borders = np.searchsorted(index.owners[order], np.arange(len(index.image_sizes) + 1))
    for owner, (begin, end) in enumerate(pairwise(borders.tolist())):
        height, width = index.image_sizes[owner].tolist()
        objects = []
        for number in order[begin:end].tolist():
            try:
                mask = index.mask(number, (height, width)).astype(np.bool_)
            except ValueError as error:
                msg = f"{place}: annotation {index.ids[number]} cannot be drawn ({error})"
                raise DataError(msg) from error
            kind = int(index.kinds[number])
            objects.append(LabelledMask(mask, names[kind] if kind >= 0 else NO_NAME))
        yield AnnotatedImage(index.file(owner), (height, width), objects)


def _coco_writer(outline: Callable[[LabelledMask, Request, Losses], Any]) -> Writer:
    """Return a writer of COCO files whose `segmentation` a function makes."""

    def write(
        place: Path, images: Iterable[AnnotatedImage], request: Request, losses: Losses
    ) -> None:
        listed: list[coco.Entry] = []
        annotations: list[coco.Entry] = []
        categories: dict[str, int] = {}
        for key, image in enumerate(images, start=1):
            height, width = image.size
            listed.append({"id": key, "file_name": image.file, "height": height, "width": width})
            for one in image.objects:
                segmentation = outline(one, request, losses)
                if segmentation is None:
                    continue
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": key,
                        "category_id": categories.setdefault(one.label, len(categories) + 1),
                        "segmentation": segmentation,
                        **coco.measures(run_lengths.encode(one.mask)),
                    }
                )
        coco.write(place, listed, annotations, coco.numbered(categories))

    return write


def _coco_polygons(one: LabelledMask, request: Request, losses: Losses) -> list[list[float]] | None:
    parts = _traced(one, request, losses)
    if not parts:
        return None
    if any(part.holes for part in parts):
        losses.counts["objects whose holes are filled, as polygons of COCO have none"] += 1
    outlines = polygons.to_coco(parts)
    drawn = polygons.from_coco(outlines, (one.mask.shape[0], one.mask.shape[1]))
    losses.ious.append(iou(drawn, one.mask.astype(np.uint8)))
    return outlines


def _traced(one: LabelledMask, request: Request, losses: Losses) -> list[polygons.Polygon]:
    """Return the outlines of an object; none where it is left out."""
    parts = polygons.trace(one.mask, request.tolerance)
    if not parts:
        losses.counts["objects without an outline, left out"] += 1
    return parts


def read_yolo(place: Path, request: Request, losses: Losses) -> Iterator[AnnotatedImage]:
    """Read a folder of YOLO-seg texts, with the names of the classes in `classes.txt`."""
    photos = _photographs(request, "yolo")
    listing = place / CLASSES
    names = read_classes(listing) if listing.is_file() else []
    for stem, photo in photos.items():
        path, size = place / f"{stem}.txt", image_size(photo)
        objects = []
        for row, line in read_lines(path) if path.is_file() else ():
            try:
                number, mask = yolo.decode(line, size)
            except ValueError as error:
                msg = f"{path}, line {row}: {error}"
                raise DataError(msg) from error
            name = names[number] if number < len(names) else f"{NO_NAME} {number}"
            objects.append(LabelledMask(mask, name))
        yield AnnotatedImage(photo.name, size, objects)


def write_yolo(
    place: Path, images: Iterable[AnnotatedImage], request: Request, losses: Losses
) -> None:
    """Write `<stem>.txt` for each image, and `classes.txt`."""
    classes: dict[str, int] = {}
    for image, stem in _stems(images):
        lines = []
        for one in image.objects:
            parts = _traced(one, request, losses)
            if not parts:
                continue
            number = classes.setdefault(one.label, len(classes))
            lines.append(yolo.encode(number, parts, image.size))
            _, drawn = yolo.decode(lines[-1], image.size)
            losses.ious.append(iou(drawn, one.mask.astype(np.uint8)))
        write_text(place / f"{stem}.txt", "".join(f"{line}\n" for line in lines))
    write_text(place / CLASSES, "".join(f"{name}\n" for name in classes))


def read_label_studio(place: Path, request: Request, losses: Losses) -> Iterator[AnnotatedImage]:
    """Read tasks exported as JSON; of each, the brush labels of its first annotation."""
    try:
        for task in read_json(place):
            file = PurePosixPath(str(task["data"]["image"])).name
            annotations = task["annotations"]
            if len(annotations) > 1:
                losses.counts["annotations of a task after its first"] += len(annotations) - 1
            results = annotations[0]["result"] if annotations else []
            brushed = [result for result in results if result["type"] == "brushlabels"]
            if len(brushed) < len(results):
                others = len(results) - len(brushed)
                losses.counts["results that are not drawn with the brush"] += others
            if not brushed:
                losses.counts["tasks without a mask, whose size is not known"] += 1
                continue
            size = (brushed[0]["original_height"], brushed[0]["original_width"])
            objects = [
                LabelledMask(
                    brush.decode(result["value"]["rle"], size),
                    (result["value"]["brushlabels"] or [NO_NAME])[0],
                )
                for result in brushed
            ]
            yield AnnotatedImage(file, size, objects)
    except DataError:  # which names the file
        raise
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{place}: cannot be read as tasks of Label Studio ({error!r}); export it as JSON"
        raise DataError(msg) from error


def write_label_studio(
    place: Path, images: Iterable[AnnotatedImage], request: Request, losses: Losses
) -> None:
    """Write tasks for an import into Label Studio, with brush labels as their annotations."""
    tasks = []
    for image in images:
        height, width = image.size
        results = [
            {
                "id": f"mask{number}",
                "from_name": "tag",
                "to_name": "image",
                "type": "brushlabels",
                "original_width": width,
                "original_height": height,
                "image_rotation": 0,
                "value": {
                    "format": "rle",
                    "rle": brush.encode(one.mask),
                    "brushlabels": [one.label],
                },
            }
            for number, one in enumerate(image.objects, start=1)
        ]
        if not results:
            losses.counts["sizes of images without objects"] += 1
        tasks.append({"data": {"image": image.file}, "annotations": [{"result": results}]})
    write_text(place, json.dumps(tasks))


READERS: dict[str, Reader] = {
    "png": read_pngs,
    "index": read_pngs,
    "coco": read_coco,
    "yolo": read_yolo,
    "label-studio": read_label_studio,
}
WRITERS: dict[str, Writer] = {
    "png": write_binary,
    "index": write_index,
    "coco": _coco_writer(lambda one, request, losses: run_lengths.encode(one.mask)),
    "coco-uncompressed": _coco_writer(
        lambda one, request, losses: run_lengths.encode(one.mask, compressed=False)
    ),
    "coco-polygons": _coco_writer(_coco_polygons),
    "yolo": write_yolo,
    "label-studio": write_label_studio,
}
"""Formats by name. All of COCO are read as `coco`."""


def _photographs(request: Request, name: str) -> dict[str, Path]:
    """Return the photographs by their stems.

    Raises:
        DataError: If there are none.
    """
    found = {} if request.images is None else picture_files(request.images)
    if not found:
        msg = (
            f"`images` must be the folder of the photographs, got {request.images}: the format "
            f"{name} has neither their names nor their sizes"
        )
        raise DataError(msg)
    return found


def _stems(images: Iterable[AnnotatedImage]) -> Iterator[tuple[AnnotatedImage, PurePosixPath]]:
    """Yield images with their paths without suffix.

    Raises:
        DataError: If two have the same, or one is hidden.
    """
    seen: set[PurePosixPath] = set()
    for image in images:
        refuse_hidden(image.file)
        stem = PurePosixPath(image.file).with_suffix("")
        if stem in seen:
            msg = f"{image.file}: another image is called {stem}, too; rename one of them"
            raise DataError(msg)
        seen.add(stem)
        yield image, stem


def _lose_label(one: LabelledMask, losses: Losses) -> None:
    if one.label != NO_NAME:
        losses.counts["names of classes of objects"] += 1
