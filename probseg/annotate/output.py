"""Output files of the annotation server: a mask file for each object, and one COCO file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask

from probseg.annotate.photographs import Photograph
from probseg.annotate.store import Finished, Store, StoredObject
from probseg.data.layout import sort_pictures
from probseg.errors import DataError
from probseg.formats import coco, png, run_lengths
from probseg.formats.mask_names import MaskNames
from probseg.masks import read_objects
from probseg.paths import leads_out, replacing
from probseg.picture_formats import LOSSLESS_SUFFIXES

ANNOTATIONS = "annotations.json"

NO_PHOTOGRAPH = "has no photograph of the same name; rename or remove it"


def finished(labels: npt.NDArray[np.uint8]) -> Finished:
    """Encode labels `(H, W)` as they are stored; see `probseg.formats.png.encode`."""
    mask = labels == 1
    return Finished(png.encode(labels), run_lengths.encode(mask)["counts"], int(mask.sum()))


def window(one: StoredObject, size: tuple[int, int] | None) -> list[int]:
    """Return `[x, y, width, height]` of a finished object in an image of `(H, W)`.

    It is empty where the image cannot be read: pycocotools ends the process for a height of 0.
    """
    if size is None:
        return [0, 0, 0, 0]
    found = coco_mask.toBbox({"size": list(size), "counts": one.counts})
    return [int(value) for value in found]


class MaskFiles(NamedTuple):
    """The files in `masks/`.

    Args:
        owned: Those of each photograph, by its stem.
        refused: Why the others are not read.
    """

    owned: Mapping[str, list[Path]]
    refused: Mapping[Path, str]


def mask_files(folder: Path, names: MaskNames) -> MaskFiles:
    """List the files in `masks/`; what is in them is not looked at.

    Args:
        folder: That `masks/` is in.
        names: Of the masks of all photographs.
    """
    files, refused = sort_pictures(folder / "masks", LOSSLESS_SUFFIXES, folder)
    owned: dict[str, list[Path]] = defaultdict(list)
    for stem, path in files.items():
        owner = names.owner(stem)
        if owner is None:
            refused[path] = NO_PHOTOGRAPH
        else:
            owned[owner].append(path)
    return MaskFiles(owned, refused)


def existing_masks(
    files: Sequence[Path], photograph: Photograph
) -> list[tuple[str, npt.NDArray[np.uint8]]]:
    """Read the objects in the mask files of a photograph.

    Returns:
        File and number of each object, and its labels `(H, W)` as `probseg.formats.png.encode`
        takes them.

    Raises:
        DataError: If a file cannot be read, or has another size.
    """
    found = []
    for path in files:
        drawn = read_objects(path)
        if drawn.labels.shape != photograph.size:
            msg = f"{path}: has the size {drawn.labels.shape}, its photograph {photograph.size}"
            raise DataError(msg)
        found += [(f"{path.name}#{number}", drawn.mask(number)) for number in drawn.numbers]
    return found


def write_masks(
    folder: Path, photograph: Photograph, objects: Sequence[StoredObject], names: MaskNames
) -> None:
    """Write `masks/<stem>_<n>.png` of the finished objects, and remove those that are no more.

    Files that were there before annotation began are copied to `.probseg/masks/` when the first
    change of their photograph is written, and refused files before one of them is replaced.

    Args:
        folder: That `masks/` is in.
        photograph: The photograph.
        objects: All of the photograph.
        names: Of the masks of all photographs.
    """
    masks = [one.mask for one in objects if one.mask is not None]
    stems = names.first(photograph.stem, len(masks))
    wanted = {f"{stem}.png": mask for stem, mask in zip(stems, masks, strict=True)}
    kept = _kept(folder)
    owned, refused = mask_files(folder, names)
    before = owned.get(photograph.stem, [])
    marker = kept / f"{photograph.stem}.done"
    if not marker.exists():
        for path in before:
            _keep(path, folder)
        with replacing(marker) as empty:  # in place of a link
            empty.touch()
    for name, mask in wanted.items():
        path = folder / "masks" / name
        if path in refused:  # it was not read, but has the name
            _keep(path, folder)
        if path.is_symlink() or not path.is_file() or path.read_bytes() != mask:
            with replacing(path) as unfinished:
                unfinished.write_bytes(mask)
    for path in before:
        if path.name not in wanted:
            path.unlink()


def keep_annotations(folder: Path) -> None:
    """Copy `annotations.json` of before annotation began to `.probseg/masks/`, if there is one."""
    _keep(folder / ANNOTATIONS, folder)


def _kept(folder: Path) -> Path:
    """Return the folder of the files of before annotation began."""
    return folder / ".probseg" / "masks"


def _keep(path: Path, folder: Path) -> None:
    """Copy a file of a folder to the files of before, unless it is a link to elsewhere."""
    if leads_out(path, folder) or not path.is_file():
        return
    kept = _kept(folder)
    with replacing(kept / path.name) as copy:
        copy.write_bytes(path.read_bytes())


def write_coco(path: Path, photographs: Sequence[Photograph], store: Store) -> None:
    """Write all finished objects as COCO JSON with run lengths.

    Besides COCO's own keys, annotations have `prompts` (the clicks, boxes and strokes that the
    mask is the answer to, in order; see `probseg.annotate.steps`), `seconds`, `model` and `score`
    (`Mask.quality`; not of masks that were read). Objects without a label are of the category
    `object`. Photographs that were rejected are left out.
    """
    rejected = {name for name, one in store.overview().items() if one.state == "rejected"}
    known = {p.name: p for p in photographs if p.size and p.name not in rejected}
    numbers = {name: n for n, name in enumerate(known, start=1)}
    images = [
        {"id": numbers[name], "file_name": name, "height": p.size[0], "width": p.size[1]}
        for name, p in known.items()
        if p.size is not None
    ]
    categories: dict[str, int] = {}
    annotations: list[dict[str, Any]] = []
    for name in store.names():
        for one in store.objects(name) if name in known else []:
            if one.counts is None:
                continue
            lengths = {"size": list(known[name].size or ()), "counts": one.counts}
            label = one.label or "object"
            annotations.append(
                {
                    "id": one.id,
                    "image_id": numbers[name],
                    "category_id": categories.setdefault(label, len(categories) + 1),
                    "segmentation": lengths,
                    **coco.measures(lengths),
                    "prompts": one.steps[: one.kept],
                    "seconds": round(one.seconds, 1),
                    "model": one.model,
                    **({} if one.quality is None else {"score": one.quality}),
                }
            )
    coco.write(path, images, annotations, coco.numbered(categories))
