from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch

from probseg.evaluation import PROTOCOLS, run_object
from probseg.interact import InteractionLoop, OneStep, begin, image_tensor
from probseg.types import Click, Prompts
from support.fakes import micro_model
from support.refusals import refused
from support.rows import each
from support.toy_models import Spy, paints_disks, sees_nothing, shades, toy_sample

RITM = replace(PROTOCOLS["ritm"], max_clicks=6)
GABBUR = replace(PROTOCOLS["gabbur2021"], max_clicks=5)


def noise(height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=generator)


def test_the_threshold_is_exclusive_and_the_protocols():
    @OneStep
    def unsure(image, prompts):
        return torch.zeros(1, 1, *image.shape[2:])  # probability 0.5

    assert run_object(unsure, toy_sample(), GABBUR).steps[0].iou == 0
    assert run_object(unsure, toy_sample(), RITM).steps[1].iou > 0


def test_states_are_not_changed():
    loop = InteractionLoop(paints_disks(3))
    before = begin(noise(20, 30), crop=(5, 0, 30, 18))
    (after,) = loop.step([before], [Click(10, 8)])
    (last,) = loop.step([after], [Click(5, 17, positive=False)])
    assert before.clicks == ()
    assert before.seconds is before.view is before.encoded is None
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
        answer = (weight * image[:, :1]).bfloat16()
        assert not answer.requires_grad
        return answer

    image = noise(4, 5)
    (state,) = InteractionLoop(half).answer([begin(image)])
    expected = (image[0] / 255).bfloat16().float().sigmoid()
    np.testing.assert_array_equal(state.probability, expected.numpy())
    assert state.probability.dtype == np.float32


def test_images_that_are_views_can_be_read():
    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    assert torch.equal(image_tensor(image[..., ::-1]), image_tensor(image).flip(0))
    for one in (image, image[:1], image[:, :1], image[:1, :1]):  # one row or column, too
        assert torch.equal(image_tensor(one[:, ::-1]), image_tensor(one).flip(2))
        assert torch.equal(image_tensor(one[::-1]), image_tensor(one).flip(1))
    assert image_tensor(image)[2, 1, 0] == image[1, 0, 2]
    assert image_tensor(image).dtype == torch.uint8
    before = image_tensor(image)
    image[:] = 0
    assert before.any(), "the array is copied"


def test_a_state_begins_with_what_the_annotator_brings():
    initial = np.zeros((6, 7), dtype=bool)
    initial[2:4, 3] = True
    state = begin(noise(6, 7), box=(1, 2, 3, 4), clicks=[Click(1, 1)], initial=initial)
    assert (state.crop, state.box, state.clicks) == ((0, 0, 7, 6), (1, 2, 3, 4), (Click(1, 1),))
    np.testing.assert_array_equal(state.probability, initial)
    assert state.probability.dtype == np.float32


# --- many at once -------------------------------------------------------------------------------


def test_states_of_different_sizes_and_numbers_of_clicks_are_answered_in_their_order():
    sizes = [(12, 20), (20, 12), (12, 20), (7, 9), (12, 20)]
    states = [
        begin(noise(*size, seed), crop=(1, 0, *size[::-1])) for seed, size in enumerate(sizes)
    ]
    clicks = [Click(n + 2, n, positive=n % 2 == 0) for n in range(5)]
    states = [
        state._replace(clicks=tuple(clicks[: n % 3]), box=(2, 1, 5, 6) if n % 2 else None)
        for n, state in enumerate(states)
    ]
    alone = InteractionLoop(shades, batch_size=1)
    for size in (1, 2, 8):
        loop = InteractionLoop(shades, batch_size=size)
        together = loop.step(states, clicks)
        for one, state, click in zip(together, states, clicks, strict=True):
            (expected,) = alone.step([state], [click])
            np.testing.assert_array_equal(one.probability, expected.probability)
            assert one.clicks == (*state.clicks, click)
            assert one.probability[:, 0].max() == 0  # outside its view
            assert one.image is state.image


def test_images_of_one_call_are_of_one_grid():
    model = Spy(micro_model("micro_csa"))
    sizes = [(12, 20), (33, 20), (11, 17), (12, 20)]
    loop = InteractionLoop(model, batch_size=3)
    loop.answer([begin(noise(*size), clicks=[Click(1, 2)]) for size in sizes])
    assert model.encoded == [[(12, 20), (11, 17), (12, 20)], [(33, 20)]]
    assert len({model.batch_key(size) for size in model.encoded[0]}) == 1


def test_an_image_is_taken_in_once():
    model = Spy(paints_disks(2))
    loop = InteractionLoop(model, batch_size=2)
    states = [begin(noise(9, 9, seed)) for seed in range(3)]
    states[0] = loop.encode(states[0])
    assert model.encoded == [[(9, 9)]]
    for n in range(3):
        states = loop.step(states, [Click(n, 1)] * 3)
    assert model.encoded == [[(9, 9)]] * 1 + [[(9, 9)] * 2]
    assert [len(prompts) for prompts in model.decoded] == [2, 1] * 3
    states = loop.answer([states[0]._replace(crop=(0, 0, 5, 9)), states[1]])
    assert model.encoded[2:] == [[(9, 5)]]
    encoded = loop.encode(begin(noise(9, 9), clicks=[Click(3, 3)]))
    assert not encoded.probability.any(), "encoding is no answer"


def test_seconds_are_the_share_of_each_in_its_last_answer(monkeypatch):
    ticks = count()
    monkeypatch.setattr("probseg.interact.loop._Stopwatch._now", lambda watch: float(next(ticks)))
    loop = InteractionLoop(paints_disks(2))
    states = loop.step([begin(noise(9, 9, seed)) for seed in range(4)], [Click(1, 1)] * 4)
    assert [state.seconds for state in states] == [0.5] * 4, "encoding and answer, 1 second each"
    states = loop.step(states, [Click(2, 3)] * 4)
    assert [state.seconds for state in states] == [0.25] * 4, "nothing is encoded"


# --- the mirrored image -------------------------------------------------------------------------


def mirrored(prompts, width):
    """The same prompts on the mirrored image."""
    points, boxes = prompts.points.clone(), prompts.boxes.clone()
    points[..., 0] = width - 1 - points[..., 0]
    x0, y0, x1, y1 = boxes[0].tolist()
    return Prompts(points, prompts.labels, torch.tensor([[width - x1, y0, width - x0, y1]]))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_flip_averages_the_logits_of_image_and_mirror_image(batch_size):
    images = [noise(12, 21, seed) for seed in range(3)]
    clicks = (Click(4, 5), Click(17, 2, positive=False))
    box = (3, 2, 20, 11)
    loop = InteractionLoop(shades, batch_size=batch_size, flip=True)
    states = loop.answer([begin(image, clicks=clicks, box=box) for image in images])
    given = Prompts(
        torch.tensor([[[4.0, 5.0], [17.0, 2.0]]]),
        torch.tensor([[1, 0]]),
        torch.tensor([box]).float(),
    )
    for image, state in zip(images, states, strict=True):
        pixels = image[None] / 255
        one = shades.predict(pixels, given)
        other = shades.predict(pixels.flip(-1), mirrored(given, 21)).flip(-1)
        assert (one - other).abs().max() > 0.1
        expected = ((one + other) / 2).sigmoid()[0, 0]
        np.testing.assert_allclose(state.probability, expected, rtol=1e-6)


@each(("batch_size", "largest"), [(8, 8), (5, 4), (1, 2)])
def test_image_and_mirror_image_share_a_call(batch_size, largest):
    model = Spy(shades)
    loop = InteractionLoop(model, batch_size=batch_size, flip=True)
    loop.answer([begin(noise(5, 6, seed)) for seed in range(6)])
    for calls in (model.encoded, model.decoded):
        sizes = [len(call) for call in calls]
        assert sum(sizes) == 12
        assert max(sizes) == largest


# --- the previous mask --------------------------------------------------------------------------


@pytest.mark.parametrize(("flip", "crop"), [(False, None), (True, (3, 2, 17, 9))])
def test_the_previous_mask_is_exactly_the_last_probability(crop, flip):
    model = Spy(shades)
    loop = InteractionLoop(model, flip=flip, previous_mask=True)
    states = [begin(noise(10, 20, seed), crop=crop) for seed in range(2)]
    x0, y0, x1, y1 = crop or (0, 0, 20, 10)
    before = []
    for n in range(3):
        before.append([state.probability[y0:y1, x0:x1] for state in states])
        states = loop.step(states, [Click(4 + n, 5), Click(9, 3 + n, positive=False)])
    assert not before[0][0].any()
    assert before[1][0].std() > 0
    for given, last in zip(model.decoded, before, strict=True):
        expected = [*last, *(mask[:, ::-1] for mask in last)] if flip else last
        for prompts, mask in zip(given, expected, strict=True):
            assert prompts.previous.shape == (1, 1, y1 - y0, x1 - x0)
            assert prompts.previous.dtype == torch.float32
            np.testing.assert_array_equal(prompts.previous[0, 0], mask)
    thing = toy_sample()
    run_object(model, thing, replace(PROTOCOLS["correction"], max_clicks=1))
    np.testing.assert_array_equal(model.decoded[3][0].previous[0, 0], thing.initial)


def test_wrong_input_is_refused():
    loop = InteractionLoop(sees_nothing)
    state = begin(noise(20, 30))
    halved = InteractionLoop(OneStep(lambda image, _: image[:, :1, ::2]))
    without = replace(RITM, previous_mask=True)
    refused(ValueError, lambda: InteractionLoop(sees_nothing, batch_size=0), "batch_size", "got 0")
    refused(ValueError, lambda: InteractionLoop(micro_model().train()), "model.eval()")
    refused(ValueError, lambda: InteractionLoop(torch.nn.Identity()), "`decode_each`", "OneStep")
    refused(ValueError, lambda: halved.answer([state]), "(20, 30)", "(10, 30)")
    refused(
        ValueError, lambda: run_object(micro_model(), toy_sample((20, 20)), without), "previous"
    )
    refused(ValueError, lambda: loop.step([state], []), "zip")
    for click in (Click(-1, 2), Click(30, 2), Click(3, 20)):
        refused(ValueError, lambda click=click: loop.step([state], [click]), "click", "x < 30")
        refused(
            ValueError, lambda click=click: begin(state.image, clicks=[click]), "click", "x < 30"
        )
    for box in ((-1, 0, 5, 5), (0, 0, 31, 5), (5, 5, 5, 9)):
        refused(ValueError, lambda box=box: begin(state.image, box=box), "box", "x1 <= 30")
