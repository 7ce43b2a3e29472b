"""What the pixels of a mask file mean: one answer, or the same refusal, in all readers."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from probseg.annotate.folder import existing_masks
from probseg.annotate.photographs import Photograph
from probseg.convert import READERS, Ledger, Request
from probseg.data import ImageMaskFolder
from probseg.data.checks import check_folder
from probseg.errors import DataError
from probseg.formats import png
from probseg.masks import object_ids, read_grey, read_labels, read_objects
from support.fakes import draw_scene, save
from support.refusals import refused
from support.rows import each

HEIGHT, WIDTH = 64, 80
Y, X = np.mgrid[:HEIGHT, :WIDTH]
DISK = (X - 40) ** 2 + (Y - 30) ** 2 < 20**2
WHITE = np.where(DISK, 255, 0).astype(np.uint8)
NUMBERS = DISK + 2 * (X > 70).astype(np.uint8)  # two objects, 1 and 2
BAND = cv2.dilate(NUMBERS, np.ones((5, 5), np.uint8)).astype(bool) & (NUMBERS == 0)
BANDED = np.where(BAND, 255, NUMBERS).astype(np.uint8)
ALL = np.full((HEIGHT, WIDTH), 255, np.uint8)


def grey(values):
    return Image.fromarray(np.asarray(values, np.uint8))


def palette(indices, *colours, **info):
    picture = grey(indices)
    picture.putpalette([channel for colour in colours for channel in colour])
    picture.info.update(info)
    return picture


def with_alpha(mode, colour, alpha):
    picture = colour if isinstance(colour, Image.Image) else grey(colour)
    picture = picture.convert(mode[:-1])
    picture.putalpha(grey(alpha))
    return picture


def bits_png(values, bits):
    """Write a grey PNG with a few bits per pixel, which Pillow only reads."""
    per_byte = 8 // bits
    rows = values.reshape(len(values), -1, per_byte) << np.arange(8 - bits, -1, -bits)
    lines = b"".join(b"\0" + row.sum(1).astype(np.uint8).tobytes() for row in rows)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, 0, 0, 0, 0))]
    parts += [(b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def deep_png(values, channels):
    """Write a PNG with channels of 16 bits, which Pillow reads by halves."""
    return cv2.imencode(".png", np.dstack([values.astype(np.uint16)] * channels))[1].tobytes()


def pgm(values, largest):
    """Write a PGM file with a largest value, which readers show as white."""
    return b"P5\n%d %d\n%d\n" % (WIDTH, HEIGHT, largest) + values.astype(np.uint8).tobytes()


def pbm(values):
    """Write a PBM file in text, in which 1 is black."""
    return f"P1\n{WIDTH} {HEIGHT}\n{' '.join(map(str, 1 - values.ravel()))}\n".encode()


def tiff(values, **options):
    """Write a TIFF file that Pillow only reads."""
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, metadata=None, **options)
    return buffer.getvalue()


def turned(picture, orientation):
    exif = picture.getexif()
    exif[274] = orientation
    return picture, {"exif": exif}


BLACK_AND_WHITE = {
    "grey.png": grey(WHITE), "grey.bmp": grey(WHITE), "grey.tif": grey(WHITE),
    "grey.gif": grey(WHITE), "colour.gif": grey(WHITE).convert("RGB"),
    "bit.gif": grey(WHITE).convert("1"), "colour.bmp": grey(WHITE).convert("RGB"),
    "quantized.png": grey(WHITE).convert("RGB").quantize(2),
    "octree.png": grey(WHITE).convert("RGB").quantize(2, method=Image.Quantize.FASTOCTREE),
    "adaptive.png": grey(WHITE).convert("RGB").convert("P", palette=Image.Palette.ADAPTIVE),
    "white first.png": palette(~DISK, (255, 255, 255), (0, 0, 0)),
    "far apart.png": palette(np.where(DISK, 3, 200), *[(9, 99, 9)] * 3, (254, 255, 253),
                             *[(9, 99, 9)] * 196, (2, 0, 1)),
    "all white.png": palette(ALL * 0, (255, 255, 255), (0, 0, 0)),
    "opaque.png": with_alpha("RGBA", WHITE, ALL), "opaque.tif": with_alpha("LA", WHITE, ALL),
    "all clear.png": with_alpha("RGBA", WHITE, ALL * 0),
    "cut out.png": with_alpha("RGBA", WHITE, WHITE),
    "cut out.gif": palette(DISK, (0, 0, 0), (255, 255, 255), transparency=0),
    "white is zero.tif": (grey(WHITE), {"tiffinfo": {262: 0}}),
    "bit of zero.tif": (grey(WHITE).convert("1"), {"tiffinfo": {262: 0}}),
    "two bits.png": bits_png(DISK * 3, 2), "two values.pgm": pgm(DISK, 1), "plain.pbm": pbm(DISK),
    "on its side.png": turned(grey(np.rot90(WHITE)), 6),
    "on its head.png": turned(grey(np.rot90(WHITE, 2)), 3),
    "on its side.tif": turned(grey(np.rot90(WHITE)), 6),
}  # fmt: skip

NUMBERED = {
    "grey.png": (grey(BANDED), BANDED), "bit.png": (Image.fromarray(DISK), DISK),
    "bit.bmp": (Image.fromarray(DISK), DISK), "bit.tif": (Image.fromarray(DISK), DISK),
    "colour.png": (grey(BANDED).convert("RGB"), BANDED),
    "deep.png": (Image.fromarray(BANDED.astype(np.uint16)), BANDED),
    "coloured.png": (palette(NUMBERS, (0, 0, 0), (128, 0, 0), (0, 128, 0)), NUMBERS),
    "on white.png": (palette(NUMBERS, (255, 255, 255), (128, 0, 0), (0, 128, 0)), NUMBERS),
    "on clear.png": (palette(NUMBERS, (0, 0, 0), (9, 0, 99), (0, 99, 9), transparency=0), NUMBERS),
    "beyond.png": (palette(BANDED, *[(0, 0, 0), (255, 255, 255), (0, 99, 0)] * 6), BANDED),
    "grey palette.png": (grey(BANDED).convert("P"), BANDED),
    "sparse.png": (grey(np.where(NUMBERS == 2, 1, 0)), NUMBERS == 2),
}  # fmt: skip


def smooth(factor, method=Image.Resampling.BOX, white=255, box=False):
    """A mask of this size that was made from one of another size."""
    y, x = np.mgrid[: int(HEIGHT / factor), : int(WIDTH / factor)] * factor
    inside = (x < 33.5) & (y > 21) if box else (x - 40) ** 2 + (y - 30) ** 2 < 20**2
    return grey(inside * white).resize((WIDTH, HEIGHT), method)


def shifted(fraction):
    beside = np.roll(WHITE, 1, axis=1).astype(float)
    return grey(np.rint(fraction * beside + (1 - fraction) * WHITE))


NOISE = np.random.default_rng(0).random((HEIGHT, WIDTH))
REFUSED = {
    "averaged.png": (smooth(0.5), "blurred"),
    "box.png": (smooth(0.4, box=True), "GrabCut"),
    "twice as large.png": (smooth(2, Image.Resampling.BILINEAR), "blurred"),
    "cubic.gif": (smooth(2, Image.Resampling.BICUBIC), "palette"),
    "half.png": (shifted(0.5), "GrabCut"),
    "not quite white.png": (grey(np.asarray(shifted(0.3)) * 0.99), "blurred"),
    "trimap.tif": (grey(np.where(cv2.dilate(WHITE, np.ones((9, 9))), 127, 0) + WHITE // 255 * 128),
                   "GrabCut"),
    "wide rim.png": (grey(np.where(DISK, 255, np.where(cv2.dilate(WHITE, np.ones((7, 7))), 9, 0))),
                     "255 would be ignored"),
    "stray.png": (grey(np.where((Y > 58) & (X < 5), 3, WHITE)), "255 would be ignored"),
    "nearly white.png": (grey(np.where(NOISE > 0.5, WHITE, WHITE // 255 * 254)), "255 would be"),
    "shades.png": (smooth(0.5).quantize(5), "palette"),
    "red first.png": (palette(~DISK, (255, 0, 0), (0, 0, 0)), "black is number 1"),
    "red on white.png": (palette(~DISK, (255, 0, 0), (255, 255, 255)), "white is number 1"),
    "few values.pgm": (pgm(NUMBERS, 2), "largest value 2"),
    "deep white.png": (Image.fromarray(WHITE.astype(np.uint16) * 257), "mask with 8 bits"),
    "signed.tif": (tiff(-NUMBERS.astype(np.int8), photometric="minisblack"), "signed"),
    "unknown.tif": (tiff(np.where(DISK, np.nan, 1).astype(np.float32), photometric="minisblack"),
                    "whole numbers"),
    "half.tif": (tiff(DISK.astype(np.float32) / 2, photometric="minisblack"), "whole numbers"),
    "bool.tif": (tiff(DISK), "truth values"),
    "light grey first.png": (palette(~DISK, (200, 200, 200), (60, 60, 60)), "number 1 is grey 60"),
    "not quite black.png": (grey(np.where(DISK, 255, 1)), "no 0"),
    "video.png": (grey(np.where(DISK, 235, 16)), "no 0"),
    "blurred video.png": (grey(16 + np.asarray(smooth(0.5, white=219))), "blurred"),
    "stretched.png": (grey(np.digitize(X, (9, 30, 60)) * 85), "numbers of 3 objects"),
    "black last.png": (palette(2 - NUMBERS, (9, 200, 9), (255, 0, 0), (0, 0, 0)), "number 2"),
    "alpha.png": (with_alpha("RGBA", ALL, WHITE), "channel A"),
    "half clear object.png": (
        with_alpha("LA", WHITE, np.where(DISK, 128, np.where(X < 9, 0, 255))), "channel A"),
    "black alpha.png": (with_alpha("RGBA", ALL * 0, WHITE), "channel A"),
    "green alpha.png": (with_alpha("RGBA", Image.new("RGB", (WIDTH, HEIGHT), (0, 255, 0)), WHITE),
                        "colours"),
    "key.png": ((grey(WHITE), {"transparency": 255}), "tRNS"),
    "clear object.png": (palette(NUMBERS, (0, 0, 0), (9, 0, 99), (0, 99, 9), transparency=1),
                         "tRNS"),
    "colours.png": (Image.fromarray(draw_scene(HEIGHT, WIDTH)[0]), "colours"),
    "inks.tif": (grey(WHITE).convert("RGB").convert("CMYK"), "'CMYK'"),
    "deep colours.png": (deep_png(NUMBERS, 3), "16 bits"),
    "two bits.png": (bits_png(NUMBERS, 2), "2 bits"),
    "white is zero.tif": ((grey(NUMBERS), {"tiffinfo": {262: 0}}), "WhiteIsZero"),
    "renamed.png": ((grey(WHITE), {"format": "WEBP"}), "WEBP"),
    "photograph.jpg": (grey(WHITE), "JPEG"),
    "lossy.tif": ((grey(WHITE).convert("RGB"), {"compression": "jpeg"}), "lossless"),
    "pages.tif": ((grey(WHITE), {"save_all": True, "append_images": [grey(255 - WHITE)]}),
                  "several pages"),
    "frames.gif": ((grey(WHITE), {"save_all": True, "append_images": [grey(255 - WHITE)]}),
                   "several pages"),
}  # fmt: skip


def written(picture, path):
    """Write a picture, one with options for its writer, or the bytes of a file."""
    path.parent.mkdir(exist_ok=True)
    if isinstance(picture, bytes):
        path.write_bytes(picture)
    else:
        picture, options = picture if isinstance(picture, tuple) else (picture, {})
        if "transparency" in picture.info:
            options = {"transparency": picture.info["transparency"], **options}
        picture.save(path, **options)
    return path


@each("name", BLACK_AND_WHITE)
def test_white_is_the_object(tmp_path, name):
    path = written(BLACK_AND_WHITE[name], tmp_path / name)
    labels, numbers = read_objects(path)
    assert numbers in ([255], [1])  # 1-bit files have a number
    expected = ALL > 0 if name.startswith("all white") else DISK
    np.testing.assert_array_equal(labels > 0, expected)
    np.testing.assert_array_equal(read_grey(path) > 128, expected)


@each("name", NUMBERED)
def test_numbers_are_numbers(tmp_path, name):
    picture, expected = NUMBERED[name]
    path = written(picture, tmp_path / name)
    labels, numbers = read_objects(path)
    np.testing.assert_array_equal(labels, expected)
    assert numbers == [n for n in np.unique(expected) if 0 < n < 255]
    np.testing.assert_array_equal(read_labels(path), expected)


@each("name", REFUSED)
def test_files_in_doubt_are_refused_by_name(tmp_path, name):
    picture, words = REFUSED[name]
    path = written(picture, tmp_path / name)
    message = refused(DataError, lambda: read_objects(path), words)
    assert message.startswith(f"{path}: ")
    assert any(word in message for word in ("save", "write 1", "e.g. PNG"))


@each("name", ["white first.png", "quantized.png", "stray.png", "alpha.png"])
def test_all_readers_agree(tmp_path, name):
    """Training, `data check`, `data convert` and `annotate`."""
    photo = save(draw_scene(HEIGHT, WIDTH)[0], tmp_path / "images" / "a.jpg")
    case = BLACK_AND_WHITE.get(name) or REFUSED[name][0]
    path = written(case, tmp_path / "masks" / "a.png")
    request, photograph = Request(tmp_path / "images"), Photograph("a.jpg", photo, (HEIGHT, WIDTH))
    readers = (
        lambda: [sample.mask for sample in ImageMaskFolder(tmp_path)],
        lambda: [
            one.region.mask()
            for image in READERS["png"](tmp_path, request, Ledger())
            for one in image.objects
        ],
        lambda: [png.decode(one.png) for one in existing_masks([path], photograph).values()],
    )
    report = check_folder(tmp_path)
    if name in BLACK_AND_WHITE:
        assert (report.sound, report.objects) == (True, 1)
        for read in readers:
            (mask,) = read()
            np.testing.assert_array_equal(mask, DISK)
    else:
        (problem,) = report.problems
        for read in readers:
            assert refused(DataError, read) == f"{problem.path}: {problem.text}"


@st.composite
def label_maps(draw):
    """Objects with an ignored band along their contours, and ignored areas elsewhere."""
    labels = np.zeros((60, 60), np.uint8)
    for number in range(1, draw(st.integers(1, 6)) + 1):
        y, x = draw(st.integers(0, 50)), draw(st.integers(0, 50))
        labels[y : y + draw(st.integers(4, 30)), x : x + draw(st.integers(4, 30))] = number
    width = draw(st.sampled_from([0, 1, 2, 5]))
    band = cv2.dilate(labels, np.ones((2 * width + 1,) * 2, np.uint8)) > labels
    labels[band & (labels == 0)] = 255
    area = int(draw(st.integers(0, 2)) * (labels < 255).astype(bool)[labels > 0].sum() ** 0.5)
    labels[:area, :area][labels[:area, :area] == 0] = 255
    return labels


@given(labels=label_maps())
def test_label_maps_with_ignored_pixels_stay_valid(labels):
    assert object_ids(labels, "m.png") == [n for n in np.unique(labels) if 0 < n < 255]


@given(
    factor=st.floats(0.3, 3),
    method=st.sampled_from(["BOX", "BILINEAR", "HAMMING", "BICUBIC", "LANCZOS"]),
    shift=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_smoothly_changed_masks_never_become_numbers(factor, method, shift):
    """A white object of this size is the object, or the file is refused."""
    moved = cv2.warpAffine(WHITE, np.float32([[1, 0, shift[0]], [0, 1, shift[1]]]), (WIDTH, HEIGHT))
    size = (round(WIDTH * factor), round(HEIGHT * factor))
    for mask in (moved, grey(WHITE).resize(size, Image.Resampling[method])):
        labels = np.asarray(mask)
        if ((labels > 0) & (labels < 255)).any():
            with pytest.raises(DataError, match=r"threshold|write 1|save masks"):
                object_ids(labels, "m.png")
        else:
            assert object_ids(labels, "m.png") == [255]
