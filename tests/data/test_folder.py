"""Any folder with images/ and masks/."""

import shutil

import numpy as np
import pytest
from fakes import draw_scene, save, write_folder
from PIL import Image
from refusals import refused

import probseg.data.folder as module
from probseg.data import ImageMaskFolder
from probseg.errors import DataError, DatasetNotFoundError


@pytest.mark.parametrize("suffix", [".jpg", ".JPG", ".png", ".bmp", ".webp", ".jpeg"])
def test_one_mask_with_the_numbers_of_its_objects(tmp_path, suffix):
    data = ImageMaskFolder(write_folder(tmp_path, images=2, objects=3, suffix=suffix), name="mine")
    assert len(data) == 6
    names = [data[i].name for i in range(6)]
    assert names == [f"photo{p}#{n}" for p in range(2) for n in (1, 2, 3)]
    for i, sample in enumerate(data[i] for i in range(6)):
        image, labels = draw_scene(objects=3, seed=i // 3)
        assert sample.dataset == "mine"
        assert sample.image.shape == image.shape
        assert abs(sample.image.astype(int) - image).mean() < 15  # lossy, but the same picture
        assert sample.mask.dtype == np.uint8
        np.testing.assert_array_equal(sample.mask, labels == i % 3 + 1)


def test_one_mask_file_per_object(tmp_path):
    data = ImageMaskFolder(write_folder(tmp_path, images=2, objects=2, style="files"))
    assert [data[i].name for i in range(4)] == [
        "photo0_1#1", "photo0_2#1", "photo1_1#1", "photo1_2#1"
    ]  # fmt: skip
    np.testing.assert_array_equal(data[3].mask, draw_scene(objects=2, seed=1)[1] == 2)


def test_black_and_white_masks(tmp_path):
    data = ImageMaskFolder(write_folder(tmp_path, style="black_and_white"))
    assert [data[i].name for i in range(len(data))] == ["photo0", "photo1", "photo2"]
    np.testing.assert_array_equal(data[2].mask, draw_scene(seed=2)[1])


def test_ignored_pixels_are_255(tmp_path):
    write_folder(tmp_path, images=1)
    labels = draw_scene()[1]
    labels[:4] = 255
    save(labels, tmp_path / "masks" / "photo0.png")
    np.testing.assert_array_equal(ImageMaskFolder(tmp_path)[0].mask, labels)


def test_a_stem_may_end_in_a_number(tmp_path):
    # img_1.jpg owns img_1.png itself; img.jpg owns img_2.png.
    for name in ("img", "img_1"):
        save(draw_scene()[0], tmp_path / "images" / f"{name}.png")
    for name in ("img_1", "img_2", "img_1_7"):
        save(draw_scene()[1], tmp_path / "masks" / f"{name}.png")
    pairs = {(i.stem, m.stem) for i, m, _ in ImageMaskFolder(tmp_path).objects}
    assert pairs == {("img_1", "img_1"), ("img", "img_2"), ("img_1", "img_1_7")}


def test_images_without_mask_and_strange_files_are_left_out(tmp_path):
    write_folder(tmp_path, images=2)
    (tmp_path / "masks" / "photo1.png").unlink()
    for name in ("images/.DS_Store", "images/._photo0.jpg", "masks/notes.txt", "masks/Thumbs.db"):
        (tmp_path / name).write_bytes(b"?")
    assert len(ImageMaskFolder(tmp_path)) == 1


def test_small_objects_are_skipped(tmp_path):
    write_folder(tmp_path, images=1, objects=2)
    areas = [int((draw_scene(objects=2)[1] == n).sum()) for n in (1, 2)]
    assert areas[0] != areas[1]
    data = ImageMaskFolder(tmp_path, min_area=max(areas))
    assert [number for _, _, number in data.objects] == [1 + areas.index(max(areas))]
    text = refused(DataError, lambda: ImageMaskFolder(tmp_path, min_area=9999), tmp_path, "9999")
    assert "no object" in text


def test_split_exclude_and_prefixes(tmp_path):
    write_folder(tmp_path, images=4)
    (tmp_path / "train.txt").write_text("photo2\nphoto0\n\nphoto3\n", encoding="utf-8")
    (tmp_path / "bad.tsv").write_text("photo3\ttwin of GrabCut\nother\tx\n", encoding="utf-8")

    def names(**options):
        return [i.stem for i, _, _ in ImageMaskFolder(tmp_path, **options).objects]

    assert names(split="train.txt") == ["photo2", "photo0", "photo3"]
    assert names(split="train.txt", exclude="bad.tsv") == ["photo2", "photo0"]
    assert names(exclude="bad.tsv") == ["photo0", "photo1", "photo2"]
    assert names(prefixes=["photo1", "photo3"]) == ["photo1", "photo3"]
    refused(DataError, lambda: names(prefixes=["cat"]), tmp_path, "after selection")


def test_lists_of_images_are_checked(tmp_path):
    write_folder(tmp_path, images=1)
    for option in ("split", "exclude"):
        refused(
            DataError, lambda o=option: ImageMaskFolder(tmp_path, **{o: "no.txt"}),
            tmp_path / "no.txt", "no such list", "`split`", "`exclude`",
        )  # fmt: skip
    (tmp_path / "train.txt").write_text("photo0\nphoto9\n", encoding="utf-8")
    refused(
        DataError, lambda: ImageMaskFolder(tmp_path, split="train.txt"),
        tmp_path / "train.txt", "1 images without image or mask", "photo9",
    )  # fmt: skip


def test_masks_are_read_once_and_again_if_a_file_changes(tmp_path, monkeypatch):
    write_folder(tmp_path, images=3, objects=2)
    (tmp_path / "two.txt").write_text("photo2\nphoto0\n", encoding="utf-8")
    before = ImageMaskFolder(tmp_path).objects
    with monkeypatch.context() as patch:
        patch.setattr(module, "read_labels", None)
        assert ImageMaskFolder(tmp_path).objects == before
        assert ImageMaskFolder(tmp_path, min_area=100, name="mine").objects == before
        with pytest.raises(TypeError):  # other files, or others first
            ImageMaskFolder(tmp_path, split="two.txt")
    assert ImageMaskFolder(tmp_path, split="two.txt").objects == [*before[4:], *before[:2]]
    save(draw_scene(objects=1, seed=1)[1], tmp_path / "masks" / "photo1.png")
    assert len(ImageMaskFolder(tmp_path)) == 5
    path = save(draw_scene(20, 30)[0], tmp_path / "images" / "photo1.jpg")
    refused(DataError, lambda: ImageMaskFolder(tmp_path), path, "30 x 20")


def test_a_moved_folder_keeps_its_index(tmp_path, monkeypatch):
    monkeypatch.delenv("PROBSEG_CACHE")
    write_folder(tmp_path / "here")
    ImageMaskFolder(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.setattr(module, "read_labels", None)
    assert len(ImageMaskFolder(tmp_path / "there")) == 3


@pytest.mark.parametrize("style", ["ids", "files", "black_and_white"])
def test_names_and_areas_are_known_without_reading(tmp_path, style):
    data = ImageMaskFolder(write_folder(tmp_path, objects=2, style=style))
    samples = [data[i] for i in range(len(data))]
    assert data.areas.dtype == np.int64
    assert data.areas.tolist() == [int((sample.mask == 1).sum()) for sample in samples]
    shutil.rmtree(tmp_path / "images")
    assert [data.object_name(i) for i in range(len(data))] == [s.name for s in samples]


def test_areas_are_those_of_the_objects_that_are_left(tmp_path):
    areas = ImageMaskFolder(write_folder(tmp_path, objects=2)).areas
    limit = int(np.sort(areas)[2])
    assert (
        ImageMaskFolder(tmp_path, min_area=limit).areas.tolist() == areas[areas >= limit].tolist()
    )


@pytest.mark.parametrize("gone", [["masks"], ["images", "masks"]])
def test_missing_folders(tmp_path, gone):
    write_folder(tmp_path)
    for folder in gone:
        shutil.rmtree(tmp_path / folder)
    refused(
        DatasetNotFoundError, lambda: ImageMaskFolder(tmp_path, name="mine"),
        "mine", tmp_path, "images/ and masks/", "`root`",
    )  # fmt: skip


@pytest.mark.parametrize("folder", ["images", "masks"])
def test_empty_folders(tmp_path, folder):
    write_folder(tmp_path)
    for path in (tmp_path / folder).iterdir():
        path.unlink()
    refused(DataError, lambda: ImageMaskFolder(tmp_path), tmp_path / folder, ".png", "`root`")


def test_no_matching_pairs(tmp_path):
    write_folder(tmp_path, images=1)
    (tmp_path / "masks" / "photo0.png").rename(tmp_path / "masks" / "photo0_mask.png")
    refused(
        DataError, lambda: ImageMaskFolder(tmp_path), tmp_path, "no mask matches",
        "masks/<stem>.png", "masks/<stem>_<n>.png", "photo0_mask",
    )  # fmt: skip


def test_a_mask_without_image(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "images" / "photo1.jpg").unlink()
    refused(
        DataError, lambda: ImageMaskFolder(tmp_path),
        tmp_path, "1 masks have no image", "photo1.png", "add the images or remove the masks",
    )  # fmt: skip


def test_jpeg_masks_are_not_left_out_in_silence(tmp_path):
    write_folder(tmp_path)
    save(draw_scene()[1] * 255, tmp_path / "masks" / "photo0_2.jpg")
    refused(
        DataError, lambda: ImageMaskFolder(tmp_path),
        tmp_path / "masks" / "photo0_2.jpg", "lossless", ".png",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mask", "parts"),
    [
        (np.zeros((48, 64), np.uint8), ["empty"]),
        (draw_scene()[0][..., 0], ["different values"]),
        (draw_scene()[0], ["colours"]),
        (np.arange(48 * 64).reshape(48, 64).astype(np.uint8) % 3 * 127 + 1, None),
        (np.repeat(np.array([[0, 128, 255]], np.uint8), 20), ["GrabCut"]),
    ],
)
def test_bad_masks_are_named_when_the_data_set_is_built(tmp_path, mask, parts):
    write_folder(tmp_path)
    path = save(np.atleast_2d(mask), tmp_path / "masks" / "photo1.png")
    if parts is None:  # strange numbers, but possible ones
        assert len(ImageMaskFolder(tmp_path)) > 3
    else:
        refused(DataError, lambda: ImageMaskFolder(tmp_path), path, *parts)


def test_a_broken_mask_is_named(tmp_path):
    write_folder(tmp_path)
    path = tmp_path / "masks" / "photo1.png"
    path.write_bytes(path.read_bytes()[:40])
    refused(DataError, lambda: ImageMaskFolder(tmp_path), path, "cannot be read")


def test_a_broken_image_is_named(tmp_path):
    data = ImageMaskFolder(write_folder(tmp_path))
    path = tmp_path / "images" / "photo1.jpg"
    whole = path.read_bytes()
    path.write_bytes(b"no longer an image")
    refused(DataError, lambda: ImageMaskFolder(tmp_path), path, "cannot be read")
    path.write_bytes(whole[: len(whole) // 2])  # the size is still there to read, the rest is not
    refused(DataError, lambda: data[1], path, "cannot be read")
    path.unlink()
    refused(DataError, lambda: data[1], path, "no such file")


def test_a_photograph_turned_by_exif_fits_its_upright_mask(tmp_path):
    image, labels = draw_scene(40, 60)
    lying = Image.fromarray(np.rot90(image).copy())
    exif = lying.getexif()
    exif[274] = 6  # to be shown turned by 90 degrees clockwise
    (tmp_path / "images").mkdir()
    lying.save(tmp_path / "images" / "a.png", exif=exif)
    save(labels, tmp_path / "masks" / "a.png")
    sample = ImageMaskFolder(tmp_path)[0]
    np.testing.assert_array_equal(sample.image, image)
    save(np.rot90(labels).copy(), tmp_path / "masks" / "a.png")
    refused(DataError, lambda: ImageMaskFolder(tmp_path)[0], "EXIF rotation")


def test_real_objects(data_root):
    if not (data_root / "objects" / "val.txt").is_file():
        pytest.skip(f"no objects/ in {data_root}")
    data = ImageMaskFolder(data_root / "objects", split="val.txt", name="objects")
    for index in np.linspace(0, len(data) - 1, 10).astype(int):
        sample = data[index]
        assert sample.image.shape[:2] == sample.mask.shape
        assert set(np.unique(sample.mask)) <= {0, 1, 255}
        assert (sample.mask == 1).sum() >= 16
