"""The answer of a session depends on the steps that count alone, whatever came between."""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probseg.interact import InteractionLoop, OneStep, Session, Zoom, begin, image_tensor
from probseg.interact.steps import fill_holes, remove_islands
from probseg.types import BoxStep, Click, MaskStep, Patch, Stroke
from support.fakes import draw_scene
from support.rows import each
from support.toy_models import shades

SIZE = HEIGHT, WIDTH = 40, 56
IMAGE = begin(image_tensor(draw_scene(*SIZE)[0]))


@OneStep
def remembers(image, prompts):
    """Logits that also hang on the answer before."""
    return shades.predict(image, prompts) + prompts.previous - 0.4


LOOP = InteractionLoop(
    remembers,
    zoom=Zoom(target=24, min_side=8, first=(1.0, 0.5), look=0.5, look_target=16),
    previous_mask=True,
)

COLUMNS, ROWS = st.integers(0, WIDTH - 1), st.integers(0, HEIGHT - 1)
CLICKS = st.builds(Click, COLUMNS, ROWS, st.booleans())
BOXES = st.builds(lambda x, y: BoxStep((x, y, x + 1 + x % 9, y + 1 + y % 7)), COLUMNS, ROWS).filter(
    lambda step: step.box[2] <= WIDTH and step.box[3] <= HEIGHT
)
MASKS = st.builds(
    lambda x, y: MaskStep(
        np.pad(np.ones((1, 1), np.float32), ((y, HEIGHT - 1 - y), (x, WIDTH - 1 - x)))
    ),
    COLUMNS,
    ROWS,
)
STROKES = st.builds(
    lambda x, y, radius, sign: Stroke(((x, y), (y, x)), radius, sign),
    COLUMNS,
    ROWS,
    st.floats(0.5, 9),
    st.booleans(),
)
PATCHES = st.builds(lambda mask, sign: Patch(mask.probability > 0, sign), MASKS, st.booleans())
TOGETHER = st.lists(CLICKS | BOXES | MASKS | STROKES | PATCHES, min_size=1, max_size=3)
MOVES = TOGETHER | st.sampled_from(["undo", "redo"])


def of_new_session(rows):
    """The session with these steps alone; those with one number were added together."""
    session = Session(LOOP, IMAGE)
    for _, together in groupby(rows, key=lambda row: row[0]):
        session.add(*(step for _, step in together))
    return session


def assert_same(session, other):
    assert session.steps == other.steps
    assert (session.clicks, session.box) == (other.clicks, other.box)
    one, two = session.answer, other.answer
    np.testing.assert_array_equal(one.state.probability, two.state.probability)
    assert (one.mask is None) == (two.mask is None)


@settings(max_examples=4 * settings().max_examples)
@given(moves=st.lists(MOVES, max_size=10), memory=st.sampled_from([None, 0]))
def test_it_is_a_new_session_with_the_steps_that_are_left(moves, memory):
    """Steps, undo and redo in any order, with all answers in memory and with the last one alone."""
    session = Session(LOOP, IMAGE, memory=memory)
    rows, cursor = [], 0  # numbers of calls of `add`, and steps
    for number, move in enumerate(moves):
        if move == "undo":
            cursor = max(cursor - 1, 0)
            session.move_to(cursor)
        elif move == "redo":
            cursor = min(cursor + 1, len(rows))
            session.move_to(cursor)
        else:
            rows = [*rows[:cursor], *((number, step) for step in move)]
            cursor = len(rows)
            session.add(*move)
        assert session.undone == tuple(step for _, step in rows[cursor:])
    assert_same(session, of_new_session(rows[:cursor]))


@settings(max_examples=2 * settings().max_examples)
@given(steps=st.lists(CLICKS | BOXES | STROKES | PATCHES, min_size=1, max_size=5), more=TOGETHER)
def test_a_mask_takes_the_place_of_the_answers_to_the_first_steps(steps, more):
    mask = np.zeros(SIZE, bool)
    mask[5:20, 7:30] = True
    session = Session(LOOP, IMAGE, steps, masks={0: ~mask, len(steps): mask})
    np.testing.assert_array_equal(session.answer.mask.binary, mask)
    after = session.add(*more).state.probability
    session.move_to(len(steps))
    np.testing.assert_array_equal(session.answer.mask.binary, mask)
    np.testing.assert_array_equal(session.add(*more).state.probability, after)
    session.move_to(0)
    np.testing.assert_array_equal(session.answer.mask.binary, ~mask)


def test_strokes_hold_over_later_answers_and_a_mask_clears_them():
    session = Session(LOOP, IMAGE)
    session.add(Stroke(((3, 20), (50, 20)), 2))
    assert session.answer.mask.binary[20, 3:50].all()
    session.add(Click(28, 20, positive=False))
    assert session.answer.mask.binary[20, 3:50].all()
    session.add(MaskStep(np.zeros(SIZE, np.float32)))
    assert session.answer.mask is None
    assert (session.clicks, session.box) == ((), None)


def test_patches_fill_holes_and_remove_parts_that_nobody_clicked_on():
    mask = np.zeros(SIZE, bool)
    mask[5:20, 5:25], mask[8:12, 8:12], mask[13:16, 13:16], mask[14, 14] = True, False, False, True
    mask[30:35, 30:34] = True  # another part, with a bay that is open to the edge
    mask[39, 2:5], mask[39, 3] = True, False
    holes = np.zeros(SIZE, bool)
    holes[8:12, 8:12] = holes[13:16, 13:16] = True
    holes[14, 14] = False
    session = Session(LOOP, IMAGE, masks={0: mask})
    patch = fill_holes(mask)
    np.testing.assert_array_equal(patch.pixels, holes)
    np.testing.assert_array_equal(session.add(patch).mask.binary, mask | holes)
    largest = mask.copy()
    largest[28:] = largest[14, 14] = False
    np.testing.assert_array_equal(mask & ~remove_islands(mask, []).pixels, largest)
    clicks = [Click(31, 31), Click(3, 39), Click(6, 6, positive=False)]
    np.testing.assert_array_equal(
        session.add(remove_islands(mask | holes, clicks)).mask.binary[:28], False
    )
    assert session.answer.mask.binary[30:35, 30:34].all()
    with pytest.raises(ValueError, match="`pixels`"):
        session.add(Patch(mask[:-1]))


def test_a_preview_and_a_failure_change_nothing():
    zoom = replace(LOOP.zoom, look=None)  # else a preview is less than an answer
    session = Session(replace(LOOP, zoom=zoom), IMAGE)
    session.add(Click(28, 20))
    before = session.answer
    previewed = session.preview(Click(5, 5, positive=False)).state.probability
    assert session.answer is before

    def fails(image, prompts):
        raise MemoryError

    with pytest.raises(MemoryError):
        Session(InteractionLoop(OneStep(fails)), IMAGE, [Stroke(((1, 1),), 2)]).add(Click(1, 1))
    added = session.add(Click(5, 5, positive=False)).state.probability
    np.testing.assert_array_equal(added, previewed)
    with pytest.raises(ValueError, match="`cursor`"):
        session.move_to(3)


@each(
    ("step", "name", "takes_masks"),
    [
        (Click(WIDTH, 3), "click", True),
        (BoxStep((5, 5, 5, 9)), "box", True),
        (MaskStep(np.zeros((3, 3), np.float32)), "probability", True),
        (MaskStep(np.zeros(SIZE, np.float32)), "mask", False),
    ],
)
def test_steps_that_cannot_be_answered_are_refused_and_change_nothing(step, name, takes_masks):
    session = Session(LOOP if takes_masks else InteractionLoop(shades), IMAGE)
    session.add(Click(3, 4))
    for ask in (session.add, session.preview):
        with pytest.raises(ValueError, match=f"`{name}`"):
            ask(step)
    assert session.steps == (Click(3, 4),)


def test_memory_bounds_the_answers_that_can_be_computed_again():
    answer = Session(LOOP, IMAGE).add(Click(3, 4))
    session = Session(LOOP, IMAGE, memory=6 * answer.nbytes)
    for column in range(20):
        session.add(Click(column, 9))
        assert session.nbytes <= 6 * answer.nbytes
    assert session.photograph is IMAGE.photograph
