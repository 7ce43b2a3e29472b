"""Parts that take images by their colours: clicks that propagate, and contours that refine."""

import pytest
import torch

from probseg.models.network import SegmenterModel
from support.fakes import micro_model
from support.network_cases import prompts
from support.rows import each

OTHER = {"mean": (0.25, 0.5, 0.625), "std": (0.25, 0.5, 1.0)}
CLICKS = prompts((9, 12, 1), (50, 4, 0))
PARTS = {
    "propagated_clicks": {"class_path": "probseg.clicks.PropagatedClicks"},
    "refinement": {"class_path": "probseg.heads.GraphCut"},
}


def network(name, normalisation):
    """A network that notes what its parts are given and what propagated clicks answer."""
    options = {"pretrained_cfg_overlay": normalisation}
    model = micro_model(name, backbone={"options": options}, **PARTS)
    seen = {}

    def note_maps(module, given, answer):
        seen["image"], seen["maps"] = given[0], answer

    def note_colours(module, given):
        seen["shown"] = given[1]

    model.propagated_clicks.register_forward_hook(note_maps)
    model.refinement.register_forward_pre_hook(note_colours)
    return model, seen


@pytest.mark.parametrize("name", ["micro_conv", "micro_fast"])
def test_clicks_propagate_alike_whatever_the_normalisation(name):
    image = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    image[..., 40:] /= 2
    found = []
    for normalisation in ({}, OTHER):
        model, seen = network(name, normalisation)
        with torch.no_grad():
            model(image, CLICKS)
        torch.testing.assert_close(seen["image"], image)
        torch.testing.assert_close(seen["shown"], image)
        found.append((model.mean, seen["maps"]))
    (mean, maps), (other_mean, other_maps) = found
    assert not torch.equal(mean, other_mean)
    torch.testing.assert_close(maps, other_maps, atol=1e-4, rtol=0)


def test_what_is_filled_up_has_the_mean_colour():
    model, seen = network("micro_conv", OTHER)
    with torch.no_grad():
        model(torch.rand(1, 3, 45, 61), CLICKS)
    assert seen["image"].shape[-2:] == SegmenterModel(model).grid((45, 61))
    assert (seen["image"][..., 45:, :] == model.mean).all()
    assert seen["shown"].shape[-2:] == (45, 61)


def test_colours_are_float32_under_half_precision():
    model, seen = network("micro_conv", {})
    image = torch.rand(1, 3, 64, 64).bfloat16()
    with torch.no_grad():
        model.bfloat16()(image, CLICKS)
    assert seen["image"].dtype == seen["shown"].dtype == torch.float32
    torch.testing.assert_close(seen["image"], image.float(), atol=2e-2, rtol=0)


# --- refinement ---------------------------------------------------------------------------------

NEAR = prompts((9, 12, 1), (30, 4, 0))
GRAPH_CUT = {"class_path": "probseg.heads.GraphCut", "init_args": {"units": 4, "smoothness": 2.0}}


def refines(name="micro_conv"):
    torch.manual_seed(0)
    return micro_model(name, refinement=GRAPH_CUT)


def image(height=45, width=61):
    return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(0))


@each("name", ["micro_conv", "micro_csa_bp5", "micro_fast", "micro_ocr_csa"])
def test_main_logits_are_refined_and_auxiliary_ones_are_not(name):
    model = refines(name)
    with torch.no_grad():
        logits = model.raw_logits(model.encode(image()), NEAR)
        unrefined = model.raw_logits(model.encode(image()), NEAR, refine=False).main
        refinement, model.refinement = model.refinement, None
        plain = model.raw_logits(model.encode(image()), NEAR)
    torch.testing.assert_close(logits.main, refinement(plain.main, image(), NEAR))
    torch.testing.assert_close(logits.auxiliary, plain.auxiliary)
    torch.testing.assert_close(unrefined, plain.main)


def test_a_training_sees_what_has_a_gradient():
    model = refines().train()
    loss = model(image(), NEAR).square().mean()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    names = model.state_dict().keys()
    model.refinement = None
    assert names == model.state_dict().keys(), "nothing is learnt"
