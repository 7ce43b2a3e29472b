"""Small files that would fill the memory are refused before they are decoded."""

import struct
import tracemalloc
import warnings
import zlib
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

import probseg.images as images
from probseg.data import SBD
from probseg.data.sets.mat_files import load_mat
from probseg.errors import DataError
from probseg.images import image_size, read_image
from probseg.masks import read_colours, read_grey, read_labels
from support.fakes import save, write_sbd
from support.refusals import refused

READERS = (read_image, read_labels, read_colours, read_grey, image_size)


@contextmanager
def little_memory():
    """Nothing large is decoded."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


def png(path, width, height):
    """A PNG file of black pixels, whose lines are compressed one by one: it is written quickly."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    packer = zlib.compressobj(1)
    line = bytes(1 + width)
    lines = b"".join(packer.compress(line) for _ in range(min(height, 50))) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    return path


@pytest.mark.parametrize(
    ("limit", "width", "warned"),
    [("Pillow's", 9_000, "error"), ("Pillow's", 20_000, "ignore"), ("none", 9_000, "ignore")],
)
def test_images_and_masks_with_too_many_pixels(limit, width, warned, tmp_path, monkeypatch):
    if limit == "none":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    path = png(tmp_path / "bomb.png", width, 10_000)
    for reader in READERS:
        with warnings.catch_warnings(), little_memory():
            warnings.simplefilter(warned, Image.DecompressionBombWarning)
            words = (f"{path}: has more than 89 million pixels", "scale it down")
            refused(DataError, lambda reader=reader: reader(path), *words)


def test_the_limit_itself_is_allowed(tmp_path, monkeypatch):
    path = png(tmp_path / "large.png", 9_000, 9_900)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert image_size(path) == (9_900, 9_000)
    assert Image.DecompressionBombWarning not in [entry[2] for entry in warnings.filters]
    monkeypatch.setattr(images, "MAX_PIXELS", 35)
    fits = save(np.full((5, 7), 255, np.uint8), tmp_path / "fits.png")
    large = save(np.full((6, 6), 255, np.uint8), tmp_path / "more.png")
    for reader in READERS:
        reader(fits)
        refused(DataError, lambda reader=reader: reader(large), "million pixels")


def test_no_memory_is_not_the_fault_of_the_file(tmp_path, monkeypatch):
    def full(picture):
        raise MemoryError

    path = save(np.zeros((5, 7), np.uint8), tmp_path / "a.png")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", full)
    with pytest.raises(MemoryError):
        read_image(path)


def test_matlab_files_are_read_as_scipy_does(tmp_path):
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for compressed in (False, True):
        for version in ("4", "5"):
            path = tmp_path / f"{version}{compressed}.mat"
            options = {"do_compression": compressed} if version == "5" else {}
            savemat(path, {"first": values, "other": values + 1}, format=version, **options)
            assert (load_mat(path, "other") == values + 1).all()
            with pytest.raises(KeyError):
                load_mat(path, "third")


def matlab_bomb(path, size):
    """A compressed variable of zeros; the file is a thousand times smaller."""
    savemat(path, {"S": np.zeros((1, 8), np.uint8)}, do_compression=True)
    header = path.read_bytes()[:128]
    packer = zlib.compressobj(9)
    block = bytes(2**20)
    packed = b"".join(packer.compress(block) for _ in range(size // 2**20)) + packer.flush()
    path.write_bytes(header + struct.pack("<II", 15, len(packed)) + packed)
    return path


def test_a_matlab_file_that_unpacks_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr("probseg.data.sets.mat_files.MAX_BYTES", 2 * 10**6)
    path = matlab_bomb(tmp_path / "bomb.mat", 2**25)
    assert path.stat().st_size < 2**25 / 500
    with little_memory():
        refused(DataError, lambda: load_mat(path, "S"), path, "unpacks to more than 2 MB")
    root = write_sbd(tmp_path / "SBD")
    path.rename(root / "inst" / "2008_000201.mat")
    refused(DataError, lambda: SBD("val", root), "2008_000201.mat: unpacks to more than 2 MB")


def test_several_variables_count_together(tmp_path, monkeypatch):
    monkeypatch.setattr("probseg.data.sets.mat_files.MAX_BYTES", 5000)
    half = np.zeros(2000, np.uint8)
    savemat(tmp_path / "a.mat", {"a": half, "b": half}, do_compression=True)
    load_mat(tmp_path / "a.mat", "a")
    savemat(tmp_path / "a.mat", {"a": half, "b": half, "c": half}, do_compression=True)
    with pytest.raises(DataError, match="unpacks to more"):
        load_mat(tmp_path / "a.mat", "a")


def test_damaged_matlab_files(tmp_path):
    root = write_sbd(tmp_path)
    path = matlab_bomb(root / "inst" / "2008_000201.mat", 2**20)
    whole = path.read_bytes()
    for size in (0, 50, 127, 128, 131, 140, len(whole) - 5):
        path.write_bytes(whole[:size])
        refused(DataError, lambda: SBD("val", root), path, "cannot be read as instances")
