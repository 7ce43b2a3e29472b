"""What makes an answer of logits: calibration, quality, and the colours of the image."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probseg.evaluation import get_protocol, run_objects
from probseg.interact import InteractionLoop, Predictor, begin
from probseg.interact.mask import Mask
from probseg.models import variant
from probseg.models.network import SegmenterModel
from probseg.types import Click, Stroke
from support.fakes import draw_sample, micro_model
from support.network_cases import prompts
from support.rows import each

CLICKS = prompts((20, 12, 1), (4, 5, 0))
SIZE = (40, 56)

# --- calibration --------------------------------------------------------------------------------


def calibrated(temperature=1.0):
    """A network whose answers depend on the last one."""
    torch.manual_seed(0)
    model = variant("micro_conv", {"previous_mask": True, "temperature": temperature}).eval()
    with torch.no_grad():
        model.head.logit.weight *= 4
    return model


def test_masks_are_those_without_a_temperature_and_probabilities_are_its_own():
    samples = [draw_sample(*SIZE, seed=seed) for seed in range(2)]
    protocol = replace(get_protocol("ritm"), max_clicks=4)
    plain, other = (run_objects(calibrated(t), samples, protocol) for t in (1.0, 0.4))
    for one, two in zip(plain, other, strict=True):
        assert [(s.x, s.y, s.iou) for s in one.steps] == [(s.x, s.y, s.iou) for s in two.steps]
        errors = [[step.scores["ece"] for step in record.steps[1:]] for record in (one, two)]
        assert not np.allclose(*errors)


def test_a_previous_answer_is_the_logits_at_temperature_1():
    plain, other = calibrated(), calibrated(0.4)
    image, logits = torch.rand(1, 3, *SIZE), 2 * torch.randn(1, 1, *SIZE)
    with torch.no_grad():
        expected, answer = (
            model(image, prompts((9, 7, 1), previous=(logits / model.temperature).sigmoid()))
            for model in (plain, other)
        )
        assert not torch.allclose(plain(image, prompts((9, 7, 1))), expected, rtol=0.01)
    torch.testing.assert_close(answer * 0.4, expected)


def test_every_door_gives_calibrated_probabilities():
    model, asked = calibrated(0.4), prompts((9, 7, 1), previous=torch.zeros(1, 1, *SIZE))
    pixels = torch.randint(0, 256, (*SIZE, 3), dtype=torch.uint8)
    predictor = Predictor(model, zoom=None)
    predictor.set_image(pixels.numpy())
    shown = pixels.permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        encoded = model.encode(shown)
        raw = model.raw_logits(encoded, asked).main[0, 0]
        answers = [model(shown, asked).sigmoid(), model.decode(encoded, asked).sigmoid()]
    answers.append(torch.tensor(predictor.predict([Click(9, 7)]).probability))
    for answer in answers:
        torch.testing.assert_close(answer.reshape(SIZE), (raw / 0.4).sigmoid(), atol=1e-6, rtol=0)
    assert (answers[0] - raw.sigmoid()).abs().max() > 0.01


# --- quality ------------------------------------------------------------------------------------

QUALITY = {"class_path": "probseg.heads.MaskQuality", "init_args": {"channels": 4, "hidden": 8}}


def judging(name="micro_fast"):
    torch.manual_seed(0)
    model = micro_model(name, quality=QUALITY, temperature=0.5).eval()
    torch.nn.init.normal_(model.quality.layers[-1].weight)
    return model


@pytest.mark.parametrize("name", ["micro_conv", "micro_fast"])
def test_images_together_have_the_quality_of_each_and_the_answers_of_the_network(name):
    model = judging(name)
    plain = micro_model(name, temperature=0.5).eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    images = [torch.rand(3, *size) for size in (SIZE, (38, 54))]
    asked = [CLICKS, prompts((9, 30, 1))]
    each = SegmenterModel(model)
    with torch.inference_mode():
        logits, quality = each.decode_each(each.encode_each(images), asked)
        for n, (image, clicks) in enumerate(zip(images, asked, strict=True)):
            alone = model.raw_logits(model.encode(image[None]), clicks)
            assert alone.quality.shape == (1,)
            torch.testing.assert_close(quality[n], alone.quality[0].sigmoid())
            torch.testing.assert_close(logits[n], plain(image[None], clicks)[0, 0])


@pytest.mark.parametrize("flip", [False, True])
def test_the_predicted_iou_goes_with_the_answer(flip):
    model = judging()
    (state,) = InteractionLoop(model, flip=flip).step(
        [begin(torch.randint(0, 256, (3, *SIZE), dtype=torch.uint8))], [Click(20, 12)]
    )
    image = state.image[None] / 255
    sides = [(image, 20), (image.flip(-1), SIZE[1] - 1 - 20)][: 1 + flip]
    with torch.inference_mode():
        answers = [model.raw_logits(model.encode(x), prompts((c, 12, 1))) for x, c in sides]
    expected = np.mean([answer.quality.sigmoid().item() for answer in answers])
    assert state.answer.quality == pytest.approx(expected, abs=1e-5)


def test_masks_have_it_until_somebody_paints():
    model = judging()
    torch.nn.init.constant_(model.head.bias, 20.0)
    predictor = Predictor(model, zoom=None)
    predictor.set_image(draw_sample(*SIZE).image)
    mask = predictor.predict([(20, 12)])
    assert mask.quality == predictor.session.answer.state.answer.quality
    painted = predictor.session.add(Stroke(((5.0, 5.0),), 3.0, False)).mask
    p = painted.probability.astype(np.float64)
    expected = p[p > 0.5].sum() / ((p > 0.5).sum() + p[p <= 0.5].sum())
    assert painted.quality == pytest.approx(expected)
    assert Mask(np.zeros((4, 4), np.float32)).quality == 0
    assert Mask(np.ones((4, 4), np.float32)).quality == 1


# --- colours ------------------------------------------------------------------------------------

OTHER = {"mean": (0.25, 0.5, 0.625), "std": (0.25, 0.5, 1.0)}
GRAPH_CUT = {"class_path": "probseg.heads.GraphCut", "init_args": {"units": 4, "smoothness": 2.0}}
PARTS = {
    "propagated_clicks": {"class_path": "probseg.clicks.PropagatedClicks"},
    "refinement": GRAPH_CUT,
}


def colourful(name, normalisation):
    """A network that notes what its parts are given and what propagated clicks answer."""
    options = {"pretrained_cfg_overlay": normalisation}
    model = micro_model(name, backbone={"options": options}, **PARTS)
    seen = {}
    model.propagated_clicks.register_forward_hook(
        lambda module, given, answer: seen.update(image=given[0], maps=answer)
    )
    model.refinement.register_forward_pre_hook(lambda module, given: seen.update(shown=given[1]))
    return model, seen


@pytest.mark.parametrize("name", ["micro_conv", "micro_fast"])
def test_colours_are_those_of_the_image_whatever_the_normalisation(name):
    image, maps = torch.rand(1, 3, 64, 96), []
    image[..., 40:] /= 2
    for normalisation in ({}, OTHER):
        model, seen = colourful(name, normalisation)
        with torch.no_grad():
            model(image, CLICKS)
            maps.append(seen["maps"])
            torch.testing.assert_close(seen["image"], image)
            torch.testing.assert_close(seen["shown"], image)
            model(image[..., :45, :61], CLICKS)
        assert (seen["image"][..., 45:, :] == model.mean).all(), "filled up"
        assert seen["shown"].shape == (1, 3, 45, 61)
    torch.testing.assert_close(*maps, atol=1e-4, rtol=0)
    with torch.no_grad():
        model.bfloat16()(image.bfloat16(), CLICKS)
    assert seen["image"].dtype == seen["shown"].dtype == torch.float32


@each("name", ["micro_conv", "micro_csa_bp5", "micro_fast", "micro_ocr_csa"])
def test_main_logits_are_refined_in_evaluations(name):
    torch.manual_seed(0)
    model, image = micro_model(name, refinement=GRAPH_CUT), torch.rand(1, 3, 45, 61)
    names = model.state_dict().keys()
    with torch.no_grad():
        logits = model.raw_logits(model.encode(image), CLICKS)
        unrefined = model.raw_logits(model.encode(image), CLICKS, refine=False).main
        refinement, model.refinement = model.refinement, None
        plain = model.raw_logits(model.encode(image), CLICKS)
    assert names == model.state_dict().keys(), "nothing is learnt"
    torch.testing.assert_close(logits.main, refinement(plain.main, image, CLICKS))
    torch.testing.assert_close(logits.auxiliary, plain.auxiliary)
    torch.testing.assert_close(unrefined, plain.main)
    model.refinement = refinement
    assert model.train()(image.repeat(2, 1, 1, 1), prompts(batch=2)).requires_grad
