"""Reading images and masks of all kinds, and refusing what cannot be used."""

import io
import shutil

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from probseg.errors import DataError
from probseg.images import image_size, read_image
from probseg.lab.leakage import thumbnail
from probseg.masks import object_mask, read_colours, read_grey, read_labels
from probseg.object_numbers import object_ids
from support import refusals
from support.fakes import draw_scene, save
from support.rows import each

GREY = np.arange(35, dtype=np.uint8).reshape(5, 7) * 7
COLOUR = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def refused(path, action, *parts):
    """The action raises a DataError that begins with the file and holds all parts."""
    assert refusals.refused(DataError, action, *parts).startswith(f"{path}: ")


# --- images -----------------------------------------------------------------------------------


def test_colour_is_kept(tmp_path):
    for suffix in (".png", ".bmp", ".tif", ".PNG"):
        image = read_image(save(COLOUR, tmp_path / f"x{suffix}"))
        assert image.dtype == np.uint8
        np.testing.assert_array_equal(image, COLOUR)
        image[:] = 0  # not read-only
    for mode, colour in (("RGB", (200, 40, 90)), ("CMYK", (0, 255, 255, 0))):
        Image.new(mode, (16, 12), colour).save(tmp_path / "x.jpg")
        image = read_image(tmp_path / "x.jpg")
        assert image.shape == (12, 16, 3)
        expected = colour if mode == "RGB" else (255, 0, 0)
        assert abs(image.astype(int) - expected).max() < 10


def test_grey_is_repeated(tmp_path):
    deep = GREY.astype(np.uint16) * 257
    deep[0, 1] = 256  # less than one step of 8 bits
    eight = GREY.copy()
    eight[0, 1] = 0
    pictures = [(Image.fromarray(GREY).convert(mode), GREY) for mode in ("L", "LA")]
    pictures += [(Image.fromarray(GREY > 100), np.where(GREY > 100, 255, 0))]
    pictures += [(Image.fromarray(deep), eight)]
    for number, (picture, expected) in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
        image = read_image(tmp_path / f"{number}.png")
        np.testing.assert_array_equal(image, np.dstack([expected] * 3))
    deep_tiff = read_image(save(deep, tmp_path / "x.tif"))
    np.testing.assert_array_equal(deep_tiff, np.dstack([eight] * 3))


def test_transparency_is_laid_over_white(tmp_path):
    alpha = np.zeros((5, 7, 1), dtype=np.uint8)
    alpha[:, 3:] = 255
    alpha[0, 0] = 51  # a fifth
    save(np.concatenate([COLOUR, alpha], axis=2), tmp_path / "x.png")
    image = read_image(tmp_path / "x.png")
    np.testing.assert_array_equal(image[:, 3:], COLOUR[:, 3:])
    assert (image[1:, :3] == 255).all()
    assert abs(image[0, 0] - (0.8 * 255 + 0.2 * COLOUR[0, 0])).max() <= 1


def test_palette_gives_its_colours(tmp_path):
    picture = Image.fromarray(np.array([[0, 1], [2, 1]], dtype=np.uint8), mode=None).convert("P")
    picture.putdata([0, 1, 2, 1])
    picture.putpalette([10, 20, 30, 200, 100, 0, 7, 8, 9])
    picture.save(tmp_path / "x.png")
    expected = [[[10, 20, 30], [200, 100, 0]], [[7, 8, 9], [200, 100, 0]]]
    np.testing.assert_array_equal(read_image(tmp_path / "x.png"), expected)
    picture.save(tmp_path / "t.png", transparency=1)
    expected[0][1] = expected[1][1] = [255, 255, 255]
    np.testing.assert_array_equal(read_image(tmp_path / "t.png"), expected)


def test_exif_rotation_is_carried_out(tmp_path):
    turns = {
        1: np.asarray, 2: np.fliplr, 3: lambda a: np.rot90(a, 2), 4: np.flipud,
        5: lambda a: np.swapaxes(a, 0, 1), 6: lambda a: np.rot90(a, -1), 8: np.rot90,
    }  # fmt: skip
    for orientation, turn in turns.items():
        picture = Image.fromarray(COLOUR)
        exif = picture.getexif()
        exif[274] = orientation
        picture.save(tmp_path / "x.png", exif=exif)
        expected = turn(COLOUR)
        np.testing.assert_array_equal(read_image(tmp_path / "x.png"), expected)
        assert image_size(tmp_path / "x.png") == expected.shape[:2]


def test_missing_and_foreign_files_are_named(tmp_path):
    path = tmp_path / "no.png"
    for read in (read_image, read_labels, read_colours, read_grey):
        refused(path, lambda read=read: read(path), "no such file", "check the folder")
    for content in (b"", b"hello", b"\x89PNG\r\n\x1a\n", b"BM", b"\xff\xd8\xff"):
        path.write_bytes(content)
        for read in (read_image, read_labels):
            refused(path, lambda read=read: read(path), "cannot be read as an image", "replace")


@pytest.fixture(scope="module")
def encoded():
    files = {}
    for kind in ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "GIF"):
        buffer = io.BytesIO()
        Image.fromarray(draw_scene(12, 14)[0]).save(buffer, kind)
        files[kind] = buffer.getvalue()
    return files


@given(
    kind=st.sampled_from(["PNG", "JPEG", "BMP", "TIFF", "WEBP", "GIF"]),
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    kept=st.floats(0.2, 1),
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # PIL's own, of odd metadata
@pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")
def test_damaged_files_are_read_or_refused(encoded, tmp_path_factory, kind, damage, kept):
    content = bytearray(encoded[kind])
    for place, value in damage:
        content[int(place * len(content))] = value
    path = tmp_path_factory.getbasetemp() / "damaged.png"
    path.write_bytes(content[: int(kept * len(content))])
    for read in (read_image, read_labels):
        try:
            assert read(path).dtype == np.uint8
        except DataError as error:
            message = str(error)
        else:
            continue
        assert message.startswith(f"{path}: ")


@pytest.mark.parametrize("kind", ["EPS", "PDF", "PCX", "TGA"])
def test_other_formats_are_refused_under_any_name(tmp_path, monkeypatch, kind):
    """Pillow would run Ghostscript, as `gs`, for the first."""
    called, path = tmp_path / "called", tmp_path / "x.png"
    (tmp_path / "gs").write_text(f"#!/bin/sh\necho > {called}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # what was found before
    assert shutil.which("gs") == str(tmp_path / "gs")
    Image.fromarray(COLOUR).save(path, kind)
    for read in (read_image, read_labels, read_colours, image_size, thumbnail):
        refused(path, lambda read=read: read(path), "cannot be read as an image")
    assert not called.exists()


# --- masks ------------------------------------------------------------------------------------

IDS = np.array([[0, 1, 2], [255, 7, 254]], dtype=np.uint8)


def test_numbers_of_a_mask(tmp_path):
    palette = Image.fromarray(IDS)
    palette.putpalette([*range(200, 0, -1), 0] + [9] * 567)
    pictures = {
        "grey.png": Image.fromarray(IDS), "grey.bmp": Image.fromarray(IDS),
        "grey.tif": Image.fromarray(IDS), "palette.png": palette,
        "colour.png": Image.fromarray(np.dstack([IDS] * 3)),
        "opaque.png": Image.fromarray(np.dstack([IDS] * 3)).convert("RGBA"),
        "alpha.png": Image.fromarray(IDS).convert("LA"),
        "deep.png": Image.fromarray(IDS.astype(np.uint16)),
    }  # fmt: skip
    for name, picture in pictures.items():
        picture.save(tmp_path / name)
        labels = read_labels(tmp_path / name)
        assert labels.dtype == np.uint8
        np.testing.assert_array_equal(labels, IDS, err_msg=name)
    Image.fromarray(IDS > 1).save(tmp_path / "bit.png")
    np.testing.assert_array_equal(read_labels(tmp_path / "bit.png"), IDS > 1)


@each(
    ("array", "suffix", "parts"),
    [
        (IDS.astype(np.uint16) * 2, ".png", ["0..255", "510"]),
        (IDS.astype(np.int32) - 1, ".tif", ["0..255", "-1"]),
        (IDS.astype(np.float32) / 2, ".tif", ["whole numbers", "float32"]),
        (np.full((2, 2), np.nan, np.float32), ".tif", ["whole numbers", "nan"]),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
def test_values_that_are_no_bytes_are_refused(tmp_path, array, suffix, parts):
    path = save(array, tmp_path / f"x{suffix}")
    refused(path, lambda: read_labels(path), *parts, "1..254")
    if array.dtype == np.float32:
        refused(path, lambda: read_image(path), "floating point", "8 or 16 bits")


def test_colour_and_jpeg_masks_are_refused(tmp_path):
    path = save(COLOUR, tmp_path / "x.png")
    refused(path, lambda: read_labels(path), "one channel", "colours", "palette or grey PNG")
    for name in ("x.jpg", "renamed.png"):
        path = tmp_path / name
        Image.fromarray(draw_scene()[1] * 255).save(path, "JPEG")
        refused(path, lambda path=path: read_labels(path), "JPEG", "lossless", "PNG")


# --- objects ----------------------------------------------------------------------------------


@given(ids=st.sets(st.integers(1, 199), min_size=1, max_size=20), ignored=st.booleans())
def test_numbers_below_255_are_objects(ids, ignored):
    assume(not (ignored and len(ids) == 1 and ids <= set(range(120, 137))))  # trimaps
    labels = np.array([[0, *ids, *([255] if ignored else [])]], dtype=np.uint8)
    labels = labels.repeat(5, axis=1)
    assert object_ids(labels, "m.png") == sorted(ids)


@given(labels=hnp.arrays(np.uint8, (4, 5), elements=st.sampled_from([0, 1, 2, 255])))
def test_mask_of_one_object(labels):
    for number in (1, 2):
        expected = np.where(labels == 255, 255, labels == number)
        np.testing.assert_array_equal(object_mask(labels, number), expected)
    np.testing.assert_array_equal(object_mask(labels, 255), labels == 255)


@each(
    ("labels", "part"),
    [
        (np.array([[0, 128, 255]], np.uint8), "GrabCut"),
        (np.arange(256, dtype=np.uint8).reshape(16, 16), "255 different values"),
        (np.random.default_rng(0).integers(90, 130, (20, 30), np.uint8), "40 different values"),
    ],
)
def test_what_is_no_mask_is_refused(labels, part):
    refused("m.png", lambda: object_ids(labels, "m.png"), part)


def test_blurred_masks_are_refused():
    for quality in (30, 50, 75, 90, 95):
        buffer = io.BytesIO()
        Image.fromarray(draw_scene(80, 100)[1] * 255).save(buffer, "JPEG", quality=quality)
        labels = np.asarray(Image.open(buffer))
        refused("m.png", lambda labels=labels: object_ids(labels, "m.png"), "JPEG", "threshold")
    mask = Image.fromarray(draw_scene(100, 100)[1] * 255)
    for side in (30, 60, 150, 300, 500):
        labels = np.asarray(mask.resize((side, side), Image.Resampling.BILINEAR))
        refused("m.png", lambda labels=labels: object_ids(labels, "m.png"), "change of size")


def test_many_objects_with_an_ignored_border_are_no_blur():
    labels = np.repeat(np.arange(31, dtype=np.uint8), 20)[None].repeat(20, axis=0)
    labels[:3] = 255
    assert object_ids(labels, "m.png") == list(range(1, 31))
    assert object_ids(np.where(labels == 30, 250, labels), "m.png") == [*range(1, 30), 250]
    assert object_ids(np.array([[0, 255]], dtype=np.uint8), "m.png") == [255]
    assert object_ids(np.zeros((3, 4), np.uint8), "m.png") == []


# --- masks as colours and as grey values --------------------------------------------------------


def test_masks_as_colours_and_grey_values(tmp_path):
    palette = Image.fromarray(np.uint8([[0, 1, 2]]))
    palette.putpalette([0, 0, 0, 0, 128, 0, 255, 255, 255])  # not its indices are read
    pictures = {
        "a.png": (COLOUR, COLOUR), "a.bmp": (COLOUR, COLOUR),
        "alpha.png": (np.dstack([COLOUR, np.zeros(GREY.shape, np.uint8)]), COLOUR),
        "grey.png": (GREY, np.dstack([GREY] * 3)),
        "palette.png": (palette, [[[0, 0, 0], [0, 128, 0], [255, 255, 255]]]),
    }  # fmt: skip
    for name, (picture, colours) in pictures.items():
        picture = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
        picture.save(tmp_path / name)
        np.testing.assert_array_equal(read_colours(tmp_path / name), colours)
    np.testing.assert_array_equal(read_grey(tmp_path / "palette.png"), [[0, 75, 255]])
    mask = np.array([[255, 0], [1, 128]], np.uint8)
    for array in (mask, np.dstack([mask] * 3)):
        np.testing.assert_array_equal(read_grey(save(array, tmp_path / "mask.png")), mask)
    Image.fromarray(mask > 100).save(tmp_path / "bit.png")
    np.testing.assert_array_equal(read_grey(tmp_path / "bit.png"), np.where(mask > 100, 255, 0))


def test_colour_masks_that_cannot_be_read(tmp_path):
    path = tmp_path / "x.png"
    for value in (0, 1, 128):
        save(np.full((5, 7), value, np.uint8), path)
        refused(path, lambda: read_grey(path), "value 255", f"up to {value};", "ImageMaskFolder")
    for read in (read_colours, read_grey):
        save(GREY.astype(np.uint16) * 257, path)
        refused(path, lambda read=read: read(path), "8 bits", "I;16", "8-bit PNG")
        save(COLOUR, tmp_path / "x.jpg").rename(path)
        refused(path, lambda read=read: read(path), "JPEG", "lossless")
