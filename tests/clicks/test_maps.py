"""Click maps against loops over pixels."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.clicks.maps import (
    ClickMaps,
    box_corners,
    disk_map,
    distance_map,
    filled_box_map,
    squared_distances,
)
from probseg.types import Prompts

NO_BOX = [math.nan] * 4


def prompts(points=(), labels=(), box=NO_BOX):
    return Prompts(
        torch.tensor(points, dtype=torch.float32).reshape(1, -1, 2),
        torch.tensor(labels, dtype=torch.long).reshape(1, -1),
        torch.tensor([box], dtype=torch.float32),
    )


@st.composite
def clicked_images(draw):
    height, width = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    # Halves are exact in float32, so that the loops and the tensors compare the same numbers.
    coordinate = st.tuples(st.integers(0, 2 * width - 2), st.integers(0, 2 * height - 2))
    points = [(x / 2, y / 2) for x, y in draw(st.lists(coordinate, max_size=5))]
    valid = draw(st.lists(st.booleans(), min_size=len(points), max_size=len(points)))
    return (height, width), points, valid


def loop_over_pixels(size, points, valid, value):
    """Greatest value over the valid points, pixel by pixel; 0 without points."""
    result = np.zeros(size)
    for row in range(size[0]):
        for column in range(size[1]):
            for (x, y), real in zip(points, valid, strict=True):
                if real:
                    distance = math.hypot(column - x, row - y)
                    result[row, column] = max(result[row, column], value(distance))
    return result


def as_tensors(points, valid):
    return torch.tensor(points).reshape(1, -1, 2), torch.tensor(valid).reshape(1, -1).bool()


@given(case=clicked_images(), radius=st.sampled_from([1.0, 2.5, 8.0]))
def test_disks_are_the_pixels_within_the_radius(case, radius):
    size, points, valid = case
    drawn = disk_map(*as_tensors(points, valid), size, radius)
    expected = loop_over_pixels(size, points, valid, lambda d: float(d <= radius))
    np.testing.assert_array_equal(drawn[0].numpy(), expected)


@st.composite
def points_anywhere(draw):
    """Points inside and outside of images, at fractions of pixels, and some that are NaN."""
    size = draw(st.tuples(st.integers(1, 20), st.integers(1, 20)))
    eighths = st.integers(-300, 300).map(lambda n: n / 8)  # exact, and their squares, too
    coordinate = st.one_of(eighths, st.integers(0, 19).map(float), st.just(math.nan))
    batch, count = draw(st.integers(1, 3)), draw(st.integers(0, 4))
    point = st.tuples(coordinate, coordinate, st.booleans())
    return size, draw(st.lists(point, min_size=batch * count, max_size=batch * count)), batch


@given(case=points_anywhere(), radius=st.integers(2, 36).map(lambda n: n / 4))
def test_disks_are_whole_wherever_their_centres_are(case, radius):
    size, points, batch = case
    xy = torch.tensor([point[:2] for point in points]).reshape(batch, -1, 2)
    valid = torch.tensor([point[2] for point in points]).reshape(batch, -1).bool()
    near = squared_distances(xy.double(), size) <= radius**2  # (B, S, H, W); never for NaN
    expected = (near & valid[..., None, None]).any(dim=1).float()
    drawn = disk_map(xy, valid, size, radius)
    assert drawn.dtype == torch.float32
    assert torch.equal(drawn, expected)


def test_a_disk_that_leaves_a_row_does_not_enter_the_next_one():
    drawn = disk_map(torch.tensor([[[9.0, 3.0]]]), torch.tensor([[True]]), (8, 10), 2)
    assert drawn.nonzero()[:, 1:].tolist() == [
        [1, 9], [2, 8], [2, 9], [3, 7], [3, 8], [3, 9], [4, 8], [4, 9], [5, 9],
    ]  # fmt: skip


@given(case=clicked_images(), radius=st.sampled_from([1.0, 2.5, 8.0]))
def test_closeness_is_that_of_the_nearest_valid_point(case, radius):
    size, points, valid = case
    drawn = distance_map(*as_tensors(points, valid), size, radius)
    expected = loop_over_pixels(size, points, valid, lambda d: 1 - math.tanh(d / radius))
    np.testing.assert_allclose(drawn[0].numpy(), expected, atol=1e-5)


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


def test_corners_of_a_box_are_its_first_and_last_pixel():
    assert box_corners(torch.tensor([[2.0, 3.0, 10.0, 20.0]])).tolist() == [[[2, 3], [9, 19]]]


def test_channels_are_box_positive_negative():
    maps = ClickMaps(radius=1)(prompts([(2, 3), (7, 5)], [1, 0], [10, 1, 13, 9]), (10, 14))
    assert maps.shape == (1, 3, 10, 14)
    assert maps.dtype == torch.float32
    box, positive, negative = maps[0]
    assert box[1, 10] == box[8, 12] == 1
    assert box[5, 11] == 0  # corners, not filled
    assert positive[3, 2] == negative[5, 7] == 1
    assert positive[5, 7] == negative[3, 2] == 0
    # Disks of radius 1 have 5 pixels, and none is cut off by the border but the box's corners.
    assert positive.sum() == negative.sum() == 5


def test_filled_boxes_on_request():
    maps = ClickMaps(box="filled")(prompts(box=[10, 1, 13, 9]), (10, 14))
    assert maps[0, 0].sum() == 3 * 8


@pytest.mark.parametrize("clicks", ["disk", "distance"])
@pytest.mark.parametrize("box", ["corners", "filled"])
def test_without_prompts_the_maps_are_zero(clicks, box):
    draw = ClickMaps(clicks, box=box)
    assert not draw(prompts(), (5, 7)).any()
    padding = prompts([(2, 2), (math.nan, math.nan)], [-1, -1])
    assert not draw(padding, (5, 7)).any()


@pytest.mark.parametrize("clicks", ["disk", "distance"])
def test_padding_changes_nothing(clicks):
    draw = ClickMaps(clicks, radius=3)
    with_padding = draw(prompts([(4, 2), (1, 6)], [1, -1]), (9, 9))
    assert torch.equal(with_padding, draw(prompts([(4, 2)], [1]), (9, 9)))


@pytest.mark.parametrize("clicks", ["disk", "distance"])
@pytest.mark.parametrize("box", ["corners", "filled"])
def test_images_of_a_batch_do_not_see_each_other(clicks, box):
    draw = ClickMaps(clicks, radius=3, box=box)
    one = prompts([(4, 2), (1, 6)], [1, 0])
    other = prompts([(8, 8), (0, 0)], [0, 0], [1, 2, 6, 5])
    both = Prompts(*(torch.cat(pair) for pair in zip(one[:3], other[:3], strict=True)))
    together = draw(both, (9, 11))
    assert torch.equal(together[:1], draw(one, (9, 11)))
    assert torch.equal(together[1:], draw(other, (9, 11)))


def test_half_precision_prompts_are_drawn_in_full_precision():
    exact = ClickMaps()(prompts([(300, 5)], [1]), (10, 400))
    half = Prompts(
        *(t.half() if t.is_floating_point() else t for t in prompts([(300, 5)], [1])[:3])
    )
    assert torch.equal(ClickMaps()(half, (10, 400)), exact)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"radius": 0}, ["radius", "positive", "0"]),
        ({"clicks": "disc"}, ["clicks", "'disk'", "'distance'", "'disc'"]),
        ({"box": "full"}, ["box", "'corners'", "'filled'", "'full'"]),
    ],
)
def test_wrong_arguments_are_named(arguments, parts):
    with pytest.raises(ValueError, match="must be") as caught:
        ClickMaps(**arguments)
    for part in parts:
        assert part in str(caught.value)
