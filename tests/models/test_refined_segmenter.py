"""A network whose head's logits are refined."""

import math

import pytest
import torch
from fakes import micro_model

from probseg.types import Prompts

PART = {"class_path": "probseg.heads.ColourRefinement", "init_args": {"units": 4, "width": 8}}


def network(name="micro_conv", **changes):
    torch.manual_seed(0)
    model = micro_model(name, refinement=PART, **changes)
    torch.nn.init.normal_(model.refinement.correction.weight)
    return model


def image(height=45, width=61):
    return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(0))


def prompts():
    points = torch.tensor([[[9.0, 12.0], [30.0, 4.0]]])
    return Prompts(points, torch.tensor([[1, 0]]), torch.full((1, 4), math.nan), None)


@pytest.mark.parametrize("name", ["micro_conv", "micro_csa_bp5", "micro_fast"])
def test_the_heads_logits_are_the_auxiliary_ones(name):
    model = network(name)
    with torch.no_grad():
        logits = model.all_logits(model.encode(image()), prompts())
        refinement, model.refinement = model.refinement, None
        plain = model.all_logits(model.encode(image()), prompts())
    assert refinement is not None
    torch.testing.assert_close(logits.auxiliary, plain.main)
    assert logits.main.shape == plain.main.shape
    assert (logits.main - plain.main).abs().max() > 0.01


def test_a_decoder_with_a_loss_of_its_own_keeps_it():
    model = network("micro_ocr_csa")
    with torch.no_grad():
        logits = model.all_logits(model.encode(image()), prompts())
        model.refinement = None
        plain = model.all_logits(model.encode(image()), prompts())
    torch.testing.assert_close(logits.auxiliary, plain.auxiliary)


def test_clicks_on_one_image_after_another_give_what_all_at_once_gives():
    model = network(working_size=40)
    images = [image()[0], image(45, 60)[0]]
    with torch.no_grad():
        together = model.decode_each(model.encode_each(images), [prompts(), prompts()])
        alone = [model(one[None], prompts())[0, 0] for one in images]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
