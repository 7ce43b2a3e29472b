"""Snapped strokes: pixels that belong to what lies under the middle line, by a plain search."""

import math

import numpy as np
import pytest

from probseg.interact.steps import brush_pixels, snap
from probseg.types import Stroke

SIZE = HEIGHT, WIDTH = 30, 40
GREY = np.full((*SIZE, 3), 128, np.uint8)


def logit(p):
    p = min(max(float(p), 1e-4), 1 - 1e-4)
    return math.log(p / (1 - p))


def _distance(one, other):
    """Return the squared distance of two places, which is exact."""
    return (one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2


def searched(stroke, own):
    """Return the pixels of a stroke by a search from its middle line, pixel by pixel."""
    under = brush_pixels(stroke, SIZE)
    line = [tuple(place) for place in np.argwhere(brush_pixels(stroke._replace(radius=0.5), SIZE))]
    found, waiting = set(line), list(line)
    while waiting:
        y, x = waiting.pop()
        for v, u in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            inside = 0 <= v < HEIGHT and 0 <= u < WIDTH and under[v, u]
            if not inside or (v, u) in found:
                continue
            nearest = min(line, key=lambda place: (_distance(place, (v, u)), place[1], place[0]))
            if logit(own[v, u]) >= 0 or logit(own[v, u]) >= logit(own[nearest]) - 1:
                found.add((v, u))
                waiting.append((v, u))
    expected = np.zeros(SIZE, np.bool_)
    expected[tuple(np.array(sorted(found)).T)] = True
    return expected


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "points",
    [
        [(8.5, 14.5), (30.5, 14.5)],
        # Many pixels between its sides are at the same distance from pixels of both.
        [(30.5, 6.5), (8.5, 14.5), (30.5, 22.5)],
    ],
    ids=["straight", "bent"],
)
def test_pixels_are_those_that_a_search_finds(points, seed, positive):
    generator = np.random.default_rng(seed)
    stroke = Stroke(tuple((x + seed, y) for x, y in points), 7.0, positive)
    coarse = generator.normal(-1.5, 2, (6, 8)).repeat(5, axis=0).repeat(5, axis=1)
    own = (1 / (1 + np.exp(-coarse))).astype(np.float32)
    patch = snap(stroke, GREY, own if positive else 1 - own)
    expected = searched(stroke, own)
    under = brush_pixels(stroke, SIZE)
    assert patch.positive is positive
    assert under.sum() > expected.sum() > brush_pixels(stroke._replace(radius=0.5), SIZE).sum()
    np.testing.assert_array_equal(patch.pixels, expected)


@pytest.mark.parametrize("positive", [True, False])
def test_colours_decide_where_the_probability_is_flat(positive):
    image = GREY.copy()
    image[:, 18:] = (200, 40, 40)
    stroke = Stroke(((14.5, 5.5), (14.5, 24.5)), 8.0, positive)
    flat = np.full(SIZE, 0.0 if positive else 1.0, np.float32)
    pixels = snap(stroke, image, flat).pixels
    assert brush_pixels(stroke, SIZE)[:, 19:].any()
    assert not pixels[:, 19:].any()
    assert pixels[8:22, 12:17].all()  # from the middle line to the edge


def test_a_pixel_behind_a_contour_does_not_belong():
    own = np.full(SIZE, 0.3, np.float32)
    own[:, 20] = 0.01
    stroke = Stroke(((15.5, 15.5),), 9.0)
    pixels = snap(stroke, GREY, own).pixels
    assert pixels[15, 19]
    assert not pixels[:, 20:].any()


def test_a_line_over_the_object_ends_at_its_contour():
    own = np.full(SIZE, 0.2, np.float32)
    own[:, :20] = 0.99
    own[:5] = 0.1  # no flat background
    stroke = Stroke(((8.5, 15.5), (15.5, 15.5)), 8.0)
    np.testing.assert_array_equal(
        snap(stroke, GREY, own).pixels, brush_pixels(stroke, SIZE) & (own > 0.5)
    )


def test_the_middle_line_belongs_whatever_the_model_says():
    own = np.random.default_rng(0).uniform(0, 1, SIZE).astype(np.float32)
    stroke = Stroke(((5.0, 5.0), (35.0, 25.0)), 4.0)
    pixels = snap(stroke, GREY, own).pixels
    assert pixels[brush_pixels(stroke._replace(radius=0.5), SIZE)].all()
    assert not pixels[~brush_pixels(stroke, SIZE)].any()


def test_a_middle_line_outside_of_the_image_gives_nothing():
    stroke = Stroke(((-3.0, 10.0), (-3.0, 20.0)), 8.0)
    assert brush_pixels(stroke, SIZE).any()
    assert not snap(stroke, GREY, np.zeros(SIZE, np.float32)).pixels.any()


def test_a_brush_wider_than_the_image():
    pixels = snap(Stroke(((20.0, 15.0),), 500.0), GREY, np.zeros(SIZE, np.float32)).pixels
    assert pixels.all()
