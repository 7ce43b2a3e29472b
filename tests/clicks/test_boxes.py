import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probseg.clicks.annotators import jitter_box, scribble_clicks
from probseg.geometry import mask_box, padded_crop
from probseg.types import IGNORE, Click
from support.refusals import refused


@st.composite
def boxes(draw):
    height, width = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    x0, y0 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    return (x0, y0, draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height))), (
        height,
        width,
    )


def contains(outer, inner):
    return (
        outer[0] <= inner[0]
        and outer[1] <= inner[1]
        and outer[2] >= inner[2]
        and outer[3] >= inner[3]
    )


@given(case=boxes())
def test_box_of_a_filled_box_is_that_box(case):
    (x0, y0, x1, y1), size = case
    mask = np.full(size, 255, dtype=np.uint8)
    mask[y0:y1, x0:x1] = 1
    assert mask_box(mask) == (x0, y0, x1, y1)


@given(case=boxes(), noise=st.floats(0, 0.49), seed=st.integers(0, 2**32 - 1))
def test_jittered_box_is_near_and_inside_the_image(case, noise, seed):
    box, (height, width) = case
    drawn = jitter_box(box, noise, (height, width), np.random.default_rng(seed))
    sides = (box[2] - box[0], box[3] - box[1]) * 2
    assert all(abs(a - b) <= noise * side for a, b, side in zip(drawn, box, sides, strict=True))
    assert 0 <= drawn[0] < drawn[2] <= width
    assert 0 <= drawn[1] < drawn[3] <= height


def test_jitter_uses_the_whole_range_evenly():
    generator = np.random.default_rng(0)
    drawn = np.array(
        [jitter_box((50, 60, 90, 120), 0.1, (200, 200), generator) for _ in range(4000)]
    )
    for column, centre, most in zip(drawn.T, (50, 60, 90, 120), (4, 6, 4, 6), strict=True):
        values, counts = np.unique(column, return_counts=True)
        assert values.tolist() == list(range(centre - most, centre + most + 1))
        assert counts.min() > 0.75 * 4000 / len(values)


def test_wrong_input_is_refused():
    refused(ValueError, lambda: mask_box(np.full((4, 4), 255, dtype=np.uint8)), "mask")
    with pytest.raises(ValueError, match="noise"):  # which could turn the box over
        jitter_box((0, 0, 4, 4), 0.5, (8, 8), np.random.default_rng(0))


@given(case=boxes(), noise=st.floats(0, 0.3), slack=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_object_is_inside_the_crop_around_the_jittered_box(case, noise, slack, seed):
    box, size = case
    padding = noise / (1 - 2 * noise) + slack
    drawn = jitter_box(box, noise, size, np.random.default_rng(seed))
    assert contains(padded_crop(drawn, size, padding=padding + 1e-9, min_padding=0), box)


@given(case=boxes(), least=st.integers(0, 30))
def test_crop_has_the_margin_or_ends_with_the_image(case, least):
    box, (height, width) = case
    crop = padded_crop(box, (height, width), padding=0.2, min_padding=least)
    assert contains((0, 0, width, height), crop)
    margin = max(least, 0.2 * max(box[2] - box[0], box[3] - box[1]))
    assert crop[0] == 0 or margin <= box[0] - crop[0] < margin + 1
    assert crop[3] == height or margin <= crop[3] - box[3] < margin + 1


STROKES = hnp.arrays(
    np.uint8,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=16),
    elements=st.sampled_from([0, 1, IGNORE]),
)


SPACINGS = st.floats(0.1, 30)


@given(strokes=STROKES, spacing=SPACINGS)
def test_each_click_is_the_first_pixel_that_was_left(strokes, spacing):
    expected = []
    for positive in (True, False):
        left = [(int(y), int(x)) for y, x in np.argwhere(strokes == int(positive))]
        while left:
            y, x = left[0]
            expected.append(Click(x, y, positive))
            left = [(v, u) for v, u in left if (v - y) ** 2 + (u - x) ** 2 > spacing**2]
    assert scribble_clicks(strokes, spacing) == tuple(expected)


def test_a_line_gets_clicks_at_even_distances():
    strokes = np.full((3, 20), IGNORE, dtype=np.uint8)
    assert scribble_clicks(strokes, 3) == ()
    strokes[1, 2:18] = 0
    strokes.flags.writeable = False
    expected = tuple(Click(x, 1, positive=False) for x in (2, 8, 14))
    assert scribble_clicks(strokes, 5) == expected


def test_wrong_input_is_refused_scribbles():
    for strokes in (
        np.zeros((2, 2), dtype=int),
        np.zeros((2, 2, 3), dtype=np.uint8),
        np.array([[0, 1, 128, 7]], dtype=np.uint8),
    ):
        with pytest.raises(ValueError, match="strokes"):
            scribble_clicks(strokes, 5)
    for spacing in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="spacing"):
            scribble_clicks(np.zeros((2, 2), dtype=np.uint8), spacing)
