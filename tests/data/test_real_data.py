"""The real data sets, where they are at hand: counts, masks and what must not be trained on."""

import numpy as np
import pytest

from probseg.data import BSDS500, GrabCut, ImageMaskFolder
from probseg.types import IGNORE


def test_grabcut_has_fifty_objects_of_which_eight_have_no_ignored_band(data_root):
    objects = GrabCut(data_root / "grabcut")
    assert len(objects) == 50
    hard = []
    for sample in objects:
        assert set(np.unique(sample.mask)) <= {0, 1, IGNORE}
        assert 0.01 < (sample.mask == 1).mean() < 0.9, sample.name
        if not (sample.mask == IGNORE).any():
            hard.append(sample.name)
    assert sorted(hard) == sorted(
        ["106024", "153093", "181079", "189080", "208001", "376043", "llama", "teddy"]
    )


@pytest.mark.parametrize("split", ["train", "val"])
def test_bsds500_leaves_the_photographs_of_grabcut_out(data_root, split):
    evaluated = {name for image, _ in GrabCut(data_root / "grabcut").pairs if (name := image.stem)}
    evaluated.add("124084")  # GrabCut's 124080 is this photograph under a mistyped name
    trained = {image.stem for image, _, _ in BSDS500(split, data_root / "bsds500").objects}
    everything = {
        image.stem for image, _, _ in BSDS500(split, data_root / "bsds500", exclude=None).objects
    }
    assert everything & evaluated, "without the list there is an overlap"
    assert not trained & evaluated


def test_the_objects_folder_is_read_as_listed(data_root):
    root = data_root / "objects"
    train = ImageMaskFolder(root, split="train.txt", min_area=1)
    val = ImageMaskFolder(root, split="val.txt", min_area=1)
    assert len(train) + len(val) == 3695
    assert not {image for image, _, _ in train.objects} & {image for image, _, _ in val.objects}
