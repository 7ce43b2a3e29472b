import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probseg.clicks.scribbles import scribble_clicks
from probseg.types import IGNORE, Click

STROKES = hnp.arrays(
    np.uint8,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=16),
    elements=st.sampled_from([0, 1, IGNORE]),
)
SPACINGS = st.floats(0.1, 30)


def real_strokes(height=480, width=640):
    """Four wavy strokes, seven pixels thick."""
    strokes = np.full((height, width), IGNORE, dtype=np.uint8)
    for k, value in enumerate([1, 1, 0, 0]):
        columns = np.arange(40, width - 40)
        rows = (60 + 110 * k + 20 * np.sin(columns / 30)).astype(int)
        for thick in range(7):
            strokes[rows + thick, columns] = value
    return strokes


@given(strokes=STROKES, spacing=SPACINGS)
def test_disks_around_the_clicks_cover_the_strokes_of_their_sign(strokes, spacing):
    clicks = scribble_clicks(strokes, spacing)
    for positive in (True, False):
        places = np.array([(c.y, c.x) for c in clicks if c.positive == positive], dtype=float)
        places = places.reshape(-1, 2)
        stroke = np.argwhere(strokes == int(positive))
        squared = ((stroke[:, None] - places[None]) ** 2).sum(axis=2)  # (pixels, clicks)
        assert (squared.min(axis=1, initial=np.inf) <= spacing**2).all()
        apart = ((places[:, None] - places[None]) ** 2).sum(axis=2)
        assert (apart[~np.eye(len(places), dtype=bool)] > spacing**2).all()
    assert all(strokes[click.y, click.x] == int(click.positive) for click in clicks)


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
    strokes[1, 2:18] = 0
    expected = tuple(Click(x, 1, positive=False) for x in (2, 8, 14))
    assert scribble_clicks(strokes, 5) == expected


def test_no_stroke_is_no_click():
    assert scribble_clicks(np.full((4, 5), IGNORE, dtype=np.uint8), 3) == ()


def test_given_strokes_are_left_alone():
    strokes = real_strokes()
    strokes.flags.writeable = False
    signs = {click.positive for click in scribble_clicks(strokes, 10)}
    assert signs == {True, False}


@pytest.mark.parametrize(
    ("strokes", "says"),
    [
        (np.zeros((2, 2), dtype=int), "uint8"),
        (np.zeros((2, 2, 3), dtype=np.uint8), "uint8"),
        (np.array([[0, 1, 128, 7]], dtype=np.uint8), r"\[7, 128\]"),
    ],
)
def test_other_strokes_are_refused(strokes, says):
    with pytest.raises(ValueError, match=says):
        scribble_clicks(strokes, 5)


@pytest.mark.parametrize("spacing", [0, -1, float("nan"), float("inf")])
def test_impossible_spacings_are_refused(spacing):
    with pytest.raises(ValueError, match="spacing"):
        scribble_clicks(np.zeros((2, 2), dtype=np.uint8), spacing)
