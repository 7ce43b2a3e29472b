"""A network whose answer is moved to colours and contours of the image."""

import pytest
import torch

from probseg.interact.batches import SegmenterModel
from support.fakes import micro_model
from support.network_cases import prompts
from support.rows import each

CLICKS = prompts((9, 12, 1), (30, 4, 0))
PART = {"class_path": "probseg.heads.GraphCut", "init_args": {"units": 4, "smoothness": 2.0}}


def network(name="micro_conv", **changes):
    torch.manual_seed(0)
    return micro_model(name, refinement=PART, **changes)


def image(height=45, width=61):
    return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(0))


@each("name", ["micro_conv", "micro_csa_bp5", "micro_fast", "micro_ocr_csa"])
def test_main_logits_are_refined_and_auxiliary_ones_are_not(name):
    model = network(name)
    with torch.no_grad():
        logits = model.raw_logits(model.encode(image()), CLICKS)
        unrefined = model.raw_logits(model.encode(image()), CLICKS, refine=False).main
        refinement, model.refinement = model.refinement, None
        plain = model.raw_logits(model.encode(image()), CLICKS)
    torch.testing.assert_close(logits.main, refinement(plain.main, image(), CLICKS))
    torch.testing.assert_close(logits.auxiliary, plain.auxiliary)
    torch.testing.assert_close(unrefined, plain.main)


def test_a_training_sees_what_has_a_gradient():
    model = network().train()
    loss = model(image(), CLICKS).square().mean()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    names = model.state_dict().keys()
    model.refinement = None
    assert names == model.state_dict().keys(), "nothing is learnt"


@pytest.mark.parametrize("working_size", [None, 40])
def test_clicks_on_one_image_after_another_give_what_all_at_once_gives(working_size):
    model = network(working_size=working_size)
    images = [image()[0], image(45, 62)[0]]
    with torch.no_grad():
        together, _ = SegmenterModel(model).decode_each(
            SegmenterModel(model).encode_each(images), [CLICKS, CLICKS]
        )
        alone = [model(one[None], CLICKS)[0, 0] for one in images]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
