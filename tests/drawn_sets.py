"""Test sets of the field, drawn at test time in the folder layouts and masks of their archives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from fakes import Pixels, draw_scene, save, with_band
from PIL import Image


def write_davis(root: Path, size: tuple[int, int] = (48, 64)) -> Path:
    """Write ``img/`` and ``gt/``: three frames whose masks hold the colours of a palette.

    Frame 000 has two objects of value 128, 001 (with the suffix .JPG) one of them, and 002 one in
    the bright colour of the palette's last entry.
    """
    frames = {
        "000.jpg": ((128, 0, 0), (0, 128, 0)),
        "001.JPG": ((0, 0, 128),),
        "002.jpg": ((224, 224, 192),),
    }
    for i, (name, colours) in enumerate(frames.items()):
        image, labels = draw_scene(*size, len(colours), seed=i)
        save(image, root / "img" / name)
        mask = np.array([(0, 0, 0), *colours], np.uint8)[labels]
        save(mask, root / "gt" / f"{i:03d}.png")
    return root


def write_davis585(root: Path, size: tuple[int, int] = (48, 64)) -> Path:
    """Write a folder per video with frames, masks and both kinds of initial masks.

    Of ``bear``, frame 00018 has one object and 00009 has two; ``camel`` has one frame and object.
    The masks to begin with are the object moved by three pixels to the right (stm) or down (sp).
    """
    frames = (("bear", "00018", 1), ("bear", "00009", 2), ("camel", "00000", 1))
    for seed, (video, frame, objects) in enumerate(frames):
        image, labels = draw_scene(*size, objects, seed)
        save(image, root / video / f"{frame}.jpg")
        for number in range(1, objects + 1):
            mask = np.where(labels == number, 255, 0).astype(np.uint8)
            name = f"object{number}_{frame}.png"
            save(mask, root / video / name)
            save(np.roll(mask, 3, axis=1), root / video / f"init_stm_{name}")
            save(np.roll(mask, 3, axis=0), root / video / f"init_sp_{name}")
    return root


def write_coco_mval(root: Path, size: tuple[int, int] = (48, 64)) -> Path:
    """Write ``img/`` and ``gt/``: two objects of photograph 139, stored twice, and one of 285."""
    names = ("bicycle01_000000000139", "dining_table04_000000000139", "bear10_000000000285")
    for name in names:
        seed = int(name[-12:])
        image, labels = draw_scene(*size, 2, seed)
        mask = np.where(labels == 1 + name.startswith("dining"), 255, 0).astype(np.uint8)
        save(image, root / "img" / f"{name}.jpg")
        save(mask, root / "gt" / f"{name}.png")
    return root


def write_voc(root: Path, images: int = 3, size: tuple[int, int] = (48, 64)) -> Path:
    """Write ``JPEGImages/``, ``SegmentationObject/`` and the lists of VOC 2012.

    The photographs of ``train`` are 2007_000100 and following, those of ``val`` 2007_000200 and
    following, two objects each. A band along the contours is void, and so is the first column.
    """
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    names = {s: [f"2007_{100 * k + i:06d}" for i in range(images)]
             for k, s in enumerate(("train", "val"), start=1)}  # fmt: skip
    for split, stems in {**names, "trainval": names["train"] + names["val"]}.items():
        (lists / f"{split}.txt").write_text("".join(f"{stem}\n" for stem in stems))
    for seed, stem in enumerate(names["train"] + names["val"]):
        image, labels = draw_scene(*size, 2, seed)
        save(image, root / "JPEGImages" / f"{stem}.jpg")
        write_voc_labels(voc_labels(labels), root / "SegmentationObject" / f"{stem}.png")
    return root


def voc_labels(labels: Pixels) -> Pixels:
    """Numbers of objects with 255 along their contours and in the first column."""
    result = np.where(with_band(labels, 128) == 128, 255, labels).astype(np.uint8)
    result[:, 0] = 255
    return result


def write_voc_labels(labels: Pixels, path: Path) -> Path:
    """Write numbers as a palette file with VOC's colours, where 1 and 16 are equally bright."""
    palette = []
    for number in range(256):
        bits = [[number >> (3 * k + channel) & 1 for k in range(3)] for channel in range(3)]
        palette += [sum(bit << (7 - k) for k, bit in enumerate(channel)) for channel in bits]
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(labels)
    picture.putpalette(palette)
    picture.save(path)
    return path
