"""Formats that are read alone: CVAT's XML, VIA's and SA-1B's JSON; and names of further ones."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from probseg.convert.parts import (
    NO_NAME,
    AnnotatedImage,
    LabelledRegion,
    Ledger,
    Request,
    inside,
    reading,
)
from probseg.errors import DataError
from probseg.formats import coco, polygons, run_lengths
from probseg.formats.regions import Region, check_size, from_spans
from probseg.images import image_size
from probseg.texts import read_json, read_text

Draw = Callable[[], Region]

Shape = tuple[Draw, str, float | None]  # how an object is drawn, its class, and its score

# formats that are recognised
EXPECTED = "COCO, Label Studio, labelme, CVAT, VIA, SA-1B, or a folder of YOLO or masks"

# suffixes of files whose content says of which format they are
TEXTS = (".json", ".jsonl", ".ndjson", ".geojson", ".xml", ".csv")

VIA_COLUMNS = ("shape_attributes", "attributes")  # columns of regions in VIA's CSV

VIA_POLYGON = 7  # kind of a polygon in VIA 3

FIRST = 1 << 16  # bytes of a file by which its format is recognised

BOXES = "`probseg predict --prompts` makes masks from boxes in COCO"  # hint for files of boxes

AS_COCO = "export it as COCO"

# what is in the first lines of a format: its name, `--from`, and what else to do
SIGNS = {
    r"<annotations>.*<track ": ("CVAT's XML for video", "", "export it as CVAT for images 1.1"),
    r"<annotations>.*<(version>1\.|image )": ("CVAT's XML", "cvat", ""),
    r'"shape_attributes"|"_via_|"fid_list"|^#?filename,file_size': ("a file of VIA", "via", ""),
    r"^# .*CSV_HEADER": ("VIA 3's CSV", "", "save the project, which is JSON"),
    r'^\s*\[.*"predicted_iou"': ("a list of SAM's masks without a photograph", "", "write COCO"),
    r'"predicted_iou"': ("JSON of SA-1B", "sa-1b", ""),
    r'"(brush|polygon|rectangle|ellipse)labels"|"original_width"': (
        "Label Studio's JSON",
        "label-studio",
        "",
    ),
    r"^[^\n]*\bannotation_id\b[^\n]*\n": ("Label Studio's CSV", "", "export it as JSON"),
    r'"imagePath"': ("a file of labelme", "labelme", ""),
    r'"segments_info"': ("COCO panoptic", "", "convert it to COCO instances"),
    r'^\s*\[\s*\{[^}]*"category_id"': (
        "a list of COCO results, which names no photographs",
        "",
        "add it as `annotations` to the COCO file of the photographs",
    ),
    r'"dm_format_version"|"media_type"|"categories"\s*:\s*\{\s*"label"': (
        "Datumaro's JSON",
        "",
        AS_COCO,
    ),
    r'"slots"\s*:|darwin_json|darwin\.v7labs': ("V7's Darwin JSON", "", AS_COCO),
    r'"classTitle"|"geometryType"': ("Supervisely's JSON", "", AS_COCO),
    r'"data_row"|"Labeled Data"': ("Labelbox's JSON", "", "convert it to COCO"),
    r'"instances"\s*:.*"class(Id|Name)"': ("SuperAnnotate's JSON", "", AS_COCO),
    r'"data_units"|"featureHash"': ("Encord's JSON", "", AS_COCO),
    r'"segmentation_bitmap"': ("Segments.ai's JSON", "", AS_COCO),
    r'"attachment_type"|"(image|segment)annotation"': ("Scale's JSON", "", "convert it to COCO"),
    r'"description"\s*:\s*"ISAT"': ("ISAT's JSON", "", AS_COCO),
    r'"jsonResponse"': ("Kili's JSON", "", AS_COCO),
    r'"export_format_version"': ("Hasty's JSON", "", AS_COCO),
    r'"polygonTool"|"rectTool"': ("LabelU's JSON", "", AS_COCO),
    r'"poly2d"|"box2d"': ("JSON of BDD100K", "", "convert it to COCO"),
    r'"FeatureCollection"': ("GeoJSON", "", "export the masks as index PNGs"),
    r'"imgHeight"': ("polygons of Cityscapes", "", "convert its instanceIds to index PNGs"),
    r'"annotation"\s*:\s*\{\s*"filename"': (
        "JSON of ADE20K",
        "",
        "name its instance masks as <photograph>_1.png; use --from png",
    ),
    r"^[^\n]*\bMaskPath\b": (
        "CSV of Open Images",
        "",
        "name its masks as <photograph>_1.png; use --from png",
    ),
    r"^[^\n]*\bEncodedPixels\b": ("CSV of Kaggle with run lengths", "", "write them as COCO"),
    r"^\s*Pixel Value,": ("a list of Roboflow's semantic masks", "", "export COCO segmentation"),
    r"<bndbox>": (
        "Pascal VOC's XML, which has boxes alone",
        "",
        f"its masks are the index PNGs in SegmentationObject; {BOXES}",
    ),
    r'"coordinates"\s*:\s*\{\s*"x"|^[^\n]*,xmin,|^[^\n]*,XMin,': (
        "a file of boxes alone",
        "",
        BOXES,
    ),
    r'"annotations"\s*:.*"image_id"|"images"\s*:': ("JSON of COCO", "coco", ""),
}


def recognised(place: Path, reader: str) -> str:
    """Say what a file, or the first ones of a folder, are if that is not what a reader reads."""
    name, own, hint = _format(place)
    ways = [f"use --from {own}" if own else "", hint]
    return f"; this is {name}: {', '.join(filter(None, ways))}" if name and own != reader else ""


def reader_of(place: Path) -> str:
    """Return the name of the format of a file or folder."""
    name, own, hint = _format(place)
    if not name and place.is_dir():
        return "yolo" if next(place.rglob("*.txt"), None) else "png"
    if not own:
        unknown = f"{place}: its format is not known; expected {EXPECTED}"
        raise DataError(f"{place}: is {name}: {hint}" if name else unknown)
    return own


def files_of(place: Path, reader: str) -> list[Path]:
    """Return the files of a format in a folder, such as one for each part of a data set."""
    return [path for path in _texts(place) if _format(path)[1] == reader]


def _texts(place: Path) -> list[Path]:
    """Return the files of a folder whose content says of which format they are."""
    return sorted(path for path in place.rglob("[!.]*") if path.suffix.lower() in TEXTS)


def _format(place: Path) -> tuple[str, str, str]:
    """Return what `SIGNS` has of a file, or of the first ones of a folder; nothing for others."""
    for path in _texts(place)[:5] if place.is_dir() else [place]:
        with path.open("rb") as file:
            head = file.read(FIRST)
        wide = head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        first = head.decode("utf-16" if wide else "utf-8-sig", errors="replace")
        for sign, (name, own, hint) in SIGNS.items():
            if re.search(sign, first, re.DOTALL):
                return name, own, hint
    return "", "", ""


def _objects(path: Path, what: str, shapes: list[Shape]) -> Iterator[LabelledRegion]:
    for draw, label, score in shapes:
        with reading(path, what):
            item = LabelledRegion(draw(), label, score)
        yield item


def _inside(name: str) -> str:
    return inside(name.replace("\\", "/") if "/" not in name else name)


def read_cvat(place: Path, request: Request, ledger: Ledger) -> Iterator[AnnotatedImage]:
    """Read polygons and masks of "CVAT for images 1.1"; other shapes are counted as lost."""
    what = "XML of CVAT for images 1.1"
    with reading(place, what):
        text = read_text(place)
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise ValueError("it defines entities, which CVAT does not")
        root = ElementTree.fromstring(text)
    with_names = root.iterfind("meta//labels/label/name")
    ledger.classes.update(dict.fromkeys(name.text or NO_NAME for name in with_names))
    tracks = len(root.findall("track"))
    ledger.find(objects=tracks)
    ledger.lose("of videos, whose frames have no names; export each frame", objects=tracks)
    for image in root.findall("image"):
        with reading(place, what):
            size = int(image.attrib["height"]), int(image.attrib["width"])
            check_size(size)
            shapes: list[Shape] = []
            for shape in image:
                if shape.tag == "tag":
                    ledger.change("tags of images")
                    continue
                ledger.find(objects=1)
                draw = {"polygon": _cvat_polygon, "mask": _cvat_mask}.get(shape.tag)
                if draw is None:
                    ledger.lose("of shapes other than polygons and masks", objects=1)
                else:
                    shapes.append((partial(draw, shape.attrib, size), shape.attrib["label"], None))
            name = _inside(image.attrib["name"])
        ledger.find(images=1)
        yield AnnotatedImage(name, size, _objects(place, what, shapes))


def _cvat_polygon(shape: Mapping[str, str], size: tuple[int, int]) -> Region:
    corners = [[float(x) for x in pair.split(",")] for pair in shape["points"].split(";")]
    return polygons.ring(corners, size)


def _cvat_mask(shape: Mapping[str, str], size: tuple[int, int]) -> Region:
    """Draw run lengths of the rows of a box, the background first."""
    left, top, width, height = (int(shape[key]) for key in ("left", "top", "width", "height"))
    runs = np.array([int(run) for run in shape["rle"].split(",")], dtype=np.int64)
    fits = 0 <= left <= left + width <= size[1] and 0 <= top <= top + height <= size[0]
    if not fits or (runs < 0).any() or runs.sum() > width * height:
        raise ValueError(
            f"a mask of {width} x {height} pixels at {left}, {top} does not fit its image"
        )
    borders = np.cumsum(runs)
    ends = borders[1::2]
    part = from_spans(borders[::2][: len(ends)], ends, (height, width), by_rows=True)
    return Region(part.inside, part.x + left, part.y + top, size)


def read_via(place: Path, request: Request, ledger: Ledger) -> Iterator[AnnotatedImage]:
    """Read polygons of a project or an export of VIA, the VGG Image Annotator, as JSON or CSV.

    Classes are the first attributes of regions. The sizes are those of the photographs.
    """
    what = "a file of VIA"
    if request.images is None:
        raise DataError(
            "`images` must be the folder of the photographs, got None: VIA does not know sizes"
        )
    with reading(place, what):
        entries = _via_entries(place, ledger)
        names = [_inside(entry["filename"]) for entry in entries]
    for name, entry in zip(names, entries, strict=True):
        size = image_size(request.images / name)
        with reading(place, what):
            regions = entry["regions"]
            shapes: list[Shape] = []
            for region in regions.values() if isinstance(regions, dict) else regions:
                ledger.find(objects=1)
                shape = region["shape_attributes"]
                if shape["name"] != "polygon":
                    ledger.lose("of shapes other than polygons", objects=1)
                    continue
                corners = [*zip(shape["all_points_x"], shape["all_points_y"], strict=True)]
                attributes = (region.get("region_attributes") or {}).values()
                label = next(filter(None, attributes), NO_NAME)
                if isinstance(label, dict):  # of a checkbox, with what is chosen
                    label = next((name for name, chosen in label.items() if chosen), NO_NAME)
                shapes.append((partial(polygons.ring, corners, size), str(label), None))
        ledger.find(images=1)
        yield AnnotatedImage(name, size, _objects(place, what, shapes))


def _via_entries(place: Path, ledger: Ledger) -> list[dict[str, Any]]:
    """Return the entries of photographs, as version 2 has them, and note what classes it lists."""
    text = read_text(place)
    if text.lstrip()[:1] != "{":  # CSV: a row for each region
        photos: dict[str, list[Any]] = {}
        for row in csv.DictReader(text.removeprefix("#").splitlines()):
            shape, attributes = map(json.loads, (row[f"region_{kind}"] for kind in VIA_COLUMNS))
            regions = photos.setdefault(row["filename"], [])
            if int(row["region_count"]):
                regions.append({"shape_attributes": shape, "region_attributes": attributes})
        return [{"filename": name, "regions": regions} for name, regions in photos.items()]
    content = read_json(place)
    is_third = "fid_list" in text
    attributes = content.get("attribute" if is_third else "_via_attributes") or {}
    offered = (attributes if is_third else attributes.get("region") or {}).values()
    classes: dict[str, str] = next(filter(None, (one.get("options") for one in offered)), {})
    ledger.classes.update(dict.fromkeys(classes.values() if is_third else classes))
    if not is_third:
        return [*content.get("_via_img_metadata", content).values()]
    # Version 3: shapes are numbers, the kind first; attributes have numbers, and so have options.
    entries = {
        number: {"filename": content["file"][str(view["fid_list"][0])]["fname"], "regions": []}
        for number, view in content["view"].items()
    }
    for region in content["metadata"].values():
        kind, *corners = region["xy"]
        shape = {"name": "polygon" if kind == VIA_POLYGON else kind}
        shape |= {"all_points_x": corners[::2], "all_points_y": corners[1::2]}
        options = {key: content["attribute"][key].get("options") or {} for key in region["av"]}
        labels = {key: options[key].get(value, value) for key, value in region["av"].items()}
        entry = {"shape_attributes": shape, "region_attributes": labels}
        entries[str(region["vid"])]["regions"].append(entry)
    return [*entries.values()]


def read_sa1b(place: Path, request: Request, ledger: Ledger) -> Iterator[AnnotatedImage]:
    """Read SA-1B, a JSON file with COCO's run lengths for each photograph, one or a folder."""
    what = "JSON of SA-1B"
    for path in [place] if place.is_file() else sorted(place.rglob("*.json")):
        with reading(path, what):
            content = read_json(path)
            size = coco.size_of(content["image"])
            name = _inside(coco.file_of(content["image"]))
            shapes: list[Shape] = []
            for entry in content["annotations"]:
                rle = entry["segmentation"]
                if run_lengths.stated_size(rle) != size:
                    raise ValueError(f"run lengths for {rle['size']} in an image of {list(size)}")
                runs = run_lengths.parse_runs(rle["counts"].encode("ascii"))
                score = coco.score_of({"score": entry.get("predicted_iou")})
                shapes.append((partial(run_lengths.region_of, runs, size), NO_NAME, score))
        ledger.find(images=1, objects=len(shapes))
        yield AnnotatedImage(name, size, _objects(path, what, shapes))
