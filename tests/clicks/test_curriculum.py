"""The order of the three stages."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from probseg.clicks import Curriculum, IteratedClicks
from probseg.clicks.curriculum import EROSION, corrective_clicks
from probseg.clicks.rounds import draw_count, halve, look_again, visible_logits, with_clicks
from probseg.clicks.sampling import distance_to
from probseg.seeds import Draws
from probseg.types import Prompts
from support.refusals import refused
from support.rows import each


def test_published_order_and_lengths():
    stages = [Curriculum().stage(epoch) for epoch in range(150)]
    assert stages == ["box"] * 20 + ["random"] * 20 + ["corrective"] * 110


@each(
    ("box", "random", "expected"),
    [(0, 0, "CCC"), (1, 0, "BCC"), (0, 1, "RCC"), (1, 1, "BRC"), (5, 5, "BBB")],
)
def test_tasks_can_be_left_out(box, random, expected):
    curriculum = Curriculum(box_epochs=box, random_epochs=random)
    letters = {"B": "box", "R": "random", "C": "corrective"}
    assert [curriculum.stage(e) for e in range(3)] == [letters[c] for c in expected]


@each(
    "arguments",
    [
        {"box_epochs": -1},
        {"random_epochs": -2},
        {"positive_clicks": (3, 1)},
        {"negative_clicks": (-1, 1)},
        {"rounds": (2, 0)},
        {"box_dropout": 1.5},
        {"margin": -1},
        {"positive_clicks": (0, 3), "box_dropout": 0.5},
    ],
)
def test_wrong_arguments_are_named(arguments):
    with pytest.raises(ValueError, match=f"`{next(iter(arguments))}`"):
        Curriculum(**arguments)


def test_images_without_clicks_keep_their_boxes():
    boxes = torch.tensor([[2.0, 3, 9, 8]]).repeat(8, 1)
    masks = torch.zeros(8, 12, 12, dtype=torch.uint8)
    masks[:, 3:8, 2:9] = 1
    drawn = []
    for rounds in (0, 1):
        curriculum = Curriculum(0, 0, box_dropout=1.0, rounds=(rounds, rounds))
        draws = Draws(torch.arange(8))
        drawn.append(curriculum.draw(masks, boxes, draws, nothing, epoch=0, batch_seed=0))
    assert torch.equal(drawn[0].boxes, boxes)
    assert drawn[1].boxes.isnan().all()


def nothing(prompts):
    return torch.full((len(prompts.boxes), 1, 12, 12), -3.0)


H, W = 32, 48


def prompts_at(points, labels):
    shape = (1, len(points), 2)
    return Prompts(
        torch.tensor(points, dtype=torch.float32).reshape(shape),
        torch.tensor([labels], dtype=torch.long).reshape(shape[:2]),
        torch.tensor([[0.0, 0, 4, 4]]),
    )


def places():
    """A crop whose pixels say where they are: red the column, green the row."""
    rows, columns = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
    return torch.stack([columns, rows, rows * 0]).float()[None]


@given(st.lists(st.tuples(st.integers(0, W // 2 - 1), st.integers(0, H // 2 - 1)), max_size=4))
def test_clicks_stay_on_their_pixels(points):
    mask = (torch.arange(H * W).reshape(1, H, W) % 3).to(torch.uint8)
    logits = places()[:, :1, ::2, ::2] / 10 - 2
    look = look_again(places(), mask, prompts_at(points, [1] * len(points)), logits)
    assert look.images.shape == (1, 3, H // 2, W // 2)
    x0, y0 = look.images[0, :2, 0, 0].long().tolist()
    assert torch.equal(look.images, places()[..., y0 : y0 + H // 2, x0 : x0 + W // 2])
    assert torch.equal(look.masks, mask[..., y0 : y0 + H // 2, x0 : x0 + W // 2])
    whole = torch.nn.functional.interpolate(logits.sigmoid(), (H, W), mode="bilinear")
    assert torch.equal(look.prompts.previous, whole[..., y0 : y0 + H // 2, x0 : x0 + W // 2])
    assert look.prompts.boxes.isnan().all()
    for (x, y), moved, label in zip(
        points, look.prompts.points[0].tolist(), look.prompts.labels[0].tolist(), strict=True
    ):
        inside = x0 <= 2 * x + 0.5 <= x0 + W // 2 - 1 and y0 <= 2 * y + 0.5 <= y0 + H // 2 - 1
        assert label == (1 if inside else -1)
        if inside:
            assert moved == [2 * x + 0.5 - x0, 2 * y + 0.5 - y0]
    if points:
        assert look.prompts.labels[0, -1] == 1, "the last click is seen"


def test_padding_is_no_click():
    look = look_again(
        places(),
        torch.zeros(1, H, W, dtype=torch.uint8),
        prompts_at([(2, 3), (20, 12)], [0, -1]),
        torch.zeros(1, 1, H // 2, W // 2),
    )
    assert look.images[0, :2, 0, 0].tolist() == [0, 0], "the window is around the first click"
    assert look.prompts.labels.tolist() == [[0, -1]]


def test_what_has_lost_its_object_teaches_nothing():
    mask = torch.zeros(1, H, W, dtype=torch.uint8)
    mask[0, 0, 0], mask[0, 0, 1], mask[0, -1, -1] = 1, 0, 255  # a pixel that half the size loses
    assert (halve(places(), mask)[1] == 255).all()
    click = prompts_at([(W // 2 - 1, H // 2 - 1)], [0])  # far from the object
    look = look_again(places(), mask, click, torch.zeros(1, 1, H // 2, W // 2))
    assert (look.masks == 255).all()


def test_half_size_keeps_places():
    images, masks = halve(places(), places()[:, 0].to(torch.uint8))
    assert torch.equal(images[0, 0, 0], torch.arange(W // 2) * 2 + 0.5)
    assert ((masks[0, 0].float() - images[0, 0, 0]).abs() == 0.5).all()


REGIONS = arrays(np.bool_, st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12)))


def distances(region):
    """Reference: city-block distances by SciPy's transform."""
    return ndimage.distance_transform_cdt(~region, "taxicab")


def depths(region):
    """Reference: distances to the outside, beyond the image's border included."""
    return distances(~np.pad(region, 1))[1:-1, 1:-1]


def draws(batch, seed=0):
    return Draws(torch.arange(batch) + 1000 * seed)


def never(prompts):
    pytest.fail("asked the network")


def nothing_iterated(prompts):
    return torch.full((len(prompts.boxes), 1, *SIZE), -3.0)


def everything(prompts):
    return torch.full((len(prompts.boxes), 1, *SIZE), 3.0)


SIZE = (48, 56)


def scenes(batch=4):
    """Rectangles of different sizes, and an ignored strip below."""
    masks = torch.zeros(batch, *SIZE, dtype=torch.uint8)
    for n in range(batch):
        masks[n, 10:30, 8 : 20 + 6 * n] = 1
        masks[n, 40:] = 255
    return masks


def draw(answer=never, rounds=0, seed=0, masks=None, **options):
    masks = scenes() if masks is None else masks
    boxes = torch.tensor([[8.0, 10, 20, 30]]).repeat(len(masks), 1)
    given = draws(len(masks), seed)
    curriculum = IteratedClicks(fewest_rounds=rounds, most_rounds=rounds, **options)
    prompts = curriculum.draw(masks, boxes, given, answer, epoch=0, batch_seed=0)
    if not options.get("boxes"):
        assert prompts.boxes.isnan().all()
    return prompts, masks


def clicked(prompts, label, n):
    points = prompts.points[n, prompts.labels[n] == label].long()
    return points[:, 1].numpy(), points[:, 0].numpy()


@given(region=REGIONS)
def test_distances_are_those_of_city_blocks(region):
    got = distance_to(torch.from_numpy(region))
    assert got.dtype == torch.int32
    for mine, one in zip(got.numpy(), region, strict=True):
        if one.any():
            np.testing.assert_array_equal(mine, distances(one))
        else:
            assert (mine >= sum(one.shape)).all()


@given(
    data=st.data(), size=st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12)),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_clicks_are_deep_in_the_deeper_error(data, size, seed):
    prediction = data.draw(arrays(np.bool_, size))
    masks = data.draw(arrays(np.uint8, size, elements=st.sampled_from([0, 1, 255])))
    points, labels = corrective_clicks(
        torch.from_numpy(prediction), torch.from_numpy(masks), draws(size[0], seed)
    )
    assert points.shape == (size[0], 1, 2)
    assert labels.shape == (size[0], 1)
    for n in range(size[0]):
        missed = depths((masks[n] == 1) & ~prediction[n])
        invented = depths((masks[n] == 0) & prediction[n])
        label = int(labels[n, 0])
        if max(missed.max(), invented.max()) == 0:
            assert label == -1
            continue
        assert label == int(missed.max() > invented.max())
        depth = missed if label else invented
        x, y = points[n, 0].long().tolist()
        assert depth[y, x] > depth.max() / 2


@pytest.mark.parametrize(("rim", "inner"), [(10, range(15, 25)), (0, range(10, 30))])
def test_clicks_keep_away_from_the_border_and_vary(rim, inner):
    masks = torch.zeros(1, 40, 40, dtype=torch.uint8)
    masks[0, rim : 40 - rim, rim : 40 - rim] = 1  # the image's border is one, too
    nowhere = torch.zeros(1, 40, 40, dtype=torch.bool)
    drawn = [corrective_clicks(nowhere, masks, draws(1, seed)) for seed in range(300)]
    assert all(labels.tolist() == [[1]] for _, labels in drawn)
    places = torch.cat([points[0] for points, _ in drawn])
    assert set(places[:, 0].tolist()) == set(places[:, 1].tolist()) == set(inner)


def test_random_clicks_are_where_they_belong():
    count = 0
    inside = [depths((mask == 1).numpy()) for mask in scenes(3)]
    for seed in range(6):
        prompts, masks = draw(seed=seed, masks=scenes(3))
        assert prompts.previous is None
        for n, depth in enumerate(inside):
            positive, negative = clicked(prompts, 1, n), clicked(prompts, 0, n)
            assert 1 <= len(positive[0]) <= 24
            assert (depth[positive] > EROSION).all()
            assert (masks[n][negative] == 0).all()
            count += len(negative[0])
    assert count > 30


def test_numbers_of_clicks_fall_by_the_same_factor():
    masks = torch.zeros(4000, 16, 16, dtype=torch.uint8)
    masks[:, 2:13, 2:13] = 1
    prompts, _ = draw(masks=masks, most_clicks=6, decay=0.7)
    for label, fewest in ((1, 1), (0, 0)):
        counts = (prompts.labels == label).sum(dim=1)
        numbers = np.arange(fewest, 7)
        weights = 0.7**numbers
        expected = weights / weights.sum()
        got = np.bincount(counts, minlength=7)[fewest:] / len(masks)
        assert (np.abs(got - expected) < 4 * np.sqrt(expected * (1 - expected) / 4000)).all()


def test_half_of_the_negative_clicks_are_near_the_object():
    masks = torch.zeros(40, 60, 60, dtype=torch.uint8)
    masks[:, 15:45, 15:45] = 1  # 30 pixels wide: a band of 3 pixels
    prompts, _ = draw(masks=masks)
    distance = distances((masks[0] == 1).numpy())
    found = np.concatenate([distance[clicked(prompts, 0, n)] for n in range(40)])
    assert (found > 0).all()
    in_band = ((distance > 0) & (distance <= 3)).sum() / (distance > 0).sum()
    assert (found <= 3).mean() == pytest.approx(0.5 + 0.5 * in_band, abs=0.12)


def test_images_without_object_or_background():
    masks = torch.zeros(3, *SIZE, dtype=torch.uint8)
    masks[1], masks[2] = 1, 255
    for answer in (nothing_iterated, everything):
        prompts, _ = draw(answer, 3, masks=masks)
        assert not (prompts.labels[0] == 1).any()
        assert not (prompts.labels[1] == 0).any()
        assert (prompts.labels[2] == -1).all()


@pytest.mark.parametrize(
    ("answer", "label", "other"), [(nothing_iterated, 1, 0), (everything, 0, 1)]
)
def test_each_round_adds_a_click_and_hands_the_answer_on(answer, label, other):
    asked = []

    def spy(prompts):
        asked.append(prompts)
        return answer(prompts)

    before, _ = draw()
    prompts, masks = draw(spy, 3)
    first = before.labels.shape[1]
    assert [one.labels.shape[1] for one in asked] == [first, first + 1, first + 2]
    assert torch.equal(prompts.points[:, :first], before.points)
    assert asked[0].previous is None
    expected = answer(prompts).sigmoid()
    assert torch.equal(asked[1].previous, expected)
    assert torch.equal(prompts.previous, expected)
    assert not prompts.previous.requires_grad
    assert (prompts.labels[:, first:] == label).all()
    for n, mask in enumerate(masks):
        x, y = prompts.points[n, first:].long().unbind(dim=1)
        assert (mask[y, x] == label).all()


def test_draws_are_a_function_of_the_seeds():
    first, masks = draw(nothing_iterated, 2)
    again, _ = draw(nothing_iterated, 2)
    for mine, same in zip(first, again, strict=True):
        torch.testing.assert_close(mine, same, rtol=0, atol=0, equal_nan=True)
    other, _ = draw(nothing_iterated, 2, seed=1)
    assert not torch.equal(first.labels, other.labels)
    # What an image gets does not depend on its neighbours.
    (alone, _) = draw(nothing_iterated, 2, masks=masks[:1])
    assert torch.equal(alone.points[0], first.points[0])
    assert torch.equal(alone.labels[0], first.labels[0])


def test_images_may_begin_as_an_evaluation_does():
    inside = [depths((mask == 1).numpy()) for mask in scenes()]
    seen = set()
    for seed in range(12):
        prompts, _ = draw(seed=seed, single=1.0)
        assert (prompts.labels >= 0).sum(dim=1).eq(1).all()
        for n, depth in enumerate(inside):
            (row,), (column,) = clicked(prompts, 1, n)
            assert depth[row, column] > depth.max() / 2
        seen.add((row, column))
    assert len(seen) > 3


def test_a_share_of_the_images_without_box_begins_with_a_single_click():
    random, _ = draw(masks=scenes(400), most_clicks=24, decay=1.0)
    prompts, _ = draw(masks=scenes(400), most_clicks=24, decay=1.0, single=0.6, boxes=0.25)
    shown = ~prompts.boxes.isnan().any(dim=1)
    assert 60 < shown.sum() < 140
    assert (prompts.labels[shown] == -1).all()
    counts = (prompts.labels >= 0).sum(dim=1)
    one = (counts == 1) & (prompts.labels[:, 0] == 1)
    assert 0.5 < one[~shown].float().mean() < 0.7
    # The others have as many as ever: 25 on average.
    usual = (random.labels >= 0).sum(dim=1).float().mean().item()
    assert counts[~shown & ~one].float().mean().item() == pytest.approx(usual, abs=3)
    corrected, _ = draw(nothing_iterated, 1, masks=scenes(400), boxes=0.25)
    assert torch.equal(corrected.boxes.isnan(), prompts.boxes.isnan())
    assert (corrected.labels[shown] == 1).sum(dim=1).eq(1).all()


def test_rounds_are_evenly_drawn():
    assert IteratedClicks().rounds == (0, 3)
    rounds = [draw_count((0, 3), seed) for seed in range(4000)]
    assert set(rounds) == {0, 1, 2, 3}
    assert min(rounds.count(n) for n in range(4)) > 880
    curriculum = IteratedClicks(fewest_rounds=2, most_rounds=4)
    assert {draw_count(curriculum.rounds, seed) for seed in range(60)} == {2, 3, 4}


@each(
    ("name", "value"),
    [("most_clicks", 0), ("decay", 0.0), ("decay", 1.5), ("most_rounds", -1), ("boxes", 1.5),
     ("fewest_rounds", 4), ("fewest_rounds", -1), ("single", -0.1), ("single", math.nan)],
)  # fmt: skip
def test_wrong_arguments_are_named_iterated(name, value):
    refused(ValueError, partial(IteratedClicks, **{name: value}), f"`{name}`", value)


def test_nothing_is_answered_before_the_first_prompt():
    boxes = torch.full((3, 4), torch.nan)
    boxes[1] = torch.tensor([1.0, 2, 5, 6])
    labels = torch.tensor([[-1], [-1], [0]])
    logits = visible_logits(Prompts(torch.zeros(3, 1, 2), labels, boxes), everything)
    assert (logits[0] == -torch.inf).all()
    assert torch.equal(logits[1:], everything(Prompts(*[boxes] * 3))[1:])
    prompts = with_clicks(
        Prompts(torch.zeros(3, 1, 2), labels, boxes),
        torch.ones(3, 2, 2),
        torch.zeros(3, 2, dtype=torch.long),
        logits,
    )
    assert prompts.points.shape == (3, 3, 2)
    assert (prompts.previous[0] == 0).all()
    assert (prompts.previous[1:] > 0.9).all()


def test_the_curriculum_hands_its_answers_on_too():
    masks = scenes()
    boxes = torch.tensor([[8.0, 10, 20, 30]]).repeat(len(masks), 1)
    prompts = Curriculum().draw(masks, boxes, draws(4), nothing_iterated, epoch=40, batch_seed=0)
    assert torch.equal(prompts.previous, nothing_iterated(prompts).sigmoid())
    assert torch.equal(prompts.boxes, boxes)
    for epoch in (0, 19, 20, 39):
        prompts = Curriculum().draw(masks, boxes, draws(4), never, epoch=epoch, batch_seed=0)
        assert prompts.previous is None
