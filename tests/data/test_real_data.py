"""The real data sets, where they are at hand: counts, masks and what must not be trained on."""

import numpy as np
import pytest

from probseg.data import BSDS500, GrabCut
from probseg.data.checks import check_dataset
from probseg.lab.leakage import find_leaks, photos_of_dataset
from probseg.types import IGNORE


@pytest.fixture
def grabcut(data_root):
    return data_root / "grabcut"


def test_grabcut_is_complete_and_eight_objects_have_no_ignored_band(grabcut):
    report = check_dataset(GrabCut, grabcut)
    assert report.problems == []
    assert (report.objects, report.photos) == (50, 50)
    hard = [sample.name for sample in GrabCut(grabcut) if not (sample.mask == IGNORE).any()]
    assert sorted(hard) == sorted(
        ["106024", "153093", "181079", "189080", "208001", "376043", "llama", "teddy"]
    )


@pytest.mark.parametrize(("scribbles", "strays"), [("set1", 0), ("set2", 3)])
def test_scribbles_of_grabcut(grabcut, scribbles, strays):
    if not (grabcut / f"scribbles_{scribbles}").is_dir():
        pytest.skip(f"no scribbles in {grabcut}")
    leaving = 0
    for sample in GrabCut(grabcut, scribbles):
        assert sample.scribbles.shape == sample.mask.shape
        assert {0, 1} <= set(np.unique(sample.scribbles))
        assert (sample.mask[sample.scribbles == 0] == 1).mean() < 0.01, sample.name
        leaving += (sample.mask[sample.scribbles == 1] == 0).mean() > 0.02
    assert leaving == strays  # the strokes of three photographs leave the object


@pytest.fixture(scope="module")
def photos_of_grabcut(data_root):
    return photos_of_dataset(GrabCut, data_root / "grabcut")


@pytest.mark.parametrize(("split", "shared"), [("train", 9), ("val", 11), ("test", 0)])
def test_bsds500_leaves_the_photographs_of_grabcut_out(data_root, photos_of_grabcut, split, shared):
    root = data_root / "bsds500"
    test, everything = photos_of_grabcut, photos_of_dataset(BSDS500, root, split)
    leaks = find_leaks(everything, test)
    assert len(leaks) == shared
    assert {leak.found for leak in leaks} <= {"name, content"}
    by_content = find_leaks(everything._replace(dataset=None), test)
    assert [leak[:2] for leak in by_content] == [leak[:2] for leak in leaks]
    if split == "test":  # which is never trained on
        return
    data = BSDS500(split, root)
    assert not {leak.train for leak in leaks} & {str(image) for image, _, _ in data.objects}
    for index in np.linspace(0, len(data) - 1, 5).astype(int):
        assert 0.005 <= data[index].mask.mean() <= 0.5
