import pickle
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_mask
from torch import nn

from probseg import interact
from probseg.attention import Adaptation
from probseg.errors import UnknownNameError
from probseg.evaluation import PROTOCOLS, draw_crop
from probseg.formats import polygons
from probseg.geometry import padded_crop
from probseg.interact import RECOMMENDED_ZOOM, ZOOMS, InteractionLoop, begin, image_tensor
from probseg.interact.predictor import Mask, Predictor
from probseg.types import Click, Sample
from support.fakes import draw_scene, micro_model
from support.refusals import refused
from support.rows import each

CLICKS = [Click(20, 30), Click(3, 4, positive=False), Click(25.5, 20.25)]
BOX = (10, 12, 40, 44)


def photo(height=61, width=47, seed=0):
    return draw_scene(height, width, seed=seed)[0]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return micro_model("micro_csa")


@pytest.fixture
def predictor(model):
    predictor = Predictor(model)
    predictor.set_image(photo())
    return predictor


@each(("size", "working_size"), [((61, 47), 40), ((7, 129), None), ((1, 1), None), ((33, 2), 40)])
def test_masks_have_the_size_of_the_image(size, working_size):
    predictor = Predictor(micro_model(working_size=working_size).train())
    assert not predictor.model.training
    predictor.set_image(photo(*size))
    mask = predictor.predict([Click(size[1] - 1, 0)], box=(0, 0, size[1], size[0]))
    assert mask.binary.shape == mask.probability.shape == mask.uncertainty.shape == size
    assert (mask.binary.dtype, mask.probability.dtype) == (np.bool_, np.float32)
    np.testing.assert_array_equal(mask.binary, mask.probability > 0.5)


def test_uncertainty_is_the_entropy_in_bits():
    mask = Mask(np.array([[0, 0.5, 1, 0.25]], dtype=np.float32))
    np.testing.assert_allclose(mask.uncertainty, [[0, 1, 0, 0.811278]], atol=1e-6)


def test_a_mask_is_shown_by_its_size_area_and_box():
    probability = np.zeros((40, 50), np.float32)
    assert repr(Mask(probability)) == "Mask(50 x 40 pixels, empty)"
    probability[10:30, 5:10] = 0.9
    shown = "Mask(50 x 40 pixels, object of 100 pixels (5.0 %) in the box (5, 10, 10, 30))"
    assert str(Mask(probability)) == shown


def test_clicks_one_by_one_equal_all_at_once(model):
    predictor, other = Predictor(model, zoom=None), Predictor(model, zoom=None)
    predictor.set_image(photo())
    other.set_image(photo())
    predictor.predict(box=BOX)
    for click in CLICKS:
        last = predictor.predict([click])
    together = other.predict(CLICKS, box=BOX)
    np.testing.assert_array_equal(last.probability, together.probability)
    assert predictor.clicks == other.clicks == tuple(CLICKS)


def test_undo_takes_back_clicks_and_boxes_and_redo_brings_them_back(predictor):
    click = predictor.predict(CLICKS[:1])
    boxed = predictor.predict(box=BOX)
    both = predictor.predict(CLICKS[1:], box=(0, 0, 30, 40))
    assert predictor.undo() is not None
    assert predictor.clicks == tuple(CLICKS[:2])
    predictor.undo()
    for expected in (boxed, click):
        np.testing.assert_array_equal(predictor.undo().probability, expected.probability)
    assert predictor.undo() is None
    assert predictor.clicks == ()
    with pytest.raises(RuntimeError, match="nothing to undo"):
        predictor.undo()
    for expected in (click, boxed):
        np.testing.assert_array_equal(predictor.redo().probability, expected.probability)
    for _ in range(3):
        last = predictor.redo()
    np.testing.assert_array_equal(last.probability, both.probability)
    with pytest.raises(RuntimeError, match="nothing to redo"):
        predictor.redo()
    predictor.undo()
    predictor.predict(CLICKS[:1])  # in place of what was undone
    with pytest.raises(RuntimeError, match="nothing to redo"):
        predictor.redo()


def test_reset_forgets_prompts_and_keeps_a_copy_of_the_image(predictor):
    image = photo()
    predictor.set_image(image)
    first = predictor.predict(CLICKS[:1], box=BOX)
    predictor.predict(CLICKS[1:], box=(0, 0, 10, 10))
    image[:] = 0
    predictor.reset()
    assert predictor.clicks == ()
    again = predictor.predict(CLICKS[:1], box=BOX)
    np.testing.assert_array_equal(again.probability, first.probability)


def test_a_new_image_starts_again_whatever_its_layout(model, predictor):
    predictor.predict(CLICKS, box=BOX)
    predictor.set_image(photo(30, 40, seed=1)[:, ::-1])
    assert predictor.clicks == ()
    with pytest.raises(ValueError, match="clicks"):
        predictor.predict()
    other = Predictor(model)
    other.set_image(photo(30, 40, seed=1)[:, ::-1].copy())
    clicks = [Click(39, 29), Click(1, 2)]
    np.testing.assert_array_equal(
        predictor.predict(clicks).probability, other.predict(clicks).probability
    )


def test_threads_wait_for_each_other_and_an_image_that_comes_between_is_refused(model, monkeypatch):
    predictor, other = Predictor(model), Predictor(model)
    busy, go = Event(), Event()

    def hold(*_):
        busy.set()
        assert go.wait(60)

    for one in (predictor, other):
        one.set_image(photo())
    hook = predictor.model.head.register_forward_pre_hook(hold)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(predictor.predict, CLICKS[:1])
        assert busy.wait(60)
        with pytest.raises(RuntimeError, match="for each thread"):
            predictor.set_image(photo(seed=1))
        second = pool.submit(predictor.predict, CLICKS[1:])
        assert not wait([second], timeout=0.3).done
        hook.remove()
        go.set()
        for answer, clicks in ((first, CLICKS[:1]), (second, CLICKS[1:])):
            expected = other.predict(clicks).probability
            np.testing.assert_array_equal(answer.result().probability, expected)
        busy.clear(), go.clear()
        monkeypatch.setattr("probseg.interact.predictor.as_photograph", hold)
        pool.submit(predictor.set_image, photo(seed=1))
        assert busy.wait(60)
        asking = pool.submit(predictor.predict, CLICKS[:1])
        assert not wait([asking], timeout=0.3).done
        monkeypatch.setattr("probseg.interact.predictor.encode_image", lambda *_: other._image)
        go.set()
        with pytest.raises(RuntimeError, match="for each thread"):
            asking.result()
    copied = pickle.loads(pickle.dumps(other))
    np.testing.assert_array_equal(copied.predict().probability, expected)


def test_wrong_input_is_refused_and_changes_nothing(model, predictor):
    refused(RuntimeError, lambda: Predictor(model).predict(CLICKS), "set_image")
    refused(UnknownNameError, lambda: Predictor(model, zoom="fixed_60"), "fixed_600")
    for image in (
        np.zeros((4, 5), np.uint8),
        np.zeros((4, 5, 4), np.uint8),
        np.zeros((4, 5, 3), np.float32),
        np.zeros((0, 5, 3), np.uint8),
    ):
        refused(ValueError, lambda image=image: predictor.set_image(image), "image", image.shape)
    for x, y in ((47, 0), (0, 61), (-0.5, 3), (3, -1), (float("nan"), 1)):
        clicks = [Click(1, 1), Click(x, y)]
        refused(ValueError, lambda clicks=clicks: predictor.predict(clicks), "click", "x < 47")
    for box in ((5, 5, 5, 9), (-3, 0, 5, 5), (0, 0, 50, 5), (0, 0, 5, 64), (0, 0, 1, float("nan"))):
        refused(ValueError, lambda box=box: predictor.predict([Click(1, 1)], box=box), "x1 <= 47")
    assert predictor.clicks == ()


@pytest.mark.parametrize(("preset", "box"), [("micro_csa", BOX), ("micro_fast", None)])
def test_it_answers_as_the_evaluation_does(preset, box):
    model = micro_model(preset)
    predictor, image = Predictor(model), photo(220, 230)
    predictor.set_image(image)
    crop = None
    if box is not None:
        mask = np.zeros((120, 130), np.uint8)
        mask[box[1] : box[3], box[0] : box[2]] = 1
        protocol = replace(PROTOCOLS["gabbur2021"], corner_noise=0.0, trials=1)
        drawn = draw_crop(Sample(image, mask, "a", "Toy"), protocol)
        assert drawn.box == box
        crop = drawn.crop
    loop = InteractionLoop(predictor.model, zoom=ZOOMS[RECOMMENDED_ZOOM], keep_clicks=True)
    state = begin(image_tensor(image), crop=crop, box=box)
    if box is not None:
        (state,) = loop.answer([state])
        np.testing.assert_array_equal(predictor.predict(box=box).probability, state.probability)
    for click in CLICKS:
        (state,) = loop.step([state], [click])
        np.testing.assert_array_equal(predictor.predict([click]).probability, state.probability)


def test_the_package_offers_predictor_mask_and_session():
    assert set(interact.__all__) >= {"Mask", "Predictor", "Session"}
    assert all(getattr(interact, name) is not None for name in interact.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = interact.no_such_name


# --- another adaptation -------------------------------------------------------------------------


def same_weights(model, *changes, **settings):
    """A network built with other settings and the same weights."""
    built = micro_model(*changes, **settings)
    built.load_state_dict(model.state_dict())
    return built


FUSION = {"class_path": "PromptFusion", "init_args": {"channels": 8, "dilations": [1, 2]}}
FAST = {"prompts": "head", "fusion": FUSION}
PROPAGATES = {"head": {"propagation_iterations": 1, "options": {"key_iterations": 1}}}


@pytest.mark.parametrize(
    ("entry", "settings", "head"),
    [
        (FAST, {"key_iterations": 3, "key_prior": 0.5}, {"key_iterations": 3, "key_prior": 0.5}),
        ({}, {"value_iterations": 5, "value_prior": 0.02}, {}),
    ],
    ids=["keys", "values"],
)
def test_adapting_changes_the_next_mask_and_keeps_the_prompts(entry, settings, head):
    torch.manual_seed(0)
    model = micro_model("micro_csa", **PROPAGATES, **entry)
    propagation = settings.get("value_iterations", 1)
    changes = {
        "propagation_iterations": propagation,
        "value_prior": settings.get("value_prior", 0.1),
        "options": head or {"key_iterations": 1},
    }
    built = Predictor(same_weights(model, "micro_csa", head=changes, **entry))
    predictor = Predictor(model)
    for one in (predictor, built):
        one.set_image(photo())
    before = predictor.predict(CLICKS, box=BOX)
    expected = built.predict(CLICKS, box=BOX)
    assert np.abs(before.probability - expected.probability).max() > 1e-5
    predictor.adapt(Adaptation(**settings))
    assert predictor.clicks == tuple(CLICKS)
    np.testing.assert_array_equal(predictor.predict().probability, expected.probability)
    more = Click(8, 50)
    np.testing.assert_array_equal(
        predictor.predict([more]).probability, built.predict([more]).probability
    )
    for one in (predictor, built):  # and for images to come
        one.set_image(photo(30, 40, seed=1))
    np.testing.assert_array_equal(
        predictor.predict([Click(9, 9)]).probability, built.predict([Click(9, 9)]).probability
    )


def test_after_adapting_all_steps_are_answered_again_in_order():
    torch.manual_seed(0)
    model = micro_model("micro_csa", previous_mask=True, **PROPAGATES)
    predictor, adapted = Predictor(model, zoom=None), {"value_iterations": 5, "value_prior": 0.02}
    predictor.set_image(photo())
    before = [predictor.predict([click]).probability for click in CLICKS]
    predictor.adapt(Adaptation(**adapted))
    last = predictor.predict().probability
    assert np.abs(before[-1] - last).max() > 1e-5
    earlier = predictor.undo().probability
    predictor.reset()
    expected = [predictor.predict([click]).probability for click in CLICKS]
    np.testing.assert_array_equal(last, expected[2])
    np.testing.assert_array_equal(earlier, expected[1])


def test_undo_to_nothing_after_adapting_is_no_way_back_to_the_old_settings():
    torch.manual_seed(0)
    model = micro_model("micro_prob_botnet", prompts="head")  # whose keys adapt in the encoder
    for part in model.backbone.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.ones_(part.weight)  # at first, residual blocks are the identity
    predictor = Predictor(model)
    predictor.set_image(photo())
    before = predictor.predict([Click(9, 9)])
    predictor.adapt(Adaptation(key_iterations=3, key_prior=0.5))
    expected = predictor.predict()
    assert np.abs(before.probability - expected.probability).max() > 1e-5
    assert predictor.undo() is None
    np.testing.assert_array_equal(
        predictor.predict([Click(9, 9)]).probability, expected.probability
    )


def test_a_network_that_cannot_adapt_says_so():
    predictor = Predictor(micro_model("micro_conv"))
    predictor.set_image(photo())
    before = predictor.predict(CLICKS)
    with pytest.raises(ValueError, match="no probabilistic attention"):
        predictor.adapt(Adaptation(key_iterations=2))
    np.testing.assert_array_equal(predictor.predict().probability, before.probability)


# --- what a click costs -------------------------------------------------------------------------


@pytest.fixture
def counted():
    """A predictor whose prompts enter at the head, and the sizes that its backbone has seen."""
    torch.manual_seed(0)
    predictor, seen = Predictor(micro_model("micro_csa", **FAST), zoom=None), []
    predictor.model.backbone.register_forward_pre_hook(
        lambda module, inputs: seen.append(tuple(inputs[0].shape[-2:]))
    )
    return predictor, seen


def test_the_loop_is_asked_for_what_is_new_only(monkeypatch):
    predictor, asked = Predictor(micro_model("micro_fast"), zoom=None), []
    encoding, decoding = "image_features", "padded_logits"
    for name in (encoding, decoding):
        function = getattr(predictor.model, name)

        def watched(*arguments, name=name, function=function, **options):
            asked.append(name)
            return function(*arguments, **options)

        monkeypatch.setattr(predictor.model, name, watched)
    predictor.set_image(photo())
    assert asked == [encoding]
    predictor.predict(CLICKS[:1])
    predictor.predict(CLICKS[1:])
    predictor.undo()
    predictor.reset()
    predictor.predict(CLICKS)
    assert asked == [encoding, *[decoding] * 4]
    predictor.adapt(Adaptation(value_iterations=2))
    assert asked[5:] == [encoding]
    predictor.predict()
    assert asked[6:] == [decoding]
    with pytest.raises(ValueError, match="`click`"):
        predictor.predict([Click(99, 99)])
    assert len(asked) == 7


def test_a_new_crop_is_paid_for_again(counted):
    predictor, seen = counted
    predictor.set_image(photo(120, 130))
    predictor.predict(box=(30, 20, 60, 50))  # and at least 16 pixels around it
    predictor.predict([Click(35, 25)])
    predictor.predict([Click(50, 30, positive=False)])
    predictor.predict([Click(20, 30, positive=False)])  # outside the box, but not the crop
    assert seen == [(128, 160), (64, 64)]
    predictor.predict([Click(110, 25)])  # leaves the crop
    assert len(seen) == 3
    assert predictor.view == padded_crop((20, 20, 111, 50), (120, 130)), "box and clicked pixels"
    predictor.predict([Click(100, 25)])
    assert len(seen) == 3
    predictor.undo()
    predictor.undo()  # back to the box and the clicks inside, whose answer is kept
    predictor.reset()  # and the encoding of the whole image
    predictor.predict([Click(100, 25)])
    assert len(seen) == 3


IMAGE = np.random.default_rng(0).integers(0, 256, (9, 13, 3), dtype=np.uint8)


@pytest.fixture
def mask():
    probability = np.full((9, 13), 0.2, dtype=np.float32)
    probability[2:7, 3:9] = 0.9
    probability[4, 5] = 0.5  # not more likely than not: a hole
    probability[8, 11] = 0.6
    return Mask(probability)


def test_save(mask, tmp_path):
    mask.save(tmp_path / "new" / "mask.png")
    saved = np.asarray(Image.open(tmp_path / "new" / "mask.png"))
    np.testing.assert_array_equal(saved, np.where(mask.binary, 255, 0))
    with pytest.raises(ValueError, match="path"):
        mask.save(str(tmp_path / "mask.jpg"))


def test_rle_and_polygons(mask):
    np.testing.assert_array_equal(coco_mask.decode(mask.rle), mask.binary)
    large, small = sorted(mask.polygons(), key=lambda polygon: -len(polygon.holes))
    assert (len(large.holes), len(small.holes)) == (1, 0)
    np.testing.assert_array_equal(polygons.fill([large, small], (9, 13)), mask.binary)


@pytest.mark.parametrize("device", ["cudaa", "", "cuda:99", None])
def test_devices_that_are_not_there_are_refused(device):
    with pytest.raises(ValueError, match="`device` must be a device that PyTorch sees"):
        Predictor(micro_model("micro_fast"), device)


def test_crop(mask):
    part, box = mask.crop(IMAGE)
    assert box == (3, 2, 12, 9)
    assert (part.shape, part.dtype) == ((7, 9, 4), np.uint8)
    np.testing.assert_array_equal(part[..., :3], IMAGE[2:9, 3:12])
    np.testing.assert_array_equal(part[..., 3] == 255, mask.binary[2:9, 3:12])
    for wrong in (IMAGE[1:], "photo.jpg"):
        with pytest.raises(ValueError, match="image"):
            mask.crop(wrong)
    with pytest.raises(ValueError, match="not empty"):
        Mask(np.zeros((9, 13), np.float32)).crop(IMAGE)
