"""COCO+LVIS: layers of PNG files in pickles that are read once, without trust."""

import errno
import os
import pickle
import tempfile
import zlib
from io import BytesIO

import numpy as np
import pytest

from probseg.data import COCOLVIS
from probseg.errors import DataError
from support.drawn_sets import as_png, write_cocolvis, write_pickle
from support.fakes import draw_scene, save
from support.refusals import refused
from support.rows import each

FIRST = "000000002000"


@pytest.fixture
def root(tmp_path):
    return write_cocolvis(tmp_path / "COCOLVIS")


def masks_of(root, name=FIRST):
    return root / "val" / "masks" / f"{name}.pickle"


def test_stuff_is_left_out_unless_it_is_wanted(root):
    data = COCOLVIS("val", root, stuff=True)
    assert [data.object_name(i) for i in range(4)] == [f"{FIRST}#{key}" for key in (0, 1, 2, 4)]
    np.testing.assert_array_equal(data[3].mask, draw_scene(96, 128, 2)[1] == 0)


def test_objects_without_a_pixel_are_never_there(root):
    layers, places = pickle.loads(masks_of(root).read_bytes())
    write_pickle((layers, [(0, 77), *places[1:]]), masks_of(root))
    assert COCOLVIS("val", root, min_area=0).object_name(0) == f"{FIRST}#1"


def test_processes_get_the_place_and_not_the_layers(root):
    data = COCOLVIS("val", root, stuff=True, min_area=50)
    sent = pickle.dumps(data)
    assert len(sent) < 1500 < data.index["content"].nbytes
    again = pickle.loads(sent)
    assert len(again) == len(data)
    np.testing.assert_array_equal(again[3].mask, data[3].mask)


def test_missing_masks_and_images(root):
    masks_of(root).unlink()
    refused(DataError, lambda: COCOLVIS("val", root), masks_of(root), "no such file", "unpack")
    images = root / "val" / "images"
    (images / f"{FIRST}.jpg").unlink()  # which is noticed before the masks are read
    refused(DataError, lambda: COCOLVIS("val", root), images, FIRST, "1 in all")


def test_layers_go_where_they_are_kept_later_on(root, monkeypatch, tmp_path):
    places = []
    real = tempfile.TemporaryFile

    def seen(**options):
        places.append(options["dir"])
        return real(**options)

    monkeypatch.setattr(tempfile, "TemporaryFile", seen)
    monkeypatch.setenv("PROBSEG_CACHE", str(tmp_path / "chosen"))
    COCOLVIS("val", root)
    monkeypatch.delenv("PROBSEG_CACHE")
    COCOLVIS("val", root)
    assert places == [tmp_path / "chosen", root / "val"]


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


class Full(BytesIO):
    writelines = full


@pytest.mark.parametrize("opened", [full, lambda **_: Full()])
def test_no_room_for_the_layers(root, monkeypatch, tmp_path, opened):
    monkeypatch.setenv("PROBSEG_CACHE", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", opened)
    refused(DataError, lambda: COCOLVIS("val", root), tmp_path, "No space left", "PROBSEG_CACHE")


class Malicious:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("place", ["hannotation.pickle", f"masks/{FIRST}.pickle"])
def test_malicious_pickles_run_nothing(root, tmp_path, place):
    path = root / "val" / place
    write_pickle(Malicious(f"touch {tmp_path / 'executed'}"), path)
    refused(DataError, lambda: COCOLVIS("val", root), path, "asks for posix.system", "malicious")
    assert not (tmp_path / "executed").exists()


@each(
    "content",
    [
        [], {}, {"a": None}, {"a": {"num_instance_masks": 1}}, {5: {}},
        {"a": {"num_instance_masks": 1, "hierarchy": {1: None}}},
        {"a": {"num_instance_masks": "x", "hierarchy": {}}},
        {"../../secret": {"num_instance_masks": 0, "hierarchy": {}}},
        {"..": {"num_instance_masks": 0, "hierarchy": {}}},
    ],
)  # fmt: skip
def test_strange_annotations(root, content):
    path = write_pickle(content, root / "val" / "hannotation.pickle")
    refused(DataError, lambda: COCOLVIS("val", root), path)


LAYER = as_png(draw_scene(96, 128)[1])
PLACES = [(0, 1)] * 4


def huge(layer):
    """The same PNG file with a header that promises 30000 x 30000 pixels."""
    content = bytearray(layer.tobytes())
    content[16:24] = 2 * (30_000).to_bytes(4, "big")
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return np.frombuffer(bytes(content), np.uint8)


def sharing(levels):
    """A list that holds the one before twice: a small file, and 2 ** levels numbers."""
    inner = [1, 1]
    for _ in range(levels):
        inner = [inner, inner]
    return inner


@each(
    ("content", "parts"),
    [
        (None, []),
        (([LAYER], PLACES[:3]), ["at least 4 objects", "got 3"]),
        (([LAYER], [*PLACES[:3], (1, 1)]), ["(1, 1)", "1 layers"]),
        (([LAYER], [*PLACES[:3], (-1, 1)]), ["(-1, 1)"]),
        (([LAYER], [*PLACES[:3], (0, 256)]), ["(0, 256)"]),
        (([LAYER], [*PLACES[:3], (0, 0)]), ["(0, 0)"]),
        (([LAYER], [1, 2, 3, 4]), ["cannot be read"]),
        (([LAYER.astype(np.int64)], PLACES), ["PNG"]),
        (([[1, 2]], PLACES), ["PNG"]),
        (([sharing(40)], PLACES), ["PNG"]),
        (([LAYER[9:]], PLACES), ["no PNG"]),
        (([LAYER[:-30]], PLACES), ["cannot be read as an image"]),
        (([huge(LAYER)], PLACES), ["30000 x 30000", "128 x 96"]),
        (([as_png(draw_scene(48, 64)[1])], PLACES), ["64 x 48", "128 x 96"]),
        (([as_png(draw_scene(96, 128)[0])], PLACES), ["several channels"]),
    ],
)
def test_strange_masks(root, content, parts):
    path = write_pickle(content, masks_of(root))
    refused(DataError, lambda: COCOLVIS("val", root), path, *parts)


def test_an_image_that_changes_its_size(root):
    data = COCOLVIS("val", root)
    path = save(draw_scene(20, 30)[0], root / "val" / "images" / f"{FIRST}.jpg")
    refused(DataError, lambda: data[0], path, masks_of(root), "30 x 20", "128 x 96")
