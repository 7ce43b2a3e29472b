"""Prompts that meet one level of a pyramid spread by the stage's convolutions or attention."""

from functools import partial

import torch

from probseg.attention import Adaptation
from probseg.errors import UnknownNameError
from probseg.heads import DecoderMaps, PromptStage
from probseg.types import FeatureInfo, Prompts
from support.fakes import micro_model
from support.refusals import refused
from support.rows import each

PYRAMID = FeatureInfo((4, 6, 8), (4, 8, 16))
MIXING = {
    "convolutions": {},
    "full": {"attention": "probabilistic"},
    "full positions": {"attention": "probabilistic", "position": "full"},
    "axial": {"attention": "standard", "layout": "axial", "options": {"position_keys": False}},
}
CELLS = 6
"""Of the stage's grid, along each side; an image has 16 pixels for each."""


def stage(**changes):
    torch.manual_seed(0)
    sizes = {"channels": 8, "out_channels": 4, "num_heads": 2, "image_size": 16 * CELLS}
    return PromptStage(PYRAMID, 2, **{**sizes, **changes}).eval()


def run(fusion, maps=None, seed=0):
    """Features for random maps, or for click maps that are empty but for some pixels."""
    random = torch.Generator().manual_seed(seed)
    side = 16 * CELLS
    levels = [
        torch.randn(1, channels, side // stride, side // stride, generator=random)
        for channels, stride in zip(PYRAMID.channels, PYRAMID.strides, strict=True)
    ]
    decoded = DecoderMaps(levels[0], coarser=tuple(levels[1:]))
    prompts = Prompts(torch.zeros(1, 0, 2), torch.zeros(1, 0), torch.full((1, 4), torch.nan))
    maps = torch.zeros(1, 2, side, side) if maps is None else maps
    with torch.no_grad():
        return fusion(decoded, maps, prompts)


def reached(fusion):
    """Cells of the stage whose features change with a click in its upper left corner."""
    clicked = torch.zeros(1, 2, 16 * CELLS, 16 * CELLS)
    clicked[:, 0, 3:8, 3:8] = 1
    fusion.smooth = torch.nn.Identity()  # which reaches over the borders of the cells
    change = (run(fusion, clicked) - run(fusion)).abs().amax(dim=(0, 1))  # (h, w)
    return change.unflatten(0, (CELLS, -1)).unflatten(2, (CELLS, -1)).amax(dim=(1, 3)) > 0


def test_clicks_reach_other_cells_through_the_blocks_alone():
    block = torch.arange(CELLS) <= 2  # two convolutions
    assert torch.equal(reached(stage()), block[:, None] & block)
    for name in ("full", "full positions", "axial"):
        assert reached(stage(**MIXING[name])).all(), name


@each("mixing", MIXING)
def test_the_result_sees_finer_features_only_if_it_is_to(mixing):
    for finer in (False, True):
        fusion = stage(finer=finer, **MIXING[mixing])
        features = torch.randn(1, 4, 4 * CELLS, 4 * CELLS)
        levels = [features, torch.randn(1, 6, 2 * CELLS, 2 * CELLS), torch.ones(1, 8, CELLS, CELLS)]
        call = partial(fusion, maps=torch.zeros(1, 2, 16 * CELLS, 16 * CELLS), prompts=None)
        with torch.no_grad():
            given, fine, middle = (
                call(DecoderMaps(levels[0] * a, coarser=(levels[1] * b, levels[2])))
                for a, b in ((1, 1), (2, 1), (1, 2))
            )
        assert given.shape == (1, 4, 4 * CELLS, 4 * CELLS)
        assert torch.equal(given, fine) != finer
        assert torch.equal(given, middle) != finer


@each("passes", [False, True])
def test_clicks_pass_the_stage_by_only_if_they_are_to(passes):
    fusion = stage(finer_prompts=passes)
    fusion.smooth = torch.nn.Identity()
    torch.nn.init.zeros_(fusion.subpixels.weight)
    torch.nn.init.ones_(fusion.subpixels.bias)
    clicked = torch.zeros(1, 2, 16 * CELLS, 16 * CELLS)
    clicked[:, 0, 4:8, 8:12] = 1
    change = (run(fusion, clicked) - run(fusion)).abs().amax(dim=(0, 1))
    assert change.nonzero().tolist() == [[1, 2]] * passes


def test_keys_of_the_stage_adapt_and_those_of_the_head_do_not():
    head = {
        "class_path": "probseg.heads.CorrectiveSelfAttention",
        "init_args": {"stride": 8, "channels": 8, "options": {"key_iterations": 0}},
    }
    small = {"channels": 16, "out_channels": 8, "attention": "probabilistic"}
    changes = {"backbone": {"name": "test_efficientnet.r160_in1k"}, "fusion": small, "head": head}
    model = micro_model("lite0_stage", decoder={"widths": [8, 8, 12, 16]}, **changes).eval()
    image = torch.rand(1, 3, 64, 64)
    box = Prompts(torch.zeros(1, 0, 2), torch.zeros(1, 0), torch.tensor([[5.0, 9, 40, 50]]))
    with torch.no_grad():
        before = model(image, box)
        model.adapt(Adaptation(key_iterations=1, key_prior=0.5))
        assert (model.adaptation().key_iterations, model.adaptation().key_prior) == (1, 0.5)
        assert not torch.equal(model(image, box), before)
        model.adapt(Adaptation(key_iterations=0))
        assert torch.equal(model(image, box), before)
    assert model.head.last.settings.key_adaptation.iterations == 0


def test_what_cannot_be_built_is_refused():
    for name, value in (("level", 3), ("level", -1), ("blocks", 0)):
        refused(ValueError, partial(stage, **{name: value}), name, value)
    refused(UnknownNameError, lambda: stage(attention="nobody"), "attention")
    refused(UnknownNameError, lambda: stage(attention="standard", layout="nobody"), "layout")
