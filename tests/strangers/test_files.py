"""Files of strangers are refused with little memory, in a sentence, and start no program."""

import ast
import base64
import contextlib
import csv
import io
import itertools
import json
import lzma
import pickle
import re
import struct
import tarfile
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from numpy._core.numeric import _frombuffer
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import TiffImageFile
from scipy.io import savemat

from probseg.cli import main
from probseg.cli.help import short_help
from probseg.convert import Ledger, Request
from probseg.convert import labelme as labelme_files
from probseg.data.archives import unpack
from probseg.data.prompts import read_prompts
from probseg.data.sets.foreign_files import broken_as_data_error, load_data, load_mat
from probseg.errors import DataError
from probseg.evaluation.records import read_objects, write_objects
from probseg.formats import brush, run_lengths
from probseg.images import read_image
from probseg.masks import read_labels
from probseg.texts import ShallowJSON, from_cell, read_yaml, write_rows
from support.confined import confined
from support.result_folders import record, rising, write_result
from support.rows import each

MOST = 500
"""Megabytes that a file of at most one megabyte may take."""

SQUARE = [10, 10, 40, 10, 40, 40, 10, 40]
ZIGZAG = [[x, y] for x in range(3000) for y in (0, 9000)]


def png(width, height):
    """A PNG of black pixels, in a thousandth of their bytes."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    packer, line = zlib.compressobj(1), bytes(1 + width // 8)
    lines = b"".join(packer.compress(line) for _ in range(height)) + packer.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def labelme(*shapes, size=(50, 60), **changes):
    height, width = size
    content = {"imagePath": "a.jpg", "imageHeight": height, "imageWidth": width, "shapes": shapes}
    return json.dumps(content | changes)


def mask(content, corners=((0, 0), (9, 9))):
    code = base64.b64encode(content).decode()
    return {"label": "a", "shape_type": "mask", "points": corners, "mask": code}


def box(side):
    return [[0, 0], [side, 0], [side, side], [0, side]]


def polygon(points):
    return {"label": "a", "shape_type": "polygon", "points": points}


def coco(segmentation=(SQUARE,), size=(50, 60), file="a.jpg"):
    height, width = size
    image = {"id": 1, "file_name": file, "height": height, "width": width}
    annotation = {"id": 1, "image_id": 1, "segmentation": segmentation}
    return json.dumps({"images": [image], "annotations": [annotation]})


def prompts(size):
    return coco([1, 2, 3, 4], size).replace("segmentation", "bbox").encode()


def runs(counts, size=(50, 60)):
    return coco({"size": size, "counts": counts}, size)


def label_studio(rle=(), size=(50, 60), label="a"):
    value = {"format": "rle", "rle": rle, "brushlabels": [label]}
    result = {"type": "brushlabels", "value": value}
    result |= {"original_height": size[0], "original_width": size[1]}
    task = {"data": {"image": "a/b.jpg"}, "annotations": [{"result": [result]}]}
    return json.dumps([task])


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n{} loop\n%%EOF\n"
NESTED = '{"images": ' + "[" * 60_000
DEEP = "nested too deeply, in more than 64 levels"
LARGE = "too large: at most 89 million pixels and sides of 1000000"

CONVERTED = {
    "labelme, postscript": ("labelme", labelme(mask(EPS)), "cannot be read as an image"),
    "labelme, 164 million pixels": (
        "labelme",
        labelme(mask(png(12_800, 12_800), ((0, 0), (8000, 8000))), size=(9000, 9000)),
        "more than 89 million pixels",
    ),
    "labelme, brackets": ("labelme", "[" * 10**6, DEEP),
    "labelme, size": ("labelme", labelme(polygon(box(60_000)), size=(60_000, 60_000)), LARGE),
    "labelme, outline": ("labelme", labelme(polygon(ZIGZAG), size=(9000, 9000)), "pixels long"),
    "labelme, no name": ("labelme", labelme(imagePath="a/.."), "'imagePath' must be"),
    "labelme, NUL": ("labelme", labelme(imagePath="a\0.jpg"), "'imagePath' must be"),
    "labelme, half a character": (
        "labelme",
        labelme({**polygon(box(40)), "label": "\ud800"}),
        "half a character",
    ),
    "coco, brackets": ("coco", NESTED, DEEP),
    "coco, size": ("coco", runs([0, 3_600_000_000], (60_000, 60_000)), LARGE),
    "coco, size without a mask": ("coco", coco(size=(100_000, 100_000)), LARGE),
    "coco, one long side": ("coco", runs([0, 80_000_000], (1, 80_000_000)), LARGE),
    "coco, size of run lengths": (
        "coco",
        coco({"size": [60_000, 60_000], "counts": [3_600_000_000]}),
        LARGE,
    ),
    "coco, outline": (
        "coco",
        coco([list(itertools.chain(*ZIGZAG))], (9000, 9000)),
        "pixels long",
    ),
    "coco, NUL": ("coco", coco(file="a\0.jpg"), "must lead to a file inside"),
    "label-studio, brackets": ("label-studio", "[" * 60_000, DEEP),
    "label-studio, size": ("label-studio", label_studio([0], (60_000, 60_000)), LARGE),
    "label-studio, a number of bytes": (
        "label-studio",
        label_studio(2_000_000_000),
        "expected a list for 'rle'",
    ),
}


@pytest.mark.parametrize("row", CONVERTED)
def test_annotation_files(row, tmp_path):
    reader, content, words = CONVERTED[row]
    source = tmp_path / "in" / "a.json"
    source.parent.mkdir()
    source.write_text(content)
    assert source.stat().st_size < 10**6 + 10
    place = source.parent if reader == "labelme" else source
    for writer in ("png", "yolo"):
        target = tmp_path / writer
        command = ["data", "convert", place, target, "--from", reader, "--to", writer]
        seen = confined(lambda command=command: main([str(part) for part in command]))
        assert words in seen.text
        assert (seen.status, seen.outside) == (2, []), seen
        assert seen.peak < MOST
        assert not target.exists()


def test_objects_are_drawn_one_at_a_time(tmp_path):
    """A kilobyte has eight objects of 81 million pixels, which are not there all at once."""
    (tmp_path / "a.json").write_text(labelme(*8 * [polygon(box(9000))], size=(9000, 9000)))
    tracemalloc.start()
    try:
        (image,) = labelme_files.read(tmp_path, Request(), Ledger())
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
    assert next(iter(image.objects)).region.area == 9000**2


def header(kind, size, name="x"):
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


def packed(begin, size):
    packer, block = lzma.LZMACompressor(preset=0), bytes(10**6)
    blocks = itertools.chain([begin], itertools.repeat(block, size // 10**6))
    return b"".join(packer.compress(part) for part in blocks) + packer.flush()


def folders():
    return packed(b"".join(header(tarfile.DIRTYPE, 0, f"{i}") for i in range(30_000)), 0)


def junk():
    return packed(header(tarfile.REGTYPE, 99 * 10**6, "__MACOSX/x"), 10**8)


ARCHIVES = {
    "pax header": (lambda: packed(header(tarfile.XHDTYPE, 10**9), 10**9), "headers of more"),
    "global header": (lambda: packed(header(tarfile.XGLTYPE, 10**9), 10**9), "headers of more"),
    "long name": (lambda: packed(header(tarfile.GNUTYPE_LONGNAME, 10**9), 10**9), "headers"),
    "backwards": (lambda: packed(header(tarfile.XHDTYPE, -512), 10**6), "headers of more"),
    "folders": (folders, "unpacks to more than 10.0 MB"),
    "junk": (junk, "unpacks to more than 10.0 MB"),
    "chain": (
        lambda: packed(header(tarfile.XHDTYPE, 512) * 3000, 10**6),
        "headers of more than 0.1 MB",
    ),
}


@pytest.mark.parametrize("row", ARCHIVES)
def test_archives(row, tmp_path):
    make, words = ARCHIVES[row]
    path = tmp_path / "a.tar.xz"
    path.write_bytes(make())
    assert path.stat().st_size < 10**6
    seen = confined(lambda: unpack(path, tmp_path / "out", 10**7))
    assert seen.status == 2, seen.text
    assert words in seen.text
    assert seen.peak < 100


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def cells(sides, inner=b""):
    """A cell array of a MATLAB file."""
    head = element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<ii", *sides))
    return element(14, head + element(1, b"S") + inner)


def matlab(content):
    file = io.BytesIO()
    savemat(file, {"S": 0})
    packed = zlib.compress(content)
    return file.getvalue()[:128] + struct.pack("<II", 15, len(packed)) + packed


def nested_cells():
    return matlab(cells((1, 1)) * 100_000)  # scipy looks at no size


class Again:
    """An array of half a megabyte, which all in a pickle share."""

    arguments = (bytes(500_000), np.dtype("u1"), (500_000,), "C")

    def __reduce__(self):
        return _frombuffer, self.arguments


def bomb(levels):
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, levels)]
    return "\n".join(lines).encode()


FILES = {
    "cells in cells": (load_mat, ".mat", nested_cells, "more than 1000 matrices", ("S",)),
    "many cells": (load_mat, ".mat", lambda: matlab(cells((40_000, 40_000))), "1000", ("S",)),
    "empty cells": (
        load_mat,
        ".mat",
        lambda: matlab(cells((1, 900), element(14, b"") * 3_000_000)),
        "more than 1000 matrices",
        ("S",),
    ),
    "one array many times": (
        load_data,
        ".pickle",
        lambda: pickle.dumps([Again() for _ in range(8000)]),
        "makes more bytes",
        (),
    ),
    "aliases": (read_yaml, ".yaml", lambda: bomb(30), "with those that aliases repeat", ()),
    "large YAML": (read_yaml, ".yaml", lambda: b"[" + b"a," * 450_000 + b"]", "0.3 MB", ()),
    "deep YAML": (read_yaml, ".yaml", lambda: b"[" * 5000, DEEP, ()),
    "an alias of itself": (read_yaml, ".yaml", lambda: b"&a [*a]", DEEP, ()),
    "deep prompts": (read_prompts, ".json", lambda: b"[" * 70 + b"]" * 70, DEEP, ()),
    "large prompts": (
        read_prompts,
        ".json",
        lambda: prompts((60_000, 60_000)),
        LARGE,
        (),
    ),
    "a cell without end": (
        read_objects,
        ".csv",
        lambda: b"dataset,object,photo,pixels,trial,k,x,y,sign,iou,seconds\n" + b"x" * 200_000,
        "line",
        (),
    ),
}


@pytest.mark.parametrize("row", FILES)
def test_other_files(row, tmp_path):
    read, suffix, make, words, more = FILES[row]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(make())
    assert path.stat().st_size < 10**6
    seen = confined(lambda: read(path, *more))
    assert (seen.status, seen.outside) == (2, []), seen.text
    assert words in seen.text
    assert seen.peak < MOST


ODD_YAML = {
    **{kind: f"!!{kind} ''" for kind in ("bool", "float", "int", "timestamp", "omap", "set")},
    "hexadecimal": "0x" + "f" * 200_000,
    "base 60": "1" + ":59" * 80_000,
    "base 60, broken": "1" + ":59" * 80_000 + ".5",
    "no character": '"\\UFFFFFFFF"',
    "merged": "&a {<<: [*a, *a]}",
    "an object": "!!python/object/apply:os.system [exit]",
}


@pytest.mark.parametrize("row", ODD_YAML)
def test_odd_yaml_is_an_error_of_yaml_or_of_ours(row, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(ODD_YAML[row])
    with pytest.raises((yaml.YAMLError, DataError)):
        read_yaml(path)


def test_the_warning_of_configurations_stands_where_they_are_recommended(repository):
    pages = [repository / name for name in ("README.md", "docs/training.md", "docs/own_images.md")]
    for text in (
        short_help(["test", "--help"]),
        *(path.read_text(encoding="utf-8") for path in pages),
    ):
        assert "classes that it names" in " ".join(text.split())


def test_configurations(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(b"data: {class_path: ImageMaskFolder, x: " + b"[" * 500 + b"]" * 500 + b"}")
    seen = confined(lambda: main(["test", "--config", str(path)]))
    assert seen.status == 2
    assert DEEP in seen.text


PICTURES = {
    "a WebP of 38 bytes": ("WEBP", 7000, {"lossless": True}, "49 million pixels in 0.0 MB"),
    "a turned PNG": ("PNG", 7600, {}, ""),
    "a JPEG in several scans": ("JPEG", 7000, {"progressive": True, "quality": 1}, "49 million"),
}


@pytest.mark.parametrize("row", PICTURES)
def test_pictures(row, tmp_path):
    kind, side, options, words = PICTURES[row]
    path, exif = tmp_path / "a.jpg", Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (side, side)).save(path, kind, exif=exif, **options)
    assert path.stat().st_size < 10**6
    seen = confined(lambda: read_image(path))
    assert seen.status == (2 if words else 0), seen.text
    assert words in seen.text
    assert seen.peak < MOST


def tiff(side):
    """A TIFF of 16 x 16 pixels in one tile of zeros."""
    packer, line = zlib.compressobj(1), bytes(3 * side)
    content = b"".join(packer.compress(line) for _ in range(side)) + packer.flush()
    sizes = {256: 16, 257: 16, 258: 8, 259: 8, 262: 2, 277: 3, 284: 1, 322: side, 323: side}
    entries = [*sizes.items(), (324, 256), (325, len(content))]
    tags = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return (b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + tags).ljust(256, b"\0") + content


@each(("side", "status"), [(16, 0), (8000, 2), (10_000, 2)])
def test_a_tile_is_as_large_as_a_picture(tmp_path, side, status):
    path = tmp_path / "a.tif"
    path.write_bytes(tiff(side))
    seen = confined(lambda: read_image(path))
    assert (seen.status, "million pixels" in seen.text) == (status, bool(status)), seen.text
    assert seen.peak < 100


def test_a_jpeg_is_drawn_in_few_scans(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (99, 99)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content[content.rindex(b"\xff\xda") : -2]
    path = tmp_path / "a.jpg"
    for again, status in ((60, 0), (9000, 2)):
        path.write_bytes(content[:-2] + again * last + content[-2:])
        seen = confined(lambda: read_image(path))
        assert (seen.status, "drawn again and again" in seen.text) == (status, bool(status))


def test_pages_of_a_mask_are_not_counted(tmp_path, monkeypatch):
    """Of a TIFF, Pillow compares the place of each with those of all before."""
    monkeypatch.setattr(TiffImageFile, "n_frames", property(lambda _: pytest.fail("are counted")))
    page = Image.new("L", (4, 3), 1)
    page.save(tmp_path / "a.tif", save_all=True, append_images=[page])
    with pytest.raises(DataError, match="holds several pages"):
        read_labels(tmp_path / "a.tif")


def directory(entries, size=700_000, place=8):
    """A block of EXIF, or most of a TIFF: tags with kinds, lengths, and values or places."""
    tags = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    head = b"II*\0" + struct.pack("<I", place)
    head = head.ljust(place, b"\0") + struct.pack("<H", len(entries)) + tags + bytes(4)
    return head.ljust(size, b"\0")


TURNED = (0x0112, 3, 1, 6)
MANY = [(tag, 4, 100_000, 8) for tag in range(1000, 40_000)]


def with_exif(kind, block):
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, kind, **({} if kind == "JPEG" else {"exif": block}))
    content = file.getvalue()
    if kind == "JPEG":
        parts = [block[at : at + 65_000] for at in range(0, len(block), 65_000)]
        marked = [
            b"\xff\xe1" + struct.pack(">H", len(part) + 8) + b"Exif\0\0" + part for part in parts
        ]
        return content[:2] + b"".join(marked) + content[2:]
    if kind == "PNG":  # last, where Pillow finds it when it has read the pixels
        start = content.index(b"eXIf") - 4
        end = start + 12 + len(block)
        return content[:start] + content[end:-12] + content[start:end] + content[-12:]
    return content


def tiff_with(entries, inner=()):
    """A TIFF of one grey pixel, whose EXIF is a directory of its own."""
    sizes = {256: 1, 257: 1, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: 1}
    outer = [*((tag, 4, 1, value) for tag, value in sizes.items()), *entries]
    block = directory([*outer, (34_665, 4, 1, 600_000)] if inner else outer, 600_000, 16)
    return block + struct.pack("<H", len(inner)) + directory(inner, 0)[10:]


DIRECTORIES = {
    **{
        kind: lambda kind=kind: with_exif(kind, directory(MANY)) for kind in ("JPEG", "PNG", "WEBP")
    },
    "TIFF": lambda: tiff_with(MANY),
    "EXIF of a TIFF": lambda: tiff_with([], MANY[:20_000]),
    "lengths that lead out": lambda: with_exif(
        "PNG", directory([(tag, 4, 10**9, 8) for tag in range(1000)], 20_000)
    ),
}


@pytest.mark.parametrize("row", DIRECTORIES)
def test_directories_of_tags(row, tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(DIRECTORIES[row]())
    assert path.stat().st_size < 10**6
    seen = confined(lambda: read_image(path))
    assert (seen.status, len(seen.text) < 1000) == (2, True), seen.text[:1000]
    assert "claims the same bytes again and again" in seen.text
    assert seen.peak < 100


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_wrong_length_in_a_directory_is_honest(kind, tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(with_exif(kind, directory([TURNED, (0x9000, 4, 10**9, 8)], 200)))
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        assert read_image(path).shape == (4, 3, 3)


RESULTS = {
    "clicks": ({"protocol": {"max_clicks": 10**9}}, "expected lines for 0 to 1000000000 clicks"),
    "no number of clicks": ({"protocol": {"max_clicks": "9"}}, "has max_clicks '9', of another"),
    "target": ({"protocol": {"target_iou": [1]}}, "has target_iou [1], of another"),
    "checkpoint": ({"metadata": {"checkpoint": 5}}, "has checkpoint 5, of another"),
    "seed": ({"metadata": {"seed": []}}, "has seed [], of another"),
    "no number": ({"metadata": {"seed": float("nan")}}, "is not JSON: Out of range"),
    "half a character": ({"metadata": {"weights_sha256": "\ud800"}}, "is not JSON: 'utf-8' codec"),
}


@pytest.mark.parametrize("row", RESULTS)
def test_results(row, tmp_path):
    changes, words = RESULTS[row]
    folders = [write_result(tmp_path / name, {"set": rising(3)}) for name in "ab"]
    path = folders[1] / "results.json"
    content = json.loads(path.read_text())
    for key, part in changes.items():
        content[key] |= part
    path.write_text(json.dumps(content))
    seen = confined(lambda: main(["compare", *map(str, folders)]))
    assert seen.status == 2, seen.text
    assert words in seen.text
    assert seen.peak < MOST


def test_names_in_results_make_nothing_of_their_own(tmp_path):
    name = "x`\n# forged\n<img src=x>![a](http://evil/x.png)"
    folders = [
        write_result(tmp_path / place, {name: rising(3)}, weights_sha256=name, model=name)
        for place in "ab"
    ]
    seen = confined(lambda: main(["compare", *map(str, folders), "--output", str(tmp_path / "c")]))
    assert seen.status == 0, seen.text
    text = (tmp_path / "c/comparison.md").read_text(encoding="utf-8")
    assert not re.search("^# forged", text + seen.text, re.MULTILINE)
    assert not re.search(r"<img|\]\(http", re.sub("`[^`]*`", "", text))


def test_names_of_objects_are_no_formulas(tmp_path):
    name, photo = "=cmd|' calc'!A0", "'-1.jpg"
    wanted = [record("@set", name, 0, [0.5, 0.75], photo, boxed=False)]
    path = tmp_path / "objects.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        write_objects(file, wanted)
    (first, *_) = csv.reader(path.read_text().splitlines()[1:])
    assert first[:3] == ["'@set", "'" + name, "'" + photo]
    assert read_objects(path) == wanted


def test_only_one_reader_opens_pictures_and_one_writer_makes_tables(repository):
    """Those know the formats and the limits, and how spreadsheets take cells."""
    calls = {}
    for path in (repository / "probseg").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute | ast.ImportFrom):
                name = ast.unparse(node).replace("import ", "")
                calls.setdefault(name, set()).add(path.relative_to(repository).as_posix())
    assert calls["Image.open"] == {"probseg/images.py"}
    assert calls["csv.writer"] == {"probseg/texts.py"}
    assert calls["cv2.imdecode"] == {"probseg/images.py"}  # of what Pillow has opened before
    others = ("cv2.imread", "csv.DictWriter", "mpimg.imread", "plt.imread")
    assert not {*others, "np.fromfile", "pickle.load", "pickle.loads"} & calls.keys()


CELLS = st.text("=+-@\uff1d\uff0b\uff0d\uff20\t\r\n'a1,\" ", max_size=5) | st.text(max_size=5)


@given(
    st.lists(st.lists(CELLS | st.integers() | st.floats(allow_nan=False), min_size=1), max_size=4)
)
def test_cells_are_no_formulas_and_come_back(rows):
    file = io.StringIO(newline="")
    write_rows(file, rows)
    again = list(csv.reader(io.StringIO(file.getvalue(), newline="")))
    assert len(again) == len(rows)
    for row, cells in zip(rows, again, strict=True):
        for value, cell in zip(row, cells, strict=True):
            if isinstance(value, str):
                assert not cell.startswith((*"=+-@\uff1d\uff0b\uff0d\uff20", "\t", "\r"))
                assert from_cell(cell) == value
            else:
                assert type(value)(cell) == value


JSON = st.recursive(
    st.none() | st.integers() | st.text('[]{}"\\\\,a', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('["\\'), inner, max_size=2),
)


@given(JSON, st.integers(0, 80), st.integers(1, 9))
def test_levels_of_json_are_counted_in_any_blocks(value, levels, block):
    text = b"[" * levels + json.dumps(value).encode() + b"]" * levels
    file = ShallowJSON(io.BytesIO(text))

    def depth(value):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth, inner), default=0) if isinstance(value, dict | list) else 0

    def read():
        return b"".join(iter(lambda: file.read(block), b""))

    if depth(value) + levels > 64:
        with pytest.raises(ValueError, match=DEEP):
            read()
    else:
        assert (read(), file.depth) == (text, 0)


def whole_archive(place):
    with tarfile.open(place / "whole.tar", "w") as file:
        for name in ("a", "b/c"):
            entry = tarfile.TarInfo(name)
            entry.size = 700
            file.addfile(entry, io.BytesIO(bytes(700)))
    return (place / "whole.tar").read_bytes()


def whole_matlab(place):
    savemat(place / "whole.mat", {"S": {"x": [1, 2, {"y": "z"}]}})
    return (place / "whole.mat").read_bytes()


DAMAGED = {
    ".tar": (lambda path: unpack(path, path.parent / f"out{path.stem}", 10**6), whole_archive),
    ".mat": (lambda path: broken(path), whole_matlab),
    ".pickle": (load_data, lambda place: pickle.dumps({"a": [np.arange(9), "b", 2.5]})),
    ".json": (
        read_prompts,
        lambda place: coco([1, 2, 3, 4]).replace("segmentation", "bbox").encode(),
    ),
}


def broken(path):
    with broken_as_data_error(path, "a matrix"):
        load_mat(path, "S")


@pytest.mark.parametrize("suffix", DAMAGED)
def test_damaged_files_are_read_or_refused(suffix, tmp_path):
    read, make = DAMAGED[suffix]
    whole, numbers = make(tmp_path), itertools.count()

    @given(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=6))
    def check(changes):
        content = bytearray(whole)
        for place, value in changes:
            content[place] = value
        path = tmp_path / f"{next(numbers)}{suffix}"
        path.write_bytes(content)
        with contextlib.suppress(DataError):
            read(path)

    check()


@given(st.binary(max_size=60), st.integers(1, 9), st.integers(1, 9))
def test_run_lengths_of_any_bytes(content, height, width):
    rows = (
        lambda: brush.decode(list(content), (height, width)),
        lambda: run_lengths.decode({"size": [height, width], "counts": content}),
    )
    for decode in rows:
        with contextlib.suppress(ValueError):
            decode()
