import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.clicks.annotators import largest_error_click
from probseg.geometry import mask_box
from probseg.lab.baselines import (
    GUESS_RADIUS,
    SEED_RADIUS,
    BoxFilled,
    ClassicalModel,
    ColourMixture,
    OpenCVGrabCut,
    RandomWalker,
    make_scene,
)
from probseg.metrics import iou
from probseg.types import Click
from support.fakes import draw_sample, draw_scene
from support.network_cases import prompts
from support.rows import each

BASELINES = {
    "box_filled": BoxFilled,
    "colour_mixture": ColourMixture,
    "opencv_grabcut": OpenCVGrabCut,
    "random_walker": RandomWalker,
}

# IoU on drawn ellipses: after three clicks alone, and with the box and two clicks.
REACHED = {
    "box_filled": (0.4, 0.7),
    "colour_mixture": (0.9, 0.9),
    "opencv_grabcut": (0.95, 0.95),
    "random_walker": (0.95, 0.95),
}


def as_tensor(image):
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255


def as_prompts(clicks=(), box=None, previous=None):
    before = None if previous is None else torch.from_numpy(previous)[None, None]
    return prompts(*clicks, box=box, previous=before)


def answer(model, image, clicks=(), box=None, previous=None):
    """The probabilities `(H, W)` of one image."""
    encoded = model.encode_each([as_tensor(image)])
    (logits,), _ = model.decode_each(encoded, [as_prompts(clicks, box, previous)])
    assert logits.dtype == torch.float32
    assert logits.shape == image.shape[:2]
    assert logits.isfinite().all()
    return logits.sigmoid().numpy()


def clicked_through(model, sample, count, box=None):
    """The prediction after `count` clicks of an annotator."""
    clicks = []
    prediction = np.zeros(sample.mask.shape, dtype=bool)
    if box is not None:
        prediction = answer(model, sample.image, box=box) > 0.5
    for _ in range(count):
        click = largest_error_click(prediction, sample.mask, clicks)
        if click is None:
            break
        clicks.append(click)
        prediction = answer(model, sample.image, clicks, box) > 0.5
    return prediction


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture(params=BASELINES)
def name(request):
    return request.param


@pytest.fixture
def model(name):
    return BASELINES[name]()


@pytest.mark.parametrize("seed", range(2))
def test_a_few_prompts_find_the_object(name, model, seed):
    sample = draw_sample(90, 120, seed=seed)
    by_clicks, with_box = REACHED[name]
    assert iou(clicked_through(model, sample, 3), sample.mask) >= by_clicks
    prediction = clicked_through(model, sample, 2, box=mask_box(sample.mask))
    assert iou(prediction, sample.mask) >= with_box


def test_a_previous_mask_is_corrected(name, model):
    sample = draw_sample(90, 120)
    begun = sample.mask.astype(np.float32)
    begun[:, : int(np.argwhere(begun)[:, 1].mean())] = 0  # the left half of the object is missing
    y, x = np.argwhere((sample.mask == 1) & (begun == 0)).mean(axis=0).round()
    clicks = [Click(x, y)]
    corrected = answer(model, sample.image, clicks, previous=begun) > 0.5
    alone = answer(model, sample.image, clicks) > 0.5
    before = iou(begun > 0.5, sample.mask)
    if name == "random_walker":  # documented: seeds are facts, and a mask is none
        assert (corrected == alone).all()
    else:
        assert iou(corrected, sample.mask) > before


@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    places=st.lists(st.tuples(st.floats(0, 0.999), st.floats(0, 0.999), st.booleans()), max_size=4),
    box=st.none() | st.tuples(*[st.floats(-0.2, 1.2)] * 4),
    plain=st.booleans(),
    mask=st.booleans(),
)
@pytest.mark.parametrize("kind", BASELINES.values())
def test_any_prompts_on_any_image_have_an_answer_that_obeys(kind, size, places, box, plain, mask):
    height, width = size
    image = np.full((height, width, 3), 77, np.uint8) if plain else noise(height, width)
    clicks = [Click(int(x * width), int(y * height), sign) for x, y, sign in places]
    clicks = list({(c.x, c.y): c for c in clicks}.values())  # the last one of a pixel counts
    if box is not None:
        x0, x1 = sorted(box[::2])
        y0, y1 = sorted(box[1::2])
        box = [x0 * width, y0 * height, x1 * width, y1 * height]
    previous = np.eye(height, width, dtype=np.float32) if mask else None
    probability = answer(kind(), image, clicks, box, previous)
    assert probability.min() >= 0
    assert probability.max() <= 1
    for click in clicks:
        assert (probability[click.y, click.x] > 0.5) == click.positive


def test_without_a_positive_prompt_nothing_is_object(model):
    for clicks in ([], [Click(3, 4, False), Click(20, 10, False)]):
        assert (answer(model, noise(20, 30), clicks) <= 0.5).all()


@pytest.mark.parametrize(("name", "least"), [("opencv_grabcut", 0.95), ("random_walker", 0.6)])
def test_a_box_around_everything_leaves_room_for_the_background(name, least):
    sample = draw_sample(90, 120)
    prediction = answer(BASELINES[name](), sample.image, box=(0, 0, 120, 90)) > 0.5
    assert iou(prediction, sample.mask) > least


def test_several_images_are_answered_as_one_by_one(model):
    sizes = [(48, 64), (31, 57), (64, 48), (30, 40), (300, 201)]
    images = [draw_scene(*size, seed=n)[0] for n, size in enumerate(sizes)]
    clicks = [Click(20, 15), Click(1, 2, False)]
    boxes = [None, (2, 3, 50, 25), None, (2, 3, 39, 28), None]
    given = [as_prompts(clicks, box) for box in boxes]
    assert len({model.batch_key(size) for size in sizes}) == 1
    encoded = model.encode_each([as_tensor(image) for image in images])
    together, _ = model.decode_each(encoded, given)
    backwards = model.decode_each(encoded[::-1], given[::-1])[0][::-1]
    for n, one in enumerate(given):
        (alone,), _ = model.decode_each([encoded[n]], [one])
        assert torch.equal(alone, together[n])
        assert torch.equal(alone, backwards[n])


class Recording(ClassicalModel):
    """Answers nothing, and keeps the prompts of the last call."""

    def segment(self, image, clicks, box, previous):
        self.given = clicks, box, previous
        return np.zeros(image.shape[:2], np.float32)


@each(
    ("given_box", "expected"),
    [
        ((2, 3, 10, 9), (2, 3, 10, 9)),
        ((1.6, 2.7, 10.4, 8.6), (2, 3, 10, 9)),
        ((-5, -5, 50, 50), (0, 0, 30, 20)),
        ((-9, 2, -3, 8), None),
        ((4, 4, 4.2, 9), None),
        (None, None),
    ],
)
def test_boxes_are_cut_to_the_image(given_box, expected):
    model = Recording()
    answer(model, noise(20, 30), box=given_box)
    assert model.given[1] == expected


@each(
    ("x", "column"),
    [
        *((29.6, 29), (29.999, 29), (30.0, None)),  # the last column under a zoom that shrinks
        *((2.5, 3), (3.5, 4), (-0.4, 0), (-0.6, None)),
    ],
)
def test_clicks_are_rounded_inside_the_image(x, column):
    model = Recording()
    padding = (6, 7, -1)
    for click in ((x, 5, 1), (5, x, 1)):
        (logits,), _ = model.decode_each([noise(30, 30)], [prompts(click, padding)])
        row = 5 if click[0] == x else column
        pixel = (column if click[0] == x else 5, row)
        clicks = () if column is None else (Click(*pixel),)
        assert model.given == (clicks, None, None)
        assert [tuple(place) for place in (logits > 4).nonzero().flip(1).tolist()] == [
            (click.x, click.y) for click in clicks
        ]


def test_grabcut_keeps_the_parts_that_were_clicked():
    image, labels = draw_scene(90, 120, objects=2)
    image[labels == 2] = image[labels == 1][: (labels == 2).sum()].mean(axis=0)  # the same colour
    y, x = np.argwhere(labels == 1).mean(axis=0).round()
    clicks = [Click(x, y)]
    one = answer(OpenCVGrabCut(), image, clicks) > 0.5
    assert iou(one, (labels == 1).astype(np.uint8)) > 0.9
    y, x = np.argwhere(labels == 2).mean(axis=0).round()
    both = answer(OpenCVGrabCut(), image, [*clicks, Click(x, y)]) > 0.5
    assert iou(both, (labels > 0).astype(np.uint8)) > 0.9


def test_grabcut_does_not_depend_on_random_numbers_drawn_before():
    sample = draw_sample(48, 64)
    first = answer(OpenCVGrabCut(), sample.image, [Click(32, 24)])
    cv2.setRNGSeed(5)
    cv2.randu(np.zeros(9, np.float32), 0, 1)
    assert (answer(OpenCVGrabCut(), sample.image, [Click(32, 24)]) == first).all()


def test_colour_mixture_spreads_a_click_to_its_colour_alone():
    image = np.zeros((40, 60, 3), np.uint8)
    image[:, 20:40] = (200, 30, 30)
    image[:, 40:] = (30, 30, 200)
    model = ColourMixture()
    before = answer(model, image, [Click(30, 20)])
    after = answer(model, image, [Click(30, 20), Click(50, 20, False)])
    assert before[30, 24] > before[30, 5]
    assert after[5, 56] < before[5, 56]  # the blue part
    np.testing.assert_allclose(after[5, 22:38], before[5, 22:38], atol=0.02)  # the red one


def slow_maps(clicks, previous):
    """Seeds and guess, pixel by pixel: a mask, or else disks, and seeds before both."""
    height, width = previous.shape
    seeds = np.zeros((height, width), dtype=int)
    guess = previous > 0.5
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
            if not previous.any():
                guess[y, x] = not negative and squared <= (GUESS_RADIUS * longest) ** 2
    return seeds, (guess | (seeds > 0)) & (seeds >= 0)


@given(
    height=st.integers(1, 30),
    width=st.integers(1, 30),
    places=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.booleans()), max_size=4),
    begun=st.booleans(),
)
def test_clicks_are_drawn_as_disks_that_do_not_overlap(height, width, places, begun):
    clicks = [Click(x % width, y % height, sign) for x, y, sign in places]
    previous = np.full((height, width), begun, dtype=np.float32)
    image, box = np.zeros((height, width, 3), np.uint8), (0, 0, width, 1)
    given = (box, previous) if begun else (None, None)  # a mask comes before the box
    scene = make_scene(image, clicks, *given)
    seeds, guess = slow_maps(clicks, previous)
    assert (scene.seeds == seeds).all()
    assert (scene.guess == guess).all()


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
