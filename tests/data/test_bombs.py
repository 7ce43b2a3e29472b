"""Small files that would fill the memory are refused before they are decoded."""

import struct
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

import probseg.images as images
from probseg.data import SBD
from probseg.data.sets.foreign_files import load_mat
from probseg.errors import DataError
from probseg.images import image_size, read_image
from probseg.masks import read_colours, read_grey, read_labels
from support.fakes import save, write_sbd
from support.refusals import refused

READERS = (read_image, read_labels, read_colours, read_grey, image_size)


def refused_early(action, *words):
    """Refuse before anything large is decoded."""
    tracemalloc.start()
    try:
        refused(DataError, action, *words)
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
    with warnings.catch_warnings():
        warnings.simplefilter(warned, Image.DecompressionBombWarning)
        for reader in READERS:
            words = (f"{path}: has more than 89 million pixels", "scale it down")
            refused_early(lambda reader=reader: reader(path), *words)
        assert image_size(png(path, 9_000, 9_900)) == (9_900, 9_000)
    monkeypatch.setattr(images, "MAX_PIXELS", 35)
    fits = save(np.full((5, 7), 255, np.uint8), tmp_path / "fits.png")
    large = save(np.full((6, 6), 255, np.uint8), tmp_path / "more.png")
    for reader in READERS:
        reader(fits)
        refused(DataError, lambda reader=reader: reader(large), "million pixels")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: bytes(2**62))
    with pytest.raises(MemoryError):  # which is not the fault of the file
        read_image(fits)


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
    monkeypatch.setattr("probseg.data.sets.foreign_files.MAX_BYTES", 2 * 10**6)
    root = write_sbd(tmp_path / "SBD")
    path = matlab_bomb(root / "inst" / "2008_000201.mat", 2**25)
    assert path.stat().st_size < 2**25 / 500
    refused_early(lambda: load_mat(path, "S"), path, "unpacks to more than 2 MB")
    refused(DataError, lambda: SBD("val", root), f"{path.name}: unpacks to more than 2 MB")
    half = np.zeros(900_000, np.uint8)
    for version, names in (("4", "abc"), ("5", "ab"), ("5", "abc")):  # which count together
        options = {"do_compression": True} if version == "5" else {}
        savemat(path, dict.fromkeys(names, half + 1), format=version, **options)
        if (version, names) == ("5", "abc"):
            refused(DataError, lambda: load_mat(path, "a"), "unpacks to more")
        else:
            assert (load_mat(path, "a") == 1).all()


def test_damaged_matlab_files(tmp_path):
    root = write_sbd(tmp_path)
    path = matlab_bomb(root / "inst" / "2008_000201.mat", 2**20)
    whole = path.read_bytes()
    for size in (0, 50, 127, 128, 131, 140, len(whole) - 5):
        path.write_bytes(whole[:size])
        refused(DataError, lambda: SBD("val", root), path, "cannot be read as instances")
