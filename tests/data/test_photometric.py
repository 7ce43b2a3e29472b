"""The look of training crops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probseg.data.transforms import PhotometricAugmentation

PHOTO = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)


@given(
    image=hnp.arrays(np.uint8, st.tuples(st.integers(8, 20), st.integers(8, 20), st.just(3))),
    seed=st.integers(0, 2**63 - 1),
)
def test_looks_keep_the_shape_and_the_picture_that_was_given(image, seed):
    before = image.copy()
    shown = PhotometricAugmentation()(image, np.random.default_rng(seed))
    assert shown.shape == image.shape
    assert shown.dtype == np.uint8
    np.testing.assert_array_equal(image, before)


def shown(seed, augment=None):
    return (augment or PhotometricAugmentation())(PHOTO, np.random.default_rng(seed))


def test_they_are_a_function_of_the_generator_alone():
    augment = PhotometricAugmentation()
    first = [shown(seed, augment) for seed in range(20)]
    np.random.seed(1)  # plays no part, nor does what was drawn before
    for seed in reversed(range(20)):
        np.testing.assert_array_equal(shown(seed, augment), first[seed])
        np.testing.assert_array_equal(shown(seed), first[seed])


def test_what_is_changed_is_drawn_independently():
    """Brightness moves the mean and hue the balance of channels; seeded alike, they would agree."""
    augment = PhotometricAugmentation()
    seen = [shown(seed, augment).astype(float) for seed in range(1500)]
    bright = [image.mean() - PHOTO.mean() for image in seen]
    grey = [(image.std(axis=-1) < 1).all() for image in seen]
    kept = [(image == PHOTO).all() for image in seen]
    assert np.mean(grey) == pytest.approx(0.05, abs=0.02)
    assert np.mean(kept) == pytest.approx(0.4 * 0.5 * 0.95 * 0.85, abs=0.03)
    assert abs(np.mean(bright)) < 3
    assert abs(np.corrcoef(bright, grey)[0, 1]) < 0.1
