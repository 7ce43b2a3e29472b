"""Processors and other devices compute the same distances."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from probseg.clicks import sampling

REGIONS = st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 9)).flatmap(
    lambda size: arrays(np.bool_, size)
)


@given(region=REGIONS, margin=st.integers(1, 3))
def test_opencv_and_pytorch_agree(region, margin):
    given = torch.from_numpy(region)
    torch.testing.assert_close(
        sampling.distance_to(given), sampling._by_minima(given), rtol=0, atol=0
    )
    torch.testing.assert_close(
        sampling.eroded(given, margin), sampling._by_maxima(given, margin), rtol=0, atol=0
    )
