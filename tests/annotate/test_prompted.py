"""One model for tools that send all prompts at once."""

import numpy as np
import pytest

import probseg
from probseg.annotate.tools.prompted import PromptedModel, confidence, pixel_click
from probseg.interact.predictor import Mask
from probseg.types import Click
from probseg.zoo import store
from support.fakes import draw_scene, micro_model
from support.micro import described
from support.rows import each


@pytest.fixture(scope="module", params=["lite0_unet_prop", "micro_csa"])
def model(request, tmp_path_factory):
    """A model that encodes a photograph once, and one that looks again at each click."""
    if request.param == "lite0_unet_prop":
        return PromptedModel(request.param)
    folder = tmp_path_factory.mktemp("model")
    store.save(micro_model("micro_csa"), described("micro_csa"), folder)
    return PromptedModel(f"{folder}/")


def middle(labels, number):
    """The centre of an object in continuous coordinates."""
    y, x = np.argwhere(labels == number).mean(axis=0) + 0.5
    return x, y


def test_answers_are_those_of_the_predictor(model):
    image, labels = draw_scene(objects=2)
    encoded = model.encode(image)
    predictor = probseg.Predictor.from_pretrained(model.name, zoom=None)
    predictor.set_image(image)
    one, two = middle(labels, 1), middle(labels, 2)
    for box in (None, (2.0, 3.0, 31.0, 44.0)):
        predictor.reset()
        wanted = predictor.predict([Click(int(one[0]), int(one[1])), (*map(int, two), False)], box)
        found = model.answer(encoded, [one], [two], box)
        assert np.array_equal(found.probability, wanted.probability)


def test_an_encoded_image_answers_in_any_order(model):
    image, labels = draw_scene(objects=2)
    encoded = model.encode(image)
    one, two = middle(labels, 1), middle(labels, 2)
    first = model.answer(encoded, [one])
    model.answer(encoded, [two], [one], (30, 0, 64, 48))
    assert encoded.clicks == ()
    assert not encoded.probability.any()
    assert np.array_equal(model.answer(encoded, [one]).probability, first.probability)


def test_nothing_is_object_without_a_positive_point_or_a_box(model):
    encoded = model.encode(draw_scene()[0])
    mask = model.answer(encoded, [], [(3, 4)])
    assert mask.binary.shape == (48, 64)
    assert not mask.binary.any()
    assert confidence(mask) == 0


@each(
    ("point", "pixel"),
    [((0, 0), (0, 0)), ((3.9, 4.0), (3, 4)), ((20, 10), (19, 9)), ((-2, 12), (0, 9))],
)
def test_points_are_in_the_pixel_that_they_lie_on(point, pixel):
    assert pixel_click(point, False, (10, 20)) == Click(*pixel, False)


@pytest.mark.parametrize("point", [(-2.5, 3), (3, 12.5), (float("nan"), 3)])
def test_points_outside_are_refused(point):
    with pytest.raises(ValueError, match="point"):
        pixel_click(point, True, (10, 20))


def test_confidence_is_the_mean_inside():
    probability = np.array([[0.9, 0.7, 0.1]], np.float32)
    assert confidence(Mask(probability)) == pytest.approx(0.8)
