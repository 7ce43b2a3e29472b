"""Any folder with images/ and masks/, and checks of all its files or of those of a data set."""

import shutil

import numpy as np
import pytest
from PIL import Image

from probseg.convert import READERS, Ledger, Request
from probseg.data import DAVIS585, COCOMVal, FolderDataModule, GrabCut, ImageMaskFolder
from probseg.data.checks import check_dataset, check_folder
from probseg.data.published import PUBLISHED, Full, find_published, get_published
from probseg.errors import DataError, DatasetNotFoundError, UnknownNameError
from probseg.masks import read_objects
from probseg.paths import data_dir, find_data
from support.fakes import (
    draw_scene,
    save,
    with_source,
    write_berkeley,
    write_folder,
    write_grabcut,
    write_sbd,
)
from support.refusals import refused
from support.rows import each


@each("suffix", [".jpg", ".JPG", ".png", ".bmp", ".webp", ".jpeg"])
def test_one_mask_with_the_numbers_of_its_objects(tmp_path, suffix):
    write_folder(tmp_path, images=2, objects=3, suffix=suffix)
    ignored = draw_scene(objects=3, seed=1)[1]
    ignored[:4] = 255
    save(ignored, tmp_path / "masks" / "photo1.png")
    data = ImageMaskFolder(tmp_path, name="mine")
    assert [sample.name for sample in data] == [
        f"photo{p}#{n}" for p in range(2) for n in (1, 2, 3)
    ]
    for i, sample in enumerate(data):
        image, labels = draw_scene(objects=3, seed=i // 3)
        assert sample.dataset == "mine"
        assert abs(sample.image.astype(int) - image).mean() < 15  # lossy, but the same picture
        expected = (labels == i % 3 + 1).astype(np.uint8)
        expected[:4] = 255 if i > 2 else expected[:4]
        np.testing.assert_array_equal(sample.mask, expected)


def test_an_empty_variable_is_unset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", "")
    root = write_folder(tmp_path / "data" / "mine")
    assert data_dir() / "mine" == find_data("mine") == root.relative_to(tmp_path)


def test_masks_in_doubt_mean_what_the_folder_or_the_user_says(tmp_path):
    root = write_folder(tmp_path, images=3, objects=3)
    doubtful = np.full_like(draw_scene()[1], 255)  # ignored, but for a small object
    doubtful[:3], doubtful[20:26, 20:26] = 0, 1
    save(doubtful, root / "masks" / "photo0.png")
    assert next(iter(ImageMaskFolder(root))).name == "photo0#1"
    assert not any("--data.masks" in problem.text for problem in check_folder(root).problems)
    for other in (1, 2):
        save(draw_scene(seed=other)[1] * 255, root / "masks" / f"photo{other}.png")
    refused(DataError, lambda: ImageMaskFolder(root), "photo0.png: 255", "--data.masks numbers or")
    assert any("--data.masks numbers or" in problem.text for problem in check_folder(root).problems)
    (problem,) = [x for x in check_folder(root, meaning="numbers").problems if x.serious]
    assert "fewer than 100" in problem.text
    (sample,) = ImageMaskFolder(root, masks="numbers")
    assert (sample.mask == 1).sum() == 36
    white = ImageMaskFolder(root, masks="black_and_white")
    assert [sample.name for sample in white] == ["photo0", "photo1", "photo2"]
    assert FolderDataModule(root, masks="black_and_white").root == root


def test_a_palette_of_colours_is_taken_at_its_word(tmp_path):
    numbers = np.arange(256, dtype=np.uint8).reshape(16, 16).repeat(6, axis=0).repeat(6, axis=1)
    numbers[numbers > 232] = 0
    picture = Image.fromarray(numbers, "P")
    picture.putpalette([0, 0, 0, *np.random.default_rng(0).integers(40, 220, 765).tolist()])
    picture.save(tmp_path / "m.png")
    assert read_objects(tmp_path / "m.png").numbers == list(range(1, 233))


def test_black_and_white_masks_next_to_photographs(tmp_path):
    root = write_folder(tmp_path, style="black_and_white")
    for path in (root / "images").iterdir():
        path.rename(root / path.name)  # as an annotator has them
    (root / "images").rmdir()
    data = ImageMaskFolder(root)
    assert [sample.name for sample in data] == ["photo0", "photo1", "photo2"]
    for seed, sample in enumerate(data):
        np.testing.assert_array_equal(sample.mask, draw_scene(seed=seed)[1])


def test_a_stem_may_end_in_a_number(tmp_path):
    # img_1.jpg owns img_1.png itself; img.jpg owns img_2.png and img_10.png.
    for name in ("img", "img_1", "none"):
        save(draw_scene()[0], tmp_path / "images" / f"{name}.png")
    for name in ("img_1", "img_2", "img_10", "img_1_7"):
        save(draw_scene()[1], tmp_path / "masks" / f"{name}.png")
    pairs = {(i.stem, m.stem) for i, m, _ in ImageMaskFolder(tmp_path).objects}
    assert pairs == {("img_1", "img_1"), ("img", "img_2"), ("img", "img_10"), ("img_1", "img_1_7")}


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
    refused(DataError, lambda: names(prefixes=["cat"]), tmp_path, "`prefixes`", "'cat'")
    for option in ("split", "exclude"):
        refused(DataError, lambda o=option: names(**{o: "no.txt"}), "no.txt", f"`{option}`")
    (tmp_path / "train.txt").write_text("photo0\nphoto9\n", encoding="utf-8")
    refused(DataError, lambda: names(split="train.txt"), tmp_path / "train.txt", "photo9")


@pytest.mark.parametrize("gone", [["masks"], ["images", "masks"]])
def test_missing_and_empty_folders(tmp_path, gone):
    write_folder(tmp_path)
    for folder in gone:
        shutil.rmtree(tmp_path / folder)
    words = ("mine", tmp_path, "images/ and masks/", "`root`")
    refused(DatasetNotFoundError, lambda: ImageMaskFolder(tmp_path, name="mine"), *words)
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir(exist_ok=True)
    empty = tmp_path / gone[0]
    refused(DataError, lambda: ImageMaskFolder(tmp_path), empty, ".png", "`root`")


def test_images_that_are_not_used_are_named(tmp_path, caplog):
    """Those without a mask or without a large object; the rest of the report is `data check`."""
    root = write_folder(tmp_path, images=14)
    assert len(ImageMaskFolder(root)) == 14
    assert not caplog.messages
    for number in range(11):
        (root / "masks" / f"photo{number}.png").unlink()
    tiny = np.zeros((48, 64), np.uint8)
    save(tiny, root / "masks" / "photo13_1.png")
    tiny[3:6, 3:6] = 255
    save(tiny, root / "masks" / "photo12.png")
    (root / "images" / "phone.avif").write_bytes(b"not read")
    save(np.full_like(tiny, 255), root / "masks" / "photo11_1.png")
    data = ImageMaskFolder(root)
    lines = [*caplog.messages]
    unread, bare, small, empty, filled = lines
    assert unread.endswith("format that is not read, not used (1): phone.avif")
    assert f"{root}: images without a mask, not used (11): photo0.jpg, " in bare
    assert bare.endswith(", ...")
    assert "images without an object of at least 16 pixels, not used (1): " in small
    assert small.endswith(": photo12.jpg")
    assert empty.endswith("masks without an object, not used (1): photo13_1.png")
    assert filled.endswith("no background (255 alone is white, not ignored) (1): photo11_1.png")
    notes = [problem for problem in check_folder(root).problems if "has no mask" in problem.text]
    assert len(data) + len(notes) + 1 == 15
    ImageMaskFolder(root, prefixes=["photo11"])
    assert caplog.messages == [*lines, unread, filled]


def test_masks_without_an_image_of_their_name(tmp_path):
    write_folder(tmp_path, images=1)
    (tmp_path / "masks" / "photo0.png").rename(tmp_path / "masks" / "photo0_mask.png")
    named = "to belong to photo0.jpg, photo0_mask.png must be named photo0.png or photo0_1.png; "
    named += f"`probseg data check {tmp_path}` lists all problems"
    words = (tmp_path, "masks/<stem>.png", "masks/<stem>_<n>.png", named)
    refused(DataError, lambda: ImageMaskFolder(tmp_path), *words)
    write_folder(tmp_path, images=4)
    message = refused(DataError, lambda: ImageMaskFolder(tmp_path), "without an image: 1", named)
    with pytest.raises(DataError) as converted:  # says the same
        list(READERS["png"](tmp_path, Request(tmp_path / "images"), Ledger()))
    assert str(converted.value) == message
    (tmp_path / "images" / "photo0.jpg").rename(tmp_path / "images" / "photo.jpg")
    (tmp_path / "images" / "photo1.jpg").rename(tmp_path / "images" / "photo0_mas.jpg")
    words = ("photo0.png, photo0_mask.png, photo1.png; add the images or remove the masks",)
    refused(DataError, lambda: ImageMaskFolder(tmp_path), *words)


@each(
    ("mask", "words"),
    [
        (draw_scene()[0][..., 0], ["different values"]),
        (draw_scene()[0], ["colours"]),
        (np.repeat(np.array([[0, 128, 255]], np.uint8), 20)[None], ["GrabCut"]),
        (draw_scene(40, 40)[1] * 0, ["40 x 40", "64 x 48"]),
    ],
)
def test_bad_masks_are_named_when_the_data_set_is_built(tmp_path, mask, words):
    write_folder(tmp_path)
    path = save(mask, tmp_path / "masks" / "photo1.png")
    refused(DataError, lambda: ImageMaskFolder(tmp_path), path, *words)
    save(draw_scene()[1] * 255, path)
    path = save(draw_scene()[1] * 255, tmp_path / "masks" / "photo0_2.jpg")
    refused(DataError, lambda: ImageMaskFolder(tmp_path), path, "lossless", ".png")


def test_a_photograph_turned_by_exif_fits_its_upright_mask(tmp_path):
    image, labels = draw_scene(40, 60)
    lying = Image.fromarray(np.rot90(image).copy())
    exif = lying.getexif()
    exif[274] = 6  # to be shown turned by 90 degrees
    (tmp_path / "images").mkdir()
    lying.save(tmp_path / "images" / "a.png", exif=exif)
    save(labels, tmp_path / "masks" / "a.png")
    np.testing.assert_array_equal(ImageMaskFolder(tmp_path)[0].image, image)
    save(np.rot90(labels).copy(), tmp_path / "masks" / "a.png")
    refused(DataError, lambda: ImageMaskFolder(tmp_path)[0], "EXIF rotation")


def drawn(name, objects=None, photos=None):
    """A data set whose complete set has as many objects as a drawn one."""
    kind = PUBLISHED[name]
    return with_source(kind, full={split: Full(objects, photos) for split in kind.source.full})


def found(report, root):
    """Problems as `{file: [text, ...]}`, files relative to the root."""
    result = {}
    for path, text, _ in report.problems:
        result.setdefault(path.removeprefix(f"{root}/"), []).append(text)
    return result


def test_sound_and_incomplete_sets(tmp_path):
    report = check_dataset(drawn("GrabCut", 3, 3), write_grabcut(tmp_path / "g"))
    assert report == ("GrabCut", str(tmp_path / "g"), 3, 3, 3, [])
    report = check_dataset(GrabCut, tmp_path / "g")
    assert [problem.text for problem in report.problems] == [
        f"3 {what}, but the complete set has 50" for what in ("objects", "photos")
    ]
    assert not report.sound
    report = check_dataset(drawn("Berkeley", 3, 2), write_berkeley(tmp_path / "b"))
    assert report[2:] == (3, 2, 2, [])
    report = check_dataset(drawn("SBD", 6, 3), write_sbd(tmp_path / "s"), "val")
    assert (report.dataset, *report[2:]) == ("SBD val", 6, 3, 3, [])
    report = check_folder(write_folder(tmp_path / "f", objects=2, style="files"))
    assert report[2:] == (6, 3, 3, [])
    assert report.sound


def test_all_problems_of_a_folder_are_collected(tmp_path):
    root = write_folder(tmp_path, images=12)
    images, masks = root / "images", root / "masks"
    image, labels = draw_scene(seed=1)
    (images / "photo0.jpg").write_bytes(b"broken")
    (masks / "photo1.png").write_bytes(b"broken")
    save(labels[:, :-3], masks / "photo2.png")
    save(labels * 0, masks / "photo3.png")
    (masks / "photo4.png").unlink()
    (images / "photo5.jpg").unlink()
    small = np.zeros_like(labels)
    small[3:6, 3:6], small[9:11, :4], small[20:40, 20:40] = 1, 2, 3
    save(small, masks / "photo6.png")
    save(np.full_like(labels, 255), masks / "photo7.png")
    (images / "photo8.jpg").replace(images / "copy.jpg")
    (masks / "photo8.png").replace(masks / "copy.png")
    (images / "photo9.jpg").write_bytes((images / "copy.jpg").read_bytes())
    save(labels, masks / "photo10.jpg")
    (masks / "photo10.png").unlink()
    save(image, images / "photo11.png")
    expected = {
        "images/photo0.jpg": ["cannot be read as an image"],
        "masks/photo1.png": ["cannot be read as an image"],
        "masks/photo2.png": ["the mask is 61 x 48 pixels"],
        "masks/photo3.png": ["has no object and is not used"],
        "images/photo4.jpg": ["has no mask and is not used"],
        "masks/photo5.png": ["has no image of the same name"],
        "masks/photo6.png": ["object 1: has 9 pixels", "object 2: has 8 pixels, fewer than 100"],
        "masks/photo7.png": ["object 255: fills the image"],
        "images/photo9.jpg": ["is the same picture as"],
        "masks/photo10.jpg": ["is not lossless"],
        "images/photo10.jpg": ["has no mask and is not used"],
        "images/photo11.png": ["has the same stem as photo11.jpg"],
    }
    report = check_folder(root)
    unused = [problem for problem in report.problems if "is not used" in problem.text]
    assert [problem for problem in report.problems if not problem.serious] == unused
    assert not report.sound
    told = found(report, root)
    assert told.keys() == expected.keys()
    for path, parts in expected.items():
        assert len(told[path]) == len(parts)
        assert all(part in text for part, text in zip(parts, told[path], strict=True)), path


def test_all_problems_of_a_test_set_are_collected(tmp_path):
    root = write_grabcut(tmp_path)
    for seed, name in enumerate(("a", "b", "c", "d"), start=5):
        image, labels = draw_scene(seed=seed)
        save(image, root / "data_GT" / f"{name}.png")
        save(labels * 255, root / "boundary_GT" / f"{name}.png")
    (root / "boundary_GT" / "a.png").unlink()
    (root / "data_GT" / "b.png").unlink()
    save(labels * 77, root / "boundary_GT" / "c.png")
    (root / "data_GT" / "d.png").write_bytes(b"")
    report = check_dataset(drawn("GrabCut", 3, 4), root)
    told = found(report, root)
    assert set(told) == {"data_GT/a.png", "boundary_GT/b.png", "boundary_GT/c.png", "data_GT/d.png"}
    assert told["data_GT/a.png"] == ["has no mask in boundary_GT/"]
    assert "has no image" in told["boundary_GT/b.png"][0]
    assert "expected the values 0" in told["boundary_GT/c.png"][0]
    assert "cannot be read" in told["data_GT/d.png"][0]
    assert (report.objects, report.photos, report.sound) == (3, 4, False)
    small = np.zeros((48, 64), np.uint8)
    small[3:6, 3:6] = 255
    root = write_grabcut(tmp_path / "sound")
    save(small, root / "boundary_GT" / "banana.bmp")
    photo = save(draw_scene(seed=0)[0], root / "data_GT" / "Cross.JPG", quality=95)
    (root / "data_GT" / "banana.jpg").write_bytes(photo.read_bytes())
    report = check_dataset(drawn("GrabCut"), root)
    assert [problem.serious for problem in report.problems] == [False] * 2
    assert report.sound


def test_sets_that_are_read_by_their_class(tmp_path):
    root = write_sbd(tmp_path)
    (root / "img" / "2008_000200.jpg").write_bytes(b"broken")
    told = found(check_dataset(drawn("SBD", 4, 2), root, "val"), root)
    assert list(told) == ["img/2008_000200.jpg"]
    assert len(told["img/2008_000200.jpg"]) == 1, "once, though it has two objects"
    (root / "inst" / "2008_000201.mat").unlink()
    told = found(check_dataset(drawn("SBD"), root, "val"), root)
    assert list(told) == ["inst/2008_000201.mat"]


def test_missing_sets(tmp_path, monkeypatch):
    words = ("images/ and masks/", "it has neither")
    refused(DatasetNotFoundError, lambda: check_folder(tmp_path), *words)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    for name, kind in PUBLISHED.items():
        place = tmp_path / kind.source.places[0]
        words = (f"{name} was not found in {place}, which does not exist",)
        refused(DatasetNotFoundError, kind, *words)
        split = next(iter(kind.source.splits), None)
        words = (f"{name} was not found in",)
        refused(DatasetNotFoundError, lambda k=kind, s=split: check_dataset(k, tmp_path, s), *words)
        assert set(kind.source.splits) <= set(kind.source.full)


def test_names_of_data_sets():
    assert find_published("coco-mval") is COCOMVal
    assert find_published("DAVIS-585") is DAVIS585
    assert find_published("Davis") is PUBLISHED["DAVIS"]
    assert find_published("ade20k") is None
    with pytest.raises(UnknownNameError, match="did you mean 'GrabCut'"):
        get_published("GrabCat")
