"""Minimum cuts, and a network's answer that is moved to colours and contours."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from skimage.data import astronaut

from probseg.heads import GraphCut
from probseg.heads.graph_cut import DECIDED, LARGEST_LOGIT, STEPS, minimum_cut
from support.network_cases import prompts
from support.rows import each


def square(batch=1):
    """An object of a colour of its own in noise, and where it is."""
    noise = torch.randn(batch, 3, 48, 64, generator=torch.Generator().manual_seed(0))
    image = 0.25 + 0.02 * noise
    image[..., 12:36, 20:44] += 0.5
    mask = torch.zeros(1, 1, 48, 64, dtype=torch.bool)
    mask[..., 12:36, 20:44] = True
    return image, mask


def rough():
    """Logits of a network that is three pixels off, and unsure of a corner."""
    logits = torch.full((1, 1, 48, 64), -2.0)
    logits[..., 15:39, 23:47] = 2.0
    logits[..., 15:20, 23:28] = -0.5
    return logits


def test_a_rough_answer_is_moved_to_the_contour():
    image, mask = square()
    found = GraphCut()(rough(), image, prompts((30.0, 24.0, 1.0))) > 0
    assert torch.equal(found, mask)


def test_without_colours_it_still_follows_contours_and_with_nothing_else_the_network():
    image, mask = square()
    found = GraphCut(colour_weight=0.0)(rough(), image, prompts()) > 0
    assert (found ^ mask).sum() < (rough().gt(0) ^ mask).sum() / 2
    alone = GraphCut(colour_weight=0.0, smoothness=0.0)(rough(), image, prompts())
    assert torch.equal(alone > 0, rough() > 0)


def test_clicks_say_what_colours_are_object():
    image, mask = square()
    logits = torch.full((1, 1, 48, 64), -0.2)
    assert not (GraphCut()(logits, image, prompts()) > 0).any()
    clicks = prompts((30, 24, 1), (24, 16, 1), (36, 30, 1))
    assert torch.equal(GraphCut()(logits, image, clicks) > 0, mask)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_clicks_are_certain_whatever_else_is_said(label):
    image, mask = square()
    sure = torch.where(mask, 20.0, -20.0)
    place = (30.0, 24.0) if label == 0 else (5.0, 5.0)
    found = GraphCut()(sure, image, prompts((*place, label))) > 0
    x, y = map(int, place)
    assert found[0, 0, y, x] == bool(label)
    changed = (found ^ mask)[0, 0].nonzero()
    assert (changed - torch.tensor([y, x])).abs().max() <= 2, "no more than the disk"


def test_logits_are_at_least_decided_and_keep_their_order():
    image, _ = square()
    logits = 8 * torch.randn(1, 1, 48, 64, generator=torch.Generator().manual_seed(1))
    found = GraphCut()(logits, image, prompts())
    assert found.abs().min() >= DECIDED - 1e-6
    assert found.abs().max() <= LARGEST_LOGIT
    same = (found > 0) == (logits > 0)
    kept = logits[same].sign() * logits[same].abs().clamp(DECIDED, LARGEST_LOGIT)
    torch.testing.assert_close(found[same], kept)


@each("size", [(33, 41), (7, 50), (3, 3), (1, 1)])
def test_sizes_need_not_be_whole_cells(size):
    logits = torch.randn(2, 1, *size, generator=torch.Generator().manual_seed(0))
    assert GraphCut()(logits, torch.rand(2, 3, *size), prompts(batch=2)).shape == (2, 1, *size)


def test_images_of_a_batch_do_not_see_each_other():
    photo = torch.from_numpy(astronaut()[::4, ::4].copy()).permute(2, 0, 1).float() / 255
    image = torch.stack([photo, photo.flip(-1), photo.roll(30, 1)])
    logits = 3 * torch.nn.functional.interpolate(
        torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)), photo.shape[-2:]
    )
    refine, clicks = GraphCut(), ((40.0, 30.0, 1.0), (5.0, 5.0, 0.0))
    together = refine(logits, image, prompts(*clicks, batch=3))
    alone = [refine(logits[n, None], image[n, None], prompts(*clicks)) for n in range(3)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_half_precision_changes_next_to_nothing():
    image, _ = square()
    refine, clicks = GraphCut(), prompts((30.0, 24.0, 1.0))
    full = refine(rough(), image, clicks) > 0
    with torch.autocast("cpu", torch.bfloat16):
        half = refine(rough().bfloat16(), image.bfloat16(), clicks) > 0
    assert (half ^ full).sum() <= 5


def cost(labels, advantage, image, smoothness):
    """Cost of a division, pixel by pixel and pair by pair."""
    height, width = advantage.shape
    places = list(itertools.product(range(height), range(width)))
    pairs = [
        (a, b)
        for a, b in itertools.combinations(places, 2)
        if max(abs(a[0] - b[0]), abs(a[1] - b[1])) == 1
    ]
    squares = [((image[a] - image[b]) ** 2).sum() for a, b in pairs]
    usual = 2 * np.mean(squares) if any(squares) else 1.0
    divided = sum(
        smoothness * math.exp(-square / usual) / math.dist(a, b)
        for (a, b), square in zip(pairs, squares, strict=True)
        if labels[a] != labels[b]
    )
    wrong = np.where(labels, np.maximum(-advantage, 0), np.maximum(advantage, 0))
    return divided + wrong.sum()


@given(
    st.integers(0, 10_000),
    st.tuples(st.integers(1, 4), st.integers(1, 4)).filter(lambda s: s[0] * s[1] <= 10),
    st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    st.booleans(),
)
def test_no_other_division_costs_less(seed, size, smoothness, plain):
    generator = np.random.default_rng(seed)
    advantage = generator.normal(size=size)
    image = np.zeros((*size, 3)) if plain else generator.normal(size=(*size, 3))
    found = minimum_cut(advantage, image, smoothness)
    divisions = itertools.product([False, True], repeat=advantage.size)
    least = min(cost(np.reshape(d, size), advantage, image, smoothness) for d in divisions)
    terms = advantage.size + 4 * advantage.size
    assert cost(found, advantage, image, smoothness) <= least + terms / STEPS


def test_of_equal_divisions_the_object_is_the_smallest():
    assert not minimum_cut(np.zeros((4, 4)), np.zeros((4, 4, 3)), 1.0).any()


def test_costs_of_a_whole_photograph_do_not_overflow():
    image = astronaut()[::2, ::2].astype(float)
    advantage = np.full(image.shape[:2], 1e6)
    advantage[:, 128:] = -1e6
    np.testing.assert_array_equal(minimum_cut(advantage, image, 1e5), advantage > 0)
