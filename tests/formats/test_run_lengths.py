"""Run lengths of COCO, against pycocotools and a walk over the pixels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from pycocotools import mask as coco_mask

from probseg.formats.run_lengths import draw_runs, parse_runs
from support.drawn_sets import runs_of
from support.rows import each

MASKS = arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=40))


@given(mask=MASKS)
def test_runs_and_masks_come_back(mask):
    text = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
    runs = parse_runs(text)
    assert runs.tolist() == runs_of(mask)
    drawn = draw_runs(runs, mask.shape)
    assert drawn.dtype == np.uint8
    assert drawn.flags.c_contiguous
    np.testing.assert_array_equal(drawn, mask)


@given(runs=st.lists(st.integers(0, 10**6), max_size=12))
def test_long_runs(runs):
    plain = {"size": [1, sum(runs)], "counts": runs}
    assert parse_runs(coco_mask.frPyObjects(plain, *plain["size"])["counts"]).tolist() == runs


@given(text=st.binary(max_size=30))
def test_any_bytes_give_numbers_or_are_refused(text):
    # A number ends in a character below "P"; none has more than eight.
    known = all(48 <= byte < 112 for byte in text) and (not text or text[-1] < 80)
    if known and not any(all(byte >= 80 for byte in text[i : i + 8]) for i in range(len(text) - 7)):
        assert len(parse_runs(text)) == sum(byte < 80 for byte in text)
    else:
        with pytest.raises(ValueError, match="compressed run lengths"):
            parse_runs(text)


@each("runs", [[], [5], [13], [-1, 13], [5, 8]])
def test_runs_must_fill_the_mask(runs):
    # pycocotools returns a mask for most of these, whose last pixels are what the memory held.
    with pytest.raises(ValueError, match="3 x 4"):
        draw_runs(np.array(runs, dtype=np.int64), (3, 4))
