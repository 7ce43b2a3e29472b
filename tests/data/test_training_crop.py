"""The training augmentation."""

import os
import subprocess
import sys

import albumentations as A
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probseg.data.transforms import Augmentation, TrainingCrop
from probseg.types import Sample
from support.fakes import draw_sample, ignore_border
from support.refusals import refused
from support.rows import each


def photo(mask):
    """A photograph that is red where the mask is 1, and blue elsewhere."""
    image = np.zeros((*mask.shape, 3), dtype=np.uint8)
    image[..., 2] = 200
    image[mask == 1] = (200, 0, 0)
    return Sample(image, mask, "photo", "fakes")


def crops(sample, number, seed=0, **options):
    crop = TrainingCrop(**{"size": 48, **options})
    return [crop(sample, 1000 * seed + i) for i in range(number)]


@given(
    height=st.integers(1, 90), width=st.integers(1, 90), seed=st.integers(0, 999), data=st.data()
)
def test_any_object_fits(height, width, seed, data):
    mask = np.zeros((height, width), dtype=np.uint8)
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    x1, y1 = data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height))
    mask[y0:y1, x0:x1] = 1
    for image, cut in crops(photo(mask), 2, seed):
        assert image.shape == (48, 48, 3)
        assert cut.shape == (48, 48)
        assert image.dtype == cut.dtype == np.uint8
        assert set(np.unique(cut)) <= {0, 1, 255}
        assert (cut == 1).any()


@pytest.mark.parametrize("scale", [(0.6, 1.4), (2.0, 4.0)])
def test_a_line_that_reduction_would_lose_is_still_seen(scale):
    mask = np.zeros((300, 400), dtype=np.uint8)
    mask[150, 20:380] = 1
    assert all((cut == 1).any() for _, cut in crops(photo(mask), 30, scale=scale))


def test_image_and_mask_move_together():
    corner = np.tril(np.ones((60, 80), dtype=np.uint8))  # looks different when flipped or turned
    for image, cut in crops(photo(corner), 40):
        red, blue = image[..., 0].astype(int), image[..., 2].astype(int)
        lively = abs(red - blue) > 60  # neither turned grey nor on a blended border
        wrong = ((red > blue) != (cut == 1)) & lively & (cut != 255)
        assert wrong.mean() < 0.05


def test_what_lies_outside_the_photograph_is_black_and_ignored():
    white = Sample(np.full((20, 60, 3), 255, np.uint8), np.ones((20, 60), np.uint8), "a", "b")
    crop = TrainingCrop(48, scale=(0.5, 0.9))
    for seed in range(40):
        image, cut = crop.cut(white, np.random.default_rng(seed))
        assert set(np.unique(cut)) == {1, 255}
        # A pixel of the border may be blended, and belongs to the larger part, but for rounding.
        assert ((image[..., 0] > 127) != (cut == 1)).mean() < 0.01
        assert np.isin(image, (0, 255)).mean() > 0.9
    ignored = photo(ignore_border(np.ones((40, 40), np.uint8), 10))
    for _, cut in crops(ignored, 10, scale=(1.0, 1.0), padding=(0.3, 0.3)):
        assert (cut == 255).mean() > 0.1  # as they were
        assert not (cut == 0).any()


def test_padding_shows_the_surroundings():
    mask = np.zeros((400, 400), np.uint8)
    mask[180:220, 180:220] = 1

    def sides(count, *padding):
        cuts = crops(photo(mask), count, scale=(1.0, 1.0), padding=padding)
        return np.array([(cut == 1).mean() for _, cut in cuts]) ** 0.5

    for padding in (0.25, 0.5, 1.0):
        assert sides(30, padding, padding).mean() == pytest.approx(1 / (1 + 2 * padding), rel=0.1)
    below = [(sides(200, 0.5, 3.5) < share).mean() for share in (1 / 5.04, 1 / 3.17)]
    assert below == pytest.approx([1 / 3, 2 / 3], abs=0.12)  # log-uniform from 1/8 to 1/2


@each("first", [0, 2**32, 2**63 - 10])
def test_a_crop_is_a_function_of_its_seed(first):
    sample, crop = draw_sample(), TrainingCrop(48)
    before = sample.image.copy(), sample.mask.copy()
    seen = [crop(sample, first + i)[0].tobytes() for i in range(6)]
    np.random.seed(1)
    crop(photo(np.eye(50, dtype=np.uint8)), 3)
    assert [TrainingCrop(48)(sample, first + i)[0].tobytes() for i in range(5, -1, -1)] == seen[
        ::-1
    ]
    assert len(set(seen)) == 6
    np.testing.assert_array_equal(sample.image, before[0])  # which is left as it is
    np.testing.assert_array_equal(sample.mask, before[1])


def test_colours_are_changed_as_often_as_they_say():
    picture = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    augment, mask = Augmentation(), np.ones((16, 16), np.uint8)
    seen = [augment(picture, mask, np.random.default_rng(i))[0].astype(float) for i in range(1500)]
    grey = [(image.std(axis=-1) < 1).all() for image in seen]
    same = [(image == picture).all() for image in seen]
    assert np.mean(grey) == pytest.approx(0.05, abs=0.02)
    assert np.mean(same) == pytest.approx(0.4 * 0.5 * 0.95 * 0.85, abs=0.03)
    bright = [image.mean() - picture.mean() for image in seen]
    assert abs(np.mean(bright)) < 3
    assert abs(np.corrcoef(bright, grey)[0, 1]) < 0.1  # drawn independently


def test_transforms_of_albumentations_change_image_and_mask_by_the_seed():
    sample = photo(np.eye(50, dtype=np.uint8))
    turn = A.Compose([A.Rotate((90, 90), p=0.5, fill_mask=255), A.ToGray(p=1)])
    crop, plain = TrainingCrop(48, augmentation=turn), TrainingCrop(48, augmentation=A.NoOp())
    turned = 0
    for seed in range(20):
        (image, mask), (_, truth) = crop(sample, seed), plain(sample, seed)
        assert (image == image[..., :1]).all()
        rotated = not np.array_equal(mask, truth)
        np.testing.assert_array_equal(mask, np.rot90(truth) if rotated else truth)
        turned += rotated
        for first, again in zip(crop(sample, seed), (image, mask), strict=True):
            np.testing.assert_array_equal(first, again)
    assert 4 < turned < 16
    lost = TrainingCrop(
        48, augmentation=A.CoarseDropout((1, 1), (1.0, 1.0), (1.0, 1.0), fill_mask=0, p=1)
    )
    assert (lost(sample, 0)[1] == 1).any()
    for wrong in (A.RandomCrop(8, 8), A.Normalize()):
        other = TrainingCrop(48, augmentation=wrong)
        refused(ValueError, lambda other=other: other(sample, 0), "`augmentation`", "uint8")


def slopes(seeds, **options):
    """Of each crop of a slope: its width, whether it is mirrored, and its mean grey value."""
    columns = np.linspace(20, 180, 400, dtype=np.uint8)
    sample = Sample(
        np.ascontiguousarray(np.broadcast_to(columns[None, :, None], (400, 400, 3))),
        np.ones((400, 400), np.uint8),
        "slope",
        "fakes",
    )
    crop = TrainingCrop(64, padding=(0.0, 0.0), **options)
    for seed in seeds:
        image, mask = crop(sample, seed)
        inside = np.flatnonzero((mask == 1).any(axis=0))
        left, right = (image[:, inside[i]][mask[:, inside[i]] == 1].mean() for i in (3, -4))
        yield inside.size, left > right, image[mask == 1].mean()


def test_scale_mirroring_and_look_are_independent():
    """Generators that are seeded alike would mirror the small crops, or the bright ones."""
    sizes, mirrored, grey = np.transpose([*slopes(range(400), scale=(0.3, 0.9))])
    assert 0.4 < mirrored.mean() < 0.6
    for numbers in (sizes, grey):
        assert numbers.std() > 5
        assert abs(np.corrcoef(numbers, mirrored)[0, 1]) < 0.2
    assert abs(np.corrcoef(sizes, grey)[0, 1]) < 0.2


def test_the_contour_of_the_mask_is_that_of_the_picture():
    """Masks that were rounded to other centres of pixels than pictures would lie beside them."""
    mask = np.zeros((300, 400), np.uint8)
    mask[60:210, 90:330] = 1
    wrong = contour = 0
    for seed in range(60):
        sample = Sample(np.repeat(mask[..., None] * 255, 3, axis=2), mask, "a", "b")
        image, cut = TrainingCrop(128).cut(sample, np.random.default_rng(seed))
        wrong += ((image[..., 0] > 127) != (cut == 1))[cut != 255].sum()
        contour += (np.diff((cut == 1).astype(int), axis=1) != 0).sum()
    assert wrong < 0.2 * contour


@each(
    ("arguments", "parts"),
    [
        *(({"scale": x}, ["scale", "0 < smallest <= largest", x]) for x in ((0, 1), (2, 1))),
        *(({"padding": x}, ["padding", "0 <= smallest", x]) for x in ((-0.1, 1), (1, 0.5))),
    ],
)
def test_wrong_arguments_are_named(arguments, parts):
    refused(ValueError, lambda: TrainingCrop(**arguments), "must be", *parts)


def test_augmentation_asks_no_server():
    """As albumentations does when it is imported, unless it is told not to."""
    code = """
import socket
asked = []
def look_up(*given, **options):
    asked.append(given)
    raise OSError("no network")
socket.getaddrinfo = look_up
import probseg.data.datamodule, probseg.data.transforms
assert not asked, asked
"""
    known = {k: v for k, v in os.environ.items() if k != "NO_ALBUMENTATIONS_UPDATE"}
    subprocess.run([sys.executable, "-c", code], env=known, check=True)
