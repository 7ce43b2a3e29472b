import copy
from functools import partial

import cv2
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import ndimage

from probseg.clicks.annotators import (
    CLICK_RULES,
    HUMAN,
    Mistakes,
    error_maps,
    human_click,
    jitter_box,
    largest_area_click,
    largest_error_click,
    random_error_click,
    scribble_clicks,
)
from probseg.clicks.centres import HIGH, LOW, deepest
from probseg.geometry import mask_box, padded_crop
from probseg.types import IGNORE, Click
from support.mask_cases import readable
from support.refusals import refused
from support.rows import each

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=14)


@st.composite
def maps(draw):
    shape = draw(SHAPES)
    prediction = draw(hnp.arrays(np.bool_, shape))
    mask = draw(
        hnp.arrays(np.uint8, shape, elements=st.sampled_from([0, 1, 1, IGNORE])).filter(readable)
    )
    return prediction, mask


@st.composite
def blobs(draw):
    """Large errors with many pixels inside, which independent pixels hardly ever give."""
    height, width = draw(st.tuples(st.integers(8, 70), st.integers(8, 70)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sigma = generator.uniform(0.5, 6)
    smooth = [
        ndimage.gaussian_filter(generator.normal(size=(height, width)), sigma) for _ in range(3)
    ]
    mask = (smooth[0] > 0).astype(np.uint8)
    mask[smooth[2] > 1.5 * smooth[2].std()] = IGNORE
    assume(readable(mask))
    return smooth[1] > 0, mask


def errors(prediction, mask):
    return (mask == 1) & ~prediction, (mask == 0) & prediction


def squared_distance(error):
    """Squared distance to the outside by SciPy's exact transform, in whole numbers."""
    return np.rint(ndimage.distance_transform_edt(np.pad(error, 1))[1:-1, 1:-1] ** 2).astype(int)


def radius_rule(prediction, mask, clicked):
    """The rule of RITM to the letter, with no click where RITM clicks pixel (0, 0)."""
    missed, false_alarm = map(squared_distance, errors(prediction, mask))
    for click in clicked:
        missed[click.y, click.x] = false_alarm[click.y, click.x] = 0
    positive = bool(missed.max() > false_alarm.max())
    distance = missed if positive else false_alarm
    y, x = np.argwhere(distance == distance.max())[0]  # row-major: the first one wins
    return Click(x, y, positive) if distance.max() > 0 else None


def area_rule(prediction, mask, clicked):
    regions = []
    for positive, error in zip((True, False), errors(prediction, mask), strict=True):
        labels, count = ndimage.label(error, structure=np.ones((3, 3)))
        distance = squared_distance(error)
        for label in range(1, count + 1):
            free = [
                (y, x)
                for y, x in zip(*np.nonzero(labels == label), strict=True)
                if (x, y) not in {(click.x, click.y) for click in clicked}
            ]
            if free:
                area = int((labels == label).sum())
                y, x = min(free, key=lambda place: (-distance[place], place))
                regions.append((-area, positive, free[0], Click(int(x), int(y), positive)))
    return min(regions)[-1] if regions else None


RULES = [(largest_error_click, radius_rule), (largest_area_click, area_rule)]


@pytest.mark.parametrize(("rule", "by_hand"), RULES)
@given(case=st.one_of(maps(), blobs()), count=st.integers(0, 6))
def test_click_rule_equals_slow_one_click_after_click(rule, by_hand, case, count):
    prediction, mask = case
    clicked = []
    for _ in range(count + 1):
        click = rule(prediction, mask, clicked)
        assert click == by_hand(prediction, mask, clicked)
        if click is None:
            break
        clicked.append(click)


@each("name", CLICK_RULES)
def test_tensors_and_tuples_are_taken(name):
    mask = np.zeros((9, 9), np.uint8)
    mask[2:7, 1:5] = 1
    answer, rule = np.zeros((9, 9), bool), CLICK_RULES[name]
    wanted = rule(answer, mask, [Click(2, 4)], np.random.default_rng(0))
    tensors = torch.from_numpy(answer), torch.from_numpy(mask)
    for clicked in ((2, 4), (2, 4, True)):
        assert rule(*tensors, [clicked], np.random.default_rng(0)) == wanted


def test_random_clicks_are_uniform_over_both_signs():
    mask = np.array([[1, 1, 1, 0], [0, IGNORE, IGNORE, 0]], dtype=np.uint8)
    prediction = np.array([[0, 1, 0, 1], [1, 0, 1, 0]], dtype=bool)
    before = [Click(3, 0), Click(1, 0)]  # an error and a pixel that is right
    generator = np.random.default_rng(0)
    clicks = [random_error_click(prediction, mask, before, generator) for _ in range(3000)]
    wanted = {Click(0, 0, positive=True), Click(2, 0, positive=True), Click(0, 1, positive=False)}
    assert set(clicks) == wanted
    for click in wanted:
        assert abs(clicks.count(click) - 1000) < 130  # five standard deviations


@pytest.mark.parametrize("name", CLICK_RULES)
@given(case=maps(), seed=st.integers(0, 2**32 - 1))
def test_every_error_is_clicked_once_by_the_seed_and_then_nothing(name, case, seed):
    prediction, mask = case
    missed, false_alarm = errors(prediction, mask)
    one, other = np.random.default_rng(seed), np.random.default_rng(seed)
    clicked = []
    while (click := CLICK_RULES[name](prediction, mask, clicked, one)) is not None:
        assert (missed if click.positive else false_alarm)[click.y, click.x]
        assert click == CLICK_RULES[name](prediction, mask, clicked, other)
        clicked.append(click)
    assert len({(click.x, click.y) for click in clicked}) == len(clicked)
    assert len(clicked) == missed.sum() + false_alarm.sum()
    assert one.bit_generator.state == other.bit_generator.state  # None costs no draw


RULES_MISTAKES = st.sampled_from(sorted(CLICK_RULES))
SHARES = st.sampled_from([0.0, 0.3, 1.0])
JITTERS = st.sampled_from([0.0, 0.7, 50.0])
ERRS = st.builds(Mistakes, jitter=JITTERS, off_centre=SHARES, late=SHARES, wrong_sign=SHARES)


@st.composite
def rounds(draw):
    """Newest and previous prediction, mask, clicks so far and a seed."""
    shape = draw(SHAPES)
    newest, previous = (draw(hnp.arrays(np.bool_, shape)) for _ in range(2))
    mask = draw(
        hnp.arrays(np.uint8, shape, elements=st.sampled_from([0, 1, IGNORE])).filter(readable)
    )
    pixels = st.tuples(st.integers(0, shape[1] - 1), st.integers(0, shape[0] - 1))
    clicked = [Click(*pixel) for pixel in draw(st.lists(pixels, max_size=5))]
    return newest, draw(st.sampled_from([None, previous])), mask, clicked, draw(st.integers(0, 999))


def blob(seed=0, shape=(60, 90)):
    generator = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(generator.normal(size=(3, *shape)), (0, 5, 5))
    return smooth[0] > 0, smooth[1] > 0, (smooth[2] > 0).astype(np.uint8)


def clicks(mistakes, newest, previous, mask, count, rule="largest_radius", clicked=()):
    generator = np.random.default_rng(1)
    return [
        human_click(CLICK_RULES[rule], mistakes, newest, previous, mask, clicked, generator)
        for _ in range(count)
    ]


@given(case=rounds(), name=RULES_MISTAKES)
def test_without_mistakes_it_is_the_rule(case, name):
    newest, previous, mask, clicked, seed = case
    one, other = np.random.default_rng(seed), np.random.default_rng(seed)
    rule = CLICK_RULES[name]
    click = human_click(rule, Mistakes(), newest, previous, mask, clicked, one)
    assert click == rule(newest, mask, clicked, other)
    assert one.bit_generator.state == other.bit_generator.state


@given(case=rounds(), name=RULES_MISTAKES, mistakes=ERRS)
def test_clicks_are_fresh_whole_pixels_of_the_image_and_follow_from_the_state(case, name, mistakes):
    newest, previous, mask, clicked, seed = case
    generator = np.random.default_rng(seed)
    again = copy.deepcopy(generator)
    rule = CLICK_RULES[name]
    click = human_click(rule, mistakes, newest, previous, mask, clicked, generator)
    assert click == human_click(rule, mistakes, newest, previous, mask, clicked, again)
    right = (mask == 1) | (newest & (mask == IGNORE))
    assert human_click(rule, mistakes, right, right, mask, clicked, generator) is None
    if click is None:
        assert rule(newest, mask, clicked, generator) is None
    else:
        assert type(click.x) is type(click.y) is int
        assert 0 <= click.x < mask.shape[1]
        assert 0 <= click.y < mask.shape[0]
        assert type(click.positive) is bool
        assert (click.x, click.y) not in {(x, y) for x, y, _ in clicked}


def test_off_centre_clicks_are_uniform_over_the_fresh_pixels_of_the_error():
    mask = np.zeros((7, 9), dtype=np.uint8)
    mask[1:4, 1:4] = 1
    mask[4, 4] = 1  # touches the square by its corner
    mask[1, 7] = 1  # another error
    nothing = np.zeros(mask.shape, dtype=bool)
    clicked = [Click(2, 2), Click(1, 1)]
    drawn = clicks(Mistakes(off_centre=1), nothing, None, mask, 4000, clicked=clicked)
    region = mask.astype(bool)
    region[1, 7] = region[2, 2] = region[1, 1] = False
    wanted = {Click(int(x), int(y), positive=True) for y, x in np.argwhere(region)}
    assert set(drawn) == wanted
    assert all(abs(drawn.count(click) - 500) < 110 for click in wanted)  # five deviations


@each("name", CLICK_RULES)
@each("late", [0, 1])
def test_off_centre_clicks_keep_to_errors_that_are_seen(name, late):
    newest, previous, mask = blob()
    missed, false_alarm = error_maps(previous if late else newest, mask)
    mistakes = Mistakes(late=late, off_centre=1)
    for click in clicks(mistakes, newest, previous, mask, 50, rule=name):
        assert (missed if click.positive else false_alarm)[click.y, click.x]


def test_mistakes_happen_as_often_as_said():
    newest, previous, mask = blob()
    (right,) = clicks(Mistakes(), newest, None, mask, 1)
    assert clicks(Mistakes(late=1), newest, None, mask, 1) == [right], "nothing was seen before"
    drawn = clicks(Mistakes(off_centre=0.5), newest, None, mask, 1000)
    assert abs(drawn.count(right) - 500) < 90
    wrong = right._replace(positive=not right.positive)
    drawn = clicks(Mistakes(wrong_sign=0.3), newest, None, mask, 1000)
    assert drawn.count(right) + drawn.count(wrong) == 1000
    assert abs(drawn.count(wrong) - 300) < 75
    drawn = clicks(HUMAN, newest, previous, mask, 400)
    assert len(set(drawn)) > 100
    assert 0.9 < np.mean([click.positive == right.positive for click in drawn]) < 1


def test_the_hand_trembles_by_so_many_pixels_in_both_directions():
    mask = np.ones((101, 101), dtype=np.uint8)
    nothing = np.zeros(mask.shape, dtype=bool)
    drawn = clicks(Mistakes(jitter=6.0), nothing, None, mask, 400)
    moves = np.array([(click.x - 50, click.y - 50) for click in drawn])
    assert np.abs(moves.mean(axis=0)).max() < 5 * 6 / 20
    assert np.abs(moves.std(axis=0) / 6 - 1).max() < 0.18  # five times 1 / sqrt(2 n)
    assert abs(np.corrcoef(moves.T)[0, 1]) < 0.25


def test_a_click_that_leaves_its_error_keeps_its_sign():
    mask = np.zeros((50, 50), dtype=np.uint8)
    mask[25, 25] = 1
    drawn = clicks(Mistakes(jitter=5.0), np.zeros(mask.shape, dtype=bool), None, mask, 50)
    assert all(click.positive for click in drawn)
    assert sum(mask[click.y, click.x] == 0 for click in drawn) > 25


def test_a_clicked_pixel_gives_way_to_the_nearest_fresh_one():
    mask = np.zeros((9, 9), dtype=np.uint8)
    mask[0, 0] = 1
    everything = [Click(x, y) for y in range(9) for x in range(9)]
    clicked = [click for click in everything if click[:2] not in {(0, 0), (8, 3), (8, 5)}]
    nothing = np.zeros(mask.shape, dtype=bool)
    drawn = clicks(Mistakes(jitter=4.0), nothing, None, mask, 200, clicked=clicked)
    assert {click[:2] for click in drawn} == {(0, 0), (8, 3), (8, 5)}
    # Only (0, 0) is left, so the noise has nowhere else to go.
    clicked = [click for click in everything if click[:2] != (0, 0)]
    drawn = clicks(Mistakes(jitter=4.0), nothing, None, mask, 20, clicked=clicked)
    assert {click[:2] for click in drawn} == {(0, 0)}


@given(case=rounds(), name=RULES_MISTAKES)
def test_late_clicks_are_those_of_the_previous_prediction(case, name):
    newest, previous, mask, clicked, seed = case
    assume(previous is not None)
    one, other = np.random.default_rng(seed), np.random.default_rng(seed)
    rule = CLICK_RULES[name]
    click = human_click(rule, Mistakes(late=1), newest, previous, mask, clicked, one)
    other.random()  # whether the annotator is late
    late = rule(previous, mask, clicked, other)
    assert click == (rule(newest, mask, clicked, other) if late is None else late)


def test_wrong_arguments_are_named():
    mask = np.zeros((3, 4), dtype=np.uint8)
    calls = [
        (partial(rule, prediction, mask, clicked, np.random.default_rng(0)), name)
        for rule in CLICK_RULES.values()
        for prediction, clicked, name in (
            (np.zeros((3, 3), dtype=bool), [], "prediction"),
            (np.zeros((3, 4)), [], "prediction"),
            (mask == 1, [Click(4, 0)], "clicked"),
        )
    ]
    calls += [
        (partial(Mistakes, **{field: value}), f"`{field}`")
        for field in ("jitter", "off_centre", "late", "wrong_sign")
        for value in (-0.1, float("nan"), float("inf"))
    ]
    for call, name in calls:
        refused(ValueError, call, name)


@st.composite
def boxes(draw):
    height, width = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    x0, y0 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    return (x0, y0, draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height))), (
        height,
        width,
    )


def contains(outer, inner):
    return (
        outer[0] <= inner[0]
        and outer[1] <= inner[1]
        and outer[2] >= inner[2]
        and outer[3] >= inner[3]
    )


@given(case=boxes())
def test_box_of_a_filled_box_is_that_box(case):
    (x0, y0, x1, y1), size = case
    mask = np.full(size, 255, dtype=np.uint8)
    mask[y0:y1, x0:x1] = 1
    assert mask_box(mask) == (x0, y0, x1, y1)


@given(case=boxes(), noise=st.floats(0, 0.49), seed=st.integers(0, 2**32 - 1))
def test_jittered_box_is_near_and_inside_the_image(case, noise, seed):
    box, (height, width) = case
    drawn = jitter_box(box, noise, (height, width), np.random.default_rng(seed))
    sides = (box[2] - box[0], box[3] - box[1]) * 2
    assert all(abs(a - b) <= noise * side for a, b, side in zip(drawn, box, sides, strict=True))
    assert 0 <= drawn[0] < drawn[2] <= width
    assert 0 <= drawn[1] < drawn[3] <= height


def test_jitter_uses_the_whole_range_evenly():
    generator = np.random.default_rng(0)
    drawn = np.array(
        [jitter_box((50, 60, 90, 120), 0.1, (200, 200), generator) for _ in range(4000)]
    )
    for column, centre, most in zip(drawn.T, (50, 60, 90, 120), (4, 6, 4, 6), strict=True):
        values, counts = np.unique(column, return_counts=True)
        assert values.tolist() == list(range(centre - most, centre + most + 1))
        assert counts.min() > 0.75 * 4000 / len(values)


def test_wrong_input_is_refused():
    refused(ValueError, lambda: mask_box(np.full((4, 4), 255, dtype=np.uint8)), "mask")
    with pytest.raises(ValueError, match="noise"):  # which could turn the box over
        jitter_box((0, 0, 4, 4), 0.5, (8, 8), np.random.default_rng(0))


@given(case=boxes(), noise=st.floats(0, 0.3), slack=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_object_is_inside_the_crop_around_the_jittered_box(case, noise, slack, seed):
    box, size = case
    padding = noise / (1 - 2 * noise) + slack
    drawn = jitter_box(box, noise, size, np.random.default_rng(seed))
    assert contains(padded_crop(drawn, size, padding=padding + 1e-9, min_padding=0), box)


@given(case=boxes(), least=st.integers(0, 30))
def test_crop_has_the_margin_or_ends_with_the_image(case, least):
    box, (height, width) = case
    crop = padded_crop(box, (height, width), padding=0.2, min_padding=least)
    assert contains((0, 0, width, height), crop)
    margin = max(least, 0.2 * max(box[2] - box[0], box[3] - box[1]))
    assert crop[0] == 0 or margin <= box[0] - crop[0] < margin + 1
    assert crop[3] == height or margin <= crop[3] - box[3] < margin + 1


STROKES = hnp.arrays(
    np.uint8,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=16),
    elements=st.sampled_from([0, 1, IGNORE]),
)


SPACINGS = st.floats(0.1, 30)


@given(strokes=STROKES, spacing=SPACINGS)
def test_each_click_is_the_first_pixel_that_was_left(strokes, spacing):
    expected = []
    for positive in (True, False):
        left = [(int(y), int(x)) for y, x in np.argwhere(strokes == int(positive))]
        while left:
            y, x = left[0]
            expected.append(Click(x, y, positive))
            left = [(v, u) for v, u in left if (v - y) ** 2 + (u - x) ** 2 > spacing**2]
    assert scribble_clicks(strokes, spacing) == tuple(expected)


def test_a_line_gets_clicks_at_even_distances():
    strokes = np.full((3, 20), IGNORE, dtype=np.uint8)
    assert scribble_clicks(strokes, 3) == ()
    strokes[1, 2:18] = 0
    strokes.flags.writeable = False
    expected = tuple(Click(x, 1, positive=False) for x in (2, 8, 14))
    assert scribble_clicks(strokes, 5) == expected


def test_wrong_input_is_refused_scribbles():
    for strokes in (
        np.zeros((2, 2), dtype=int),
        np.zeros((2, 2, 3), dtype=np.uint8),
        np.array([[0, 1, 128, 7]], dtype=np.uint8),
    ):
        with pytest.raises(ValueError, match="strokes"):
            scribble_clicks(strokes, 5)
    for spacing in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="spacing"):
            scribble_clicks(np.zeros((2, 2), dtype=np.uint8), spacing)


@pytest.mark.parametrize("with_ipp", [False, True])
def test_chamfer_distances_are_as_close_as_the_search_assumes(with_ipp):
    used = cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(with_ipp)
    away = np.ones((401, 601), dtype=np.uint8)
    away[90, 120] = 0
    chamfer = cv2.distanceTransform(away, cv2.DIST_L2, cv2.DIST_MASK_5)
    cv2.ipp.setUseIPP(used)
    exact = ndimage.distance_transform_edt(away)
    ratio = chamfer[away == 1] / exact[away == 1]
    assert LOW < ratio.min() < 0.985  # tight, too: the windows stay small
    assert HIGH > ratio.max() > 1.015


def disks(shape, centres, radius):
    y, x = np.ogrid[: shape[0], : shape[1]]
    return np.any([(y - v) ** 2 + (x - u) ** 2 <= radius**2 for u, v in centres], axis=0)


def test_equally_deep_pixels_far_apart_are_told_apart():
    centres = [(u, v) for v in (20, 60, 140) for u in (170, 20, 90)]
    first, second = disks((160, 200), centres, 15), disks((160, 200), [(100, 100)], 15)
    assert deepest([second], [])[1] == (100, 100, 226)
    assert deepest([first, second], []) == (0, (20, 20, 226))
    assert deepest([second, first], []) == (0, (100, 100, 226))
    assert deepest([first], [(20, 20), (90, 20)]) == (0, (170, 20, 226))
    deeper = disks((160, 200), [(180, 140)], 16)
    assert deepest([first, deeper], [])[0] == 1


def test_pixels_that_are_taken_do_not_make_an_error_shallower():
    square = np.zeros((11, 11), dtype=bool)
    square[1:10, 1:10] = True
    assert deepest([square], [(5, 5), (40, -3)]) == (0, (4, 4, 16))  # 4 and not 1 away
