import copy
from functools import partial

import numpy as np
import pytest
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
    largest_area_click,
    largest_error_click,
    random_error_click,
)
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
