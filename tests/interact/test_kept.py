"""Clicked pixels get the label of their click, and nothing else changes more than it must."""

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logit
from skimage.data import coffee

from probseg.evaluation import PROTOCOLS, run_object
from probseg.geometry import LENGTH, MARGIN, View, condition
from probseg.interact import ZOOMS, InteractionLoop, OneStep, Predictor, begin, image_tensor
from probseg.interact.mask import ProbabilityMap, keep_clicks
from probseg.interact.photograph import as_photograph
from probseg.interact.session import build_loop
from probseg.metrics.masks import click_compliance
from probseg.types import Click
from support.fakes import micro_model
from support.rows import each
from support.toy_models import sees_nothing, toy_sample

IMAGE = coffee()[::4, ::4].copy()  # 100 x 150
HEIGHT, WIDTH = IMAGE.shape[:2]
CLICKS = st.lists(
    st.builds(Click, st.integers(0, WIDTH - 1), st.integers(0, HEIGHT - 1), st.booleans()),
    min_size=1,
    max_size=12,
    unique_by=lambda click: (click.x, click.y),
)


@OneStep
def dark(image, prompts):
    """Logits of up to 20 by brightness alone: a model that hears no click."""
    return 40 * (0.5 - image.mean(dim=1, keepdim=True))


LOOP = InteractionLoop(dark, keep_clicks=True)
(ANSWER,) = InteractionLoop(dark).step([begin(image_tensor(IMAGE))], [Click(0, 0)])


def reference(logits, rows, columns, wanted, length):
    """Eq. 2.38 of Rasmussen and Williams (2006), with all pairs of pixels in float64."""
    every = np.stack(np.indices(logits.shape), axis=-1).reshape(-1, 2).astype(float)
    seen = np.stack([rows, columns], axis=-1).astype(float)

    def kernel(a, b):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(axis=-1) / (2 * length**2))

    residuals = wanted - logits[rows, columns]
    weights = np.linalg.inv(kernel(seen, seen)) @ residuals
    return logits + (kernel(every, seen) @ weights).reshape(logits.shape)


@pytest.mark.parametrize("length", [0.3, 2.0, 5.0])
def test_it_is_the_posterior_mean(length):
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 2, (37, 52))
    rows, columns = np.array([3, 4, 20, 36]), np.array([5, 9, 51, 0])
    wanted = np.array([0.1, -0.1, -2.0, 3.0])
    values, samples = 1 / (1 + np.exp(-logits)), np.stack([rows, columns], axis=-1)
    expected = reference(logits, rows, columns, wanted, length)
    assert np.abs(expected - logits).max() > 1
    for dtype, atol in ((np.float64, 1e-5), (np.float32, 1e-3)):
        found = condition(values.astype(dtype), samples, wanted, length)
        assert found.dtype == dtype
        np.testing.assert_allclose(logit(found.astype(float)), expected, atol=atol)


def test_obeyed_clicks_change_nothing():
    probability = ANSWER.probability
    rows, columns = np.nonzero(probability > 0.6)
    obeyed = [Click(columns[0], rows[0]), Click(columns[-1], rows[-1])]
    rows, columns = np.nonzero(probability < 0.4)
    obeyed.append(Click(columns[0], rows[0], positive=False))
    assert keep_clicks(ANSWER.answer, obeyed) is ANSWER.answer
    assert keep_clicks(ANSWER.answer, []) is ANSWER.answer
    changed = keep_clicks(ANSWER.answer, [*obeyed, Click(columns[-1], rows[-1])])
    assert changed is not ANSWER.answer
    assert ANSWER.probability is not probability
    np.testing.assert_array_equal(ANSWER.probability, probability)  # as it was


def test_changes_end_near_the_click():
    row, column = np.argwhere(ANSWER.probability < 0.01)[200]
    changed = keep_clicks(ANSWER.answer, [Click(int(column), int(row))]).full()
    assert changed[row, column] == pytest.approx(1 / (1 + np.exp(-MARGIN)))
    distance = np.hypot(*(np.indices(changed.shape) - np.array([row, column])[:, None, None]))
    far = distance > 9 * LENGTH * WIDTH  # corners of a square of 6 lengths are 8.5 away
    np.testing.assert_array_equal(changed[far], ANSWER.probability[far])
    assert (changed != ANSWER.probability)[distance < 2].all()


@settings(max_examples=50, deadline=None)
@given(clicks=CLICKS)
def test_clicks_hold_after_any_sequence(clicks):
    state = begin(image_tensor(IMAGE))
    for count, click in enumerate(clicks, 1):
        (state,) = LOOP.step([state], [click])
        for threshold in (0.49, 0.5):
            assert click_compliance(state.probability > threshold, clicks[:count]) == 1
    assert np.isfinite(state.probability).all()


def test_the_last_click_on_a_pixel_counts():
    here = Click(70, 50)
    for labels in ([True, False], [False, True], [True, False, True]):
        clicks = [here._replace(positive=label) for label in labels]
        (state,) = LOOP.answer([begin(image_tensor(IMAGE), clicks=clicks)])
        assert (state.probability[50, 70] > 0.5) == labels[-1]


def test_clicks_outside_of_a_window_change_nothing():
    values = torch.full((10, 12), 0.2)
    answer = ProbabilityMap(values, (20, 30, 32, 40), (90, 90))
    assert keep_clicks(answer, [Click(19, 35), Click(32, 35), Click(25, 40)]) is answer
    changed = keep_clicks(answer, [Click(20.9, 30.2), Click(31, 39)]).full()
    assert (changed[[30, 39], [20, 31]] > 0.5).all()


@settings(max_examples=50, deadline=None)
@given(x=st.integers(0, 2999), y=st.integers(0, 1999), positive=st.booleans())
def test_clicks_hold_between_the_values_of_a_large_photograph(x, y, positive):
    values = torch.full((250, 375), 0.01 if positive else 0.99)
    answer = ProbabilityMap(values, (0, 0, 3000, 2000), (2000, 3000))
    changed = keep_clicks(answer, [Click(x, y, positive)])
    assert changed.values.shape == values.shape
    part = changed.part(View((x, y, x + 1, y + 1), (1, 1)))
    assert (part.item() > 0.5) == (changed.full()[y, x] > 0.5) == positive


def test_clicks_hold_after_a_second_look_at_a_large_photograph():
    """Whose answers have fewer values than pixels, which are interpolated once more."""
    image = cv2.resize(IMAGE, (2600, 1733), interpolation=cv2.INTER_CUBIC)
    loop = InteractionLoop(dark, zoom=ZOOMS["look"], previous_mask=True, keep_clicks=True)
    places = np.random.default_rng(0).integers(0, 1700, (8, 2)).tolist()
    clicks = [Click(x, y, positive=n % 3 == 0) for n, (x, y) in enumerate(places)]
    state = begin(as_photograph(image))
    for count, click in enumerate(clicks, 1):
        (state,) = loop.step([state], [click])
        assert click_compliance(state.probability > 0.5, clicks[:count]) == 1


@each(("samples", "pixels"), [(8, 26), (8, 42), (577, 1054)])
def test_rounding_leads_no_click_out_of_the_values(samples, pixels):
    answer = ProbabilityMap(torch.zeros(samples, samples), (0, 0, pixels, pixels), (pixels, pixels))
    assert keep_clicks(answer, [Click(pixels - 1, pixels - 1)]).full()[-1, -1] > 0.5


def test_the_predictor_keeps_clicks_and_undoes_them():
    torch.manual_seed(0)
    predictor, answers = Predictor(micro_model("micro_csa")), []
    predictor.set_image(IMAGE)
    clicks = [Click(70, 50), Click(72, 50, positive=False), Click(20, 80), Click(140, 5)]
    for count, click in enumerate(clicks, 1):
        answers.append(predictor.predict([click]))
        assert click_compliance(answers[-1].binary, clicks[:count]) == 1
    for earlier in answers[-2::-1]:
        undone = predictor.undo()
        np.testing.assert_array_equal(undone.probability, earlier.probability)


def test_without_a_zoom_the_predictor_keeps_none():
    model = micro_model("micro_csa").eval()
    assert build_loop(model).keep_clicks
    assert not build_loop(model, zoom=None).keep_clicks


def test_the_protocol_probseg_alone_keeps_clicks():
    assert [name for name, one in PROTOCOLS.items() if one.keep_clicks] == ["probseg"]
    kept, other = (
        run_object(sees_nothing, toy_sample(), PROTOCOLS[name]).steps[-1].scores["compliance"]
        for name in ("probseg", "ritm")
    )
    assert kept == 1
    assert other < 1
