from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from probseg.annotate.frames import pack, unpack

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))


@given(SIZES.flatmap(lambda size: arrays(np.bool_, size)))
def test_masks_come_back_exactly_and_are_cut_to_their_window(mask):
    frame = pack({"sequence": 7}, mask)
    header, back = unpack(frame, mask.shape)
    assert header["sequence"] == 7
    assert np.array_equal(back, mask)
    if mask.any():
        x, y, width, height = header["window"]
        cut = mask[y : y + height, x : x + width]
        assert cut.sum() == mask.sum()
        assert all(side.any() for side in (cut[0], cut[-1], cut[:, 0], cut[:, -1]))
    else:
        assert header["window"] is None


@given(SIZES.flatmap(lambda size: arrays(np.uint8, size)))
def test_maps_of_bytes_come_back_exactly(maps):
    header, back = unpack(pack({}, maps), maps.shape)
    assert header["kind"] == "bytes"
    assert np.array_equal(back, maps)


def test_no_payload():
    assert unpack(pack({"a": 1}, None), (3, 3)) == ({"a": 1, "kind": "none", "window": None}, None)
