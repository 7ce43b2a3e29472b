import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probseg.lab.baselines.scene import GUESS_RADIUS, SEED_RADIUS, border, make_scene
from probseg.types import Click
from support.rows import each


def slow_maps(clicks, height, width):
    """Seeds and guess of clicks alone, pixel by pixel."""
    seeds = np.zeros((height, width), dtype=int)
    guess = np.zeros((height, width), dtype=bool)
    longest = max(height, width)
    radius = max(SEED_RADIUS * longest, 0.5**0.5)
    for y in range(height):
        for x in range(width):
            near = [((x - c.x) ** 2 + (y - c.y) ** 2, not c.positive) for c in clicks]
            if not near:
                continue
            squared, negative = min(near)  # on a tie the object's
            if squared <= radius**2:
                seeds[y, x] = -1 if negative else 1
            guess[y, x] = not negative and squared <= (GUESS_RADIUS * longest) ** 2
    return seeds, guess


@given(
    height=st.integers(1, 30),
    width=st.integers(1, 30),
    places=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.booleans()), max_size=4),
)
def test_clicks_are_drawn_as_disks_that_do_not_overlap(height, width, places):
    clicks = [Click(x % width, y % height, sign) for x, y, sign in places]
    scene = make_scene(np.zeros((height, width, 3), np.uint8), clicks, None, None)
    seeds, guess = slow_maps(clicks, height, width)
    assert (scene.seeds == seeds).all()
    assert (scene.guess == (guess | (seeds > 0))).all()


def test_prompts_move_with_the_reduced_image():
    random = np.random.default_rng(0)
    image = random.integers(0, 256, (120, 200, 3), dtype=np.uint8)
    clicks = [Click(150, 30), Click(20, 100, False)]
    scene = make_scene(image, clicks, (40, 20, 160, 80), None, 50)
    assert scene.image.shape == (30, 50, 3)
    means = image.reshape(30, 4, 50, 4, 3).mean(axis=(1, 3))
    assert np.abs(scene.image - means).max() <= 0.5
    inside = np.zeros((30, 50), dtype=bool)
    inside[5:20, 10:40] = True
    assert (scene.inside == inside).all()
    outside = np.ones((30, 50), dtype=bool)
    outside[2:23, 7:43] = False  # 12 pixels of the image further, 3 of these
    assert (scene.outside == outside).all()
    for click in clicks:
        y, x = np.argwhere(scene.seeds == (1 if click.positive else -1)).mean(axis=0)
        assert (x, y) == pytest.approx((click.x / 4, click.y / 4), abs=0.5)
    assert (scene.guess == (inside | (scene.seeds > 0))).all()
    assert scene.enlarged(scene.guess).shape == (120, 200)
    assert make_scene(image, [], None, None, 300).image.shape == image.shape, "never enlarged"


def test_a_previous_mask_comes_before_the_box_and_seeds_before_both():
    previous = np.zeros((40, 60), np.float32)
    previous[10:20, 10:20] = 0.9
    clicks = [Click(50, 30), Click(15, 15, False)]
    scene = make_scene(np.zeros((40, 60, 3), np.uint8), clicks, (0, 0, 30, 30), previous)
    expected = previous > 0.5
    expected[scene.seeds > 0] = True
    expected[scene.seeds < 0] = False
    assert (scene.guess == expected).all()
    assert scene.guess[30, 50]
    assert not scene.guess[15, 15]


@each(("size", "count"), [((1, 1), 1), ((1, 5), 5), ((2, 5), 10), ((4, 5), 14)])
def test_border_is_the_outermost_pixels(size, count):
    assert border(size).sum() == count
