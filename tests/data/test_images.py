"""Reading images and masks of all kinds, and refusing what cannot be used."""

import importlib.util
import io
import shutil
import struct
import zlib

import cv2
import numpy as np
import PIL
import pytest
import tifffile
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from probseg import Predictor, picture_formats
from probseg.annotate.photographs import list_photographs
from probseg.data import ImageMaskFolder, ImagePairs
from probseg.data.checks import check_folder
from probseg.errors import DataError
from probseg.images import decode_image, image_size, read_image, rgb_pixels
from probseg.lab.leakage import photos_of_folder, thumbnail
from probseg.masks import object_ids, object_mask, read_colours, read_grey, read_labels
from support import refusals
from support.fakes import draw_scene, micro_model, save, write_folder
from support.rows import each

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
        text = str(tmp_path / f"{number}.{suffix}")
        np.testing.assert_array_equal(read_image(text), image)


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("bits", [8, 9, 10, 12, 14])
def test_dark_files_of_16_bits_are_read_so_that_the_largest_is_white(tmp_path, suffix, bits):
    factor = 1 << (bits - 8)
    whole = [np.where(picture == picture.max(), 255, picture) for picture in (GREY, COLOUR)]
    largest = []
    for expected in whole:
        deep = expected.astype(np.uint16) * factor
        cv2.imwrite(str(tmp_path / f"x.{suffix}"), deep if deep.ndim == 2 else deep[..., ::-1])
        image = read_image(tmp_path / f"x.{suffix}", lambda high, _: largest.append(high))
        wanted = expected if expected.ndim == 3 else np.dstack([expected] * 3)
        np.testing.assert_array_equal(image, wanted)
    assert largest == [255 * factor, 255 * factor] * (bits > 8)


def test_no_largest_value_turns_a_file_of_16_bits_black(tmp_path):
    seen = []
    for largest in (255, 256, 300, 4095, 4096, 16383, 16384):
        counts = np.linspace(0, largest, 64 * 64).reshape(64, 64).astype(np.uint16)
        Image.fromarray(counts).save(tmp_path / "counts.png")
        seen.append(read_image(tmp_path / "counts.png").astype(int))
    assert max(abs(one - seen[0]).max() for one in seen) <= 1


def test_dark_colours_of_16_bits_are_turned_as_their_file_says(tmp_path):
    content = cv2.imencode(".png", COLOUR.astype(np.uint16)[..., ::-1] * 16)[1].tobytes()
    exif = Image.Exif()
    exif[0x0112] = 6
    chunk = exif.tobytes()[6:]
    part = struct.pack(">I", len(chunk)) + b"eXIf" + chunk
    part += struct.pack(">I", zlib.crc32(b"eXIf" + chunk))
    turned = np.rot90(decode_image(content), -1)
    np.testing.assert_array_equal(decode_image(content[:33] + part + content[33:]), turned)


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


TURNS = {
    1: np.asarray, 2: np.fliplr, 3: lambda a: np.rot90(a, 2), 4: np.flipud,
    5: lambda a: np.swapaxes(a, 0, 1), 6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(np.swapaxes(a, 0, 1), 2), 8: np.rot90,
    0: np.asarray, 9: np.asarray,  # no orientation at all
}  # fmt: skip

FORMATS = {
    "JPEG": ["L", "RGB", "CMYK"],
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"],
    "TIFF": ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "LAB", "I;16", "I;16B", "I",
             *(["YCbCr"] if PIL.__version__ >= "13" else [])],  # older ones misread their own
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


JXL = "JXL is not supported; convert it to JPEG or PNG"


@pytest.fixture
def phone(tmp_path):
    """A folder with photographs of a phone alone, and the masks of their objects."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "photo.jxl").write_bytes(b"\xff\x0a")
    mask = np.zeros((8, 8), np.uint8)
    mask[2:5, 2:5] = 1
    save(mask, tmp_path / "masks" / "photo.png")
    return tmp_path


AVIF = b"\0\0\0\x18ftypavif\0\0\0\0"


@each(
    ("name", "content", "words"),
    [
        ("photo.jxl", b"\xff\x0a", f"photo.jxl`: {JXL}"),
        ("photo.DNG", None, "photo.DNG`: DNG is not supported"),  # the preview is not taken for it
        (
            "sent.jpg",
            AVIF,
            "sent.jpg: is a picture of the format AVIF under another name; AVIF is not",
        ),
    ],
)
def test_a_photograph_names_its_format(tmp_path, name, content, words):
    photo = tmp_path / name
    if content is None:
        Image.fromarray(draw_scene(8, 8)[0]).save(photo, format="TIFF")
    else:
        photo.write_bytes(content)
    predictor = Predictor(micro_model("micro_conv"))
    for reader in (read_image, image_size, predictor.set_image):
        refusals.refused(DataError, lambda reader=reader: reader(photo), words)
    refusals.refused(DataError, lambda: decode_image(photo.read_bytes(), str(photo)), words)


def test_a_mask_of_an_unread_photograph_says_why_it_has_no_image(phone):
    write_folder(phone, images=2, size=(8, 8))
    with pytest.raises(DataError, match=r"photo\.png.*convert photo\.jxl to JPEG or PNG"):
        ImageMaskFolder(phone)


@each(
    "reader",
    [
        ImageMaskFolder,
        check_folder,
        photos_of_folder,
        list_photographs,
        lambda root: ImagePairs(root / "images", root / "masks"),
    ],
)
def test_a_folder_of_such_files_alone_says_so(reader, phone):
    refusals.refused(DataError, lambda: reader(phone), phone / "images", "photo.jxl", JXL)


def test_heic_is_read_where_its_package_is_installed(monkeypatch):
    for installed in (False, True):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, i=installed: i or None)
        spec = importlib.util.spec_from_file_location("formats", picture_formats.__file__)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        reasons = [module.not_supported("a.HEIC"), module.not_supported("a.heif")]
        reasons.append(module.foreign_content(b"\0\0\0\x18ftypheic"))
        for reason in reasons:
            assert reason is None if installed else "pip install pillow-heif" in reason
        assert (".heic" in module.IMAGE_SUFFIXES) == installed
        assert (".heic" in module.UNREAD_SUFFIXES) == (not installed)
        assert ".heic" not in module.LOSSLESS_SUFFIXES
        assert "AVIF is not supported" in module.foreign_content(AVIF)
        assert module.foreign_content(b"\0\0\0\x18ftypisom") is None


def test_heic_photographs_are_upright_and_their_size_is_known(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    image = np.full((48, 64, 3), 40, np.uint8)
    image[:24, :32] = 200  # one corner tells all orientations apart
    for orientation, turns in ((1, 0), (6, -1), (3, 2)):
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / "photo.heic"
        heif.from_pillow(Image.fromarray(image)).save(path, exif=exif.tobytes(), quality=-1)
        expected = np.rot90(image, turns)
        assert image_size(path) == expected.shape[:2]
        assert abs(read_image(path).astype(int) - expected).mean() < 4
        (photograph,) = list_photographs(tmp_path)
        assert photograph.size == expected.shape[:2]


@each("suffix", ["JXL", "jp2", "TGA", "psd", "xcf", "nrw"])
def test_files_of_editors_and_cameras_are_named(suffix, tmp_path):
    write_folder(tmp_path, images=2, size=(24, 32))
    path = tmp_path / "images" / f"other.{suffix}"
    path.write_bytes(b"")
    (problem,) = check_folder(tmp_path).problems
    assert problem.path == str(path)
    assert problem.text.startswith(f"{suffix.upper()} is not supported")
    (listed,) = [one for one in list_photographs(tmp_path) if one.path == path]
    assert listed.error == problem.text
