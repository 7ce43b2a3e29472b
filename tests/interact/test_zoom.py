"""Zoom-in against a second implementation, written from what is known of the published code."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.evaluation import PROTOCOLS, run_object
from probseg.geometry import View, next_window, to_samples
from probseg.interact import ZOOMS, InteractionLoop, OneStep, Zoom, begin
from probseg.interact.mask import ProbabilityMap
from probseg.metrics import iou
from probseg.types import Click
from support.rows import each
from support.toy_models import Spy, toy_sample

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
