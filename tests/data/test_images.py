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

GREY = np.arange(35, dtype=np.uint8).reshape(5, 7) * 7
COLOUR = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def refused(path, action, *parts):
    """The action raises a DataError that begins with the file and holds all parts."""
    assert refusals.refused(DataError, action, *parts).startswith(f"{path}: ")


def test_colours_of_all_modes(tmp_path):
    for suffix in (".png", ".bmp", ".tif", ".PNG"):
        image = read_image(save(COLOUR, tmp_path / f"x{suffix}"))
        assert image.dtype == np.uint8
        np.testing.assert_array_equal(image, COLOUR)
        image[:] = 0  # not read-only
    for mode, colour, rgb in (
        ("RGB", (200, 40, 90), (200, 40, 90)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
    ):
        Image.new(mode, (16, 12), colour).save(tmp_path / "x.jpg")
        image = read_image(tmp_path / "x.jpg")
        assert image.shape == (12, 16, 3)
        assert abs(image.astype(int) - rgb).max() < 10
    path = save(GREY.astype(np.float32) / 2, tmp_path / "x.tif")
    refused(path, lambda: read_image(path), "floating point", "8 or 16 bits")


def test_grey_is_repeated(tmp_path):
    deep = GREY.astype(np.uint16) * 257
    deep[0, 1] = 256  # less than one step of 8 bits
    eight = GREY.copy()
    eight[0, 1] = 0
    pictures = [(Image.fromarray(GREY).convert(mode), GREY, "png") for mode in ("L", "LA")]
    pictures += [(Image.fromarray(GREY > 100), np.where(GREY > 100, 255, 0), "png")]
    pictures += [(Image.fromarray(deep), eight, suffix) for suffix in ("png", "tif")]
    for number, (picture, expected, suffix) in enumerate(pictures):
        picture.save(tmp_path / f"{number}.{suffix}")
        image = read_image(tmp_path / f"{number}.{suffix}")
        np.testing.assert_array_equal(image, np.dstack([expected] * 3))


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


@given(ids=st.sets(st.integers(1, 199), min_size=1, max_size=20), ignored=st.booleans())
def test_numbers_below_255_are_objects(ids, ignored):
    assume(not (ignored and len(ids) == 1 and ids <= set(range(120, 137))))  # trimaps
    labels = np.array([[0, *ids, *([255] if ignored else [])]], dtype=np.uint8)
    assert object_ids(labels.repeat(5, axis=1), "m.png") == sorted(ids)
    assert object_ids(np.array([[0, 255]], dtype=np.uint8), "m.png") == [255]
    assert object_ids(np.zeros((3, 4), np.uint8), "m.png") == []


@given(labels=hnp.arrays(np.uint8, (4, 5), elements=st.sampled_from([0, 1, 2, 255])))
def test_mask_of_one_object(labels):
    for number in (1, 2):
        expected = np.where(labels == 255, 255, labels == number)
        np.testing.assert_array_equal(object_mask(labels, number), expected)
    np.testing.assert_array_equal(object_mask(labels, 255), labels == 255)


def test_blurred_masks_and_pictures_are_refused():
    mask, random = Image.fromarray(draw_scene(80, 100)[1] * 255), np.random.default_rng(0)
    cases = [(np.arange(256, dtype=np.uint8).reshape(16, 16), ["255 different values"])]
    cases += [(random.integers(90, 130, (20, 30), np.uint8), ["40 different values"])]
    for quality in (30, 50, 75, 90, 95):
        buffer = io.BytesIO()
        mask.save(buffer, "JPEG", quality=quality)
        cases.append((np.asarray(Image.open(buffer)), ["JPEG", "threshold"]))
    for side in (30, 60, 150, 300, 500):
        resized = mask.resize((side, side), Image.Resampling.BILINEAR)
        cases.append((np.asarray(resized), ["change of size"]))
    for labels, words in cases:
        refused("m.png", lambda labels=labels: object_ids(labels, "m.png"), *words)


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
