"""Photographs of phones and cameras that are not read: every reader names the format."""

import importlib.util

import numpy as np
import pytest
from PIL import Image

from probseg import Predictor, picture_formats
from probseg.annotate.photographs import list_photographs
from probseg.data import ImageMaskFolder, ImagePairs
from probseg.data.checks import check_folder
from probseg.errors import DataError
from probseg.images import decode_image, image_size, read_image
from probseg.lab.leakage import photos_of_folder
from support.fakes import draw_scene, micro_model, save, write_folder
from support.refusals import refused
from support.rows import each

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
        refused(DataError, lambda reader=reader: reader(photo), words)
    refused(DataError, lambda: decode_image(photo.read_bytes(), str(photo)), words)


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
    refused(DataError, lambda: reader(phone), phone / "images", "photo.jxl", JXL)


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
