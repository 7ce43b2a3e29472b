import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probseg.clicks.boxes import scribble_clicks
from probseg.types import IGNORE, Click

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


def test_wrong_input_is_refused():
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
