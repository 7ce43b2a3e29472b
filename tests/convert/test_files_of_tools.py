"""Files as other tools write them: read with equal masks, or refused by name with a way out.

They are drawn after the documentation of their formats, each with one object.
"""

import base64
import io
import json
import zipfile
import zlib
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from probseg.annotate.imports import read_import
from probseg.annotate.photographs import list_photographs
from probseg.convert import Request, bring, convert
from probseg.convert.others import reader_of
from probseg.errors import DataError
from probseg.formats import brush, run_lengths
from probseg.formats.regions import as_region
from support.rows import each

H, W = 48, 64
MASK = np.zeros((H, W), np.bool_)
MASK[12:24, 16:48] = True
CORNERS = [[16, 12], [48, 12], [48, 24], [16, 24]]
FLAT = [x for corner in CORNERS for x in corner]
SHARES = " ".join(f"{x / W:g} {y / H:g}" for x, y in CORNERS)
XY = [{"x": x, "y": y} for x, y in CORNERS]
PERCENT = [[100 * x / W, 100 * y / H] for x, y in CORNERS]
BOX = [16, 12, 32, 12]


class Folder(dict):
    """Files of a folder by name."""


class Zip(Folder):
    """Files of an archive by name."""


def png(array, mode=None):
    file = io.BytesIO()
    picture = Image.fromarray(array)
    if mode == "P":
        picture = picture.convert("L")
        picture.putpalette([*range(256)] * 3)
    picture.save(file, "PNG")
    return file.getvalue()


PHOTO = png(np.zeros((H, W, 3), np.uint8))
VOID = np.where(np.roll(MASK, 12, axis=0) & ~MASK, 255, MASK).astype(np.uint8)  # a border of 255
RLE = run_lengths.encode(MASK)
PLAIN = run_lengths.encode(MASK, compressed=False)


def coco(segmentation=(FLAT,), image=(), annotation=(), category=(), **more):
    """A file of COCO with one object."""
    return {
        "info": {"description": "a set"},
        "licenses": [],
        "images": [{"id": 1, "file_name": "a.png", "height": H, "width": W, **dict(image)}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 3, "area": 384.0, "bbox": BOX, "iscrowd": 0}
            | {"segmentation": segmentation}
            | dict(annotation)
        ],
        "categories": [{"id": 3, "name": "cat", "supercategory": ""} | dict(category)],
        **more,
    }


def cvat(shapes, meta="<task><mode>annotation</mode></task>"):
    head = '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  <version>1.1</version>'
    return f"{head}\n  <meta>{meta}</meta>\n{shapes}</annotations>\n"


def cvat_image(shape, *meta):
    image = f'  <image id="0" name="set/a.png" width="{W}" height="{H}">{shape}</image>\n'
    return cvat(image, *meta)


CVAT_LABELS = "".join(
    f"<label><name>{name}</name><color>#fff</color><attributes></attributes></label>"
    for name in ("dog", "cat")
)
CVAT_LABELS = f"<task><id>1</id><labels>{CVAT_LABELS}</labels></task><dumped>2024</dumped>"
POINTS = ";".join(f"{x:.2f},{y:.2f}" for x, y in CORNERS)
SHAPE = 'label="cat" source="manual" occluded="0" z_order="0"'
RUNS = ", ".join(["2", "32", *["2", "32"] * 11])
VIA_SHAPE = {"all_points_x": [x for x, _ in CORNERS], "all_points_y": [y for _, y in CORNERS]}
VIA_REGION = {
    "shape_attributes": {"name": "polygon", **VIA_SHAPE},
    "region_attributes": {"name": "cat", "type": "unknown"},
}
VIA = {"a.png99": {"filename": "a.png", "size": 99, "regions": [VIA_REGION], "file_attributes": {}}}
VIA_CLASSES = {
    "region": {"name": {"type": "dropdown", "options": {"dog": "", "cat": ""}}},
    "file": {"licence": {"type": "radio", "options": {"free": ""}}},
}
VIA_3 = {
    "project": {"pid": "__VIA_PROJECT_ID__", "rev": "1", "data_format_version": "3.1.1"},
    "config": {"file": {"loc_prefix": {"1": "", "2": ""}}},
    "attribute": {"1": {"aname": "kind", "type": 4, "options": {"0": "dog", "1": "cat"}}},
    "file": {"1": {"fid": "1", "fname": "a.png", "type": 2, "loc": 1, "src": ""}},
    "metadata": {
        "1_a": {"vid": "1", "flg": 0, "z": [], "xy": [7, *FLAT], "av": {"1": "1"}},
        "1_b": {"vid": "1", "flg": 0, "z": [], "xy": [2, *BOX], "av": {"1": "0"}},
    },
    "view": {"1": {"fid_list": ["1"]}},
}
VIA_CSV = (
    "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,"
    "region_attributes\n"
    'a.png,99,"{}",1,0,"{""name"":""polygon"",""all_points_x"":[16,48,48,16],'
    '""all_points_y"":[12,12,24,24]}","{""kind"":""cat""}"\n'
    'b.png,99,"{}",0,0,"{}","{}"\n'
)


def studio(kind, value, image="/data/upload/1/0a1b2c3d-a.png", **more):
    """A task of Label Studio."""
    result = {
        "id": "x",
        "type": kind,
        "original_width": W,
        "original_height": H,
        "image_rotation": 0,
        "from_name": "label",
        "to_name": "image",
        "value": {kind: ["cat"], **value},
    }
    annotation = {"id": 1, "was_cancelled": False, "result": [result]}
    return {"id": 1, "data": {"image": image}, "annotations": [annotation], **more}


BRUSH = {"format": "rle", "rle": brush.encode(as_region(MASK))}
MIN = {"polygonlabels": ["cat"], "points": PERCENT, "original_width": W, "original_height": H}
STUDIO_BOX = {"x": 25, "y": 25, "width": 50, "height": 25, "rotation": 0}
LOCAL = "/data/local-files/?d=set/a.png"


def labelme(*shapes, **more):
    """A file of labelme."""
    size = {"imageHeight": H, "imageWidth": W}
    return {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": "a.png"} | size | more


LABELME = {"label": "cat", "points": CORNERS, "group_id": None, "shape_type": "polygon"}
CROP = base64.b64encode(png(MASK[12:24, 16:48])).decode()
LABELME_MASK = {**LABELME, "points": [[16, 12], [47, 23]], "shape_type": "mask", "mask": CROP}

SAM = {
    "segmentation": RLE,
    "area": 384,
    "bbox": BOX,
    "predicted_iou": 0.9,
    "stability_score": 0.9,
    "crop_box": [0, 0, W, H],
    "point_coords": [[32, 18]],
}
SA_1B = {
    "image": {"image_id": 1, "width": W, "height": H, "file_name": "a.png"},
    "annotations": [{"id": 1, **SAM}],
}
VOC_XML = (
    "<annotation><folder>x</folder><filename>a.png</filename><size><width>64</width><height>48"
    "</height><depth>3</depth></size><segmented>1</segmented><object><name>cat</name><bndbox><xmin>"
    "17</xmin><ymin>13</ymin><xmax>48</xmax><ymax>24</ymax></bndbox></object></annotation>"
)
BITMAP = {
    "data": base64.b64encode(zlib.compress(png(MASK[12:24, 16:48]))).decode(),
    "origin": [16, 12],
}
SUPERVISELY = {
    "description": "",
    "size": {"height": H, "width": W},
    "objects": [{"classTitle": "cat", "geometryType": "bitmap", "bitmap": BITMAP}],
}
PANOPTIC = {"file_name": "a.png", "image_id": 1, "segments_info": [{"id": 7, "category_id": 3}]}
KEYPOINTS = {"keypoints": [20, 20, 2], "num_keypoints": 1}
CAPTION = {"id": 1, "image_id": 1, "caption": "a cat"}
DARWIN = {
    "version": "2.0",
    "schema_ref": "https://darwin-public.s3.amazonaws.com/darwin_json/2.0/schema.json",
    "item": {"name": "a.png", "slots": [{"width": W, "height": H}]},
    "annotations": [{"name": "cat", "polygon": {"paths": [XY]}}],
}
LABELBOX = {
    "data_row": {"id": "x", "external_id": "a.png"},
    "media_attributes": {"height": H, "width": W},
    "projects": {"p": {"labels": [{"annotations": {"objects": [{"name": "cat", "polygon": XY}]}}]}},
}
DATUMARO = {
    "dm_format_version": "1.0",
    "media_type": 2,
    "categories": {"label": {"labels": [{"name": "cat"}]}},
    "items": [{"id": "a", "annotations": [{"type": "polygon", "label_id": 0, "points": FLAT}]}],
}
OLD_DATUMARO = {"info": {}, **{key: DATUMARO[key] for key in ("categories", "items")}}
SUPERANNOTATE = {
    "metadata": {"name": "a.png", "width": W, "height": H},
    "instances": [{"type": "polygon", "classId": 1, "className": "cat", "points": FLAT}],
}
BDD = [{"name": "a.png", "labels": [{"category": "cat", "poly2d": [{"vertices": CORNERS}]}]}]
ADE = {
    "annotation": {
        "filename": "a.png",
        "imsize": [H, W, 3],
        "object": [{"name": "cat", "polygon": {"x": FLAT[::2], "y": FLAT[1::2]}}],
    }
}
CITYSCAPES = {
    "imgHeight": H,
    "imgWidth": W,
    "objects": [{"label": "cat", "polygon": CORNERS}],
}
GEOJSON = {
    "type": "FeatureCollection",
    "features": [
        {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [[*CORNERS, [16, 12]]]}}
    ],
}
NUMBERS = {
    "images": [{"id": "1", "file_name": "a.png", "height": str(H), "width": f"{W}"}],
    "annotations": [{"id": "1", "image_id": "1", "category_id": "3", "segmentation": [FLAT]}],
    "categories": [{"id": "3", "name": "cat"}],
}
CROWD = {"iscrowd": 1, "attributes": {"occluded": False}}
YAML = "path: ../set\ntrain: images/train\nval: images/val\nnames:\n  0: dog\n  1: cat\n"
ROBOFLOW = "train: ../train/images\nval: ../valid/images\n\nnc: 2\nnames: ['dog', 'cat']\n"
A, FOLDER = ("a.png", "cat"), ("set/a.png", "cat")

READ = {
    "COCO, polygons": (coco(), A),
    "COCO, run lengths": (coco(RLE), A),
    "COCO, classes": (
        coco(categories=[{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]),
        A,
    ),
    "COCO, plain run lengths": (coco(PLAIN), A),
    "COCO of pycocotools' older code, bytes as text": (coco({**RLE, "size": [48.0, 64.0]}), A),
    "COCO of Windows": (coco(image={"file_name": "set\\a.png"}), FOLDER),
    "COCO with addresses": (coco(image={"file_name": "https://x.org/d/a.png?sig=1"}), A),
    "COCO with numbers as texts": (NUMBERS, A),
    "COCO of CVAT, polygons": (coco(annotation={"attributes": {"occluded": False}}), A),
    "COCO of CVAT, masks": (coco(PLAIN, annotation=CROWD), A),
    "COCO of Label Studio": (
        coco(image={"file_name": "images\\a.png"}, annotation={"ignore": 0, "category_id": 0})
        | {"categories": [{"id": 0, "name": "cat"}]},
        ("images/a.png", "cat"),
    ),
    "COCO of Roboflow": (coco(image={"license": 1, "extra": {"name": "a.png"}}), A),
    "COCO of COCO Annotator": (
        coco(image={"path": "/datasets/s/a.png", "dataset_id": 1}, annotation={"isbbox": False}),
        A,
    ),
    "COCO of VIA": (coco(annotation={"segmentation": [FLAT]}, image={"id": 1, "license": 0}), A),
    "COCO of Make Sense": (coco(category={"id": 3}), A),
    "COCO of FiftyOne": (coco(image={"license": None, "coco_url": None}), A),
    "COCO with a mark of byte order": (b"\xef\xbb\xbf" + json.dumps(coco()).encode(), A),
    "COCO in UTF-16, as PowerShell saves it": (json.dumps(coco()).encode("utf-16"), A),
    "LVIS": (
        coco()
        | {"images": [{"id": 1, "height": H, "width": W, "coco_url": "http://x.org/val/a.png"}]},
        A,
    ),
    "ZIP of CVAT's COCO": (Zip({"annotations/instances_default.json": coco()}), A),
    "ZIP of Roboflow's COCO": (
        Zip({"README.txt": "x", "train/A.png": PHOTO, "train/_annotations.coco.json": coco()}),
        A,
    ),
    "CVAT's XML, polygon": (cvat_image(f'<polygon {SHAPE} points="{POINTS}"></polygon>'), FOLDER),
    "CVAT's XML, mask": (
        cvat_image(
            f'<mask {SHAPE} rle="{RUNS}" left="14" top="12" width="34" height="12"/>', CVAT_LABELS
        ),
        FOLDER,
    ),
    "ZIP of CVAT": (
        Zip({"annotations.xml": cvat_image(f'<polygon {SHAPE} points="{POINTS}"/>')}),
        FOLDER,
    ),
    "VIA 2, export": (VIA, A),
    "VIA 2, project": ({"_via_settings": {}, "_via_img_metadata": VIA, "_via_attributes": {}}, A),
    "VIA 2, classes": ({"_via_img_metadata": VIA, "_via_attributes": VIA_CLASSES}, A),
    "VIA 2, CSV": (VIA_CSV, A),
    "VIA 1, export": ({"a.png99": {**VIA["a.png99"], "regions": {"0": VIA_REGION}}}, A),
    "VIA 1, CSV": ("#" + VIA_CSV, A),
    "VIA 3, project": (VIA_3, A),
    "VGG JSON of Make Sense": (
        {"a.png": {"fileref": "", "size": 9, "filename": "a.png", "regions": {"0": VIA_REGION}}},
        A,
    ),
    "Label Studio, polygon": ([studio("polygonlabels", {"points": PERCENT}, LOCAL)], FOLDER),
    "Label Studio, upload": (
        [studio("polygonlabels", {"points": PERCENT})],
        ("0a1b2c3d-a.png", "cat"),
    ),
    "Label Studio, brush": ([studio("brushlabels", BRUSH, "s3://bucket/set/a.png")], A),
    "labelme, polygon": (labelme(LABELME), A),
    "labelme, mask": (labelme(LABELME_MASK, imageData=None), A),
    "labelme of Windows": (labelme(LABELME, imagePath="..\\images\\a.png"), A),
    "labelme of X-AnyLabeling": (
        labelme({**LABELME, "score": None, "description": "", "attributes": {}}, version="4.2.1"),
        A,
    ),
    "labelme, a folder": (Folder({"set/a.json": labelme(LABELME), "set/a.png": PHOTO}), FOLDER),
    "YOLO of Ultralytics": (
        Folder(
            {"coco8.yaml": YAML, "labels/train/a.txt": f"1 {SHARES}\n", "images/train/a.png": PHOTO}
        ),
        ("train/a.png", "cat"),
    ),
    "YOLO of Roboflow": (
        Folder(
            {
                "data.yaml": ROBOFLOW,
                "train/labels/a.txt": f"1 {SHARES}",
                "train/images/a.png": PHOTO,
            }
        ),
        A,
    ),
    "YOLO of Label Studio": (
        Folder(
            {
                "classes.txt": "dog\ncat\n",
                "notes.json": {"categories": [{"id": 0, "name": "dog"}, {"id": 1, "name": "cat"}]},
                "labels/a.txt": f"1 {SHARES}\n",
                "images/a.png": PHOTO,
            }
        ),
        A,
    ),
    "YOLO, predictions": (Folder({"a.txt": f"1 {SHARES} 0.87\n", "classes.txt": "dog\ncat"}), A),
    "ZIP of YOLO": (Zip({"data.yaml": ROBOFLOW, "labels/a.txt": f"1 {SHARES}"}), A),
    "SA-1B": (SA_1B, ("a.png", "object")),
    "SA-1B, a folder": (Folder({"sa_1.json": SA_1B, "sa_2.txt": ""}), ("a.png", "object")),
    "Pascal VOC, SegmentationObject": (Folder({"a.png": png(VOID, "P")}), ("a.png", "object")),
    "masks in black and white": (Folder({"a_1.png": png(MASK)}), ("a.png", "object")),
}
AS_COCO = "export it as COCO"
BY_BOXES = "predict --prompts` makes masks from boxes"
REFUSED = {
    "COCO results": ([{"image_id": 1, "category_id": 1, "segmentation": RLE, "score": 0.9}], "add"),
    "COCO panoptic": (coco() | {"annotations": [PANOPTIC]}, "panoptic: convert it to COCO inst"),
    "COCO key points": (coco((), annotation=KEYPOINTS), "1 object without an outline"),
    "COCO captions": (coco() | {"annotations": [CAPTION]}, "1 object without an outline"),
    "COCO of Roboflow, boxes": (coco([]), "1 object without an outline"),
    "COCO with names as ids": (coco(image={"id": "a.png"}), "'id' must be a whole number"),
    "CVAT's XML, boxes": (
        cvat_image(f'<box {SHAPE} xtl="16" ytl="12" xbr="48" ybr="24"/>'),
        "shapes other than polygons and masks",
    ),
    "CVAT's XML of a video": (
        cvat(
            f'<track id="0" label="cat"><polygon frame="0" keyframe="1" outside="0" occluded="0" '
            f'points="{POINTS}"/></track>',
            "<task><mode>interpolation</mode></task>",
        ),
        "export it as CVAT for images 1.1",
    ),
    "VIA 3, CSV": ('# Exported using VIA\n# CSV_HEADER = metadata_id\n"1_a"\n', "save the project"),
    "Label Studio, JSON-MIN": ([{"image": "a.png", "id": 1, "label": [MIN]}], "not JSON-MIN"),
    "Label Studio, CSV": ("annotation_id,image,label\n1,a.png,[]\n", "export it as JSON"),
    "Label Studio, boxes": ([studio("rectanglelabels", STUDIO_BOX)], "type rectanglelabels"),
    "Datumaro": (DATUMARO, f"Datumaro's JSON: {AS_COCO}"),
    "Datumaro of older versions": (OLD_DATUMARO, f"Datumaro's JSON: {AS_COCO}"),
    "Darwin": (DARWIN, f"Darwin JSON: {AS_COCO}"),
    "Supervisely": (SUPERVISELY, f"Supervisely's JSON: {AS_COCO}"),
    "Labelbox, lines": (json.dumps(LABELBOX) + "\n", "Labelbox's JSON: convert it to COCO"),
    "Labelbox of older versions": ([{"ID": "x", "Labeled Data": "a.png"}], "Labelbox's JSON"),
    "SuperAnnotate": (SUPERANNOTATE, f"SuperAnnotate's JSON: {AS_COCO}"),
    "Encord": ([{"data_units": {}, "featureHash": "x"}], f"Encord's JSON: {AS_COCO}"),
    "Segments.ai": (
        {"dataset": {"samples": [{"labels": {"x": {"segmentation_bitmap": {"url": "x"}}}}]}},
        f"Segments.ai's JSON: {AS_COCO}",
    ),
    "Scale": ([{"type": "segmentannotation", "params": {}}], "Scale's JSON: convert it to COCO"),
    "ISAT": ({"info": {"description": "ISAT"}, "objects": []}, f"ISAT's JSON: {AS_COCO}"),
    "Kili": ([{"externalId": "a", "labels": [{"jsonResponse": {}}]}], f"Kili's JSON: {AS_COCO}"),
    "Hasty": ({"project_name": "x", "export_format_version": "1.1"}, f"Hasty's JSON: {AS_COCO}"),
    "LabelU": ([{"annotations": {"polygonTool": {"result": []}}}], f"LabelU's JSON: {AS_COCO}"),
    "BDD100K": (BDD, "BDD100K: convert it to COCO"),
    "QuPath": (GEOJSON, "GeoJSON: export the masks as index PNGs"),
    "Cityscapes, polygons": (CITYSCAPES, "Cityscapes: convert its instanceIds to index PNGs"),
    "ADE20K": (ADE, "ADE20K: name its instance masks as <photograph>_1.png"),
    "SAM's generator": ([SAM], "list of SAM's masks without a photograph"),
    "Open Images, masks": (
        "MaskPath,ImageID,LabelName,BoxID,BoxXMin\na_m0_1.png,a,/m/0,1,0.1\n",
        "CSV of Open Images: name its masks as <photograph>_1.png",
    ),
    "Open Images, boxes": ("ImageID,Source,LabelName,Confidence,XMin,XMax\n", BY_BOXES),
    "Kaggle": ("ImageId,EncodedPixels\na.png,13 12\n", "Kaggle with run lengths: write them as"),
    "Roboflow, semantic masks": ("Pixel Value, Class\n0, background\n", "export COCO segmentation"),
    "Pascal VOC's XML": (VOC_XML, f"index PNGs in SegmentationObject; .*{BY_BOXES}"),
    "TensorFlow's CSV": ("filename,width,height,class,xmin,ymin,xmax,ymax\n", BY_BOXES),
    "CreateML": (
        [{"image": "a.png", "annotations": [{"label": "cat", "coordinates": {"x": 1, "y": 2}}]}],
        BY_BOXES,
    ),
    "YOLO, boxes": (
        Folder({"a.txt": "1 0.5 0.375 0.5 0.25\n", "classes.txt": "a\nb"}),
        "are boxes",
    ),
    "Carvana's names of masks": (Folder({"a_mask.png": png(MASK)}), "must be named a"),
    "Cityscapes, instanceIds": (Folder({"a_gtFine_instanceIds.png": png(MASK)}), "must be named"),
    "Mapillary, 16 bits": (Folder({"a.png": png(MASK.astype(np.uint16) * 6401)}), "6401|16"),
    "a text": ("no annotations", "not known"),
}
LISTED = (
    *("COCO, classes", "CVAT's XML, mask", "VIA 2, classes", "VIA 3, project", "ZIP of YOLO"),
    *("YOLO of Ultralytics", "YOLO of Roboflow", "YOLO of Label Studio", "YOLO, predictions"),
)
"""Files that list a dog, of which there is none, before the cat."""


def encoded(content):
    if isinstance(content, bytes):
        return content
    return (content if isinstance(content, str) else json.dumps(content)).encode()


def drawn(place, content):
    """Write a file, a folder or an archive."""
    if isinstance(content, Zip):
        with zipfile.ZipFile(place, "w") as archive:
            for name, inside in content.items():
                archive.writestr(name, encoded(inside))
    elif isinstance(content, Folder):
        for name, inside in content.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(encoded(inside))
    else:
        place.write_bytes(encoded(content))
    return place


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(PHOTO)
    return folder


def imported(source, photos):
    """File, class and pixels of each object that a page imports, all classes, and what is lost."""
    lost, listed = Counter(), {}
    objects = bring(source, photos, lost, listed)
    classes, brought = read_import(source, objects, list_photographs(photos), lost, listed)
    rows = [(name, one.label, one.mask((H, W))) for name in brought for one in brought[name]]
    return rows, classes, +lost


@each("tool", READ)
def test_files_of_other_tools_are_read_with_equal_masks(tmp_path, photos, tool):
    content, (file, label) = READ[tool]
    source = drawn(tmp_path / "source", content)
    ((name, kind, mask),), classes, lost = imported(source, photos)
    assert (name, kind) == ("a.png", None if label == "object" else label)
    assert classes == (["dog", "cat"] if tool in LISTED else [] if kind is None else [kind])
    assert np.array_equal(mask, MASK)
    assert sum(lost.values()) == (tool == "VIA 3, project"), "a box"
    if not isinstance(content, Zip):
        target = tmp_path / "target.json"
        own = source / "images" if (source / "images").is_dir() else photos
        convert(source, target, (reader_of(source), "coco"), Request(own))
        written = json.loads(target.read_text())
        (one,) = written["annotations"]
        names = [
            image["file_name"] for image in written["images"] if image["id"] == one["image_id"]
        ]
        assert (names, written["categories"][-1]["name"]) == ([file], label)
        assert np.array_equal(coco_mask.decode(one["segmentation"]), MASK)


@each("tool", REFUSED)
def test_other_files_are_refused_by_name_with_a_way_out(tmp_path, photos, tool):
    content, said = REFUSED[tool]
    source = drawn(tmp_path / "source", content)
    with pytest.raises(DataError, match=said):
        imported(source, photos)
    try:
        reader = reader_of(source)
    except DataError:
        reader = "coco"
    said = "cannot be read" if "not known" in said else said
    with pytest.raises(DataError, match=said):
        convert(source, tmp_path / "target", (reader, "png"), Request(photos))
    assert not (tmp_path / "target").exists()


def test_parts_of_a_set_that_are_converted_alone_have_the_same_class_numbers(tmp_path, photos):
    part = coco() | {"categories": [{"id": 1, "name": "dog"}, {"id": 3, "name": "cat"}]}
    source, texts = drawn(tmp_path / "part.json", part), tmp_path / "texts"
    ledger = convert(source, texts, ("coco", "yolo"), Request())
    assert (texts / "classes.txt").read_text() == "dog\ncat\n"
    assert (texts / "labels" / "a.txt").read_text().startswith("1 ")
    assert ledger.lines() == []
    convert(texts, tmp_path / "back.json", ("yolo", "coco"), Request(photos))
    back = json.loads((tmp_path / "back.json").read_text())
    assert back["categories"] == [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}]
    assert [one["category_id"] for one in back["annotations"]] == [2]
    ledger = convert(source, tmp_path / "png", ("coco", "png"), Request())
    assert "names of classes without objects: 1" in ledger.lines()


def test_there_are_many():
    assert len(READ) + len(REFUSED) >= 80
