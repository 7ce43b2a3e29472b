"""Presets with transformers as encoders: their recipes' costs, and the export of small ones."""

import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from probseg.paths import configs_dir
from probseg.zoo import create_model
from support.network_cases import opened, prompts

SMALL = {
    "vits_unet_prop": {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 64},
    "sam2t_unet_prop": {"embed_dim": 16, "stages": (1, 1, 1, 1)},
}
FUSION = {
    "propagation": {"class_path": "probseg.heads.PromptPropagation", "init_args": {"units": 2}}
}


def counted(function):
    """GFLOP of a call."""
    with FlopCounterMode(display=False) as counter:
        result = function()
    return result, counter.get_total_flops() / 1e9


@pytest.mark.parametrize("preset", SMALL)
def test_the_recipe_states_the_cost_of_encoder_and_decoder(preset):
    recipe = (configs_dir() / "experiment" / f"{preset}.yaml").read_text()
    stated = re.search(r"encoder ([\d.]+).*?decoder\D*([\d.]+)", recipe.replace("\n# ", " "))
    with torch.device("meta"), torch.no_grad():
        model = create_model(preset).eval()
        maps, encoder = counted(lambda: model.backbone(torch.zeros(1, 3, 384, 384)))
        _, decoder = counted(lambda: model.decoder(maps))
    assert [encoder, decoder] == pytest.approx(
        [float(number) for number in stated.groups()], abs=0.06
    )


@pytest.mark.parametrize("preset", SMALL)
def test_small_variants_answer_clicks_at_every_size(preset):
    model = opened(create_model(preset, backbone={"options": SMALL[preset]}, fusion=FUSION)).eval()
    for height, width in ((1, 1), (37, 66), (480, 640)):
        with torch.no_grad():
            logits = model(torch.rand(1, 3, height, width), prompts((width // 2, height // 2, 1)))
        assert logits.shape == (1, 1, height, width)
        assert logits.isfinite().all()


@pytest.mark.parametrize("detail", [True, False])
def test_contours_finer_than_a_patch_reach_the_logits(detail):
    """Where the encoder gives the same maps for all images, four pixels of one change the mask."""
    torch.manual_seed(0)
    fusion = {"detail": detail, "propagation": None}  # which would see colours
    changes = {"backbone": {"options": SMALL["vits_unet_prop"]}, "fusion": fusion}
    model = opened(create_model("vits_unet_prop", **changes)).eval()
    model.backbone.register_forward_hook(lambda *hooked: [0 * own for own in hooked[-1]])
    image = torch.rand(1, 3, 96, 96)
    other = image.clone()
    other[..., 40:44, 52:56] = 1 - image[..., 40:44, 52:56]
    with torch.no_grad():
        one, another = (model(own, prompts((48, 48, 1))) for own in (image, other))
    difference = (one - another).abs()[0, 0]
    assert difference.any() == detail
    if detail:
        row, column = divmod(int(difference.argmax()), 96)
        assert abs(row - 41.5) <= 12
        assert abs(column - 53.5) <= 12
