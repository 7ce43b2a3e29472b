"""Checks of all files of a data set or folder."""

import numpy as np
import pytest

from probseg.data import DAVIS585, COCOMVal, GrabCut
from probseg.data.checks import check_dataset, check_folder
from probseg.data.published import PUBLISHED, Full, find_published, get_published
from probseg.errors import DatasetNotFoundError, UnknownNameError
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
