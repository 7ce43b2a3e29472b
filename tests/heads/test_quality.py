"""The part that predicts the IoU of an answer."""

import pytest
import torch

from probseg.heads import MaskQuality
from support.network_cases import prompts

SIZE, GRID = (24, 40), (6, 10)


def case(batch=3, seed=0):
    torch.manual_seed(seed)
    features = torch.randn(batch, 5, *GRID)
    logits = 2 * torch.randn(batch, 1, *SIZE) + torch.linspace(-3, 1, batch).view(-1, 1, 1, 1)
    return features, logits, prompts((3, 4, 1), (9, 9, 0), (0, 0, -1), batch=batch)


def trained():
    """The part with weights that correct something."""
    torch.manual_seed(1)
    part = MaskQuality(5, channels=4, hidden=8)
    torch.nn.init.normal_(part.layers[-1].weight)
    return part


def test_before_a_training_it_is_the_expected_iou_of_independent_pixels():
    features, logits, asked = case()
    p = logits.double().sigmoid().flatten(1)
    inside = p > 0.5
    hit = (p * inside).sum(dim=1)
    expected = hit / (inside.sum(dim=1) + (p * ~inside).sum(dim=1))
    predicted = MaskQuality(5)(features, logits, asked).sigmoid()
    torch.testing.assert_close(predicted.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", [-60.0, 60.0])
def test_empty_and_full_answers_have_finite_logits(level):
    features, logits, asked = case()
    assert trained()(features, torch.full_like(logits, level), asked).isfinite().all()


def test_it_learns_without_a_gradient_for_features_and_answer():
    features, logits, asked = case()
    part = trained()
    part(features.requires_grad_(), logits.requires_grad_(), asked).sum().backward()
    assert features.grad is None
    assert logits.grad is None
    assert all(parameter.grad.any() for parameter in part.parameters())


def test_it_depends_on_features_clicks_and_its_own_image_only():
    features, logits, asked = case()
    part = trained()
    with torch.no_grad():
        together = part(features, logits, asked)
        alone = part(features[1:2], logits[1:2], asked.at(slice(1, 2)))
        other = part(features + 1, logits, asked)
        fewer = part(features, logits, prompts((3, 4, 1), batch=3))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = part(features, logits, asked)
    torch.testing.assert_close(alone, together[1:2])
    torch.testing.assert_close(half, together)
    for changed in (other, fewer):
        assert not torch.isclose(changed, together, rtol=1e-3).any()
