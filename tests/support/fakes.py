"""Photographs and masks drawn at test time, in memory and in the folder layouts of real data."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.io import savemat
from torch import nn

from probseg.data.base import InteractiveDataset
from probseg.heads import DecoderMaps, FPNDecoder
from probseg.models import Segmenter, build
from probseg.types import IGNORE, Sample
from support.micro import described

Pixels = npt.NDArray[np.uint8]

COLOURS = ((220, 40, 40), (40, 200, 60), (50, 70, 230), (230, 210, 40))


def with_source(kind, **changes):
    """A published data set whose `Source` has other facts."""
    source = dataclasses.replace(kind.source, **changes)
    return type(kind.__name__, (kind,), {"source": source})


def draw_scene(
    height: int = 48, width: int = 64, objects: int = 1, seed: int = 0
) -> tuple[Pixels, Pixels]:
    """Draw coloured ellipses, which do not touch, on a grey, noisy ground.

    The image is RGB `(H, W, 3)`, the mask `(H, W)` has their numbers 1, 2, ... from left to right.
    """
    random = np.random.default_rng(seed)
    image = random.integers(90, 130, (height, width, 3), dtype=np.uint8)
    labels = np.zeros((height, width), dtype=np.uint8)
    y, x = np.mgrid[:height, :width]
    strip = width / objects
    for number in range(1, objects + 1):
        cx = (number - 0.5) * strip + random.uniform(-0.05, 0.05) * strip
        cy = height * random.uniform(0.45, 0.55)
        rx, ry = strip * random.uniform(0.25, 0.4), height * random.uniform(0.25, 0.4)
        inside = ((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 <= 1
        labels[inside] = number
        colour = np.array(COLOURS[(number - 1) % len(COLOURS)])
        image[inside] = np.clip(colour + random.integers(-15, 15, (inside.sum(), 3)), 0, 255)
    return image, labels


def draw_sample(height: int = 48, width: int = 64, seed: int = 0) -> Sample:
    """One object in memory."""
    image, labels = draw_scene(height, width, 1, seed)
    return Sample(image, labels, f"object{seed}", "fakes")


class Coarse(FPNDecoder):
    """A feature pyramid with auxiliary logits."""

    def __init__(self, inputs):
        super().__init__(inputs, channels=8)
        self.coarse = nn.Conv2d(8, 1, kernel_size=1)

    def forward(self, maps):
        features = super().forward(maps).features
        return DecoderMaps(features, self.coarse(features))


class FakeObjects(InteractiveDataset):
    """A data set in memory, every object on an image of its own."""

    def __init__(
        self, length: int = 4, size: tuple[int, int] = (48, 64), name: str = "fakes"
    ) -> None:
        self.name = name
        self.samples = [draw_sample(*size, seed=i)._replace(dataset=name) for i in range(length)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]


def save(array: Pixels, path: Path, **options: object) -> Path:
    """Write an array as an image file, whose format follows the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


def write_folder(
    root: Path,
    images: int = 3,
    objects: int = 1,
    style: Literal["ids", "files", "black_and_white"] = "ids",
    size: tuple[int, int] = (48, 64),
    suffix: str = ".jpg",
) -> Path:
    """Write `images/` and `masks/`.

    A photograph has one mask with the numbers of its objects ("ids"), one with 0 and 1 for each of
    them, `<stem>_<n>.png` ("files"), or one with 0 and 255.
    """
    for i in range(images):
        image, labels = draw_scene(*size, objects, seed=i)
        save(image, root / "images" / f"photo{i}{suffix}")
        if style == "files":
            for number in range(1, objects + 1):
                mask = (labels == number).astype(np.uint8)
                save(mask, root / "masks" / f"photo{i}_{number}.png")
        else:
            mask = labels if style == "ids" else np.where(labels > 0, 255, 0).astype(np.uint8)
            save(mask, root / "masks" / f"photo{i}.png")
    return root


def with_band(labels: Pixels, value: int) -> Pixels:
    """Give the object 255 and the pixels along its contour another value."""
    inside = np.pad(labels > 0, 1)
    shifted = [inside[1 + dy : -1 + dy or None, 1 + dx : -1 + dx or None]
               for dy in (-1, 0, 1) for dx in (-1, 0, 1)]  # fmt: skip
    band = np.any(shifted, axis=0) & ~np.all(shifted, axis=0)
    mask = np.where(labels > 0, 255, 0).astype(np.uint8)
    mask[band] = value
    return mask


def write_grabcut(root: Path, size: tuple[int, int] = (48, 64)) -> Path:
    """Write `data_GT/` and `boundary_GT/` with the archive's suffixes, and both scribbles.

    The photographs are `banana.jpg`, `Cross.JPG` and `llama.bmp`; the masks are all .bmp, and
    that of the llama has no band of 128. The first scribbles are a stroke of five pixels on the
    object and the uppermost row on the background; in the second, that of the object is wider.
    """
    for seed, name in enumerate(("banana.jpg", "Cross.JPG", "llama.bmp")):
        image, labels = draw_scene(*size, seed=seed)
        save(image, root / "data_GT" / name)
        mask = with_band(labels, 255 if name.startswith("llama") else 128)
        if name.startswith("llama"):
            mask = np.where(labels > 0, 255, 0).astype(np.uint8)
        save(mask, root / "boundary_GT" / f"{Path(name).stem}.bmp")
        row, column = np.argwhere(labels > 0).mean(axis=0).round().astype(int)
        for number, width in ((1, 1), (2, 3)):
            strokes = np.zeros(size, np.uint8)
            strokes[0] = 128
            strokes[row : row + width, column - 2 : column + 3] = 255
            save(strokes, root / f"scribbles_set{number}" / f"{Path(name).stem}.png")
    return root


def write_bsds500(
    root: Path, images: int = 3, annotators: int = 2, size: tuple[int, int] = (48, 64)
) -> Path:
    """Write `images/<split>/` and `labels/<split>/` of BSDS500, and the list of exclusions.

    Region 1 of every map is the ground, 2 and 3 are objects. The first training photograph, 100, is
    on the list.
    """
    for s, split in enumerate(("train", "val", "test")):
        for i in range(images):
            stem = str(100 * (s + 1) + i)
            image, labels = draw_scene(*size, 2, seed=i)
            save(image, root / "images" / split / f"{stem}.jpg")
            for k in range(annotators):
                regions = np.roll(labels + 1, k, axis=1)  # nobody draws exactly like another
                save(regions.astype(np.uint8), root / "labels" / split / f"{stem}_a{k}.png")
    (root / "splits").mkdir()
    (root / "splits" / "exclude_from_training.tsv").write_text("100\tGrabCut\n999\tBerkeley\n")
    return root


def write_berkeley(root: Path, size: tuple[int, int] = (48, 64)) -> Path:
    """Write `images/` and `masks/` with the names and colour masks of the archive.

    Photograph 8023 has one object, whose mask has stray values on both sides of the threshold;
    189011 has two, and the photograph is there under each of their names.
    """
    image, labels = draw_scene(*size, seed=0)
    mask = labels * 255
    mask[0, :2] = (10, 128)
    mask[labels > 0] = np.resize(np.uint8([255, 243, 197]), (labels > 0).sum())
    save(image, root / "images" / "8023.jpg")
    save(np.repeat(mask[..., None], 3, axis=2), root / "masks" / "8023.png")
    image, labels = draw_scene(*size, 2, seed=1)
    for number, stem in ((1, "189011"), (2, "189011a")):
        mask = np.where(labels == number, 255, 0).astype(np.uint8)
        save(image, root / "images" / f"{stem}.jpg")
        save(np.repeat(mask[..., None], 3, axis=2), root / "masks" / f"{stem}.png")
    return root


def write_sbd(root: Path, images: int = 3, size: tuple[int, int] = (48, 64)) -> Path:
    """Write `img/`, `inst/` and the lists of SBD, two objects per photograph.

    The photographs of `train` are 2008_000100 and following, those of `val` 2008_000200 and
    following; `train_noval` has all of `train` but the first.
    """
    for s, split in enumerate(("train", "val")):
        names = [f"2008_{100 * (s + 1) + i:06d}" for i in range(images)]
        for i, name in enumerate(names):
            image, labels = draw_scene(*size, 2, seed=i)
            save(image, root / "img" / f"{name}.jpg")
            write_instances(labels, root / "inst" / f"{name}.mat")
        (root / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
        if split == "train":
            (root / "train_noval.txt").write_text("".join(f"{name}\n" for name in names[1:]))
    return root


def write_instances(labels: Pixels, path: Path) -> Path:
    """Write a `.mat` file as SBD has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = int(labels.max())
    boundaries = np.empty((count, 1), dtype=object)
    for i in range(count):
        boundaries[i, 0] = np.zeros(labels.shape, dtype=np.uint8)
    categories = np.arange(1, count + 1)[:, None]
    struct = {"Segmentation": labels, "Boundaries": boundaries, "Categories": categories}
    savemat(path, {"GTinst": struct}, do_compression=True)
    return path


def write_lvis(root: Path, images: int = 3, size: tuple[int, int] = (48, 64)) -> Path:
    """Write `lvis_v1_train.json`, `lvis_v1_val.json` and their photographs, two objects each.

    The first photograph of `val` is in `train2017/`, all others are in their split's folder.
    The outlines are polygons, one per row, so that the masks are exactly what was drawn.
    """
    for s, split in enumerate(("train", "val")):
        listed, annotations = [], []
        for i in range(images):
            folder = "train2017" if split == "train" or i == 0 else "val2017"
            key = 1000 * (s + 1) + i
            image, labels = draw_scene(*size, 2, seed=i)
            save(image, root / folder / f"{key:012d}.jpg")
            url = f"http://images.cocodataset.org/{folder}/{key:012d}.jpg"
            listed.append({"id": key, "height": size[0], "width": size[1], "coco_url": url})
            for number in (1, 2):
                mask = labels == number
                annotations.append(
                    {
                        "area": float(mask.sum()),
                        "id": 2 * key + number,
                        "segmentation": polygons_of(mask),
                        "image_id": key,
                        "bbox": [0.0, 0.0, float(size[1]), float(size[0])],
                        "category_id": number,
                    }
                )
        content = {
            "info": {"version": "v1.0"},
            "annotations": annotations,
            "images": listed,
            "licenses": [],
            "categories": [{"id": 1, "name": "bat"}, {"id": 2, "name": "ball"}],
        }
        (root / f"lvis_v1_{split}.json").write_text(json.dumps(content))
    return root


def polygons_of(mask: npt.NDArray[np.bool_]) -> list[list[float]]:
    """Outline of a mask whose rows have one run each, as a polygon for each row."""
    rows = [(y, np.flatnonzero(row)) for y, row in enumerate(mask) if row.any()]
    spans = [(float(y), float(x[0]), float(x[-1] + 1)) for y, x in rows]
    return [[x0, y, x1, y, x1, y + 1, x0, y + 1] for y, x0, x1 in spans]


def ignore_border(mask: Pixels, width: int = 2) -> Pixels:
    """Copy of a mask whose outermost pixels are ignored."""
    result = mask.copy()
    result[:width] = result[-width:] = IGNORE
    result[:, :width] = result[:, -width:] = IGNORE
    return result


def micro_model(name: str = "micro_conv", **changes: object) -> Segmenter:
    """A network of a few hundred thousand parameters with random weights, in evaluation mode."""
    return build(described(name, **changes)).eval()
