"""Click maps against values written out for each pixel."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from probseg.clicks.maps import (
    ClickMaps,
    disk_map,
    distance_map,
    either_corners,
    filled_box_map,
    squared_distances,
)
from probseg.types import Prompts
from support.network_cases import as_batch, prompts
from support.rows import each


@st.composite
def points_anywhere(draw):
    """Points inside and outside of images, at fractions of pixels, and some that are NaN."""
    size = draw(st.tuples(st.integers(1, 20), st.integers(1, 20)))
    eighths = st.integers(-300, 300).map(lambda n: n / 8)  # exact, and their squares, too
    coordinate = st.one_of(eighths, st.integers(0, 19).map(float), st.just(math.nan))
    batch, count = draw(st.integers(1, 3)), draw(st.integers(0, 4))
    point = st.tuples(coordinate, coordinate, st.booleans())
    points = draw(st.lists(point, min_size=batch * count, max_size=batch * count))
    rows = torch.tensor(points).reshape(batch, -1, 3)
    return size, rows[..., :2], rows[..., 2].bool()


RIGHT_OF_ITS_PIXEL = (1, 20), torch.tensor([[[3.875, 0.0]]]), torch.tensor([[True]])


@given(case=points_anywhere(), radius=st.integers(2, 36).map(lambda n: n / 4))
@example(case=RIGHT_OF_ITS_PIXEL, radius=2.5)  # reaches three pixels beyond that of the point
def test_maps_are_those_of_the_distances_to_valid_points(case, radius):
    size, points, valid = case
    squared = squared_distances(points.double(), size)  # (B, S, H, W)
    near = (squared <= radius**2) & valid[..., None, None]  # never for NaN
    drawn = disk_map(points, valid, size, radius)
    assert drawn.dtype == torch.float32
    assert torch.equal(drawn, near.any(dim=1).float())
    valid &= ~points.isnan().any(dim=2)
    closeness = (1 - (squared.sqrt() / radius).tanh()).where(valid[..., None, None], 0)
    expected = torch.cat([0 * drawn[:, None], closeness], dim=1).amax(dim=1)
    drawn = distance_map(points, valid, size, radius)
    torch.testing.assert_close(drawn.double(), expected, rtol=0, atol=1e-5)


def test_squared_distances_know_x_from_y():
    distances = squared_distances(torch.tensor([3.0, 1.0]), (4, 6))
    assert distances.shape == (4, 6)
    assert distances[1, 3] == 0
    assert distances[0, 0] == 10
    assert distances[3, 5] == 8


@given(data=st.data())
def test_whole_boxes_are_filled_half_open(data):
    height, width = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    x1, y1 = data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height))
    expected = np.zeros((height, width))
    expected[y0:y1, x0:x1] = 1
    drawn = filled_box_map(torch.tensor([[x0, y0, x1, y1]]).float(), (height, width))
    np.testing.assert_array_equal(drawn[0].numpy(), expected)


@given(data=st.data())
def test_a_box_inside_the_image_never_vanishes(data):
    height, width = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))
    x0 = data.draw(st.floats(0, width, exclude_max=True, width=32))
    y0 = data.draw(st.floats(0, height, exclude_max=True, width=32))
    x1 = data.draw(st.floats(x0, width, width=32))
    y1 = data.draw(st.floats(y0, height, width=32))
    drawn = filled_box_map(torch.tensor([[x0, y0, x1, y1]]), (height, width))[0]
    rows, columns = np.nonzero(drawn.numpy())
    assert rows.size
    assert abs(columns.min() - x0) <= 1
    assert abs(rows.min() - y0) <= 1
    assert abs(columns.max() + 1 - x1) <= 1.5
    assert abs(rows.max() + 1 - y1) <= 1.5


def test_either_diagonal_of_a_box_is_drawn_and_always_the_same():
    falling, rising = [2.0, 3.0, 10.0, 21.0], [2.0, 3.0, 10.0, 20.0]
    nothing = [math.nan] * 4
    corners = either_corners(torch.tensor([falling, rising, nothing]))
    assert corners[:2].tolist() == [[[2, 3], [9, 20]], [[2, 19], [9, 3]]]
    draw = ClickMaps(radius=1, box="either")
    box = draw(prompts(box=(2, 3, 10, 20)), (30, 30))[0, 0]
    assert box[19, 2] == box[3, 9] == 1
    assert box.sum() == 10
    again = draw(prompts((5, 5, 1), box=(2, 3, 10, 20)), (30, 30))[0, 0]
    assert torch.equal(again, box)


def test_channels_are_box_positive_negative():
    given_prompts = prompts((2, 3, 1), (7, 5, 0), box=(10, 1, 13, 9))
    maps = ClickMaps(radius=1)(given_prompts, (10, 14))
    assert maps.shape == (1, 3, 10, 14)
    assert maps.dtype == torch.float32
    box, positive, negative = maps[0]
    assert box[1, 10] == box[8, 12] == 1
    assert box[5, 11] == 0  # corners, not filled
    assert positive[3, 2] == negative[5, 7] == 1
    assert positive[5, 7] == negative[3, 2] == 0
    # Disks of radius 1 have 5 pixels, and none is cut off by the border but the box's corners.
    assert positive.sum() == negative.sum() == 5
    assert ClickMaps(box="filled")(given_prompts, (10, 14))[0, 0].sum() == 3 * 8


@each("clicks", ["disk", "distance"])
@each("box", ["corners", "either", "filled"])
def test_padding_and_other_images_draw_nothing(clicks, box):
    draw = ClickMaps(clicks, radius=3, box=box)
    assert not draw(prompts(), (5, 7)).any()
    assert not draw(prompts((2, 2, -1), (math.nan, math.nan, -1)), (5, 7)).any()
    padded = draw(prompts((4, 2, 1), (1, 6, -1)), (9, 9))
    assert torch.equal(padded, draw(prompts((4, 2, 1)), (9, 9)))
    one = prompts((4, 2, 1), (1, 6, 0))
    other = prompts((8, 8, 0), (0, 0, 0), box=(1, 2, 6, 5))
    together = draw(as_batch(one, other), (9, 11))
    assert torch.equal(together[:1], draw(one, (9, 11)))
    assert torch.equal(together[1:], draw(other, (9, 11)))


def test_half_precision_prompts_are_drawn_in_full_precision():
    exact = prompts((300, 5, 1))
    half = Prompts(exact.points.half(), exact.labels, exact.boxes.half())
    assert torch.equal(ClickMaps()(half, (10, 400)), ClickMaps()(exact, (10, 400)))


@each("arguments", [{"radius": 0}, {"clicks": "disc"}, {"box": "full"}])
def test_wrong_arguments_are_named(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"^`{name}`"):
        ClickMaps(**arguments)
