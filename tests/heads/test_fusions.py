"""Prompts that meet a pyramid of features: a U-Net, and a stage on one level."""

from functools import partial

import torch
from torch import nn

from probseg.attention import Adaptation
from probseg.heads import DecoderMaps, PromptPropagation, PromptStage, PromptUNet, PyramidDecoder
from probseg.types import FeatureInfo, Prompts
from support.fakes import micro_model
from support.network_cases import assert_all_learn, maps_of, opened, prompts
from support.refusals import refused
from support.rows import each

PYRAMID = FeatureInfo((3, 4, 5, 6, 7), (2, 4, 8, 16, 32))


def test_each_level_knows_of_the_coarser_ones():
    decoder = PyramidDecoder(PYRAMID, widths=(4, 5, 6)).eval()
    given = [m.requires_grad_() for m in maps_of(PYRAMID, 1, 64, 64)]
    decoded = decoder(given)
    assert decoder.features == FeatureInfo((4, 5, 6), (4, 8, 16))
    for level, features in enumerate((decoded.features, *decoded.coarser)):
        gradients = torch.autograd.grad(
            features.square().sum(), given, retain_graph=True, allow_unused=True
        )
        seen = [n for n, gradient in enumerate(gradients) if gradient is not None]
        assert seen == list(range(level + 1, 4)), "neither stride 2 nor what has no width"


@each(("row", "column"), [(0, 0), (13, 30), (31, 5)])
def test_a_single_clicked_pixel_reaches_every_level(row, column):
    decoder = PyramidDecoder(PYRAMID, widths=(4, 5, 6)).eval()
    fusion = PromptUNet(decoder.features, 3, blocks=(1, 1, 1)).eval()
    nothing = prompts()
    seen = []
    for blocks in fusion.blocks:
        blocks.register_forward_hook(lambda module, given, result: seen.append(given[0]))
    with torch.no_grad():
        decoded = decoder(maps_of(PYRAMID, 1, 32, 32))
        clicks = torch.zeros(1, 3, 32, 32)
        before = fusion(decoded, clicks, nothing)
        clicks[0, 1, row, column] = 1
        after = fusion(decoded, clicks, nothing)
    assert before.shape == (1, 4, 8, 8)
    changed = (before != after).any(dim=1)[0]
    assert changed[row // 4, column // 4]
    for level in range(3):
        cell = row // (4 << level), column // (4 << level)
        assert (seen[level] != seen[3 + level]).any(dim=1)[0][cell], level


def test_the_way_up_adds_the_features_of_the_way_down():
    decoder = PyramidDecoder(PYRAMID, widths=(4, 5, 6)).eval()
    fusion = PromptUNet(decoder.features, 3, blocks=(1, 1, 1)).eval()
    for coarser in fusion.up:
        nn.init.zeros_(coarser.weight)
    maps = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        decoded = decoder(maps_of(PYRAMID, 1, 32, 32))
        finest = fusion.blocks[0]((fusion.embed(maps) + decoded.features).relu())
        result = fusion(decoded, maps, prompts())
        torch.testing.assert_close(result, fusion.merge[0](finest))
    assert result.any()


def test_propagations_are_prepared_before_clicks():
    fusion = PromptUNet(
        FeatureInfo((4, 5), (4, 8)), 3, blocks=(1, 1), propagation=PromptPropagation
    ).eval()
    decoded = PyramidDecoder(PYRAMID, widths=(4, 5)).eval()(maps_of(PYRAMID, 2, 32, 32))
    prepared = fusion.prepare(decoded, torch.rand(2, 3, 32, 32))
    assert prepared.units.queries.shape == (2, 4, 16, 17)
    assert prepared.units.keys.shape == (2, 4, 64, 17)
    assert torch.equal(prepared.features, decoded.features)
    plain = PromptUNet(FeatureInfo((4, 5), (4, 8)), 3, blocks=(1, 1))
    assert plain.prepare(decoded, torch.rand(2, 3, 32, 32)) is decoded


@each("strides", [(16,), (7, 14), (4, 16, 32), (3, 6)])
def test_details_of_the_image_reach_the_clicks_at_every_stride(strides):
    """A pixel changes the fused features, although the decoder's maps stay as they are."""
    torch.manual_seed(0)
    info = FeatureInfo((4, 5, 6)[: len(strides)], strides)
    make = partial(PromptUNet, info, 3, [1] * len(strides), detail=True)
    fusion = opened(make(partial(PromptPropagation, units=2), len(strides) - 1)).eval()
    side = 4 * strides[-1]
    finest, *coarser = maps_of(info, 1, side, side)
    image = torch.rand(1, 3, side, side).requires_grad_()
    decoded = DecoderMaps(finest, coarser=tuple(coarser))
    asked = prompts((side // 2, side // 2, 1))
    features = fusion(fusion.prepare(decoded, image), torch.rand(1, 3, side, side), asked)
    assert features.shape == finest.shape
    (features * torch.randn_like(features)).sum().backward()
    assert_all_learn(fusion)
    for place, layer in enumerate(fusion.detail):
        if isinstance(layer, nn.ReLU):  # which may pass nothing of a pixel
            fusion.detail[place] = nn.Identity()
    (gradient,) = torch.autograd.grad(
        fusion.prepare(decoded, image).features[..., 1, 1].sum(), image
    )
    inside = slice(strides[0], 2 * strides[0])
    assert gradient[..., inside, inside].all(), "every pixel of a cell counts"


LEVELS = FeatureInfo((4, 5, 6), (4, 8, 16))


@each(
    ("make", "parts"),
    [
        (partial(PyramidDecoder, PYRAMID, widths=()), ["`widths`", []]),
        (partial(PyramidDecoder, PYRAMID, widths=(4,) * 5), ["`widths`", [4] * 5]),
        (partial(PromptUNet, LEVELS, 3, blocks=(1, 1)), ["`blocks`", 3, [1, 1]]),
        (partial(PromptUNet, FeatureInfo((4, 5), (14, 16)), 3, (1, 1)), ["`inputs`", (14, 16)]),
        (
            partial(PromptUNet, FeatureInfo((4,), (16,)), 3, (1,), PromptPropagation),
            ["`inputs`", (16,)],
        ),
    ],
)
def test_wrong_arguments_are_named(make, parts):
    refused(ValueError, make, *parts)


# --- a stage on one level ---

THREE = FeatureInfo((4, 6, 8), (4, 8, 16))
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
    return PromptStage(THREE, 2, **{**sizes, **changes}).eval()


def run(fusion, maps=None, seed=0):
    """Features for random maps, or for click maps that are empty but for some pixels."""
    random = torch.Generator().manual_seed(seed)
    side = 16 * CELLS
    levels = [
        torch.randn(1, channels, side // stride, side // stride, generator=random)
        for channels, stride in zip(THREE.channels, THREE.strides, strict=True)
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
