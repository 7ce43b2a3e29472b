"""The first click is answered at several scales, and one answer chosen."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.geometry import CUT, SMALLEST_SIDE, cut_factor, expected_iou, first_windows
from probseg.interact import InteractionLoop, OneStep, Zoom, begin
from probseg.interact.mask import ProbabilityMap
from probseg.types import Click
from support.rows import each

SCALES = Zoom(target=80, first=(1.0, 0.5, 0.25))


@given(data=st.data())
def test_windows_have_their_sides_and_contain_the_click(data):
    height, width = data.draw(st.tuples(st.integers(1, 400), st.integers(1, 400)))
    click = Click(data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1)))
    windows = first_windows(SCALES, click, (height, width))
    assert windows[0] is None
    assert len(set(windows)) == len(windows)
    for window in windows[1:]:
        x0, y0, x1, y1 = window
        assert 0 <= x0 <= click.x < x1 <= width
        assert 0 <= y0 <= click.y < y1 <= height
        sides = [max(SMALLEST_SIDE, round(scale * max(height, width))) for scale in SCALES.first]
        assert (x1 - x0, y1 - y0) in {(min(side, width), min(side, height)) for side in sides}


def test_the_expected_iou_is_that_of_independent_pixels():
    probability = np.array([[0.9, 0.8], [0.3, 0.1]], np.float32)
    unions, hits = 0.0, 0.0
    for truth in itertools.product((0, 1), repeat=4):
        chance = np.prod(np.where(truth, probability.ravel(), 1 - probability.ravel()))
        inside = probability.ravel() > 0.5
        hits += chance * (inside & np.array(truth, bool)).sum()
        unions += chance * (inside | np.array(truth, bool)).sum()
    assert expected_iou(ProbabilityMap.from_array(probability)) == pytest.approx(hits / unions)
    assert expected_iou(ProbabilityMap.from_array(np.full((3, 3), 0.5, np.float32))) == 0


@each(
    ("window", "cut"),
    [
        ((2, 2, 8, 8), False),
        ((2, 2, 6, 8), True),
        ((4, 2, 8, 8), True),
        ((2, 4, 8, 8), True),
        ((2, 2, 8, 6), True),
        (None, False),
    ],
)
def test_an_object_that_its_window_cuts_counts_less(window, cut):
    probability = np.zeros((10, 10), np.float32)
    probability[4:6, 4:6] = 0.8
    x0, y0, x1, y1 = window or (0, 0, 10, 10)
    shown = torch.from_numpy(probability[y0:y1, x0:x1])
    answer = ProbabilityMap(shown, (x0, y0, x1, y1), (10, 10))
    assert expected_iou(answer) == pytest.approx(0.8)
    assert cut_factor(answer) == (CUT if cut else 1)


def test_the_border_of_the_image_cuts_nothing():
    for x0, y0 in ((0, 0), (4, 0), (0, 4), (4, 4)):  # the window, with the object in its corner
        probability = torch.zeros(6, 6)
        x, y = x0 // 2, y0 // 2
        probability[y : y + 4, x : x + 4] = 1.0
        window = (x0, y0, x0 + 6, y0 + 6)
        assert cut_factor(ProbabilityMap(probability, window, (10, 10))) == 1, window


class SureAt(torch.nn.Module):
    """Sees the red object, and is the surer the closer the view is to one scale."""

    def __init__(self, scale, side):
        super().__init__()
        self.scale, self.side, self.calls = scale, side, []

    def predict(self, image, prompts):
        own = round(self.scale * self.side)
        share = (image[0, 1] == 1).float().sum().sqrt() / max(image.shape[-2:])
        self.calls.append(float(share))
        sure = 1.0 + 8.0 * (abs(share - 8 / own) < 0.02)
        return torch.where(image[0, 0] > 0.5, sure, -sure)[None, None].float()


@each("scale", [1.0, 0.5, 0.25])
def test_the_surest_answer_is_taken_with_its_window_and_the_time_of_all(scale):
    image = np.zeros((3, 320, 320), np.uint8)
    image[0, 155:165, 155:165] = 255
    image[1, 156:164, 156:164] = 255
    model = SureAt(scale, 320)
    loop = InteractionLoop(OneStep(model.predict), zoom=SCALES)
    (state,) = loop.step([begin(torch.tensor(image))], [Click(160, 160)])
    assert len(model.calls) == 3
    side = round(scale * 320)
    first = 160 - side // 2
    expected = None if scale == 1 else (first, first, first + side, first + side)
    assert state.window == expected
    assert state.probability.shape == (320, 320)
    assert state.probability[160, 160] > 0.9
    (state,) = loop.step([state], [Click(150, 160, positive=False)])
    assert len(model.calls) == 4, "one answer to each further click"


def test_a_box_a_mask_and_a_negative_click_are_answered_once():
    image = torch.zeros(3, 200, 200, dtype=torch.uint8)
    calls = []

    @OneStep
    def model(image, prompts):
        calls.append(image.shape)
        return torch.ones(1, 1, *image.shape[2:])

    loop = InteractionLoop(model, zoom=SCALES)
    initial = np.zeros((200, 200), bool)
    initial[50:60, 50:60] = True
    for state, click in [
        (begin(image, box=(10, 10, 50, 50)), Click(20, 20)),
        (begin(image, initial=initial), Click(20, 20)),
        (begin(image), Click(20, 20, positive=False)),
    ]:
        calls.clear()
        loop.step([state], [click])
        assert len(calls) == 1
