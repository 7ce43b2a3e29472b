"""Zoom-in against a second implementation, written from what is known of the published code."""

import itertools
import math
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logit
from skimage.data import coffee

from probseg.evaluation import PROTOCOLS, run_object
from probseg.geometry import (
    CUT,
    LENGTH,
    MARGIN,
    SMALLEST_SIDE,
    View,
    box_size,
    condition,
    cut_factor,
    expected_iou,
    first_windows,
    look_size,
    look_window,
    next_window,
    to_samples,
)
from probseg.interact import (
    RECOMMENDED_ZOOM,
    ZOOMS,
    InteractionLoop,
    OneStep,
    Predictor,
    Session,
    Zoom,
    begin,
    image_tensor,
)
from probseg.interact.mask import ProbabilityMap
from probseg.interact.photograph import as_photograph
from probseg.interact.session import build_loop
from probseg.metrics import iou
from probseg.metrics.masks import click_compliance
from probseg.types import Click
from support.fakes import draw_scene, micro_model
from support.rows import each
from support.toy_models import Spy, sees_nothing, shades, toy_sample

SMALL = Zoom(target=40, min_side=20)


def bilinear(values, size):
    """Resize `(..., h, w)` in double precision, the corners' centres on each other."""
    for axis, length in ((-2, size[0]), (-1, size[1])):
        old = values.shape[axis]
        places = np.arange(length) * ((old - 1) / (length - 1) if length > 1 else 0.0)
        low = np.minimum(places.astype(int), old - 1)
        high = np.minimum(low + 1, old - 1)
        part = (places - low).reshape(-1, 1) if axis == -2 else places - low
        lower, upper = values.take(low, axis), values.take(high, axis)
        values = lower + (upper - lower) * part
    return values


class Published:
    """The zoom as published: windows are `(first row, last row, first column, last column)`."""

    def __init__(self, image, answer, zoom):
        self.image, self.answer, self.zoom = image / 255.0, answer, zoom
        self.probability = np.zeros(image.shape[1:])
        self.window = None
        self.clicks = []
        self.events = []

    def click(self, click):
        self.clicks.append(click)
        found = self.probability > 0.5
        points = np.array([[c.x, c.y] for c in self.clicks], float)
        labels = [c.positive for c in self.clicks]
        if len(self.clicks) == 1 or not found.any():
            self.events.append("whole")
            logits = self.answer(self.image, points, labels)
            if not self.zoom.stale:
                self.window = None
        else:
            new = self._new_window(found)
            if self.window is None or self._leaves(new):
                self.window = new
                self.events.append("new")
            else:
                self.events.append("kept")
            top, bottom, left, right = self.window
            height, width = bottom - top + 1, right - left + 1
            factor = self.zoom.target / max(height, width)
            size = round(factor * height), round(factor * width)
            cut = bilinear(self.image[:, top : bottom + 1, left : right + 1], size)
            factors = size[1] / width, size[0] / height
            if not self.zoom.shifted:  # the first samples on the first pixels, the last on the last
                pairs = ((size[1], width), (size[0], height))
                factors = [(new - 1) / (old - 1) if old > 1 else 1.0 for new, old in pairs]
            moved = (points - (left, top)) * factors
            logits = self.answer(cut, moved, labels)
        probability = 1 / (1 + np.exp(-logits))
        if self.window is None:
            self.probability = probability
            return
        if self.events[-1] == "whole":
            self.events[-1] = "squeezed"
        top, bottom, left, right = self.window
        self.probability = np.zeros_like(self.probability)
        size = bottom - top + 1, right - left + 1
        self.probability[top : bottom + 1, left : right + 1] = bilinear(probability, size)

    def _new_window(self, found):
        for click in self.clicks:
            if click.positive:
                found[click.y, click.x] = True
        bounds = []
        for lines in (found.any(axis=1), found.any(axis=0)):
            first, last = np.argwhere(lines)[[0, -1], 0]
            side = max(self.zoom.expansion * (last - first + 1), self.zoom.min_side)
            centre = (first + last) / 2
            bounds.append(max(0, int(round(centre - side / 2))))  # noqa: RUF046
            bounds.append(min(len(lines) - 1, int(round(centre + side / 2))))  # noqa: RUF046
        return tuple(bounds)

    def _leaves(self, new):
        top, bottom, left, right = self.window
        for click in self.clicks:
            if click.positive and not (top <= click.y < bottom and left <= click.x < right):
                return True
        product = 1.0
        for a, b in (((top, bottom), new[:2]), ((left, right), new[2:])):
            one, other = set(range(a[0], a[1] + 1)), set(range(b[0], b[1] + 1))
            hull = max(a[1], b[1]) - min(a[0], b[0]) + 1
            product *= len(one & other) / hull
        return product < 0.5


GRID = math.sqrt(2) / 100
"""Step in pixels to which the disks are moved."""


def answers(radius, silent):
    """Two versions of a model: disks about the clicks, and nothing after some numbers of clicks.

    Midway between its two answers is a probability that is not 0.5.
    """

    def answer(image, points, labels):
        y, x = np.mgrid[: image.shape[1], : image.shape[2]]
        logits = np.full(image.shape[1:], -7.0)
        # Single precision or double: the same disks. Fractions have no tie on an irrational grid.
        points = np.round(points.astype(float) / GRID) * GRID
        reach = radius + round(float(image[0, 0, 0]), 2)
        if len(labels) not in silent:
            for (column, row), positive in zip(points, labels, strict=True):
                inside = (x - column) ** 2 + (y - row) ** 2 <= reach**2
                logits[inside] = 9.0 if positive else -7.0
        return logits

    shown = []

    @OneStep
    def model(image, prompts):
        shown.append((image[0], prompts))
        found = answer(image[0].numpy(), prompts.points[0].numpy(), prompts.labels[0].tolist())
        return torch.tensor(found)[None, None]

    return answer, model, shown


def compare(size, clicks, radius, silent, zoom, seed=0):
    """Click in both, and check that they are where the other is after every click."""
    image = np.random.default_rng(seed).integers(0, 256, (3, *size), dtype=np.uint8)
    answer, model, shown = answers(radius, silent)
    reference = Published(image, answer, zoom)
    loop = InteractionLoop(model, zoom=zoom)
    state = begin(torch.tensor(image))
    for click in clicks:
        (state,) = loop.step([state], [click])
        reference.click(click)
        if reference.window is None:
            assert state.window is None
        else:
            top, bottom, left, right = reference.window
            assert state.window == (left, top, right + 1, bottom + 1)
        np.testing.assert_allclose(state.probability, reference.probability, atol=1e-4)
    return reference.events, shown, state


def clicks_in(size, count, generator):
    return [
        Click(int(generator.integers(size[1])), int(generator.integers(size[0])), bool(sign))
        for sign in generator.random(count) < 0.7
    ]


@given(data=st.data())
def test_windows_and_answers_are_those_of_the_published_code(data):
    size = data.draw(st.tuples(st.integers(2, 90), st.integers(2, 90)))
    places = st.builds(
        Click, st.integers(0, size[1] - 1), st.integers(0, size[0] - 1), st.booleans()
    )
    clicks = data.draw(st.lists(places, min_size=1, max_size=7))
    silent = data.draw(st.sets(st.integers(1, 6), max_size=3))
    zoom = replace(
        SMALL,
        stale=data.draw(st.booleans()),
        shifted=data.draw(st.booleans()),
        target=data.draw(st.sampled_from([33, 64])),
    )
    compare(size, clicks, data.draw(st.floats(0.5, 12)), silent, zoom)


@pytest.mark.parametrize("name", ["ritm", "fixed_600"])
def test_full_size_images_too_and_every_event_is_seen(name):
    events = set()
    for seed in range(4):
        generator = np.random.default_rng(seed)
        size = (300 + 20 * seed, 460)
        clicks = clicks_in(size, 7, generator)
        near = [clicks[0]._replace(positive=True), clicks[0]._replace(x=clicks[0].x // 2)]
        sequence = [*near, *clicks[1:], clicks[-1]]
        events |= set(compare(size, sequence, 25, {3, 6}, ZOOMS[name], seed)[0])
    assert events == {"whole", "new", "kept"} | ({"squeezed"} if name == "ritm" else set())


def test_clicks_outside_of_a_window_stay_outside():
    points = np.array([[9.5, 0], [20, -5], [-3, 12]])
    moved = to_samples(points, View((0, 0, 10, 10), (19, 19)))
    np.testing.assert_allclose(moved, [[18, 0], [40, -10], [-6, 24]])


@each("name", ["fixed", "ritm", "scales"])
@each("flip", [False, True])
def test_what_the_model_sees_under_a_click_is_what_was_clicked(name, flip):
    """Columns and rows of even gradients, which interpolation leaves as they are."""
    row, column = np.mgrid[:120, :140]
    image = torch.tensor(np.stack([row, column, 0 * row]).astype(np.uint8))
    disk, shown = answers(20, set())[1:]
    loop = InteractionLoop(disk, zoom=replace(ZOOMS[name], min_side=40), flip=flip)
    state, clicks = begin(image), [Click(60, 60), Click(66, 53), Click(71, 60, positive=False)]
    for click in clicks:
        (state,) = loop.step([state], [click])
    errors = []
    for seen, prompts in shown[-1 - flip :]:
        assert max(seen.shape) == 400
        for click, (x, y) in zip(clicks, prompts.points[0].tolist(), strict=True):
            rows, columns = bilinear_at(seen.numpy() * 255, x, y)[:2]
            errors.append(max(abs(rows - click.y), abs(columns - click.x)))
    assert max(errors) < 1e-3 if name != "ritm" else 0.05 < max(errors) < 1


def bilinear_at(values, x, y):
    """Interpolate `(C, h, w)` at a point."""
    left, top = int(x), int(y)
    right, below = x - left, y - top
    part = values[:, top : top + 2, left : left + 2]
    return np.einsum("cij,i,j->c", part, [1 - below, below], [1 - right, right])


def test_a_box_of_pixels_is_found_by_its_first_and_last():
    probability = np.zeros((100, 120), np.float32)
    probability[40:61, 30:71] = 0.6  # rows 40 to 60, columns 30 to 70
    probability[0, 0] = 0.5  # not above
    answer = ProbabilityMap.from_array(probability)
    zoom = Zoom(min_side=1)
    two = [Click(50, 50), Click(0, 0, positive=False)]
    x, y = 0.7 * 41, 0.7 * 21
    expected = round(50 - x), round(50 - y), round(50 + x) + 1, round(50 + y) + 1
    assert next_window(zoom, None, answer, two) == expected
    farther = next_window(zoom, None, answer, [*two, Click(100, 50)])
    assert farther[2] == min(120, round(65 + 0.7 * 71) + 1)
    assert farther[0] == round(65 - 0.7 * 71)


def test_the_window_stays_until_a_click_leaves_it():
    probability = np.zeros((100, 100), np.float32)
    probability[45:56, 45:56] = 1
    answer, zoom = ProbabilityMap.from_array(probability), Zoom(min_side=40)
    first = next_window(zoom, None, answer, [Click(50, 50)] * 2)
    assert first == (30, 30, 71, 71)
    for x, stays in ((30, True), (69, True), (70, False), (29, False)):
        window = next_window(
            zoom, first, ProbabilityMap.from_array(probability), [Click(50, 50), Click(x, 50)]
        )
        assert (window == first) == stays, "the last column counts as outside"
        negative = Click(x, 50, positive=False)
        assert (
            next_window(
                zoom, first, ProbabilityMap.from_array(probability), [Click(50, 50), negative]
            )
            == first
        )
    probability[45:56, 45:84] = 1  # the object grows: the overlap is 41 / 55
    answer = ProbabilityMap.from_array(probability)
    assert next_window(zoom, first, answer, [Click(50, 50)] * 2) == first
    strict = replace(zoom, keep_above=0.8)
    assert next_window(strict, first, answer, [Click(50, 50)] * 2) != first


@pytest.mark.parametrize("stale", [False, True])
def test_with_clicks_taken_back_the_whole_image_counts_again(stale):
    zoom = replace(SMALL, stale=stale)
    clicks = [Click(60, 60), Click(64, 60)]
    _, _, state = compare((120, 120), clicks, 6, set(), zoom)
    assert state.window is not None
    answer, model, _ = answers(6, set())
    (again,) = InteractionLoop(model, zoom=zoom).answer([state._replace(clicks=(clicks[0],))])
    assert again.window is None
    logits = answer(again.image.numpy() / 255, np.array([[60, 60]]), [True])
    np.testing.assert_allclose(again.probability, 1 / (1 + np.exp(-logits)), atol=1e-6)


@each("size", [(1, 1), (1, 1200), (1500, 1)])
def test_thin_images_are_zoomed_into(size):
    loop = InteractionLoop(answers(5000, set())[1], zoom=Zoom())
    state = begin(torch.zeros(3, *size, dtype=torch.uint8))
    for _ in range(2):
        (state,) = loop.step([state], [Click(size[1] - 1, size[0] - 1)])
    assert state.window is not None
    assert state.probability.shape == size
    assert state.probability.max() > 0.5


def test_a_window_that_stays_is_not_taken_in_again():
    model = Spy(answers(5, set())[1])
    loop = InteractionLoop(model, zoom=SMALL)
    state = begin(torch.zeros(3, 80, 90, dtype=torch.uint8))
    for click in (Click(40, 40), Click(41, 42), Click(43, 40), Click(39, 41), Click(80, 70)):
        (state,) = loop.step([state], [click])
    assert model.encoded[:2] == [[(80, 90)], [(40, 40)]]
    assert len(model.encoded) == 3
    assert len(model.decoded) == 5


def test_protocols_zoom():
    zoom = "ritm"
    thing = toy_sample((260, 310), seed=1)
    protocol = replace(PROTOCOLS["ritm_zoom"], max_clicks=5, zoom=zoom, flip=False, threshold=0.5)
    answer, model, shown = answers(30, {2})
    record = run_object(model, thing, protocol)
    reference = Published(np.moveaxis(thing.image, 2, 0), answer, ZOOMS[zoom])
    for step in record.steps[1:]:
        reference.click(Click(step.x, step.y, step.positive))
        assert step.iou == iou(reference.probability > 0.5, thing.mask)
    assert len({tuple(image.shape) for image, _ in shown}) > 1, "it did zoom"
    unzoomed = run_object(model, thing, replace(protocol, zoom=None))
    assert [step.iou for step in unzoomed.steps] != [step.iou for step in record.steps]


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


LOOK = Zoom(target=48, min_side=40, look=0.5, look_target=30)


@given(data=st.data())
def test_the_window_of_a_look_has_its_side_and_the_click_not_on_its_rim(data):
    size = height, width = data.draw(st.tuples(st.integers(2, 400), st.integers(2, 400)))
    last = None
    for _ in range(data.draw(st.integers(1, 4))):
        click = Click(data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1)))
        x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
        window = (
            x0,
            y0,
            data.draw(st.integers(x0 + 1, width)),
            data.draw(st.integers(y0 + 1, height)),
        )
        look = look_window(LOOK, window, click, size, last)
        assert 0 <= look[0] <= click.x < look[2] <= width
        assert 0 <= look[1] <= click.y < look[3] <= height
        if look != last:
            side = round(0.5 * max(*box_size(window), 40))
            assert box_size(look) == (min(side, height), min(side, width))
        zero, one = (
            ProbabilityMap.from_array(np.full(size, value, np.float32)) for value in (0, 1)
        )
        seen = ProbabilityMap(one.part(View(look, box_size(look)))[0], look, size)
        assert zero.with_look(seen).full()[click.y, click.x] == 1
        last = look


def test_a_look_stays_while_the_click_is_near_its_middle():
    first = look_window(LOOK, (0, 0, 200, 200), Click(150, 150), (300, 300), None)
    assert first == (100, 100, 200, 200)
    for x, y, stays in ((150, 150, True), (160, 155, True), (150, 190, False), (90, 150, False)):
        look = look_window(LOOK, (0, 0, 200, 200), Click(x, y), (300, 300), first)
        assert (look == first) == stays


@given(seed=st.integers(0, 99), data=st.data())
def test_outside_of_a_look_nothing_changes_and_within_its_rim_it_holds(seed, data):
    generator, size = torch.Generator().manual_seed(seed), (90, 110)
    boxes = []
    for _ in range(2):
        x0, y0 = data.draw(st.integers(0, 60)), data.draw(st.integers(0, 50))
        boxes.append(
            (x0, y0, x0 + data.draw(st.integers(1, 50)), y0 + data.draw(st.integers(1, 40)))
        )
    answer, look = (
        ProbabilityMap(torch.rand(*box_size(box), generator=generator), box, size) for box in boxes
    )
    both = answer.with_look(look).full()
    x0, y0, x1, y1 = boxes[1]
    outside = np.ones(size, bool)
    outside[y0:y1, x0:x1] = False
    np.testing.assert_array_equal(both[outside], answer.full()[outside])
    rim = max(x1 - x0, y1 - y0) // 8
    inner = (
        slice(y0 + rim * (y0 > 0), y1 - rim * (y1 < size[0])),
        slice(x0 + rim * (x0 > 0), x1 - rim * (x1 < size[1])),
    )
    np.testing.assert_array_equal(both[inner], look.full()[inner])
    lower, upper = np.sort([answer.full(), look.full()], axis=0)
    assert ((both >= lower - 1e-6) & (both <= upper + 1e-6)).all()


def test_maps_with_fewer_values_than_pixels_become_as_dense_as_the_denser():
    size = (4000, 6000)
    coarse = ProbabilityMap(torch.full((100, 200), 0.25), (1000, 500, 5000, 2500), size)
    fine = ProbabilityMap(torch.full((400, 400), 0.75), (500, 1000, 1500, 2000), size)
    both = coarse.with_look(fine)
    assert both.box == (500, 500, 5000, 2500)
    assert tuple(both.values.shape) == (800, 1800)
    x, y = (
        to_samples(np.array([[1000.0, 1500], [4000, 700]]), View(both.box, (800, 1800)))
        .astype(int)
        .T
    )
    np.testing.assert_allclose(both.values[y, x], [0.75, 0.25])


@OneStep
def remembers(image, prompts):
    """Logits that also hang on the answer before."""
    return shades.predict(image, prompts) + 3 * prompts.previous - 1.5


def test_a_look_that_stays_is_not_encoded_again():
    model = Spy(remembers)
    loop = InteractionLoop(model, zoom=LOOK, previous_mask=True)
    state = begin(image_tensor(draw_scene(130, 170)[0]))
    for click in (Click(80, 60), Click(84, 62), Click(85, 63)):
        (state,) = loop.step([state], [click])
    assert model.encoded == [[(130, 170)], [(48, 48)], [(30, 30)]]
    assert len(model.decoded) == 3 * 2 + 1, "each answer and those closer"


def test_encodings_that_answers_share_count_once_in_memory():
    session = Session(
        InteractionLoop(remembers, zoom=LOOK, previous_mask=True),
        begin(image_tensor(draw_scene(130, 170)[0])),
    )
    for click in (Click(80, 60), Click(100, 66)):
        session.add(click)
    before, states = session.nbytes, [session.answer.state, session.add(Click(101, 67)).state]
    assert states[0].encoded is states[1].encoded
    assert states[0].look[1] is states[1].look[1]
    assert session.nbytes - before == states[1].answer.nbytes


def test_a_preview_is_one_answer():
    model = Spy(remembers)
    zoom = replace(LOOK, first=(1.0, 0.5))
    image = begin(image_tensor(draw_scene(130, 170)[0]))
    session = Session(InteractionLoop(model, zoom=zoom, previous_mask=True), image)
    for count in range(3):
        asked = len(model.decoded)
        session.preview(Click(80 + 9 * count, 60))
        assert [len(images) for images in model.decoded[asked:]] == [1]
        session.add(Click(80 + 9 * count, 60))


def test_many_objects_are_answered_as_each_alone():
    loop = InteractionLoop(remembers, batch_size=3, zoom=LOOK, previous_mask=True, keep_clicks=True)
    images = [image_tensor(draw_scene(130, 170, seed=seed)[0]) for seed in range(3)]
    states = [begin(image) for image in images]
    alone = [begin(image) for image in images]
    for n in range(3):
        clicks = [Click(60 + 20 * n, 50 + seed, n < 2) for seed in range(3)]
        states = loop.step(states[: 3 - n], clicks[: 3 - n])
        alone = [loop.step([one], [click])[0] for one, click in zip(alone, clicks, strict=True)]
        for one, other in zip(states, alone[: 3 - n], strict=True):
            np.testing.assert_allclose(one.probability, other.probability, atol=1e-6)
            click = one.clicks[-1]
            assert (one.probability[click.y, click.x] > 0.5) == click.positive


@each(("side", "seen"), [(20, 256), (300, 300), (900, 400)])
def test_looks_are_shown_at_their_own_size_where_that_is_enough(side, seen):
    assert look_size(ZOOMS[RECOMMENDED_ZOOM], (5, 5, 5 + side, 5 + side)) == (seen, seen)


@each("previous_mask", [False, True])
def test_only_networks_that_take_their_last_answer_look(previous_mask):
    model = Spy(shades)
    loop = InteractionLoop(model, zoom=LOOK, previous_mask=previous_mask)
    states = loop.step([begin(image_tensor(draw_scene(130, 170)[0]))], [Click(80, 60)])
    loop.step(states, [Click(100, 66)])
    assert len(model.decoded) == (5 if previous_mask else 2)


def test_the_protocol_of_the_predictor_looks_and_published_zooms_do_not():
    protocol, zoom = PROTOCOLS["probseg"], ZOOMS[RECOMMENDED_ZOOM]
    assert (protocol.version, protocol.zoom) == (5, RECOMMENDED_ZOOM)
    assert zoom.look is not None
    for name in ZOOMS.keys() - {RECOMMENDED_ZOOM}:
        assert ZOOMS[name].look is None


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
    assert ANSWER.answer.with_clicks(obeyed) is ANSWER.answer
    assert ANSWER.answer.with_clicks([]) is ANSWER.answer
    changed = ANSWER.answer.with_clicks([*obeyed, Click(columns[-1], rows[-1])])
    assert changed is not ANSWER.answer
    assert ANSWER.probability is not probability
    np.testing.assert_array_equal(ANSWER.probability, probability)  # as it was


def test_changes_end_near_the_click():
    row, column = np.argwhere(ANSWER.probability < 0.01)[200]
    changed = ANSWER.answer.with_clicks([Click(int(column), int(row))]).full()
    assert changed[row, column] == pytest.approx(1 / (1 + np.exp(-MARGIN)))
    distance = np.hypot(*(np.indices(changed.shape) - np.array([row, column])[:, None, None]))
    far = distance > 9 * LENGTH * WIDTH  # corners of a square of 6 lengths are 8.5 away
    np.testing.assert_array_equal(changed[far], ANSWER.probability[far])
    assert (changed != ANSWER.probability)[distance < 2].all()


@settings(max_examples=4 * settings().max_examples)
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
    assert answer.with_clicks([Click(19, 35), Click(32, 35), Click(25, 40)]) is answer
    changed = answer.with_clicks([Click(20.9, 30.2), Click(31, 39)]).full()
    assert (changed[[30, 39], [20, 31]] > 0.5).all()


@settings(max_examples=4 * settings().max_examples)
@given(x=st.integers(0, 2999), y=st.integers(0, 1999), positive=st.booleans())
def test_clicks_hold_between_the_values_of_a_large_photograph(x, y, positive):
    values = torch.full((250, 375), 0.01 if positive else 0.99)
    answer = ProbabilityMap(values, (0, 0, 3000, 2000), (2000, 3000))
    changed = answer.with_clicks([Click(x, y, positive)])
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
    assert answer.with_clicks([Click(pixels - 1, pixels - 1)]).full()[-1, -1] > 0.5


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
