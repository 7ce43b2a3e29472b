"""Photographs of phones and cameras that are not read: every reader names the format."""

import numpy as np
import pytest
from fakes import draw_scene, micro_model, save, write_folder
from PIL import Image
from runs import usage_error

from probseg import Predictor
from probseg.annotate.photographs import list_photographs
from probseg.data import ImageMaskFolder, ImagePairs
from probseg.data.checks import check_folder
from probseg.data.leakage import photos_of_folder
from probseg.errors import DataError
from probseg.images import decode_image, image_size, read_image

HEIC = "HEIC is not supported; convert it to JPEG or PNG"


@pytest.fixture
def phone(tmp_path):
    """A folder with photographs of a phone alone, and the masks of their objects."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic")
    mask = np.zeros((8, 8), np.uint8)
    mask[2:5, 2:5] = 1
    save(mask, tmp_path / "masks" / "photo.png")
    return tmp_path


def test_a_photograph_names_its_format(phone):
    photo = phone / "images" / "photo.heic"
    readers = (
        lambda: read_image(photo),
        lambda: image_size(photo),
        lambda: decode_image(photo.read_bytes(), str(photo)),
        lambda: Predictor(micro_model("micro_conv")).set_image(photo),
    )
    for reader in readers:
        with pytest.raises(DataError) as refused:
            reader()
        assert str(refused.value) == f"`{photo}`: {HEIC}"


def test_a_mask_of_an_unread_photograph_says_why_it_has_no_image(phone):
    write_folder(phone, images=2, size=(8, 8))
    with pytest.raises(DataError, match=r"photo\.png.*convert photo\.heic to JPEG or PNG"):
        ImageMaskFolder(phone)


def test_the_preview_of_a_raw_photograph_is_not_taken_for_it(tmp_path):
    Image.fromarray(draw_scene(8, 8)[0]).save(tmp_path / "photo.DNG", format="TIFF")
    with pytest.raises(DataError, match="DNG is not supported"):
        read_image(tmp_path / "photo.DNG")


@pytest.mark.parametrize(
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
    assert all(part in str(refused.value) for part in (str(phone / "images"), "photo.heic", HEIC))


def test_such_a_file_between_others_is_a_problem_of_the_folder(tmp_path):
    write_folder(tmp_path, images=2, size=(24, 32))
    (tmp_path / "images" / "phone.HEIC").write_bytes(b"")
    (problem,) = check_folder(tmp_path).problems
    assert problem.path == str(tmp_path / "images" / "phone.HEIC")
    assert problem.text == HEIC


def test_predict(phone, capsys):
    photo = phone / "images" / "photo.heic"
    output = ("--output", phone / "mask.png")
    assert HEIC in usage_error(capsys, "predict", photo, "--click", "1,1", *output)
    classes = ("--model", "emanet_lite0.camvid", "--output", phone / "classes")
    assert HEIC in usage_error(capsys, "predict", phone / "images", *classes)
