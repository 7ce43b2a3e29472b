"""The size and the pixels of upright images: every format, mode, orientation and page."""

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image

from probseg.errors import DataError
from probseg.images import decode_image, image_size, read_image, rgb_pixels
from probseg.lab.leakage import thumbnail
from support.rows import each

TURNS = {
    1: np.asarray, 2: np.fliplr, 3: lambda a: np.rot90(a, 2), 4: np.flipud,
    5: lambda a: np.swapaxes(a, 0, 1), 6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(np.swapaxes(a, 0, 1), 2), 8: np.rot90,
    0: np.asarray, 9: np.asarray,  # no orientation at all
}  # fmt: skip

FORMATS = {
    "JPEG": ["L", "RGB", "CMYK"],
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"],
    "TIFF": ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "I;16",
             "I;16B", "I"],
    "TIFF lzw": ["1", "L", "P", "RGB", "I;16"],
    "WEBP": ["RGB", "RGBA"],
    "BMP": ["1", "L", "P", "RGB"],
    "GIF": ["L", "P", "RGB"],
    "PPM": ["1", "L", "RGB", "I;16"],
}  # fmt: skip
"""Modes that Pillow writes. The last three formats have no orientation."""


def drawn(mode, seed):
    """A picture of 7 x 4 pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 7, 4), dtype=np.uint8)
    if mode.startswith("I"):
        return Image.fromarray(pixels[..., 0].astype(np.uint16) * 250).convert(mode)
    if mode == "LAB":
        return Image.frombytes(mode, (7, 4), pixels[..., :3].tobytes())
    return Image.fromarray(pixels).convert("RGB" if mode != "RGBA" else mode).convert(mode)


def write(path, pages, kind, **options):
    if len(pages) > 1:
        options |= {"save_all": True, "append_images": pages[1:]}
    if kind.endswith("lzw"):
        options["compression"] = "tiff_lzw"
    pages[0].save(path, kind.split()[0], **options)
    return path


def exif(orientation):
    noted = Image.Exif()
    noted[0x0112] = orientation
    return noted


@pytest.mark.parametrize("kind", FORMATS)
def test_sizes_are_those_of_the_upright_pixels(kind, tmp_path):
    for mode in FORMATS[kind]:
        pages = [drawn(mode, 0), drawn(mode, 1)]
        for count in (1, 2) if kind in ("TIFF", "TIFF lzw", "WEBP", "GIF") else (1,):
            plain = read_image(write(tmp_path / "plain", pages[:count], kind))
            some = TURNS if (mode, count) == ("RGB", 1) else (3, 6)
            for orientation in {*some} - ({0, 9} if kind == "TIFF lzw" else set()):  # by libtiff
                path = write(tmp_path / "turned", pages[:count], kind, exif=exif(orientation))
                turn = np.asarray if kind in ("BMP", "GIF", "PPM") else TURNS[orientation]
                expected, case = turn(plain), f"{kind} {mode} {orientation} {count}"
                np.testing.assert_array_equal(read_image(path), expected, case)
                np.testing.assert_array_equal(decode_image(path.read_bytes()), expected, case)
                with Image.open(path) as picture:  # as people hand it over
                    np.testing.assert_array_equal(rgb_pixels(picture), expected, case)
                assert image_size(path) == expected.shape[:2], case
                small = Image.fromarray(expected).resize((24, 24), Image.Resampling.BOX)
                np.testing.assert_array_equal(thumbnail(path), small, case)


def test_the_orientation_may_stand_in_xmp(tmp_path):
    picture = drawn("RGB", 0)
    for orientation in (1, 4, 5):
        turn = TURNS[orientation]
        xmp = f'<x tiff:Orientation="{orientation}"/>'.encode()
        for kind, options in (("TIFF", {"tiffinfo": {700: xmp}}), ("WEBP", {"xmp": xmp})):
            plain = read_image(write(tmp_path / "plain", [picture], kind))
            path = write(tmp_path / "turned", [picture], kind, **options)
            np.testing.assert_array_equal(read_image(path), turn(plain), f"{kind} {orientation}")
            assert image_size(path) == turn(plain).shape[:2]


DEEP = np.random.default_rng(0).integers(0, 65536, (3, 16, 32), dtype=np.uint16)
MISREAD = {
    "planes": (DEEP, {"photometric": "rgb", "planarconfig": "separate"}),
    "tiles of planes": (DEEP, {"photometric": "rgb", "planarconfig": "separate", "tile": (16, 16)}),
    "WhiteIsZero": (DEEP[0], {"photometric": "miniswhite"}),
    "packed WhiteIsZero": (DEEP[0], {"photometric": "miniswhite", "compression": "zlib"}),
    "signed": ((DEEP[0] % 256).astype(np.int8), {"photometric": "minisblack"}),
}


@each("name", MISREAD)
def test_tiff_files_that_would_be_misread_are_refused(name, tmp_path):
    pixels, options = MISREAD[name]
    tifffile.imwrite(tmp_path / "a.tif", pixels, metadata=None, **options)
    for read in (image_size, read_image, lambda path: rgb_pixels(Image.open(path), path.name)):
        with pytest.raises(DataError, match=r"a\.tif: is a TIFF file with .*save it as a PNG"):
            read(tmp_path / "a.tif")


def test_planes_of_tiff_files_that_are_read(tmp_path):
    pixels = (DEEP // 257).astype(np.uint8)
    expected = np.moveaxis(pixels, 0, 2)
    for deep, options in ((pixels, {}), (pixels, {"tile": (16, 16)}), (DEEP, {"compression": 8})):
        tifffile.imwrite(
            tmp_path / "a.tif", deep, photometric="rgb", planarconfig="separate", **options
        )
        read = read_image(tmp_path / "a.tif").astype(int)
        np.testing.assert_allclose(read, expected, atol=1)  # deep values lose their lower byte


def test_an_alpha_channel_that_is_not_in_use_hides_nothing(tmp_path):
    pixels = np.asarray(drawn("RGB", 0))
    clear = np.dstack([pixels[..., ::-1], np.zeros((4, 7), np.uint8)])
    for suffix in ("bmp", "png", "tif"):
        cv2.imwrite(str(tmp_path / f"a.{suffix}"), clear)
        np.testing.assert_array_equal(read_image(tmp_path / f"a.{suffix}"), pixels)
    premultiplied = drawn("RGBA", 0).convert("LA").convert("La")
    assert rgb_pixels(premultiplied).shape == (4, 7, 3)


def test_numbers_beyond_16_bits_are_refused(tmp_path):
    for value in (-1, 65536, 2**31 - 1):
        Image.fromarray(np.array([[0, value]], np.int32)).save(tmp_path / "deep.tif")
        with pytest.raises(DataError, match=rf"deep.tif: .* {value}\b.*expected 0 to 65535"):
            read_image(tmp_path / "deep.tif")
