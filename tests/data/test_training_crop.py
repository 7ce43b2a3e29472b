"""The training augmentation."""

import numpy as np
import pytest
from fakes import draw_sample, ignore_border
from hypothesis import given
from hypothesis import strategies as st

from probseg.data.transforms import TrainingCrop
from probseg.types import Sample


def photo(mask):
    """A photograph that is red where the mask is 1, and blue elsewhere."""
    image = np.zeros((*mask.shape, 3), dtype=np.uint8)
    image[..., 2] = 200
    image[mask == 1] = (200, 0, 0)
    return Sample(image, mask, "photo", "fakes")


def crops(sample, number, seed=0, **options):
    crop = TrainingCrop(**{"size": 48, **options})
    crop.seed(seed)
    return [crop(sample) for _ in range(number)]


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
    found = 0
    for image, cut in crops(white, 40, scale=(0.5, 0.9)):
        outside = cut == 255
        found += outside.any()
        # Brightness may lift black a little; a pixel of the border may be blended.
        assert image[outside].mean() < 90
        assert image[cut == 1].mean() > 150
    assert found == 40


def test_ignored_pixels_stay_ignored():
    sample = photo(ignore_border(np.ones((40, 40), np.uint8), 10))
    for _, cut in crops(sample, 10, scale=(1.0, 1.0), padding=(0.3, 0.3)):
        assert (cut == 255).mean() > 0.1
        assert not (cut == 0).any()


def test_padding_shows_the_surroundings():
    mask = np.zeros((200, 200), np.uint8)
    mask[80:120, 80:120] = 1

    def share(padding):
        cuts = crops(photo(mask), 30, scale=(1.0, 1.0), padding=(padding, padding))
        return np.mean([(cut == 1).mean() for _, cut in cuts])

    for padding in (0.25, 0.5, 1.0):
        assert share(padding) == pytest.approx(1 / (1 + 2 * padding) ** 2, rel=0.15)


def test_scale_shows_parts_of_large_objects():
    # On the whole photograph, with a scale of 2 at most a quarter of it is seen.
    mask = np.zeros((100, 100), np.uint8)
    mask[:, :50] = 1
    for image, cut in crops(photo(mask), 20, scale=(2.0, 2.0), padding=(1.0, 1.0)):
        assert (cut == 1).any()
        assert not (image.sum(axis=2) == 0).all()


def test_the_photograph_is_left_alone():
    sample = draw_sample()
    before = sample.image.copy(), sample.mask.copy()
    crops(sample, 10)
    np.testing.assert_array_equal(sample.image, before[0])
    np.testing.assert_array_equal(sample.mask, before[1])


def equal(some, others):
    return all(
        np.array_equal(a, b) and np.array_equal(c, d)
        for (a, c), (b, d) in zip(some, others, strict=True)
    )


def test_seeds_repeat_and_differ():
    sample = draw_sample()
    first = crops(sample, 6, seed=5)
    assert equal(first, crops(sample, 6, seed=5))
    assert not equal(first, crops(sample, 6, seed=6))
    assert not equal(first[:1], first[1:2])


def test_global_seeds_play_no_part():
    sample = draw_sample()
    np.random.seed(1)
    first = crops(sample, 4)
    np.random.seed(2)
    assert equal(first, crops(sample, 4))


def test_seeds_of_64_bits():
    crops(draw_sample(), 1, seed=2**64 - 1)


def test_a_mask_without_object_is_refused():
    with pytest.raises(ValueError, match="mask: expected at least one pixel of value 1"):
        crops(photo(np.zeros((9, 9), np.uint8)), 1)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"size": 16}, ["size", "at least 32", "16"]),
        ({"scale": (0, 1)}, ["scale", "0 < smallest <= largest", "(0, 1)"]),
        ({"scale": (2, 1)}, ["scale", "(2, 1)"]),
        ({"padding": (-0.1, 1)}, ["padding", "0 <= smallest <= largest", "(-0.1, 1)"]),
        ({"padding": (1, 0.5)}, ["padding", "(1, 0.5)"]),
    ],
)
def test_wrong_arguments_are_named(arguments, parts):
    with pytest.raises(ValueError, match="must be") as caught:
        TrainingCrop(**arguments)
    for part in parts:
        assert part in str(caught.value)
