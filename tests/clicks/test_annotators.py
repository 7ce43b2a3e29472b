import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import ndimage

from probseg.clicks.annotators import largest_area_click, largest_error_click
from probseg.types import IGNORE, Click

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=14)


@st.composite
def maps(draw):
    shape = draw(SHAPES)
    prediction = draw(hnp.arrays(np.bool_, shape))
    mask = draw(hnp.arrays(np.uint8, shape, elements=st.sampled_from([0, 1, 1, IGNORE])))
    return prediction, mask


@st.composite
def blobs(draw):
    """Large errors with many pixels inside, which independent pixels hardly ever give."""
    height, width = draw(st.tuples(st.integers(8, 24), st.integers(8, 24)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    smooth = [ndimage.gaussian_filter(generator.normal(size=(height, width)), 2) for _ in range(3)]
    mask = (smooth[0] > 0).astype(np.uint8)
    mask[smooth[2] > 1.5 * smooth[2].std()] = IGNORE
    return smooth[1] > 0, mask


def errors_by_hand(prediction, mask):
    missed, false_alarm = np.zeros((2, *mask.shape), dtype=bool)
    for y, x in np.ndindex(mask.shape):
        missed[y, x] = mask[y, x] == 1 and not prediction[y, x]
        false_alarm[y, x] = mask[y, x] == 0 and prediction[y, x]
    return missed, false_alarm


def squared_distance_by_hand(error):
    """Whole-numbered squared distance to the nearest pixel outside, the world's border included."""
    height, width = error.shape
    outside = [
        (y, x)
        for y in range(-1, height + 1)
        for x in range(-1, width + 1)
        if not (0 <= y < height and 0 <= x < width and error[y, x])
    ]
    distance = np.zeros(error.shape, dtype=int)
    for y, x in zip(*np.nonzero(error), strict=True):
        distance[y, x] = min((y - v) ** 2 + (x - u) ** 2 for v, u in outside)
    return distance


def radius_rule_by_hand(prediction, mask, clicked):
    missed, false_alarm = map(squared_distance_by_hand, errors_by_hand(prediction, mask))
    for click in clicked:
        missed[click.y, click.x] = false_alarm[click.y, click.x] = 0
    positive = missed.max() > false_alarm.max()
    distance = missed if positive else false_alarm
    if distance.max() == 0:
        return None
    for y, x in np.ndindex(mask.shape):  # row-major: the first one wins
        if distance[y, x] == distance.max():
            return Click(x, y, bool(positive))
    raise AssertionError


def area_rule_by_hand(prediction, mask, clicked):
    regions = []
    for positive, error in zip((True, False), errors_by_hand(prediction, mask), strict=True):
        labels, count = ndimage.label(error, structure=np.ones((3, 3)))
        distance = squared_distance_by_hand(error)
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


RULES = [(largest_error_click, radius_rule_by_hand), (largest_area_click, area_rule_by_hand)]


@pytest.mark.parametrize(("rule", "by_hand"), RULES)
@settings(deadline=None, max_examples=60)
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


@pytest.mark.parametrize("seed", range(20))
def test_distances_are_exact_on_large_errors(seed):
    generator = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(generator.normal(size=(2, 150, 200)), (0, 12, 12))
    mask, prediction = (smooth[0] > 0).astype(np.uint8), smooth[1] > 0
    missed, false_alarm = (
        ndimage.distance_transform_edt(np.pad(error, 1))[1:-1, 1:-1]
        for error in ((mask == 1) & ~prediction, (mask == 0) & prediction)
    )
    positive = bool(missed.max() > false_alarm.max())
    distance = np.rint((missed if positive else false_alarm) ** 2)  # whole numbers: ties are exact
    y, x = np.argwhere(distance == distance.max())[0]
    assert largest_error_click(prediction, mask) == Click(x, y, positive)


@pytest.mark.parametrize("rule", [largest_error_click, largest_area_click])
@settings(deadline=None)
@given(case=maps())
def test_clicks_go_to_every_error_once_and_then_stop(rule, case):
    prediction, mask = case
    missed, false_alarm = errors_by_hand(prediction, mask)
    clicked = []
    while (click := rule(prediction, mask, clicked)) is not None:
        assert mask[click.y, click.x] != IGNORE
        assert (missed if click.positive else false_alarm)[click.y, click.x]
        clicked.append(click)
    assert len({(click.x, click.y) for click in clicked}) == len(clicked)
    assert len(clicked) == missed.sum() + false_alarm.sum()


@pytest.mark.parametrize("rule", [largest_error_click, largest_area_click])
def test_tie_gives_a_negative_click(rule):
    mask = np.zeros((5, 11), dtype=np.uint8)
    mask[1:4, 1:4] = 1
    prediction = np.zeros((5, 11), dtype=bool)
    prediction[1:4, 7:10] = True
    assert rule(prediction, mask, []) == Click(8, 2, positive=False)


def test_rules_differ_between_a_thick_and_a_large_error():
    mask = np.zeros((20, 60), dtype=np.uint8)
    mask[3:10, 3:10] = 1  # 49 pixels, radius 4
    prediction = np.zeros((20, 60), dtype=bool)
    prediction[14:16, 5:55] = True  # 100 pixels, radius 1
    assert largest_error_click(prediction, mask) == Click(6, 6, positive=True)
    assert largest_area_click(prediction, mask) == Click(5, 14, positive=False)


def test_border_of_the_image_ends_an_error():
    mask = np.ones((7, 9), dtype=np.uint8)
    nothing = np.zeros((7, 9), dtype=bool)
    assert largest_error_click(nothing, mask) == Click(3, 3, positive=True)
    assert largest_area_click(nothing, mask) == Click(3, 3, positive=True)


def test_no_error_is_no_click():
    mask = np.array([[0, 1, IGNORE]], dtype=np.uint8)
    assert largest_error_click(np.array([[False, True, True]]), mask) is None
    assert largest_area_click(np.array([[False, True, False]]), mask) is None


@pytest.mark.parametrize(
    ("prediction", "says"),
    [(np.zeros((3, 4), dtype=bool), "shape"), (np.zeros((3, 3)), "threshold")],
)
def test_wrong_predictions_are_refused(prediction, says):
    with pytest.raises(ValueError, match=says):
        largest_error_click(prediction, np.zeros((3, 3), dtype=np.uint8))
