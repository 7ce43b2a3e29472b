"""Writing into what was handed out changes no later answer."""

import numpy as np
import pytest

from probseg.annotate.tools.prompted import PromptedModel
from probseg.data import ImageMaskFolder
from probseg.interact import InteractionLoop, Session, begin, image_tensor
from probseg.interact.predictor import Mask, Predictor
from probseg.types import Click, Stroke
from support.fakes import draw_scene, micro_model, write_folder

IMAGE = draw_scene(48, 64)[0]
CLICKS = [(20, 30), (3, 4, False), (40, 20)]


def spoil(value):
    """Write into an array, and into the arrays and lists of a container, as far as they let us."""
    if isinstance(value, np.ndarray):
        try:
            value[...] = value == 0
        except ValueError:  # read-only
            assert not value.flags.writeable
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            spoil(part)
        if isinstance(value, dict | list):
            value.clear()


def untouched(value):
    pass


@pytest.fixture(scope="module")
def model():
    """A network whose answers depend on the answers before."""
    return micro_model("micro_previous").eval()


def asked_predictor(model, touch):
    image = IMAGE.copy()
    predictor = Predictor(model)
    predictor.set_image(image)
    touch(image)
    answers = []

    def keep(mask):
        answers.append(mask.probability.copy())
        touch([mask.probability, mask.binary, mask.uncertainty, mask.rle, mask.polygons()])

    for click in CLICKS:
        keep(predictor.predict([click]))
    keep(predictor.undo())
    keep(predictor.predict())
    keep(predictor.predict(box=(10, 10, 50, 40)))
    drawn = np.zeros(IMAGE.shape[:2], np.float32)
    drawn[10:30, 10:30] = 1
    keep(predictor.predict(mask=drawn))
    touch(drawn)
    keep(predictor.predict([CLICKS[0]]))
    keep(predictor.undo())
    return answers


def asked_session(model, touch):
    """As the annotation page asks, with a stroke and a mask to go on from."""
    loop, image = InteractionLoop(model, previous_mask=True), begin(image_tensor(IMAGE))
    answers = []
    steps = [Click(20, 30), Stroke(((5, 5), (30, 9)), 3), Click(40, 3, positive=False)]
    for count in (1, 0):
        mask = np.zeros(IMAGE.shape[:2], bool)
        mask[5:20, 5:20] = True
        session = Session(loop, image, steps[:count], masks={count: mask})
        touch([mask, session.answer.state.probability])
        for step in steps:
            answer = session.add(step)
            answers.append(answer.state.probability.copy())
            touch([answer.state.probability, answer.mask.binary, answer.mask.uncertainty])
    return answers


def asked_integrations(model, touch):
    """As CVAT, Label Studio and napari ask."""
    image = IMAGE.copy()
    prompted = PromptedModel("any")
    encoded = prompted.encode(image)
    touch([image, encoded.probability])
    answers = []
    for point in ((20, 30), (40, 20)):
        mask = prompted.answer(encoded, [point], [(3, 4)])
        answers.append(mask.probability.copy())
        touch([mask.probability, prompted.answer(encoded, []).probability])
    return answers


def asked_widget(model, touch):
    """As a cell of a notebook reads what was clicked."""
    clicker = pytest.importorskip("probseg.annotate.widget").Clicker
    image = IMAGE.copy()
    widget = clicker(image, Predictor(model))
    touch(image)
    answers = [np.frombuffer(widget._answer({"type": "image"}, 0), np.uint8)]
    for x, y in ((20.5, 30.5), (40.5, 20.5)):
        widget._answer({"type": "click", "x": x, "y": y, "positive": True}, 0)
        touch([widget.mask.probability, widget.mask.binary])
        answers.append(widget.mask.probability.copy())
        widget._answer({"type": "finish"}, 0)
        touch(widget.masks)
        answers += [mask.copy() for mask in widget.masks]
    return answers


@pytest.mark.parametrize("ask", [asked_predictor, asked_session, asked_integrations, asked_widget])
def test_later_answers_are_the_same(ask, model, monkeypatch):
    monkeypatch.setattr(
        "probseg.annotate.tools.prompted.create_interactive", lambda name, pretrained: model
    )
    for expected, spoilt in zip(ask(model, untouched), ask(model, spoil), strict=True):
        np.testing.assert_array_equal(spoilt, expected)


def test_a_mask_says_that_it_cannot_be_written_to():
    given = np.full((3, 4), 0.7, np.float32)
    mask = Mask(given)
    with pytest.raises(ValueError, match="read-only"):
        mask.probability[0, 0] = 0
    given[0, 0] = 0  # what the caller made stays the caller's


def test_areas_of_a_data_set_stay(tmp_path):
    data = ImageMaskFolder(write_folder(tmp_path, images=2))
    before = data.areas.copy()
    spoil(data.areas)
    np.testing.assert_array_equal(data.areas, before)
