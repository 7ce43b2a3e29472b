"""Data sets of objects, drawn at test time in the folder layouts and masks of their archives.

`SETS` has all of them, with the objects that each must read.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from pycocotools import mask as coco_mask

from probseg.data import (
    BSDS500,
    COCO,
    COCOLVIS,
    DAVIS,
    DAVIS585,
    LVIS,
    SBD,
    Berkeley,
    COCOInstances,
    COCOMVal,
    GrabCut,
    HQSeg44K,
    ImageMaskFolder,
    ImagePairs,
    OpenImages,
    PascalVOC,
)
from support.fakes import (
    Pixels,
    draw_scene,
    polygons_of,
    save,
    with_band,
    write_berkeley,
    write_bsds500,
    write_folder,
    write_grabcut,
    write_lvis,
    write_sbd,
)


def write_davis(root: Path, size: tuple[int, int] = (48, 64)) -> Path:
    """Write `img/` and `gt/`: three frames whose masks hold the colours of a palette.

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

    Of `bear`, frame 00018 has one object and 00009 has two; `camel` has one frame and object.
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
    """Write `img/` and `gt/`: two objects of photograph 139, stored twice, and one of 285."""
    names = ("bicycle01_000000000139", "dining_table04_000000000139", "bear10_000000000285")
    for name in names:
        seed = int(name[-12:])
        image, labels = draw_scene(*size, 2, seed)
        mask = np.where(labels == 1 + name.startswith("dining"), 255, 0).astype(np.uint8)
        save(image, root / "img" / f"{name}.jpg")
        save(mask, root / "gt" / f"{name}.png")
    return root


def write_voc(root: Path, images: int = 3, size: tuple[int, int] = (48, 64)) -> Path:
    """Write `JPEGImages/`, `SegmentationObject/` and the lists of VOC 2012.

    The photographs of `train` are 2007_000100 and following, those of `val` 2007_000200 and
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


def write_cocolvis(root: Path, images: int = 3, size: tuple[int, int] = (96, 128)) -> Path:
    """Write `hannotation.pickle`, `masks/` and `images/` of both splits of COCO+LVIS.

    Of five objects of a photograph, 0 and 1 are its two ellipses, 2 is the left half of 0 and lies
    below it in the tree, 3 is a duplicate of 1 that the tree leaves out, and 4 is the ground, as
    stuff. Objects 0, 1 and 4 are in the first layer and 2 and 3 in the second.
    """
    for s, split in enumerate(("train", "val")):
        annotations = {}
        for i in range(images):
            name = f"{1000 * (s + 1) + i:012d}"
            image, labels = draw_scene(*size, 2, seed=i)
            save(image, root / split / "images" / f"{name}.jpg")
            first = np.where(labels == 0, 3, labels).astype(np.uint8)
            tree = {0: {"children": [2], "parent": None, "node_level": 0}, 1: None,
                    2: {"children": [], "parent": 0, "node_level": 1}}  # fmt: skip
            annotations[name] = {"num_instance_masks": 4, "hierarchy": tree}
            layers = [as_png(first), as_png(second_layer(labels))]
            places = [(0, 1), (0, 2), (1, 1), (1, 2), (0, 3)]
            write_pickle((layers, places), root / split / "masks" / f"{name}.pickle")
        write_pickle(annotations, root / split / "hannotation.pickle")
    return root


def second_layer(labels: Pixels) -> Pixels:
    """Left half of object 1, as 1, and all of object 2."""
    half = np.where(labels == 2, 2, 0).astype(np.uint8)
    middle = np.nonzero(labels == 1)[1].mean()
    half[(labels == 1) & (np.arange(labels.shape[1]) < middle)] = 1
    return half


def as_png(layer: Pixels) -> Pixels:
    """Bytes of a PNG file in an array, as OpenCV encodes."""
    with BytesIO() as file:
        Image.fromarray(layer).save(file, format="PNG")
        return np.frombuffer(file.getvalue(), np.uint8)


def write_pickle(content: object, path: Path, protocol: int = 4) -> Path:
    """Write a pickle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol))
    return path


def write_open_images(root: Path, images: int = 3, size: tuple[int, int] = (96, 128)) -> Path:
    """Write `images/`, `masks/` and the list of two splits of Open Images.

    Each photograph has two objects. The masks of the first photograph have half its size and are in
    a folder of their first letter; the others are in `masks/` itself.
    """
    for s, split in enumerate(("train", "validation")):
        rows = [
            "MaskPath,ImageID,LabelName,BoxID,BoxXMin,BoxXMax,BoxYMin,BoxYMax,PredictedIoU,Clicks"
        ]
        for i in range(images):
            key = f"{s + 1}{i:x}" + 7 * "a0"
            image, labels = draw_scene(*size, 2, seed=i)
            save(image, root / split / "images" / f"{key}.jpg")
            for number in (1, 2):
                name = f"{key}_m01g317_{number:08x}.png"
                mask = np.where(labels == number, 255, 0).astype(np.uint8)
                folder = root / split / "masks"
                if i == 0:
                    mask, folder = mask[::2, ::2], folder / key[0]
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(mask).convert("1").save(folder / name)
                rows.append(f"{name},{key},/m/01g317,{number:08x},0.1,0.5,0.2,0.6,0.9,0 0.5 0.5 1")
        path = root / split / f"{split}-annotations-object-segmentation.csv"
        path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return root


def write_hqseg(root: Path, images: int = 1, size: tuple[int, int] = (48, 64)) -> Path:
    """Write all parts of HQSeg-44K; photograph i of a part is drawn with the seed i.

    The masks of HRSOD are colour files with stray values on both sides of the threshold.
    """
    thin, cascade = root / "thin_object_detection", root / "cascade_psp"
    parts = [
        *((root / "DIS5K" / f"DIS-{s}" / "im", root / "DIS5K" / f"DIS-{s}" / "gt")
          for s in ("TR", "VD")),
        *((thin / "ThinObject5K" / f"images_{s}", thin / "ThinObject5K" / f"masks_{s}")
          for s in ("train", "test")),
        (thin / "COIFT" / "images", thin / "COIFT" / "masks"),
        (thin / "HRSOD" / "images", thin / "HRSOD" / "masks_max255"),
        *((cascade / name, cascade / name)
          for name in ("DUTS-TR", "DUTS-TE", "ecssd", "fss_all", "MSRA_10K")),
    ]  # fmt: skip
    for photos, masks in parts:
        for i in range(images):
            image, labels = draw_scene(*size, seed=i)
            save(image, photos / f"1#Bag#{i}_o.jpg")
            mask = np.where(labels == 1, 255, 0).astype(np.uint8)
            if "HRSOD" in masks.parts:
                mask[0, :2], mask[labels == 1] = (10, 128), 130
                mask = np.repeat(mask[..., None], 3, axis=2)
            save(mask, masks / f"1#Bag#{i}_o.png")
    return root


def write_coco(
    annotations: Path, images: Path, count: int = 3, size: tuple[int, int] = (48, 64)
) -> Path:
    """Write annotations in the format of COCO and their photographs 1.jpg, 2.jpg, ...

    Of each photograph's two objects, the left one ("bat") has polygons, one per row, and the right
    one ("ball") compressed run lengths. A crowd with uncompressed ones covers both.
    """
    listed, objects = [], []
    for key in range(1, count + 1):
        image, labels = draw_scene(*size, 2, seed=key)
        save(image, images / f"{key}.jpg")
        entry = {"id": key, "file_name": f"{key}.jpg", "height": size[0], "width": size[1]}
        listed.append(entry)
        left, right, both = labels == 1, labels == 2, labels > 0
        runs = coco_mask.encode(np.asfortranarray(right.astype(np.uint8)))
        compressed = {"size": list(size), "counts": runs["counts"].decode()}
        outlines = (polygons_of(left), compressed, {"size": list(size), "counts": runs_of(both)})
        for number, (mask, outline) in enumerate(zip((left, right, both), outlines, strict=True)):
            objects.append(
                {
                    "id": 10 * key + number,
                    "image_id": key,
                    "category_id": 7 if number == 0 else 3,
                    "area": float(mask.sum()),
                    "iscrowd": int(number == 2),
                    "segmentation": outline,
                }
            )
    names = [{"id": 7, "name": "bat"}, {"id": 3, "name": "ball"}]
    content = {"images": listed, "annotations": objects, "categories": names}
    annotations.parent.mkdir(parents=True, exist_ok=True)
    annotations.write_text(json.dumps(content))
    return annotations


def runs_of(mask: npt.NDArray[np.bool_]) -> list[int]:
    """Run lengths down the columns, the first of background."""
    runs, last = [0], False
    for pixel in mask.T.ravel().tolist():
        if pixel != last:
            runs.append(0)
        runs[-1] += 1
        last = pixel
    return runs


class Drawn(NamedTuple):
    """A data set: its usual folders in `$PROBSEG_DATA`, how it is written and opened there, and
    photo, name, image and mask of its objects.
    """

    places: tuple[str, ...]
    write: Callable
    open: Callable
    objects: list


def scene(number, seed, objects=2, size=(48, 64)):
    """Image of some ellipses, and the mask of one of them."""
    image, labels = draw_scene(*size, objects, seed)
    return image, labels == number


def write_pairs(root):
    write_folder(root, images=2, style="black_and_white")


def write_all_coco(root):
    write_coco(root / "all.json", root / "images")


def write_coco_splits(root):
    for name in ("train2017", "val2017"):
        write_coco(root / "annotations" / f"instances_{name}.json", root / name, 2)


def coco_objects(photos):
    pairs = [(p, n) for p in range(1, photos + 1) for n in (1, 2)]
    return [(f"{p}", f"{p}#{10 * p + n - 1}", *scene(n, p)) for p, n in pairs]


def bsds_objects():
    for i, k, n in ((i, k, n) for i in range(3) for k in range(2) for n in (1, 2)):
        image, mask = scene(n, i)
        yield f"{200 + i}", f"{200 + i}_a{k}#{n + 1}", image, np.roll(mask, k, axis=1)


def cocolvis_objects():
    for i in range(3):
        image, labels = draw_scene(96, 128, 2, seed=i)
        masks = (labels == 1, labels == 2, second_layer(labels) == 1)
        yield from ((f"{2000 + i:012d}", f"{2000 + i:012d}#{k}", image, masks[k]) for k in range(3))


def grabcut_objects():
    for name, seed in (("Cross", 1), ("banana", 0), ("llama", 2)):
        image, labels = draw_scene(seed=seed)
        if name != "llama":
            band = with_band(labels, 128)
            labels = np.where(band == 128, 255, band == 255)
        yield name, name, image, labels


def open_images_objects():
    for i, n in ((i, n) for i in range(3) for n in (1, 2)):
        image, mask = scene(n, i, size=(96, 128))
        if i == 0:  # whose masks have half the size
            mask = mask[::2, ::2].repeat(2, axis=0).repeat(2, axis=1)
        key = f"2{i}" + 7 * "a0"
        yield key, f"{key}_m01g317_{n:08x}", image, mask


def voc_objects():
    for i, n in ((i, n) for i in range(3) for n in (1, 2)):
        image, labels = draw_scene(objects=2, seed=3 + i)
        labels = voc_labels(labels)
        mask = np.where(labels == 255, 255, labels == n)
        yield f"2007_00020{i}", f"2007_00020{i}#{n}", image, mask


def stray_values():
    image, labels = draw_scene()
    labels[0, 1] = 255  # grey 128; the 10 to its left is background
    return image, labels


SETS = {
    "BSDS500": Drawn(
        ("bsds500",), write_bsds500,
        lambda root, **o: BSDS500("val", root, **o), list(bsds_objects())
    ),
    "Berkeley": Drawn(("Berkeley", "berkeley"), write_berkeley, Berkeley, [
        ("189011", "189011", *scene(1, 1)),
        ("189011", "189011a", *scene(2, 1)),
        ("8023", "8023", *stray_values()),
    ]),
    "COCO": Drawn(
        (), write_all_coco, lambda root, **o: COCO(root / "all.json", root / "images", **o),
        coco_objects(3),
    ),
    "COCOInstances": Drawn(
        ("COCO",), write_coco_splits,
        lambda root, **o: COCOInstances("val", root, **{"min_area": 0, **o}), coco_objects(2),
    ),
    "COCOLVIS": Drawn(
        ("COCOLVIS", "cocolvis", "LVIS"), write_cocolvis,
        lambda root, **o: COCOLVIS("val", root, **o),
        list(cocolvis_objects()),
    ),
    "COCO_MVal": Drawn(("COCO_MVal", "coco_mval"), write_coco_mval, COCOMVal, [
        ("000000000285", "bear10_000000000285", *scene(1, 285)),
        ("000000000139", "bicycle01_000000000139", *scene(1, 139)),
        ("000000000139", "dining_table04_000000000139", *scene(2, 139)),
    ]),
    "DAVIS": Drawn(("DAVIS", "davis", "DAVIS345"), write_davis, DAVIS, [
        (f"00{i}", f"00{i}", image, labels > 0)
        for i, (image, labels) in enumerate(draw_scene(objects=n, seed=i) for i, n in
                                            enumerate((2, 1, 1)))
    ]),
    "DAVIS585": Drawn(("DAVIS585", "DAVIS-585", "davis585"), write_davis585, DAVIS585, [
        ("bear", "bear/object1_00009", *scene(1, 1)),
        ("bear", "bear/object2_00009", *scene(2, 1)),
        ("bear", "bear/object1_00018", *scene(1, 0, 1)),
        ("camel", "camel/object1_00000", *scene(1, 2, 1)),
    ]),
    "GrabCut": Drawn(("GrabCut", "grabcut"), write_grabcut, GrabCut, list(grabcut_objects())),
    "HQSeg44K": Drawn(
        ("HQSeg44K", "HQSeg-44K", "sam-hq"), write_hqseg,
        lambda root: HQSeg44K("val", root, ["COIFT", "HRSOD"]),
        [(2 * (f"{part}/1#Bag#0_o",)) + scene(1, 0, 1) for part in ("COIFT", "HRSOD")],
    ),
    "ImageMaskFolder": Drawn(
        (), lambda root: write_folder(root, images=2, objects=2, style="files"), ImageMaskFolder,
        [(f"photo{i}", f"photo{i}_{n}#1", *scene(n, i)) for i in range(2) for n in (1, 2)],
    ),
    "ImagePairs": Drawn(
        (), write_pairs, lambda root: ImagePairs(root / "images", root / "masks"),
        [(f"photo{i}", f"photo{i}", *scene(1, i, 1)) for i in range(2)],
    ),
    "LVIS": Drawn(
        ("LVIS", "lvis"), write_lvis, lambda root, **o: LVIS("val", root, **{"min_area": 50, **o}),
        [(f"{2000 + i:012d}", f"{2000 + i:012d}#{4000 + 2 * i + n}", *scene(n, i))
         for i in range(3) for n in (1, 2)],
    ),
    "OpenImages": Drawn(
        ("OpenImages", "open_images"), write_open_images,
        lambda root, **o: OpenImages("validation", root, **o),
        list(open_images_objects()),
    ),
    "PascalVOC": Drawn(
        ("VOCdevkit/VOC2012", "VOC2012", "PascalVOC"), write_voc,
        lambda root: PascalVOC(root=root), list(voc_objects()),
    ),
    "SBD": Drawn(
        ("SBD", "sbd", "sbd/benchmark_RELEASE/dataset"), write_sbd,
        lambda root, **o: SBD("val", root, **o),
        [(f"2008_00020{i}", f"2008_00020{i}#{n}", *scene(n, i))
         for i in range(3) for n in (1, 2)],
    ),
}  # fmt: skip
