"""The second look around a click: its window, how it is put back, and the loop with it."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.evaluation import PROTOCOLS
from probseg.geometry import View, box_size, look_size, look_window, to_samples
from probseg.interact import (
    RECOMMENDED_ZOOM,
    ZOOMS,
    InteractionLoop,
    OneStep,
    Session,
    Zoom,
    begin,
    image_tensor,
)
from probseg.interact.mask import ProbabilityMap, with_look
from probseg.types import Click
from support.fakes import draw_scene
from support.rows import each
from support.toy_models import Spy, shades

LOOK = Zoom(target=48, min_side=40, look=0.5, look_target=30)


@given(data=st.data())
def test_the_window_of_a_look_has_its_side_and_the_click_not_on_its_rim(data):
    size = height, width = data.draw(st.tuples(st.integers(2, 400), st.integers(2, 400)))
    last = None
    for _ in range(data.draw(st.integers(1, 4))):
        click = Click(data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1)))
        x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
        window = (
            x0,
            y0,
            data.draw(st.integers(x0 + 1, width)),
            data.draw(st.integers(y0 + 1, height)),
        )
        look = look_window(LOOK, window, click, size, last)
        assert 0 <= look[0] <= click.x < look[2] <= width
        assert 0 <= look[1] <= click.y < look[3] <= height
        if look != last:
            side = round(0.5 * max(*box_size(window), 40))
            assert box_size(look) == (min(side, height), min(side, width))
        zero, one = (
            ProbabilityMap.from_array(np.full(size, value, np.float32)) for value in (0, 1)
        )
        seen = ProbabilityMap(one.part(View(look, box_size(look)))[0], look, size)
        assert with_look(zero, seen).full()[click.y, click.x] == 1
        last = look


def test_a_look_stays_while_the_click_is_near_its_middle():
    first = look_window(LOOK, (0, 0, 200, 200), Click(150, 150), (300, 300), None)
    assert first == (100, 100, 200, 200)
    for x, y, stays in ((150, 150, True), (160, 155, True), (150, 190, False), (90, 150, False)):
        look = look_window(LOOK, (0, 0, 200, 200), Click(x, y), (300, 300), first)
        assert (look == first) == stays


@given(seed=st.integers(0, 99), data=st.data())
def test_outside_of_a_look_nothing_changes_and_within_its_rim_it_holds(seed, data):
    generator, size = torch.Generator().manual_seed(seed), (90, 110)
    boxes = []
    for _ in range(2):
        x0, y0 = data.draw(st.integers(0, 60)), data.draw(st.integers(0, 50))
        boxes.append(
            (x0, y0, x0 + data.draw(st.integers(1, 50)), y0 + data.draw(st.integers(1, 40)))
        )
    answer, look = (
        ProbabilityMap(torch.rand(*box_size(box), generator=generator), box, size) for box in boxes
    )
    both = with_look(answer, look).full()
    x0, y0, x1, y1 = boxes[1]
    outside = np.ones(size, bool)
    outside[y0:y1, x0:x1] = False
    np.testing.assert_array_equal(both[outside], answer.full()[outside])
    rim = max(x1 - x0, y1 - y0) // 8
    inner = (
        slice(y0 + rim * (y0 > 0), y1 - rim * (y1 < size[0])),
        slice(x0 + rim * (x0 > 0), x1 - rim * (x1 < size[1])),
    )
    np.testing.assert_array_equal(both[inner], look.full()[inner])
    lower, upper = np.sort([answer.full(), look.full()], axis=0)
    assert ((both >= lower - 1e-6) & (both <= upper + 1e-6)).all()


def test_maps_with_fewer_values_than_pixels_become_as_dense_as_the_denser():
    size = (4000, 6000)
    coarse = ProbabilityMap(torch.full((100, 200), 0.25), (1000, 500, 5000, 2500), size)
    fine = ProbabilityMap(torch.full((400, 400), 0.75), (500, 1000, 1500, 2000), size)
    both = with_look(coarse, fine)
    assert both.box == (500, 500, 5000, 2500)
    assert tuple(both.values.shape) == (800, 1800)
    x, y = (
        to_samples(np.array([[1000.0, 1500], [4000, 700]]), View(both.box, (800, 1800)))
        .astype(int)
        .T
    )
    np.testing.assert_allclose(both.values[y, x], [0.75, 0.25])


@OneStep
def remembers(image, prompts):
    """Logits that also hang on the answer before."""
    return shades.predict(image, prompts) + 3 * prompts.previous - 1.5


def test_a_look_that_stays_is_not_encoded_again():
    model = Spy(remembers)
    loop = InteractionLoop(model, zoom=LOOK, previous_mask=True)
    state = begin(image_tensor(draw_scene(130, 170)[0]))
    for click in (Click(80, 60), Click(100, 66), Click(101, 67)):
        (state,) = loop.step([state], [click])
    assert model.encoded == [[(130, 170)], [(48, 48)], [(30, 30)]]
    assert len(model.decoded) == 3 * 2, "each answer and the one closer"


def test_encodings_that_answers_share_count_once_in_memory():
    session = Session(
        InteractionLoop(remembers, zoom=LOOK, previous_mask=True),
        begin(image_tensor(draw_scene(130, 170)[0])),
    )
    for click in (Click(80, 60), Click(100, 66)):
        session.add(click)
    before, states = session.nbytes, [session.answer.state, session.add(Click(101, 67)).state]
    assert states[0].encoded is states[1].encoded
    assert states[0].look[1] is states[1].look[1]
    assert session.nbytes - before == states[1].answer.nbytes


def test_a_preview_is_one_answer():
    model = Spy(remembers)
    zoom = replace(LOOK, first=(1.0, 0.5))
    image = begin(image_tensor(draw_scene(130, 170)[0]))
    session = Session(InteractionLoop(model, zoom=zoom, previous_mask=True), image)
    for count in range(3):
        asked = len(model.decoded)
        session.preview(Click(80 + 9 * count, 60))
        assert [len(images) for images in model.decoded[asked:]] == [1]
        session.add(Click(80 + 9 * count, 60))


def test_many_objects_are_answered_as_each_alone():
    loop = InteractionLoop(remembers, batch_size=3, zoom=LOOK, previous_mask=True, keep_clicks=True)
    images = [image_tensor(draw_scene(130, 170, seed=seed)[0]) for seed in range(3)]
    states = [begin(image) for image in images]
    alone = [begin(image) for image in images]
    for n in range(3):
        clicks = [Click(60 + 20 * n, 50 + seed, n < 2) for seed in range(3)]
        states = loop.step(states[: 3 - n], clicks[: 3 - n])
        alone = [loop.step([one], [click])[0] for one, click in zip(alone, clicks, strict=True)]
        for one, other in zip(states, alone[: 3 - n], strict=True):
            np.testing.assert_allclose(one.probability, other.probability, atol=1e-6)
            click = one.clicks[-1]
            assert (one.probability[click.y, click.x] > 0.5) == click.positive


@each(("side", "seen"), [(20, 256), (300, 300), (900, 400)])
def test_looks_are_shown_at_their_own_size_where_that_is_enough(side, seen):
    assert look_size(ZOOMS[RECOMMENDED_ZOOM], (5, 5, 5 + side, 5 + side)) == (seen, seen)


@each("previous_mask", [False, True])
def test_only_networks_that_take_their_last_answer_look(previous_mask):
    model = Spy(shades)
    loop = InteractionLoop(model, zoom=LOOK, previous_mask=previous_mask)
    states = loop.step([begin(image_tensor(draw_scene(130, 170)[0]))], [Click(80, 60)])
    loop.step(states, [Click(100, 66)])
    assert len(model.decoded) == 2 * (1 + previous_mask)


def test_the_protocol_of_the_predictor_looks_and_published_zooms_do_not():
    protocol, zoom = PROTOCOLS["probseg"], ZOOMS[RECOMMENDED_ZOOM]
    assert (protocol.version, protocol.zoom) == (4, RECOMMENDED_ZOOM)
    assert zoom.look is not None
    for name in ZOOMS.keys() - {RECOMMENDED_ZOOM}:
        assert ZOOMS[name].look is None
