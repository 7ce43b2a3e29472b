"""COCO and LVIS: outlines, selections, files that cannot be used, and files of prompts."""

import json
import pickle
import shutil
from collections import namedtuple
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from probseg.convert import READERS, Ledger, Request
from probseg.data import COCO, LVIS
from probseg.data.prompts import read_prompts
from probseg.data.sets import annotations
from probseg.data.sets.annotations import AnnotationIndex
from probseg.errors import DataError, DatasetNotFoundError, UnknownNameError
from probseg.types import BoxStep, Click
from support.drawn_sets import runs_of, write_coco
from support.fakes import draw_scene, polygons_of, save, write_lvis
from support.refusals import refused
from support.rows import each


class Drawn:
    """Annotations, their images, and changes of both."""

    def __init__(self, root, count=3):
        self.path = write_coco(root / "my.json", root / "photos", count)
        self.images = root / "photos"

    def open(self, **options):
        return COCO(self.path, self.images, **options)

    def edit(self, change):
        content = json.loads(self.path.read_text())
        change(content)
        self.path.write_text(json.dumps(content, indent=1))  # of another size in any case

    def first(self, key="annotations", **entries):
        """Replace entries of the first annotation or image; None removes."""

        def change(content):
            entry = content[key][0] | entries
            content[key][0] = {k: v for k, v in entry.items() if v is not None}

        self.edit(change)

    def refused(self, *parts, error=DataError, **options):
        refused(error, lambda: self.open(**options), *parts)


@pytest.fixture
def drawn(tmp_path):
    return Drawn(tmp_path)


@pytest.fixture
def lvis(tmp_path):
    """The same of LVIS."""

    class DrawnLVIS(Drawn):
        def __init__(self, root):
            self.root = write_lvis(root / "LVIS")
            self.path = self.root / "lvis_v1_val.json"

        def open(self, **options):
            return LVIS("val", self.root, **{"min_area": 50, **options})

    return DrawnLVIS(tmp_path)


def names_of(data):
    return [data.object_name(i) for i in range(len(data))]


def photos_of(data):
    return {name.split("#")[0] for name in names_of(data)}


def test_selections(drawn):
    crowds = drawn.open(crowd=True)
    assert len(crowds) == 9
    np.testing.assert_array_equal(crowds[2].mask, draw_scene(objects=2, seed=1)[1] > 0)
    areas = drawn.open().areas
    large = (np.sort(areas)[3] + 0.5) / (48 * 64)
    expected = [area for area in areas if area <= large * 48 * 64]
    assert drawn.open(max_fraction=large).areas.tolist() == expected
    assert names_of(drawn.open(categories=["bat"])) == ["1#10", "2#20", "3#30"]
    drawn.refused("'batt'", "'bat'", error=UnknownNameError, categories=["batt"])
    drawn.first(category_id=None)
    assert [len(drawn.open(categories=c)) for c in (None, ["ball", "bat"])] == [6, 5]
    drawn.edit(lambda content: content.pop("categories"))
    assert len(drawn.open()) == 6


def test_nothing_left_names_what_was_asked_for(drawn):
    drawn.refused(drawn.path, "none of its 9", "min_area=1000000;", min_area=10**6)
    drawn.edit(lambda content: content["categories"].append({"id": 8, "name": "cat"}))
    options = {"crowd": True, "categories": ["cat"], "part": "val", "max_fraction": 0}
    drawn.refused("max_fraction=0", "crowd=True", "categories=['cat']", "part='val'", **options)


def test_parts_share_the_images(tmp_path):
    drawn = Drawn(tmp_path, count=15)
    train, val = drawn.open(part="train"), drawn.open(part="val")
    assert not photos_of(train) & photos_of(val)
    assert len(photos_of(train)) + len(photos_of(val)) == len(photos_of(drawn.open()))
    assert len(train) + len(val) == len(drawn.open())
    # What else is selected moves no image from one part to the other.
    for options in ({"categories": ["bat"]}, {"crowd": True}):
        assert photos_of(drawn.open(part="train", **options)) == photos_of(train)
    for count in (2, 3):
        drawn = Drawn(tmp_path / str(count), count)
        assert photos_of(drawn.open(part="train"))
        assert photos_of(drawn.open(part="val"))
    Drawn(tmp_path / "one", 1).refused("at least 2 images", "`part`", part="train")


def test_annotations_of_unlisted_images_that_are_not_wanted(drawn):
    names = names_of(drawn.open(part="train"))
    drawn.edit(lambda content: content["annotations"].append(
        content["annotations"][0] | {"id": 99, "image_id": 99, "area": 1}))  # fmt: skip
    assert names_of(drawn.open(part="train")) == names
    drawn.refused("does not list", "[99] (1 in all)", min_area=1, part="val")


@pytest.mark.parametrize(
    "entries",
    [{"iscrowd": 1}, {"area": 49.5}, {"segmentation": []}, {"segmentation": [[1, 2, 3, 4]]}],
)
def test_crowds_tiny_and_empty_objects_of_lvis_are_left_out(lvis, entries):
    lvis.first(**entries)
    data = lvis.open()
    assert names_of(data)[:2] == ["000000002000#4002", "000000002001#4003"]
    np.testing.assert_array_equal(data[0].mask, draw_scene(objects=2)[1] == 2)


def corners():
    number = st.decimals(-20, 90, places=2).map(float) | st.floats(-20, 90)
    return st.lists(number, min_size=6, max_size=14).filter(lambda p: len(p) % 2 == 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outline=st.lists(corners(), min_size=1, max_size=3), pending=st.integers(1, 30))
def test_polygons_are_drawn_as_from_the_file(drawn, monkeypatch, outline, pending):
    # Two decimals are kept in 32 bits, others in 64: neither may move a pixel.
    monkeypatch.setattr(annotations, "PENDING", pending)
    drawn.first(segmentation=outline, area=1000)
    expected = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(outline, 48, 64)))
    data = drawn.open()
    if expected.any():
        np.testing.assert_array_equal(data[0].mask, expected)
    else:
        with pytest.raises(DataError, match=r"annotation 10 of .* has no pixel.*`min_area`"):
            data[0]
    np.testing.assert_array_equal(data[1].mask, draw_scene(objects=2, seed=1)[1] == 2)


def test_polygons_are_drawn_from_the_decimals_of_the_file(lvis):
    # Tenths lie on the edges of the finest pixels, where 32 bits would fall to the wrong side.
    random = np.random.default_rng(0)
    polygons = [[(random.integers(0, 480, 12) / 10).tolist() for _ in range(2)] for _ in range(20)]
    base = json.loads(lvis.path.read_text())["annotations"][0]
    entries = [base | {"id": i, "segmentation": [*p, [1, 2, 3, 4]]} for i, p in enumerate(polygons)]
    lvis.edit(lambda content: content.update(annotations=entries))
    data = lvis.open()
    assert data.index.coordinates.dtype == np.float32  # half the memory
    for outline, sample in zip(polygons, data, strict=True):  # which overlap
        expected = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(outline, 48, 64)))
        np.testing.assert_array_equal(sample.mask, expected)


@pytest.mark.parametrize("kind", ["compressed", "lists"])
def test_run_lengths(lvis, kind):
    mask = np.random.default_rng(0).integers(0, 2, (48, 64), dtype=np.uint8)
    runs = coco_mask.encode(np.asfortranarray(mask))["counts"].decode()
    counts = runs if kind == "compressed" else runs_of(mask)
    lvis.first(segmentation={"counts": counts, "size": [48, 64]})
    data = lvis.open()
    assert len(data) == 6
    np.testing.assert_array_equal(data[0].mask, mask)
    np.testing.assert_array_equal(data[1].mask, draw_scene(objects=2)[1] == 2)


def test_areas_that_are_not_stated(drawn):
    mask = draw_scene(objects=2, seed=1)[1] == 1
    outlines = polygons_of(mask)
    turned = [np.reshape(outline, (-1, 2))[::-1].ravel().tolist() for outline in outlines]
    for outline in (outlines, turned, {"size": [48, 64], "counts": runs_of(mask)}):
        for area in (None, 0):
            drawn.first(segmentation=outline, area=area)
            assert drawn.open().areas[0] == mask.sum()


def test_folders_in_file_names(drawn, monkeypatch):
    (drawn.images / "a" / "b").mkdir(parents=True)
    (drawn.images / "1.jpg").rename(drawn.images / "a" / "b" / "2.x.jpg")
    drawn.first("images", file_name="a/b/2.x.jpg")
    monkeypatch.setenv("PROBSEG_DATA", str(drawn.path.parent))
    data = COCO("my.json", "photos", name="mine")
    assert data[0].name == "a/b/2.x#10"
    assert data[0].photo == "a/b/2.x" != data[2].photo
    assert data[0].dataset == "mine"
    shutil.rmtree(drawn.images / "a")
    drawn.refused("a/b", "`images`", error=DatasetNotFoundError)


def test_the_url_decides_the_folder(lvis):
    data = lvis.open()
    folders = [data.index.file(image).split("/")[0] for image in range(3)]
    assert folders == ["train2017", "val2017", "val2017"]
    np.testing.assert_array_equal(data[0].image, LVIS("train", lvis.root, 50)[0].image)
    lvis.edit(lambda content: content["annotations"].__delitem__(slice(0, 2)))
    (lvis.root / "train2017" / "000000002000.jpg").unlink()
    assert len(lvis.open()) == 4  # images without objects may be missing
    shutil.rmtree(lvis.root / "val2017")
    lvis.refused("val2017", "`root`", error=DatasetNotFoundError)


def test_missing_files_and_other_sizes(drawn, tmp_path):
    data = drawn.open()
    path = save(draw_scene(20, 30)[0], drawn.images / "2.jpg")
    refused(DataError, lambda: data[2], path, "my.json", "30 x 20", "64 x 48")
    drawn.first(segmentation={"size": [64, 48], "counts": [0, 48 * 64]})
    refused(DataError, lambda: drawn.open()[0], "annotation 10", "48 x 64 pixels", "64 x 48")
    drawn.images.rename(tmp_path / "elsewhere")
    drawn.refused(drawn.images, "`images`", error=DatasetNotFoundError)
    drawn.path.unlink()
    drawn.refused("my.json", "`annotations`", "PROBSEG_DATA", error=DatasetNotFoundError)


@pytest.mark.parametrize(
    ("entries", "part"),
    [
        ({"id": None}, "'id'"),
        ({"image_id": None}, "'image_id'"),
        ({"id": "ten"}, "'ten'"),
        ({"id": 11}, "the id 11 is there more than once in 'annotations'"),
        ({"image_id": 4}, "does not list with a file_name: [4] (1 in all)"),
        ({"segmentation": [["x"] * 6]}, "'annotations'"),
        ({"segmentation": 5}, "'annotations'"),
        ({"segmentation": {"size": [48, 64], "counts": [10, 20]}}, "fill 30 pixels"),
        ({"segmentation": {"size": [48, 64], "counts": [-5, 3077]}}, "'annotations'"),
        ({"segmentation": {"size": [48, 64], "counts": "10"}}, "run lengths fill"),
        ({"segmentation": {"size": [48, 64], "counts": "~~"}}, "compressed run lengths"),
        ({"segmentation": {"counts": [48 * 64]}}, "'size'"),
        ({"segmentation": [[1, 2, 3, 4, 9, 5], [1e9, 2, 3, 4, 5, 6]]}, "coordinate"),
        ({"segmentation": [[1, 2, 3, -1e9, 5, 6]], "area": None}, "coordinate"),
        ({"area": "wide"}, "'wide'"),
        ({"area": -1}, "area must be finite and at least 0, got -1.0: {'id': 10,"),
        ({"area": float("nan")}, "cannot be read"),
    ],
)
def test_broken_annotations(drawn, entries, part):
    drawn.first(**entries)
    drawn.refused(drawn.path, part, "download or export")


def test_broken_images(drawn, lvis):
    lvis.first("images", coco_url=None)
    lvis.refused(lvis.path, "coco_url", "[2000]", "download")
    whole = drawn.path.read_text()
    outside = ["../1.jpg", "a/../../1.jpg", "/etc/1.jpg", "C:\\1.jpg", "..\\1.jpg", "C:1.jpg", ""]
    changes = [({key: None}, f"'{key}'") for key in ("id", "file_name", "height", "width")]
    for entries, words in changes + [({"file_name": file}, repr(file)) for file in outside]:
        drawn.path.write_text(whole)
        drawn.first("images", **entries)
        drawn.refused(drawn.path, "'images'", words)


def test_files_that_are_no_annotations(drawn):
    whole = drawn.path.read_text()
    texts = ["", "{", "[]", '{"images": 5}', '{"images": [5]}', "\x89PNG", f"{whole} x"]
    texts += [whole[: len(whole) * part // 4] for part in range(1, 4)]  # downloads cut off
    for text in texts:
        drawn.path.write_text(text, encoding="latin-1")
        drawn.refused(drawn.path)
    backwards = dict(reversed(json.loads(whole).items()))
    drawn.path.write_text("\ufeff" + json.dumps(backwards, separators=(",", ":")), "utf-8")
    assert len(drawn.open()) == 6  # while this is one


def test_one_index_serves_all_selections_and_copies(drawn, monkeypatch):
    data = drawn.open()
    again = pickle.loads(pickle.dumps(data))
    np.testing.assert_array_equal(again[3].mask, data[3].mask)
    assert len(pickle.dumps(data.index)) < 10_000
    monkeypatch.setattr(annotations, "_Reader", None)
    assert len(drawn.open(min_area=1, categories=["bat"], part="train", crowd=True)) > 0


def test_an_index_of_other_columns_is_rebuilt(drawn, monkeypatch):
    drawn.open()
    columns = namedtuple("columns", [*AnnotationIndex._fields, "more"], defaults=[np.zeros(1)])
    monkeypatch.setattr(annotations, "AnnotationIndex", columns)
    for _ in range(2):
        index = annotations.read_index("COCO", drawn.path, COCO.place)
        assert index.more.path.name == "more.npy"


def prompted(folder):
    """Three images, each with a bat, a ball and a crowd."""
    path = write_coco(folder / "my.json", folder / "photos")
    edited(path, "annotations", bbox=[1, 2, 20, 30])
    return path


@pytest.fixture
def path(tmp_path):
    return prompted(tmp_path)


READ = {
    "fit": lambda path: COCO(path, path.parent / "photos"),
    "predict": read_prompts,
    "convert": lambda path: [
        (image.file, image.size, [one.region.mask().tolist() for one in image.objects])
        for image in READERS["coco"](path, Request(), Ledger())
    ],
}


def edited(path, key, **entries):
    content = json.loads(path.read_text())
    content[key] = [{**entry, **entries} for entry in content[key]]
    path.write_text(json.dumps(content, indent=1))


def test_files_of_crowds_are_named_as_such(path, caplog):
    assert len(COCO(path, path.parent / "photos")) == 6
    assert caplog.text.count(f"{path}: 3 of 9 annotations are crowds") == 1
    prompts = read_prompts(path)
    assert len([one for image in prompts.images for one in image.objects]) == 6
    assert prompts.crowds == 3
    edited(path, "annotations", iscrowd=1)
    words = (path, "9 of 9 annotations are crowds", "iscrowd", "CVAT")
    refused(DataError, lambda: READ["fit"](path), *words, "crowd: true")
    refused(DataError, lambda: READ["predict"](path), *words)
    assert len(COCO(path, path.parent / "photos", crowd=True)) == 9
    edited(path, "annotations", iscrowd=False)
    assert len(READ["fit"](path)) == 9


@each(
    ("key", "name", "value"),
    [
        ("images", "height", 48.5),
        ("images", "width", "64 px"),
        ("images", "height", 0),
        ("images", "width", True),
        ("images", "id", "-1"),
        ("annotations", "image_id", 1.5),
        ("annotations", "image_id", "a.jpg"),
        ("annotations", "iscrowd", "no"),
        ("categories", "id", "²"),
    ],
)
def test_numbers_are_whole(tmp_path, key, name, value):
    path = prompted(tmp_path)
    edited(path, key, **{name: value})
    for read in READ.values():
        words = (path, f"'{name}' must be a whole number", repr(value))
        refused(DataError, partial(read, path), *words)


@pytest.mark.parametrize("kind", [float, str])
def test_numbers_may_be_written_as_floats_or_texts(path, kind):
    def seen(read):
        answer = read(path)
        return [s.name for s in answer] if isinstance(answer, COCO) else answer

    before = [seen(read) for read in READ.values()]
    content = json.loads(path.read_text())
    for entry in (entry for key in LISTS for entry in content[key]):
        for name in {"id", "image_id", "category_id", "height", "width"} & entry.keys():
            entry[name] = kind(entry[name])
        if isinstance(entry.get("segmentation"), dict):
            entry["segmentation"]["size"] = [*map(kind, (48, 64))]
    path.write_text(json.dumps(content, indent=1))
    assert [seen(read) for read in READ.values()] == before


LISTS = ("images", "annotations", "categories")


IMAGE = {"id": 1, "file_name": "sub/a.jpg", "height": 40, "width": 50}


def as_coco(*images, categories=(), **own):
    """The text of a COCO file with two boxes on each image; the second has other entries."""
    box = {"bbox": [1, 2, 3, 4]}
    of = [i["id"] for i in images]
    boxes = [{"id": i, "image_id": i, **box} for i in of]
    boxes += [{"id": i + 9, "image_id": i, **box, **own} for i in of if own]
    return json.dumps({"images": images, "categories": categories, "annotations": boxes})


CAR = {"id": 3, "name": "car"}


@each(
    ("name", "text"),
    [
        ("p.csv", "image,x,y,positive\nsub/a.jpg,3,4,\n./sub//a.jpg,5,6,0\nsub/./a.jpg,7,8,1\n"),
        ("p.json", '{"./sub/a.jpg": [{"clicks": [[3, 4], [5, 6, false], [7, 8, true]]}]}'),
        ("p.json", as_coco({**IMAGE, "file_name": "./sub//a.jpg"})),
    ],
)
def test_a_photograph_has_one_name_however_its_path_is_written(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    (image,) = read_prompts(tmp_path / name).images
    clicks = Click(3, 4), Click(5, 6, positive=False), Click(7, 8)
    assert image.file == "sub/a.jpg"
    (one,) = image.objects
    assert one.steps in (clicks, (BoxStep((1, 2, 4, 6)),))


@each(
    ("text", "words"),
    [
        ('image,x,y,label\na.jpg,3,4,"cat\nb.jpg,5,6,dog\n', "unexpected end of data"),
        (f"image,x,y\n{'z' * 200_000},3,4\n", "field larger than"),
        ('image,x,y\na.jpg,"3,5",4\n', "line 2: `x` must be a finite number"),
        ("image,x,y\na.jpg,3,\n", "line 2: `y` must be a finite number"),
        ("image,x0,y0,x1,y1\na.jpg,1,2,3,\n", "line 2: `y1` must be a finite number"),
        ("image,x,y\na.jpg,,\n", "a.jpg: the object 1 has neither"),
        ("image,x0,y0,x1,y1\na.jpg,1,2,9,9\na.jpg,1,2,8,8\n", "line 3: a second box"),
        ("image,x,y,label\na.jpg,1,2,cat\na.jpg,1,2,dog\n", "line 3: a second label"),
        ("image,x,y\na,b.jpg,3,4\n", "line 2: has more cells than columns"),
        ("image,x,y,x\na.jpg,3,4,5\n", "each once"),
        ("image;x;y\na.jpg;3;4\n", "image;x;y"),
        ("image,x,y,positive\na.jpg,3,4,yes\n", "line 2: `positive` must be 1 or 0, got 'yes'"),
        ('{"a.jpg": [{"box": "1234"}]}', "`box` must be four numbers [x0, y0, x1, y1], got '1234'"),
        ('{"a.jpg": [{"box": [1, 2, 3, true]}]}', "`box` must be four numbers"),
        ('{"a.jpg": [{"clicks": [3, 4]}]}', "a click must be [x, y]"),
        ('{"a.jpg": [{"clicks": [["3", 4]]}]}', "`x` must be a number such as 12.5, got '3'"),
        ('{"a.jpg": {"box": [1, 2, 3, 4]}}', "a.jpg: expected a list of objects"),
        ('{"a.jpg": [{"click": [1, 2]}]}', "object 1: unknown key 'click': did you mean 'clicks'?"),
        ('{"a.jpg": [{"box": [1,2,3,4]}], "./a.jpg": []}', "'./a.jpg' is there more than"),
        (as_coco({**IMAGE, "file_name": None}), "'file_name' must be a text, got None"),
        ("[" * 100_000, "nested too deeply"),
        (as_coco(IMAGE, category_id="car", categories=[CAR]), "'category_id' must be a whole"),
        (as_coco(IMAGE, category_id=3), "annotation 10 is of the category 3"),
        (as_coco(IMAGE, categories=[CAR, CAR]), "the id 3 in `categories` is there more than"),
        (as_coco(IMAGE, id=1), "the id 1 in `annotations`"),
        (as_coco(IMAGE, id="a"), "'id' must be a whole number, got 'a'"),
        (as_coco(IMAGE, IMAGE), "the id 1 in `images`"),
        (as_coco(IMAGE, image_id=2), "image 2, which is missing"),
        (as_coco(IMAGE, bbox=None), "bbox"),
        ('{"p0.png": [{"clicks": [[9, 9]]}], "p0.png": []}', "'p0.png' is there more"),
        ('{".p0.png": [{"clicks": [[9, 9]]}]}', "hidden"),
        (f'{{"{"é" * 116}.png": [{{"clicks": [[9, 9]]}}]}}', "the name has 236 bytes"),
        ("image,x,y,label\n,9,9,a\n", "line 2: expected an image"),
    ],
)
def test_what_is_no_prompt_is_refused_by_its_place(tmp_path, text, words):
    path = tmp_path / ("p.csv" if text.startswith("image") else "p.json")
    path.write_text(text)
    message = refused(DataError, lambda: read_prompts(path), words)
    assert str(path) in message or "rename it" in message


def test_tables_of_prompts_from_spreadsheets(tmp_path):
    signs = {"1": True, "": True, "TRUE": True, "+": True, "0": False, "False": False, "-": False}
    rows = [f"a.jpg , 1, {number},4,{sign}\r\n" for number, sign in enumerate(signs)]
    path = tmp_path / "clicks.csv"
    text = "".join(["image, object, x ,y,positive\r\n", *rows, ",,,,\r\n", "a.jpg,2,7, 8,\r\n"])
    path.write_text(text, encoding="utf-8-sig")
    (image,) = read_prompts(path).images
    assert image.file == "a.jpg"
    first, second = image.objects
    assert [click.positive for click in first.steps] == list(signs.values())
    assert [click[:2] for click in second.steps] == [(7, 8)]
