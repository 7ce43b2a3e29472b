"""The forms in which the predictor takes images, clicks, boxes and masks."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from probseg import Click, Predictor
from probseg.interact import Mask
from probseg.models import variant
from support.rows import each

SHAPE = (32, 48)


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    return Predictor(variant("micro_conv", {"previous_mask": True}).eval(), zoom=None)


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(0).integers(0, 256, (*SHAPE, 3), np.uint8)


def answer(predictor, image, **prompts):
    predictor.set_image(image)
    return predictor.predict(**prompts).probability


def test_images_of_any_form_are_the_same_image(predictor, image, tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(image).save(path)
    expected = answer(predictor, image, clicks=[Click(10, 12)])
    for form in (path, str(path), Image.fromarray(image), Image.fromarray(image).convert("RGBA")):
        assert np.array_equal(answer(predictor, form, clicks=[Click(10, 12)]), expected)
    grey = Image.fromarray(image[..., 0])
    repeated = np.repeat(image[..., :1], 3, axis=2)
    assert np.array_equal(*(answer(predictor, one, box=(3, 4, 20, 21)) for one in (grey, repeated)))


def test_clicks_of_any_form_are_the_same_clicks(predictor, image):
    clicks = [Click(10, 12), Click(20, 3, positive=False)]
    expected = answer(predictor, image, clicks=clicks)
    for form in ([(10, 12), (20, 3, False)], np.array([[10, 12, 1], [20, 3, 0]])):
        assert np.array_equal(answer(predictor, image, clicks=form), expected)
    assert predictor.clicks == tuple(clicks)


def test_a_box_is_rounded_outwards_and_cut_with_a_warning_at_the_edge(predictor, image):
    whole, parts = (30, 10, 47, 31), (30.9, 10.4, 46.1, 30.6)
    assert np.array_equal(*(answer(predictor, image, box=box) for box in (whole, parts)))
    expected = answer(predictor, image, box=(30, 10, 48, 32))
    for box in ((30, 10, 49.5, 33), (30, 10, 50, 34)):
        with pytest.warns(UserWarning, match="`box`"):
            assert np.array_equal(answer(predictor, image, box=box), expected)


def test_a_mask_to_begin_with_is_corrected_and_taken_back(predictor, image):
    mask = np.zeros(SHAPE, bool)
    mask[8:20, 10:30] = True
    refined = answer(predictor, image, mask=mask)
    clicked = answer(predictor, image, clicks=[(12, 12)])
    corrected = predictor.predict([(12, 12)], mask=mask).probability  # forgets the click before
    assert not np.array_equal(corrected, clicked)
    assert predictor.clicks == (Click(12, 12),)
    assert np.array_equal(answer(predictor, image, clicks=[(12, 12)], mask=mask * 1.0), corrected)
    predictor.reset()
    predictor.predict([(12, 12)])
    predictor.predict([(12, 12), (1, 1, False)], mask=mask)
    assert np.array_equal(predictor.undo().probability, corrected)
    assert np.array_equal(predictor.undo().probability, refined), "the answer to the mask alone"
    assert np.array_equal(predictor.undo().probability, clicked)
    assert np.array_equal(predictor.redo().probability, refined)


@pytest.mark.parametrize("prompts", ["stem", "head"])
def test_several_boxes_together_are_each_alone(image, prompts):
    predictor = Predictor(variant("micro_conv", {"prompts": prompts}).eval())
    predictor.set_image(image)
    before = predictor.predict([(12, 12)]).probability
    boxes = np.array([(3, 4, 20, 18), (10.5, 2, 30, 21), (0, 0, 8, 8)])
    together = predictor.predict_many(boxes)
    assert np.array_equal(predictor.predict().probability, before), "prompts are what they were"
    for box, mask in zip(boxes, together, strict=True):
        predictor.reset()
        alone = predictor.predict(box=box).probability
        np.testing.assert_allclose(mask.probability, alone, atol=1e-5)
    assert predictor.predict_many([]) == []
    for wrong, name in (([(0, 0, 8, 8), (1, 2, 3)], "[1]"), ((3, 4, 20, 18), "[0]")):
        with pytest.raises(ValueError, match=re.escape(f"`boxes{name}`")):
            predictor.predict_many(wrong)


@each("model", ["lite2_unet_prop", torch.nn.Identity()])
def test_a_predictor_of_something_else_is_told_of_names(model):
    with pytest.raises(ValueError, match=r"`model`.*Predictor\.from_pretrained"):
        Predictor(model)


def test_an_empty_mask_begins_from_nothing(predictor, image):
    clicked = answer(predictor, image, clicks=[(12, 12)])
    begun = predictor.predict([(12, 12)], mask=np.zeros(SHAPE, bool)).probability
    assert np.array_equal(begun, clicked)
    assert predictor.undo() is None
    with pytest.raises(ValueError, match="`clicks`"):
        predictor.predict()
    assert np.array_equal(predictor.redo().probability, clicked)


def test_a_mask_alone_is_a_prompt(predictor, image):
    mask = np.zeros(SHAPE, bool)
    mask[8:20, 10:30] = True
    refined = answer(predictor, image, mask=mask)
    assert np.array_equal(predictor.predict().probability, refined)
    corrected = predictor.predict([(12, 12)]).probability
    assert not np.array_equal(corrected, refined)
    assert np.array_equal(predictor.undo().probability, refined)
    assert np.array_equal(predictor.predict([(12, 12)]).probability, corrected)
    assert not np.array_equal(answer(predictor, image, mask=~mask), refined)


def test_masks_of_any_form_are_the_same_mask(predictor, image):
    mask = np.zeros(SHAPE, bool)
    mask[8:20, 10:30] = True
    expected = answer(predictor, image, mask=mask)
    own = Mask(mask.astype(np.float32))
    assert np.array_equal(np.asarray(own), mask)
    assert np.asarray(own, np.uint8).max() == 1
    for form in (mask * 1.0, mask.astype(np.uint8), mask * np.uint8(255), mask * 1, own):
        assert np.array_equal(answer(predictor, image, mask=form), expected)


@each(
    ("prompts", "name"),
    [
        ({"clicks": (10, 12)}, r"clicks\[0\]"),
        ({"clicks": [(10, 12), "ab"]}, r"clicks\[1\]"),
        ({"clicks": [(10, 12, 2)]}, r"clicks\[0\]"),
        *(({"clicks": [Click(10, 12, sign)]}, "clicks") for sign in (-1, 2, "no")),
        ({"clicks": [(10, float("nan"))]}, r"clicks\[0\]"),
        ({"clicks": [(10, 32)]}, "click"),
        ({"box": (30, 10, 51, 32)}, "box"),
        ({"box": (3, 4, 5)}, "box"),
        ({"box": "wide"}, "box"),
        ({"box": (5, 5, 5, 9)}, "box"),
        ({"clicks": [(1, 1)], "mask": np.zeros((3, 3))}, "mask"),
        ({"clicks": [(1, 1)], "mask": np.full(SHAPE, 7, np.uint8)}, r"mask.*\(mask > 0\)"),
        ({"clicks": [(1, 1)], "mask": np.eye(*SHAPE, dtype=np.uint8) + 254}, "mask"),
        ({"clicks": [(1, 1)], "mask": np.full(SHAPE, "a")}, "mask"),
        ({"clicks": [(1, 1)], "mask": np.full(SHAPE, 2.0)}, "mask"),
        ({"mask": np.zeros(SHAPE)}, "mask"),
    ],
)
def test_wrong_prompts_are_named_and_change_nothing(predictor, image, prompts, name):
    before = answer(predictor, image, clicks=[(10, 12)])
    with pytest.raises(ValueError, match=f"^`?{name}"):
        predictor.predict(**prompts)
    assert np.array_equal(predictor.predict().probability, before)


@each("wrong", [None, 3, np.zeros((4, 4)), np.zeros((4, 4, 3))])
def test_wrong_images_are_named(predictor, wrong):
    with pytest.raises(ValueError, match=r"^`image` must be"):
        predictor.set_image(wrong)


@each(
    ("shape", "dtype", "remedy"),
    [
        ((5, 6), np.uint8, "np.stack([image] * 3, axis=-1)"),
        ((5, 6, 1), np.uint8, "np.repeat(image, 3, axis=2)"),
        ((5, 6, 4), np.uint8, "image[..., :3]"),
        ((3, 5, 6), np.uint8, "image.transpose(1, 2, 0)"),
        ((5, 6, 3), np.float32, "(255 * image).astype(np.uint8)"),
    ],
)
def test_the_remedy_for_a_wrong_array_works(predictor, shape, dtype, remedy):
    wrong = np.ones(shape, dtype)
    with pytest.raises(ValueError, match=re.escape(remedy)) as caught:
        predictor.set_image(wrong)
    assert ("[0, 1]" in str(caught.value)) == (dtype != np.uint8)
    predictor.set_image(eval(remedy, {"np": np, "image": wrong}))
    if "Image.fromarray" in str(caught.value):
        form = re.search(r"Image\.fromarray\([^)]+\)", str(caught.value))[0]
        predictor.set_image(eval(form, {"Image": Image, "image": wrong}))


def test_models_without_a_previous_mask_refuse_one(image):
    plain = Predictor(variant("micro_conv", {}).eval())
    plain.set_image(image)
    with pytest.raises(ValueError, match=r"^`mask` must be None"):
        plain.predict([(1, 1)], mask=np.zeros(SHAPE, bool))
