"""Output files of the annotation server: a mask file for each object, and one COCO file."""

from __future__ import annotations

import io
import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from pycocotools import mask as coco_mask

import probseg
from probseg.annotate.photographs import Photograph
from probseg.annotate.store import Finished, Store, StoredObject
from probseg.errors import DataError
from probseg.images import LOSSLESS_SUFFIXES, object_ids, object_mask, read_labels
from probseg.paths import replacing
from probseg.types import IGNORE

ANNOTATIONS = "annotations.json"


def to_png(labels: npt.NDArray[np.uint8]) -> bytes:
    """Encode labels ``(H, W)`` (0 background, 1 object, 255 ignored) as a mask file.

    Without ignored pixels the object is 255, so that the file looks right in any viewer;
    `ImageMaskFolder` reads both.
    """
    values = labels if (labels == IGNORE).any() else labels * 255
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


def from_png(content: bytes) -> npt.NDArray[np.uint8]:
    """Decode the output of `to_png`."""
    values = np.asarray(Image.open(io.BytesIO(content)))
    return values.copy() if (values == 1).any() else (values // 255).astype(np.uint8)


def finished(labels: npt.NDArray[np.uint8]) -> Finished:
    """Encode labels ``(H, W)`` as they are stored; see `to_png`."""
    mask = np.asfortranarray((labels == 1).astype(np.uint8))
    counts = coco_mask.encode(mask)["counts"].decode()
    return Finished(to_png(labels), counts, int(mask.sum()))


def window(one: StoredObject, size: tuple[int, int]) -> list[int]:
    """Return ``[x, y, width, height]`` of a finished object in an image of ``(H, W)``."""
    found = coco_mask.toBbox({"size": list(size), "counts": one.counts})
    return [int(value) for value in found]


def mask_files(folder: Path, stems: Collection[str]) -> dict[str, list[Path]]:
    """Return the files in ``masks/`` of each photograph, as `ImageMaskFolder` pairs them.

    Args:
        folder: That ``masks/`` is in.
        stems: Of all photographs: ``cat_1.png`` is the mask of ``cat_1.jpg`` if there is one, and
            else the first one of ``cat.jpg``.
    """
    place = folder / "masks"
    inside = folder.resolve()
    found = defaultdict(list)
    for path in sorted(place.iterdir()) if place.is_dir() else ():
        picture = path.suffix.lower() in LOSSLESS_SUFFIXES and not path.name.startswith(".")
        if picture and Path(os.path.realpath(path)).is_relative_to(inside):
            owner = path.stem if path.stem in stems else re.sub(r"_\d+$", "", path.stem)
            found[owner].append(path)
    return found


def existing_masks(
    files: Sequence[Path], photograph: Photograph
) -> list[tuple[str, npt.NDArray[np.uint8]]]:
    """Read the objects in the mask files of a photograph.

    Returns:
        File and number, and labels ``(H, W)`` as `to_png` takes them, of each object.

    Raises:
        DataError: If a file cannot be read, or has another size.
    """
    found = []
    for path in files:
        labels = read_labels(path)
        if labels.shape != photograph.size:
            msg = f"{path}: has the size {labels.shape}, its photograph {photograph.size}"
            raise DataError(msg)
        if labels.any():
            for number in object_ids(labels, path):
                found.append((f"{path.name}#{number}", object_mask(labels, number)))
    return found


def write_masks(
    folder: Path, photograph: Photograph, objects: Sequence[StoredObject], stems: Collection[str]
) -> None:
    """Write ``masks/<stem>_<n>.png`` of the finished objects, and remove those that are no more.

    Files that were there before annotation began are copied to ``.probseg/masks/`` when the first
    change of their photograph is written. Numbers that would make a file the mask of another
    photograph, see `mask_files`, are left out.
    """
    masks = [one.mask for one in objects if one.mask is not None]
    names = (name for n in count(1) if (name := f"{photograph.stem}_{n}") not in stems)
    wanted = {f"{name}.png": mask for name, mask in zip(names, masks, strict=False)}
    kept = folder / ".probseg" / "masks"
    before = mask_files(folder, stems)[photograph.stem]
    marker = kept / f"{photograph.stem}.done"
    if not marker.exists():
        kept.mkdir(parents=True, exist_ok=True)
        for path in before:
            with replacing(kept / path.name) as copy:
                copy.write_bytes(path.read_bytes())
        marker.touch()
    for name, mask in wanted.items():
        path = folder / "masks" / name
        if not path.is_file() or path.read_bytes() != mask:
            with replacing(path) as unfinished:
                unfinished.write_bytes(mask)
    for path in before:
        if path.name not in wanted:
            path.unlink()


def write_coco(path: Path, photographs: Sequence[Photograph], store: Store) -> None:
    """Write all finished objects as COCO JSON with run lengths.

    Besides COCO's own keys, annotations have ``clicks``, ``seconds`` and ``model``. Objects without
    a label are of the category ``object``.
    """
    known = {photograph.name: photograph for photograph in photographs if photograph.size}
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
                    "area": one.area,
                    "bbox": coco_mask.toBbox(lengths).tolist(),
                    "iscrowd": 0,
                    "clicks": [step for step in one.steps[: one.cursor] if step["type"] == "click"],
                    "seconds": round(one.seconds, 1),
                    "model": one.model,
                }
            )
    content = {
        "info": {"description": f"annotated with probseg {probseg.__version__}"},
        "images": images,
        "categories": [{"id": n, "name": label} for label, n in categories.items()],
        "annotations": annotations,
    }
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(content), encoding="utf-8")
