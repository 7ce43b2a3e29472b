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
from support.rows import each
from support.runs import usage_error

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


def test_a_photograph_names_its_format(phone):
    photo = phone / "images" / "photo.jxl"
    readers = (
        lambda: read_image(photo),
        lambda: image_size(photo),
        lambda: decode_image(photo.read_bytes(), str(photo)),
        lambda: Predictor(micro_model("micro_conv")).set_image(photo),
    )
    for reader in readers:
        with pytest.raises(DataError) as refused:
            reader()
        assert str(refused.value) == f"`{photo}`: {JXL}"


def test_a_mask_of_an_unread_photograph_says_why_it_has_no_image(phone):
    write_folder(phone, images=2, size=(8, 8))
    with pytest.raises(DataError, match=r"photo\.png.*convert photo\.jxl to JPEG or PNG"):
        ImageMaskFolder(phone)


def test_the_preview_of_a_raw_photograph_is_not_taken_for_it(tmp_path):
    Image.fromarray(draw_scene(8, 8)[0]).save(tmp_path / "photo.DNG", format="TIFF")
    with pytest.raises(DataError, match="DNG is not supported"):
        read_image(tmp_path / "photo.DNG")


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
    with pytest.raises(DataError) as refused:
        reader(phone)
    assert all(part in str(refused.value) for part in (str(phone / "images"), "photo.jxl", JXL))


def test_such_a_file_between_others_is_a_problem_of_the_folder(tmp_path):
    write_folder(tmp_path, images=2, size=(24, 32))
    (tmp_path / "images" / "phone.JXL").write_bytes(b"")
    (problem,) = check_folder(tmp_path).problems
    assert problem.path == str(tmp_path / "images" / "phone.JXL")
    assert problem.text == JXL


def test_predict(phone, capsys):
    photo = phone / "images" / "photo.jxl"
    output = ("--output", phone / "mask.png")
    assert JXL in usage_error(capsys, "predict", photo, "--click", "1,1", *output)
    classes = ("--model", "emanet_lite0.camvid", "--output", phone / "classes")
    assert JXL in usage_error(capsys, "predict", phone / "images", *classes)


# --- HEIC, which an optional package reads ------------------------------------------------------


def formats(monkeypatch, installed):
    """The module of the formats as it is with the package or without."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "found" if installed else None)
    spec = importlib.util.spec_from_file_location("formats", picture_formats.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_heic_is_read_where_its_package_is_installed(monkeypatch):
    heic, avif = b"\0\0\0\x18ftypheic", b"\0\0\0\x18ftypavif"
    without = formats(monkeypatch, installed=False)
    for name in ("a.HEIC", "a.heif"):
        reason = without.not_supported(name)
        assert all(part in reason for part in (name[2:].upper(), "pip install pillow-heif"))
    assert (
        "format HEIC under another name; HEIC is read with the package"
        in without.foreign_content(heic)
    )
    with_it = formats(monkeypatch, installed=True)
    assert with_it.not_supported("a.HEIC") is None
    assert with_it.foreign_content(heic) is None
    for module in (without, with_it):
        assert (".heic" in module.IMAGE_SUFFIXES) == (module is with_it)
        assert (".heic" in module.UNREAD_SUFFIXES) == (module is without)
        assert ".heic" not in module.LOSSLESS_SUFFIXES
        assert "AVIF is not supported" in module.foreign_content(avif)
        assert module.foreign_content(b"\0\0\0\x18ftypisom") is None


def test_a_photograph_of_a_phone_under_another_name_names_its_format(tmp_path):
    content = b"\0\0\0\x18ftypavif\0\0\0\0"
    (tmp_path / "sent.jpg").write_bytes(content)
    for reader in (
        lambda: read_image(tmp_path / "sent.jpg"),
        lambda: image_size(tmp_path / "sent.jpg"),
        lambda: decode_image(content, str(tmp_path / "sent.jpg")),
    ):
        with pytest.raises(
            DataError, match=r"sent\.jpg: is a picture of the format AVIF .*; AVIF is not"
        ):
            reader()


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


@each("suffix", ["jp2", "TGA", "psd", "xcf", "nrw"])
def test_files_of_editors_and_cameras_are_named(suffix, tmp_path):
    write_folder(tmp_path, images=2, size=(24, 32))
    path = tmp_path / "images" / f"other.{suffix}"
    path.write_bytes(b"")
    (problem,) = check_folder(tmp_path).problems
    assert problem.path == str(path)
    assert problem.text.startswith(f"{suffix.upper()} is not supported")
    (listed,) = [one for one in list_photographs(tmp_path) if one.path == path]
    assert listed.error == problem.text


def test_pictures_of_stereo_cameras_are_read(tmp_path):
    pixels = draw_scene(24, 32)[0]
    picture = Image.fromarray(pixels)
    picture.save(tmp_path / "a.mpo", save_all=True, append_images=[picture.rotate(180)])
    (listed,) = list_photographs(tmp_path)
    assert listed.error is None
    assert read_image(listed.path).shape == (24, 32, 3)
