from dataclasses import replace

import numpy as np
import pytest
import torch

from probseg.clicks.annotators import CLICK_RULES
from probseg.interact import (
    PROTOCOLS,
    OneStep,
    draw_view,
    image_tensor,
    predict_probability,
    run_object,
    start,
    step,
)
from probseg.metrics import iou
from probseg.types import IGNORE, Click, Sample

RITM = replace(PROTOCOLS["ritm"], max_clicks=6)
GABBUR = replace(PROTOCOLS["gabbur2021"], max_clicks=5)


def sample(size=(61, 83), seed=0):
    """An object that the image shows: its red channel is the mask; a rim of it is ignored."""
    y, x = np.ogrid[: size[0], : size[1]]
    generator = np.random.default_rng(seed)
    cy, cx = generator.uniform(0.3, 0.7, 2) * size
    ry, rx = generator.uniform(0.15, 0.3, 2) * size
    radius = ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2
    mask = np.where(radius < 0.8, 1, np.where(radius < 1, IGNORE, 0)).astype(np.uint8)
    image = generator.integers(0, 255, (*size, 3), dtype=np.uint8)
    image[..., 0] = np.where(mask == 1, 255, 0)
    return Sample(image, mask, f"object {seed}", "Toy")


def logits(inside):
    return torch.where(inside, 9.0, -9.0)[None, None]


@OneStep
def sees_the_truth(image, prompts):
    return logits(image[0, 0] > 0.5)


@OneStep
def sees_nothing(image, prompts):
    return logits(torch.zeros(image.shape[2:], dtype=torch.bool))


@OneStep
def fills_the_box(image, prompts):
    x0, y0, x1, y1 = prompts.boxes[0].int().tolist()
    inside = torch.zeros(image.shape[2:], dtype=torch.bool)
    inside[y0:y1, x0:x1] = True
    return logits(inside)


def paints_disks(radius):
    @OneStep
    def predict(image, prompts):
        y, x = torch.meshgrid(*map(torch.arange, image.shape[2:]), indexing="ij")
        inside = torch.zeros(image.shape[2:], dtype=torch.bool)
        for (column, row), label in zip(prompts.points[0], prompts.labels[0], strict=True):
            inside[(x - column) ** 2 + (y - row) ** 2 <= radius**2] = bool(label)
        return logits(inside)

    return predict


def test_oracle_needs_one_click_and_the_rest_is_held():
    record = run_object(sees_the_truth, sample(), RITM)
    assert [entry.iou for entry in record.steps] == [0.0] + [1.0] * 6
    assert record.stopped_at == 1
    assert [entry.k for entry in record.steps] == list(range(7))
    assert all(entry[1:4] == (None, None, None) for entry in record.steps[2:])
    assert [entry.seconds is None for entry in record.steps] == [True, False, *[True] * 5]


def test_oracle_needs_no_click_after_the_box():
    record = run_object(sees_the_truth, sample(), GABBUR)
    assert [entry.iou for entry in record.steps] == [1.0] * 6
    assert record.stopped_at == 0


@pytest.mark.parametrize("protocol", [RITM, GABBUR])
def test_a_model_that_sees_nothing_gets_all_its_clicks(protocol):
    record = run_object(sees_nothing, sample(), protocol)
    assert [entry.iou for entry in record.steps] == [0.0] * (protocol.max_clicks + 1)
    assert record.stopped_at is None
    places = {(entry.x, entry.y) for entry in record.steps[1:]}
    assert len(places) == protocol.max_clicks
    assert all(sample().mask[y, x] == 1 for x, y in places)


@pytest.mark.parametrize("protocol", [RITM, GABBUR])
@pytest.mark.parametrize("size", [(61, 83), (90, 40), (33, 34)])
def test_records_can_be_replayed_by_hand(protocol, size):
    thing = sample(size, seed=3)
    radius = 5
    record = run_object(paints_disks(radius), thing, protocol, trial=2, seed=5)
    x0, y0, x1, y1 = draw_view(thing, protocol, trial=2, seed=5).crop
    y, x = np.ogrid[: size[0], : size[1]]
    prediction = np.zeros(size, dtype=bool)
    clicked = []
    for entry in record.steps[1:]:
        click = CLICK_RULES[protocol.click_rule](prediction, thing.mask, clicked)
        assert (entry.x, entry.y, entry.positive) == click
        clicked.append(click)
        prediction[(x - click.x) ** 2 + (y - click.y) ** 2 <= radius**2] = click.positive
        prediction[:y0] = prediction[y1:] = prediction[:, :x0] = prediction[:, x1:] = False
        assert entry.iou == iou(prediction, thing.mask)
    assert record.stopped_at is None
    assert record.steps[-1].iou > record.steps[1].iou


def test_the_model_sees_the_crop_and_prompts_in_its_pixels():
    thing = sample()
    view = draw_view(thing, GABBUR, trial=1)
    x0, y0, x1, y1 = view.crop
    seen = []

    @OneStep
    def watch(image, prompts):
        seen.append((image, prompts))
        return sees_nothing.decode(image, prompts)

    record = run_object(watch, thing, GABBUR, trial=1)
    assert len(seen) == 6
    for k, (image, prompts) in enumerate(seen):
        assert torch.equal(image[0], image_tensor(thing.image)[:, y0:y1, x0:x1])
        assert prompts.points.shape == (1, k, 2)
        assert prompts.points.dtype == prompts.boxes.dtype == torch.float32
        assert prompts.labels.tolist() == [[1] * k]
        assert prompts.labels.dtype == torch.int64
        drawn = np.array(view.box) - (x0, y0, x0, y0)
        assert prompts.boxes.tolist() == [drawn.tolist()]
        for (x, y), entry in zip(prompts.points[0].int(), record.steps[1 : k + 1], strict=True):
            assert image[0, 0, y, x] == 1  # red: on the object
            assert (x + x0, y + y0) == (entry.x, entry.y)


def test_a_model_that_fills_the_box_is_scored_on_the_whole_image():
    thing = sample()
    record = run_object(fills_the_box, thing, GABBUR, trial=4)
    x0, y0, x1, y1 = draw_view(thing, GABBUR, trial=4).box
    filled = np.zeros(thing.mask.shape, dtype=bool)
    filled[y0:y1, x0:x1] = True
    assert record.steps[0].iou == iou(filled, thing.mask)


def test_trials_differ_and_runs_repeat():
    thing = sample((200, 210))
    runs = [run_object(fills_the_box, thing, GABBUR, trial=trial) for trial in (0, 1, 0)]
    assert runs[0].steps[0].iou == runs[2].steps[0].iou != runs[1].steps[0].iou


def test_the_threshold_is_exclusive_and_the_protocols():
    @OneStep
    def unsure(image, prompts):
        return torch.zeros(1, 1, *image.shape[2:])  # probability 0.5

    assert run_object(unsure, sample(), GABBUR).steps[0].iou == 0
    assert run_object(unsure, sample(), RITM).steps[1].iou > 0


def test_states_are_not_changed():
    image = torch.rand(3, 20, 30)
    model = paints_disks(3)
    before = start(model, image, crop=(5, 0, 30, 18))
    after = step(model, before, Click(10, 8))
    last = step(model, after, Click(5, 17, positive=False))
    assert before.clicks == ()
    assert not before.probability.any()
    assert (after.probability > 0.5).sum() == 29  # a disk of radius 3
    assert after.probability[8, 10] > 0.5
    assert last.clicks == (Click(10, 8), Click(5, 17, positive=False))
    assert after.seconds > 0
    assert not last.probability[18:].any()
    assert not last.probability[:, :5].any()


def test_probability_is_fp32_and_without_graph():
    weight = torch.ones((), requires_grad=True)

    @OneStep
    def half(image, prompts):
        assert torch.isnan(prompts.boxes).all()
        return (weight * image[:, :1]).bfloat16()

    image = torch.rand(3, 4, 5)
    probability = predict_probability(half, image[None], (4, 5), [])
    assert torch.equal(probability, image[0].bfloat16().float().sigmoid())
    assert probability.dtype == torch.float32
    assert not probability.requires_grad


def test_logits_of_another_size_are_refused():
    model = OneStep(lambda image, _: image[:, :1, ::2])
    with pytest.raises(ValueError, match=r"expected logits of shape \(1, 1, 4, 6\)"):
        predict_probability(model, torch.rand(1, 3, 4, 6), (4, 6), [])


def test_pictures_keep_some_predictions_in_crop_pixels():
    thing = sample()
    protocol = replace(GABBUR, max_clicks=7)
    record = run_object(paints_disks(4), thing, protocol, keep_picture=True)
    x0, y0, x1, y1 = draw_view(thing, protocol).crop
    picture = record.picture
    assert [frame.k for frame in picture.frames] == [0, 1, 3, 5, 7]
    assert np.array_equal(picture.image, thing.image[y0:y1, x0:x1])
    assert [frame.iou for frame in picture.frames] == [record.steps[k].iou for k in (0, 1, 3, 5, 7)]
    for frame in picture.frames:
        assert iou(frame.prediction, picture.mask) == frame.iou
    for click, entry in zip(picture.clicks, record.steps[1:], strict=True):
        assert (click.x + x0, click.y + y0, click.positive) == (entry.x, entry.y, entry.positive)
    assert run_object(paints_disks(4), thing, protocol).picture is None


def test_images_that_are_views_can_be_read():
    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    assert torch.equal(image_tensor(image[..., ::-1]), image_tensor(image).flip(0))
    assert image_tensor(image)[2, 1, 0] == image[1, 0, 2] / np.float32(255)
