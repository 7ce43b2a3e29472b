import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from scipy.ndimage import gaussian_filter

from probseg.data import LVIS, SBD, Berkeley, COCOMVal, GrabCut, PascalVOC
from probseg.errors import DataError, DatasetNotFoundError
from probseg.lab.leakage import (
    correlations,
    find_leaks,
    photos_of_dataset,
    photos_of_folder,
    thumbnail,
)
from support.fakes import save, write_folder, write_sbd
from support.refusals import refused


def scene(seed, size=(96, 128)):
    """Smooth random colours: no two are alike, as with photographs."""
    noise = np.random.default_rng(seed).normal(size=(*size, 3))
    smooth = gaussian_filter(noise, (12, 12, 0))
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    return (255 * smooth).astype(np.uint8)


def folder(root, images):
    for name, image in images.items():
        save(image, root / "images" / f"{name}.png")
    return photos_of_folder(root)


def resized(image, size):
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))


@pytest.fixture
def originals(tmp_path):
    return folder(tmp_path / "test", {f"t{seed}": scene(seed) for seed in range(6)})


def pairs(leaks):
    names = [(leak.train.rpartition("/")[2], leak.test.rpartition("/")[2]) for leak in leaks]
    return [(a.split(".")[0], b.split(".")[0]) for a, b in names]


def test_copies_are_found_and_other_pictures_are_not(originals, tmp_path):
    grey = np.asarray(Image.fromarray(scene(4)).convert("L"))
    copies = {
        "a": resized(scene(0), (61, 47)),
        "b": scene(1)[:, ::-1],
        "c": resized(scene(2)[:, ::-1], (300, 200)),
        "d": grey,
        "e": scene(20),
        "f": scene(21),
        "g": np.full((30, 40, 3), 90, np.uint8),
    }
    train = folder(tmp_path / "train", copies)
    save(scene(3), tmp_path / "train" / "images" / "h.jpg", quality=30)
    train = photos_of_folder(tmp_path / "train")
    leaks = find_leaks(train, originals)
    expected = [("a", "t0"), ("b", "t1"), ("c", "t2"), ("d", "t4"), ("h", "t3")]
    assert pairs(leaks) == expected
    mirrored = [leak.found == "content, mirrored" for leak in leaks]
    assert mirrored == [False, True, True, False, False]
    assert all(0.97 < leak.correlation <= 1 for leak in leaks)


def test_order_and_blocks_do_not_matter(originals, monkeypatch):
    whole = find_leaks(originals, originals)
    assert pairs(whole) == [(f"t{i}", f"t{i}") for i in range(6)]
    assert {leak.found for leak in whole} == {"name, content"}
    monkeypatch.setattr("probseg.lab.leakage.BLOCK", 2)
    assert find_leaks(originals, originals) == whole


def test_equal_names_in_folders_count_for_similar_pictures_only(originals, tmp_path):
    crop = {"t0": scene(0)[10:, 12:], "t1": scene(31)}
    leaks = find_leaks(folder(tmp_path / "train", crop), originals)
    assert pairs(leaks) == [("t0", "t0")]
    assert leaks[0].found == "name"
    assert 0.5 < leaks[0].correlation < 0.97


def test_names_of_published_collections_count_whatever_the_picture(tmp_path):
    sbd = write_sbd(tmp_path / "SBD")
    voc = tmp_path / "VOC"
    for seed, name in enumerate(("2008_000101", "2008_000201", "2007_000001", "2009_000001")):
        save(scene(seed), voc / "JPEGImages" / f"{name}.jpg")
    lists = voc / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "val.txt").write_text("2008_000101\n2008_000201\n2007_000001\n")
    test = photos_of_dataset(PascalVOC, voc)
    assert len(test.paths) == 3
    found = {
        split: pairs(find_leaks(photos_of_dataset(SBD, sbd, split), test))
        for split in ("train", "val", None)
    }
    assert found["train"] == [("2008_000101", "2008_000101")]
    assert found["val"] == [("2008_000201", "2008_000201")]
    assert found[None] == found["train"] + found["val"]
    copied = folder(tmp_path / "mine", {"voc_2007_000001": scene(2), "voc_2008_000101": scene(9)})
    assert pairs(find_leaks(copied, test)) == [("voc_2007_000001", "2007_000001")]


def test_names_of_one_photograph_in_several_data_sets(tmp_path):
    for seed, name in enumerate(("124080", "banana1", "189011")):
        save(scene(seed), tmp_path / "g" / "data_GT" / f"{name}.jpg")
    for seed, name in enumerate(("124084", "124080", "189011a", "189011#2", "1890112")):
        save(scene(10 + seed), tmp_path / "b" / "images" / f"{name}.jpg")
    grabcut = photos_of_dataset(GrabCut, tmp_path / "g")
    berkeley = photos_of_dataset(Berkeley, tmp_path / "b")
    leaks = find_leaks(berkeley, grabcut)
    assert sorted(pairs(leaks)) == [
        ("124084", "124080"),
        ("189011#2", "189011"),
        ("189011a", "189011"),
    ]
    for name in ("person12_000000123456", "dog01_000000000007"):
        save(scene(30), tmp_path / "c" / "img" / f"{name}.jpg")
    save(scene(31), tmp_path / "l" / "train2017" / "000000123456.jpg")
    coco = photos_of_dataset(COCOMVal, tmp_path / "c")
    leaks = find_leaks(photos_of_dataset(LVIS, tmp_path / "l", "train"), coco)
    assert pairs(leaks) == [("000000123456", "person12_000000123456")]


@given(
    arrays.arrays(np.uint8, (3, 24, 24, 3)), arrays.arrays(np.uint8, (2, 24, 24, 3)), st.booleans()
)
def test_correlations_are_those_of_numpy(ours, theirs, grey):
    if grey:
        ours[0] = ours[0, :, :, :1]
    result = correlations(ours, theirs)
    weights = np.array([0.299, 0.587, 0.114])
    for i, a in enumerate(ours.astype(np.float64)):
        for j, b in enumerate(theirs.astype(np.float64)):
            one_is_grey = (np.ptp(a, axis=2).max() <= 2) != (np.ptp(b, axis=2).max() <= 2)
            x, y = (a @ weights, b @ weights) if one_is_grey else (a, b)
            if min(x.std(), y.std()) < 0.1:
                continue
            assert result[i, j] == pytest.approx(np.corrcoef(x.ravel(), y.ravel())[0, 1], abs=1e-3)


def test_thumbnails_are_means_of_upright_photographs(tmp_path):
    image = scene(0, (48, 72))
    means = image.reshape(24, 2, 24, 3, 3).mean(axis=(1, 3))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Image.fromarray(np.rot90(image))
    turned.save(tmp_path / "turned.png", exif=exif)
    for path in (save(image, tmp_path / "a.png"), tmp_path / "turned.png"):
        assert np.abs(thumbnail(path) - means).max() <= 1  # rounded by rows and by columns
    large = scene(1, (384, 512))
    png, jpeg = save(large, tmp_path / "b.png"), save(large, tmp_path / "b.jpg", quality=95)
    difference = thumbnail(png).astype(int) - thumbnail(jpeg)
    assert np.abs(difference).max() <= 4


def test_unreadable_and_missing_photographs_are_named(originals, tmp_path):
    root = write_folder(tmp_path / "train")
    (root / "images" / "photo1.jpg").write_bytes(b"broken")
    train = photos_of_folder(root)
    refused(DataError, lambda: find_leaks(train, originals), "photo1.jpg: cannot be read")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(DatasetNotFoundError, lambda: photos_of_folder(empty), empty, "pictures")
    words = (empty, "img/*", "train.txt", "probseg data fetch SBD")
    refused(DatasetNotFoundError, lambda: photos_of_dataset(SBD, empty, "train"), *words)
