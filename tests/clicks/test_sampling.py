"""Training-time prompts: where they may lie, how many there are, and chance."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.extra.numpy import arrays

from probseg.clicks import sampling
from probseg.clicks.annotators import jitter_box
from probseg.clicks.sampling import (
    drop_boxes,
    interior,
    jitter_boxes,
    object_and_background,
    object_boxes,
    random_clicks,
    random_points,
)
from probseg.geometry import mask_box
from probseg.seeds import Draws

SHAPES = hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=12)


def regions():
    return hnp.arrays(bool, SHAPES)


def masks():
    return hnp.arrays(np.uint8, SHAPES, elements=st.sampled_from([0, 1, 255]))


def source(images, seed=0):
    return Draws(torch.arange(images) + 10_000 * seed)


@given(region=regions(), wanted=st.integers(0, 6), seed=st.integers(0, 99))
def test_points_lie_in_the_region_and_never_repeat(region, wanted, seed):
    counts = torch.full((len(region),), wanted)
    points, valid = random_points(torch.from_numpy(region), counts, 6, source(len(region), seed))
    assert points.shape == (*valid.shape, 2)
    for image, own_points, own_valid in zip(region, points, valid, strict=True):
        drawn = [(int(x), int(y)) for x, y in own_points[own_valid].tolist()]
        assert len(drawn) == min(wanted, image.sum())
        assert len(set(drawn)) == len(drawn)
        assert all(image[y, x] for x, y in drawn)


@given(mask=masks(), seed=st.integers(0, 99))
def test_clicks_have_the_sign_of_their_pixel(mask, seed):
    regions = object_and_background(torch.from_numpy(mask))
    points, labels = random_clicks(*regions, source(len(mask), seed), (1, 3), (0, 2))
    for image, own_points, own_labels in zip(mask, points, labels, strict=True):
        for (x, y), label in zip(own_points.long().tolist(), own_labels.tolist(), strict=True):
            assert label == -1 or image[y, x] == label
        positive, negative = (own_labels == 1).sum(), (own_labels == 0).sum()
        assert min(1, (image == 1).sum()) <= positive <= 3
        assert negative <= 2


@given(region=regions(), margin=st.integers(0, 4))
def test_interior_keeps_its_distance(region, margin):
    kept = interior(torch.from_numpy(region), margin).numpy()
    for image, own in zip(region, kept, strict=True):
        inner = np.zeros_like(image)
        for y, x in zip(*np.nonzero(image), strict=True):
            window = np.pad(image, margin)[y : y + 2 * margin + 1, x : x + 2 * margin + 1]
            inner[y, x] = window.all()  # beyond the image is outside
        np.testing.assert_array_equal(own, inner if inner.any() else image)


@given(mask=masks())
def test_boxes_are_tight(mask):
    boxes = object_boxes(torch.from_numpy(mask))
    for image, box in zip(mask, boxes.tolist(), strict=True):
        if (image == 1).any():
            assert tuple(box) == mask_box(image)
        else:
            assert all(math.isnan(side) for side in box)


@given(data=st.data(), noise=st.floats(0, 3), seed=st.integers(0, 99))
def test_jittered_boxes_stay_boxes_inside_the_image(data, noise, seed):
    height, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    x1, y1 = data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height))
    box = torch.tensor([[x0, y0, x1, y1], [math.nan] * 4]).float()
    moved, none = jitter_boxes(box, noise, (height, width), source(2, seed))
    assert none.isnan().all()
    a, b, c, d = moved.tolist()
    assert 0 <= a < c <= width
    assert 0 <= b < d <= height
    assert moved.tolist() == moved.round().tolist()
    for new, old, side in zip((a, b), (x0, y0), (x1 - x0, y1 - y0), strict=True):
        assert abs(new - old) <= noise * side + 0.5


def test_boxes_are_dropped_with_the_given_probability():
    boxes = torch.arange(4.0).repeat(2000, 1)
    assert torch.equal(drop_boxes(boxes, 0.0, source(2000)), boxes)
    assert drop_boxes(boxes, 1.0, source(2000)).isnan().all()
    dropped = drop_boxes(boxes, 0.3, source(2000)).isnan()
    assert torch.equal(dropped.any(dim=1), dropped.all(dim=1))  # whole rows
    assert dropped[:, 0].float().mean() == pytest.approx(0.3, abs=0.05)
    assert not boxes.isnan().any()  # the argument is left alone


def test_what_an_image_gets_depends_on_its_seed_alone():
    region = torch.rand(5, 9, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    draws = Draws(torch.tensor([3, 4, 5, 6, 7]))
    most = (1, 3), (0, 3)
    points, labels = random_clicks(region, ~region, draws, *most)
    for n in range(5):
        own = Draws(draws.seeds[n, None])
        alone = random_clicks(region[n, None], ~region[n, None], own, *most)
        assert torch.equal(alone[0][0], points[n])
        assert torch.equal(alone[1][0], labels[n])
    other = random_clicks(region, ~region, Draws(draws.seeds + 1), *most)
    assert not torch.equal(other[0], points)


def test_all_pairs_of_points_are_equally_likely():
    region = torch.zeros(6000, 2, 3, dtype=torch.bool)
    region[:, 0, 0] = region[:, 0, 2] = region[:, 1, 1] = True
    points, _ = random_points(region, torch.full((6000,), 2), 2, source(6000))
    places = (points[..., 1] * 3 + points[..., 0]).sort(dim=1).values.numpy()
    pairs, counts = np.unique(places, axis=0, return_counts=True)
    assert pairs.tolist() == [[0, 2], [0, 4], [2, 4]]
    assert counts == pytest.approx(2000, abs=5 * math.sqrt(6000 * 1 / 3 * 2 / 3))


def test_training_boxes_are_drawn_by_the_rule_of_the_evaluation():
    box, size, noise = (20, 30, 61, 75), (100, 90), 0.1
    draws = np.array([jitter_box(box, noise, size, np.random.default_rng(i)) for i in range(400)])
    boxes = torch.tensor([box] * 4000).float()
    batch = jitter_boxes(boxes, noise, size, source(4000)).numpy()
    for side in range(4):
        assert set(batch[:, side]) == set(draws[:, side])
        share = (batch[:, side] == box[side]).mean()
        assert share == pytest.approx(1 / len(set(draws[:, side])), abs=0.05)


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
        sampling.erode(given, margin), sampling._by_maxima(given, margin), rtol=0, atol=0
    )
