"""Small predictions with their truth, drawn by Hypothesis."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probseg.types import IGNORE


def readable(mask) -> bool:
    """Whether a drawn mask is not one of 0 and 255 alone, which would be refused."""
    return bool((mask == 1).any() or (mask == 0).all() or (mask == IGNORE).all())


class Case(NamedTuple):
    prediction: npt.NDArray[np.bool_]
    probability: npt.NDArray[np.float32]
    mask: npt.NDArray[np.uint8]


EDGES = [np.float32(edge / 15) for edge in range(16)]
PROBABILITIES = st.floats(0, 1, width=32) | st.sampled_from(
    [float(np.nextafter(edge, np.float32(way))) for edge in EDGES for way in (0, edge, 1)]
)


@st.composite
def cases(draw, largest=14):
    """Draw maps of equal shape: noise, blocks, single values, turned upside down or not."""
    shape = draw(st.tuples(st.integers(1, largest), st.integers(1, largest)))
    prediction = draw(_mask(shape, [0, 1])).astype(bool)
    probability = draw(hnp.arrays(np.float32, shape, elements=PROBABILITIES))
    mask = draw(_mask(shape, [0, 1, IGNORE]).filter(readable))
    if draw(st.booleans()):
        prediction, probability, mask = prediction[::-1], probability[::-1], mask[:, ::-1]
    return Case(prediction, probability, mask)


@st.composite
def _mask(draw, shape, values):
    """Noise, or blocks upon blocks, so that there is something left after an erosion."""
    if draw(st.booleans()):
        return draw(hnp.arrays(np.uint8, shape, elements=st.sampled_from(values)))
    mask = np.full(shape, draw(st.sampled_from(values)), dtype=np.uint8)
    for _ in range(draw(st.integers(0, 3))):
        (y0, y1), (x0, x1) = (
            sorted(draw(st.tuples(st.integers(0, side), st.integers(0, side)))) for side in shape
        )
        mask[y0:y1, x0:x1] = draw(st.sampled_from(values))
    return mask
