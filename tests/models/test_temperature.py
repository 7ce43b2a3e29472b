"""Calibrated answers of a network that is handed its last answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probseg.evaluation import get_protocol, run_objects
from probseg.interact.predictor import Predictor
from probseg.models import variant
from probseg.types import Click
from support.fakes import draw_sample
from support.network_cases import prompts
from support.rows import each

SHORT = replace(get_protocol("ritm"), max_clicks=5)


def network(temperature=1.0):
    torch.manual_seed(0)
    changes = {"previous_mask": True, "temperature": temperature}
    model = variant("micro_conv", changes).eval()
    with torch.no_grad():
        model.head.logit.weight *= 4  # answers that depend on the last one
    return model


def test_masks_are_those_without_a_temperature_and_probabilities_are_its_own():
    samples = [draw_sample(40, 56, seed=seed) for seed in range(3)]
    plain, calibrated = (run_objects(network(t), samples, SHORT) for t in (1.0, 0.4))
    for one, other in zip(plain, calibrated, strict=True):
        assert [(s.x, s.y, s.iou) for s in one.steps] == [(s.x, s.y, s.iou) for s in other.steps]
        errors = [[step.scores["ece"] for step in record.steps[1:]] for record in (one, other)]
        assert not np.allclose(*errors)


def test_a_previous_answer_is_the_logits_at_temperature_1():
    plain, calibrated = network(), network(0.4)
    image, logits = torch.rand(3, 40, 56), 2 * torch.randn(1, 1, 40, 56)
    with torch.no_grad():
        expected, answer = (
            model(image[None], prompts((9, 7, 1), previous=(logits / model.temperature).sigmoid()))
            for model in (plain, calibrated)
        )
        unmasked = plain(image[None], prompts((9, 7, 1)))
    torch.testing.assert_close(answer * 0.4, expected)
    assert not torch.allclose(unmasked, expected, rtol=0.01)


@each("temperature", [0.0, -1.0, float("inf")])
def test_a_temperature_out_of_range_is_named(temperature):
    with pytest.raises(ValueError, match=r"^`temperature`"):
        network(temperature)


def test_every_door_gives_calibrated_probabilities():
    model, asked = network(0.4), prompts((9, 7, 1), previous=torch.zeros(1, 1, 40, 56))
    pixels = torch.randint(0, 256, (40, 56, 3), dtype=torch.uint8)
    predictor = Predictor(model, zoom=None)
    predictor.set_image(pixels.numpy())
    shown = pixels.permute(2, 0, 1)[None].float() / 255
    answers = [predictor.predict([Click(9, 7)]).probability]
    with torch.no_grad():
        encoded = model.encode(shown)
        answers += [
            logits[0, 0].sigmoid().numpy()
            for logits in (model(shown, asked), model.decode(encoded, asked))
        ]
        raw = model.raw_logits(encoded, asked).main
    for answer in answers:
        np.testing.assert_allclose(answer, (raw[0, 0] / 0.4).sigmoid(), atol=1e-6)
    assert abs(answers[0] - raw[0, 0].sigmoid().numpy()).max() > 0.01
