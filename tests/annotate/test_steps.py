"""Steps through the server, its database and new starts: the mask is that of a new session."""

from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probseg.annotate.answers import ModelHost
from probseg.annotate.steps import as_step, stored_step
from probseg.images import read_image
from probseg.interact import Session
from probseg.zoo import store
from support.annotate_client import again, begin, draw_photographs
from support.fakes import micro_model
from support.micro import described

HEIGHT, WIDTH = 40, 56
X, Y = st.floats(0, WIDTH - 0.1), st.floats(0, HEIGHT - 0.1)
CLICKS = st.builds(
    lambda x, y, positive: {"type": "click", "x": x, "y": y, "positive": positive},
    X,
    Y,
    st.booleans(),
)
BOXES = st.builds(lambda x, y: {"type": "box", "box": [x / 2, y / 2, WIDTH - x / 4, HEIGHT]}, X, Y)
STROKES = st.builds(
    lambda x, y, positive: {
        "type": "brush",
        "radius": 3.0,
        "points": [[x, y], [y, x]],
        "positive": positive,
    },
    X,
    Y,
    st.booleans(),
)
MOVES = st.lists(
    CLICKS | BOXES | STROKES | st.sampled_from(["undo", "redo", "clear", "cancel", "restart"]),
    max_size=8,
)


@pytest.fixture(scope="module")
def model_host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    store.save(micro_model("micro_previous"), described("micro_previous"), folder / "model")
    model_host = ModelHost(str(folder / "model"))
    model_host.change({"zoom": None})
    return model_host


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return (tmp_path_factory.mktemp("photos") for _ in count())


@given(moves=MOVES)
def test_the_mask_is_that_of_a_new_session_with_the_steps_that_are_left(moves, model_host, folders):
    client = begin(draw_photographs(next(folders), 1, (HEIGHT, WIDTH)), model_host)
    client.http.post("/api/settings", json={"tidy": False})  # a rule of the page alone
    history, place = [()], 0  # the steps after each change
    for move in moves:
        rows = history[place]
        if move == "restart":
            client = again(client)
        elif move == "undo" or move == "redo":
            there = place + (1 if move == "redo" else -1)
            if 0 <= there < len(history):
                place = there
                client.act({"type": move})
        elif isinstance(move, dict) or rows:
            after = (*rows, move) if isinstance(move, dict) else ()
            history, place = [*history[: place + 1], after], place + 1
            client.act(move if isinstance(move, dict) else {"type": move})
    fresh = Session(
        model_host.loop, model_host.begin(read_image(client.sessions.photographs[0].path))
    )
    for row in history[place]:
        fresh.add(as_step(stored_step(row, (HEIGHT, WIDTH))))
    assert_shows(client, history, place, fresh)
    client = again(client)
    assert_shows(client, history, place, fresh)
    client.sessions.close()


def assert_shows(client, history, place, fresh):
    """The page shows the mask of a session, and which moves are possible."""
    page, mask = client.get(client.path()), client.mask()
    assert (page["undo"], page["redo"]) == (place > 0, place < len(history) - 1)
    assert (mask is None) == (not history[place])
    if mask is not None:
        np.testing.assert_array_equal(mask, fresh.answer.mask.binary)
