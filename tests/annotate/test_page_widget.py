"""The notebook clicker: its messages, and its front end in a browser."""

import numpy as np
import pytest
from fakes import draw_scene, micro_model

from probseg.annotate.frames import unpack
from probseg.interact.predictor import Predictor
from probseg.types import Click

pytest.importorskip("anywidget", reason="the notebook clicker needs anywidget")

from probseg.annotate.widget import Clicker

PHOTO = draw_scene(60, 80)[0]
FIRST = {"type": "click", "x": 40.5, "y": 30.9, "positive": True}
SECOND = {"type": "click", "x": 2.0, "y": 3.5, "positive": False}


@pytest.fixture(scope="module")
def model():
    return micro_model("micro_previous")  # what a click gives depends on the answers before it


class Frontend:
    """What a notebook does: sends numbered questions and reads the answers."""

    def __init__(self, widget):
        self.widget, self.sent = widget, []
        widget.send = lambda content, buffers=None: self.sent.append((content, buffers or []))

    def ask(self, action):
        content = {"number": len(self.sent), "sequence": 7, "action": action}
        self.widget._handle_custom_msg(content, [])
        answer, buffers = self.sent[-1]
        assert answer["number"] == content["number"]
        return answer, buffers

    def masked(self, action):
        _, (frame,) = self.ask(action)
        header, mask = unpack(frame, PHOTO.shape[:2])
        assert header["sequence"] == 7
        return header, mask


@pytest.fixture
def frontend(model):
    return Frontend(Clicker(PHOTO, Predictor(model)))


def expected(model, clicks=(), box=None):
    predictor = Predictor(model)
    predictor.set_image(PHOTO)
    if box is not None:
        predictor.predict(box=box)
    for click in clicks:
        mask = predictor.predict([click])
    return mask.binary


def test_clicks_answer_as_the_predictor_does(frontend, model):
    given = [Click(40, 30), Click(2, 3, positive=False)]  # the pixels that the places lie in
    for number, action in enumerate([FIRST, SECOND], 1):
        header, mask = frontend.masked(action)
        np.testing.assert_array_equal(mask, expected(model, given[:number]))
        assert [tuple(click.values()) for click in header["current"]["clicks"]] == [
            (x + 0.5, y + 0.5, positive) for x, y, positive in given[:number]
        ]
    assert frontend.widget.clicks == tuple(given)
    np.testing.assert_array_equal(frontend.widget.mask.binary, mask)


def test_undo_and_redo_chains(frontend, model):
    masks = [frontend.masked({"type": "box", "box": [20, 10, 60, 50]})[1]]
    masks += [frontend.masked(action)[1] for action in (FIRST, SECOND)]
    for place in (1, 0):
        np.testing.assert_array_equal(frontend.masked({"type": "undo"})[1], masks[place])
    header, mask = frontend.masked({"type": "undo"})
    assert mask is None
    assert (header["undo"], header["redo"]) == (False, True)
    for wanted in masks:
        np.testing.assert_array_equal(frontend.masked({"type": "redo"})[1], wanted)
    frontend.masked({"type": "undo"})
    assert not frontend.masked(SECOND)[0]["redo"]  # a new click forgets what was undone


def test_a_preview_changes_nothing(frontend, model):
    _, before = frontend.masked(FIRST)
    preview = frontend.masked({**SECOND, "type": "preview"})[1]
    np.testing.assert_array_equal(
        preview, expected(model, [Click(40, 30), Click(2, 3, positive=False)])
    )
    assert frontend.widget.clicks == (Click(40, 30),)
    np.testing.assert_array_equal(frontend.masked({"type": "mask"})[1], before)


def test_finished_objects_are_kept_and_the_next_begins_empty(frontend):
    _, mask = frontend.masked(FIRST)
    header, nothing = frontend.masked({"type": "finish", "label": None})
    assert (nothing, header["current"]) == (None, None)
    assert [(row["id"], row["area"]) for row in header["objects"]] == [(0, mask.sum())]
    np.testing.assert_array_equal(frontend.widget.masks[0], mask)
    np.testing.assert_array_equal(frontend.masked({"type": "mask", "object": 0})[1], mask)
    assert len(frontend.masked({"type": "finish"})[0]["objects"]) == 1  # there was nothing to finish


def test_uncertainty_is_entropy_in_bytes(frontend):
    frontend.masked(FIRST)
    _, doubt = frontend.masked({"type": "uncertainty"})
    assert doubt.dtype == np.uint8
    np.testing.assert_allclose(doubt / 255, frontend.widget.mask.uncertainty, atol=0.5 / 255)


def test_what_cannot_be_done_is_answered_with_the_reason(frontend):
    for action in ({**FIRST, "x": 80.0}, {"type": "brush"}, {"type": "box", "box": [9, 9, 3, 3]}):
        answer, buffers = frontend.ask(action)
        assert answer["error"]
        assert not buffers
    assert frontend.widget.clicks == ()
