"""Objects in their boxes are what whole masks are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from probseg.formats import regions
from probseg.metrics import iou

SIZE = (7, 9)


def placed(inside, y, x):
    """A region with pixels to spare around the object, as far as they are inside of the image."""
    inside = inside[: SIZE[0] - y, : SIZE[1] - x]
    return regions.Region(inside, x, y, SIZE)


REGIONS = st.builds(
    placed,
    arrays(bool, st.tuples(st.integers(0, 7), st.integers(0, 9))),
    st.integers(0, 6),
    st.integers(0, 8),
)


@given(region=REGIONS)
def test_a_region_is_the_part_of_a_mask_that_is_not_empty(region):
    mask = region.mask()
    assert region.area == mask.sum()
    cut = regions.as_region(mask)
    np.testing.assert_array_equal(cut.mask(), mask)
    if mask.any():
        borders = (cut.inside[0], cut.inside[-1], cut.inside[:, 0], cut.inside[:, -1])
        assert all(line.any() for line in borders)
    else:
        assert not cut.inside.size


@given(region=REGIONS, by_rows=st.booleans())
def test_runs_of_pixels(region, by_rows):
    begins, ends = regions.spans(region, by_rows)
    pixels = region.mask().ravel("C" if by_rows else "F")
    changes = np.flatnonzero(np.diff(np.concatenate([[0], pixels, [0]])))
    np.testing.assert_array_equal(np.stack([begins, ends], 1).ravel(), changes)
    again = regions.from_spans(begins, ends, SIZE, by_rows)
    np.testing.assert_array_equal(again.mask(), region.mask())


@given(one=REGIONS, other=REGIONS)
def test_overlap(one, other):
    expected = 1.0 if not one.area + other.area else iou(one.mask(), other.mask().astype(np.uint8))
    assert regions.overlap(one, other) == expected
