"""Networks whose prompts meet a pyramid of features: `lite0_unet_prop` on a small backbone."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from probseg.heads import DecoderMaps, PromptPropagation, PromptUNet, PyramidDecoder
from probseg.models.network import SegmenterModel
from probseg.types import FeatureInfo, Prompts
from support.fakes import micro_model
from support.network_cases import assert_all_learn, maps_of, opened, prompts
from support.refusals import refused
from support.rows import each

PRESETS = ["lite0_unet", "lite0_unet_prop"]
SMALL = {
    "backbone": {"name": "test_efficientnet.r160_in1k"},
    "decoder": {"widths": [8, 8, 12, 16]},
    "working_size": 64,
}
PYRAMID = FeatureInfo((3, 4, 5, 6, 7), (2, 4, 8, 16, 32))


def model(name="lite0_unet_prop", **changes):
    torch.manual_seed(0)
    network = micro_model(name, **{**SMALL, **changes})
    norms = [module for module in opened(network).modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():  # so that numbers are of a usual size
        network.train()(torch.rand(4, 3, 64, 64), drawn((64, 64), 4))
    for norm in norms:
        norm.momentum = 0.1
    return network.eval()


def drawn(size, batch=1, seed=0, previous=True, clicks=3):
    """Clicks, a box in every other image, and a previous mask, in pixels of an image."""
    random = torch.Generator().manual_seed(seed)
    height, width = size
    boxes = torch.full((batch, 4), math.nan)
    boxes[1::2] = torch.tensor([0.2 * width, 0.1 * height, 0.8 * width, 0.7 * height])
    points = torch.rand(batch, clicks, 2, generator=random) * torch.tensor([width, height])
    labels = torch.tensor([1, 0, 1, -1])[:clicks].repeat(batch, 1)
    before = torch.rand(batch, 1, *size, generator=random) if previous else None
    return Prompts(points, labels, boxes, before)


@pytest.mark.parametrize("size", [(37, 53), (1, 9), (130, 75)])
@pytest.mark.parametrize("name", PRESETS)
def test_encoding_and_decoding_is_the_whole_road(name, size):
    network, image = model(name), torch.rand(2, 3, *size)
    with torch.no_grad():
        encoded = network.encode(image)
        logits = network.decode(encoded, drawn(size, 2))
        assert torch.equal(logits, network(image, drawn(size, 2)))
    assert logits.shape == (2, 1, *size)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
    assert len(encoded.decoder_maps.coarser) == 3
    assert (encoded.decoder_maps.units is None) == (name == "lite0_unet")


def test_a_click_costs_fusion_and_head_alone():
    network, calls = model(), []
    for part in (network.backbone, network.decoder, network.fusion, network.head):
        part.register_forward_hook(lambda part, *_: calls.append(type(part).__name__))
    with torch.no_grad():
        encoded = network.encode(torch.rand(1, 3, 40, 40))
        assert calls == ["TimmBackbone", "PyramidDecoder"]
        calls.clear()
        network.decode(encoded, drawn((40, 40)))
    assert calls == ["PromptUNet", "ConvHead"]


@pytest.mark.parametrize("name", PRESETS)
def test_images_of_one_grid_together_are_as_one_by_one(name):
    network = model(name)
    sizes = [(40, 56), (37, 64), (64, 50)]
    images = [torch.rand(3, *size) for size in sizes]
    given = [drawn(size, seed=n, clicks=n + 1) for n, size in enumerate(sizes)]
    with torch.no_grad():
        together, _ = SegmenterModel(network).decode_each(
            SegmenterModel(network).encode_each(images), given
        )
        for n, image in enumerate(images):
            alone = network(image[None], given[n])[0, 0]
            torch.testing.assert_close(together[n], alone, atol=1e-5, rtol=1e-4)
            assert alone.std() > 1e-3


@each("name", [*PRESETS, "stem", "head"])
def test_repeated_encodings_are_those_of_repeated_images(name):
    network = model(name) if name in PRESETS else micro_model("micro_csa", prompts=name)
    image = torch.rand(2, 3, 40, 50)
    several = image.repeat_interleave(3, dim=0)
    given = drawn((40, 50), 6, previous=network.previous_mask)
    with torch.no_grad():
        repeated, expected = network.encode(image).repeated(3), network.encode(several)
        assert torch.equal(repeated.image, expected.image)
        assert (repeated.size, repeated.working_size) == (expected.size, expected.working_size)
        torch.testing.assert_close(
            network.decode(repeated, given), network(several, given), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("name", PRESETS)
def test_all_parameters_learn_through_repeated_encodings(name):
    network = model(name).train()
    encoded = network.encode(torch.rand(2, 3, 64, 48)).repeated(2)
    logits = network.decode(encoded, drawn((64, 48), 4))
    (logits * torch.randn_like(logits)).sum().backward()
    assert_all_learn(network)


@pytest.mark.parametrize("name", PRESETS)
def test_logits_depend_on_each_kind_of_prompt(name):
    network, given = model(name), drawn((48, 48), 2)
    with torch.no_grad():
        encoded = network.encode(torch.rand(2, 3, 48, 48))
        before = network.decode(encoded, given)
        for part in ("points", "boxes", "previous"):
            changed = given._replace(**{part: getattr(given, part).flip(-1) * 0.7})
            after = network.decode(encoded, changed)
            assert not torch.allclose(before[1], after[1], atol=1e-4), part


def test_networks_without_prompts_answer_something():
    network, image = model(), torch.rand(1, 3, 48, 48)
    with torch.no_grad():
        logits = network(image, prompts())
        assert logits.isfinite().all()
        assert torch.equal(network(image, prompts((9, 9, -1), (3, 4, -1))), logits)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float64])
def test_networks_of_other_precisions_answer(precision):
    network, image = model(), torch.rand(1, 3, 48, 48)
    with torch.no_grad():
        exact = network(image, drawn((48, 48)))
        network.to(precision)
        other = network(image, drawn((48, 48)))
    assert other.dtype == torch.float32
    assert (other - exact).abs().max() < 0.1 * exact.abs().max() + 0.05


def test_autocast_encodes_and_answers():
    network, image, given = model(), torch.rand(1, 3, 48, 48), drawn((48, 48))
    with torch.no_grad():
        exact = network(image, given)
        with torch.autocast("cpu", torch.bfloat16):
            encoded = network.encode(image)
            inside = network.decode(encoded, given)
        outside = network.decode(encoded, given)
    assert encoded.decoder_maps.features.dtype == torch.bfloat16
    assert encoded.decoder_maps.units.queries.dtype == torch.float32
    for logits in (inside, outside):
        assert not torch.equal(logits, exact)
        assert (logits - exact).abs().max() < 0.1 * exact.abs().max() + 0.1


def test_the_second_level_propagates():
    network = model()
    assert network.fusion.propagation.stride == 8
    with torch.no_grad():
        encoded = network.encode(torch.rand(1, 3, 64, 64))
    assert encoded.decoder_maps.units.queries.shape[2] == (64 // 8) ** 2


def test_descriptions_reach_the_propagation():
    network = model(fusion={"propagation": {"spaces": 2, "dims": 3, "units": 5}})
    propagation = network.fusion.propagation
    assert (propagation.spaces, propagation.dims, propagation.units) == (2, 3, 5)
    assert network.fusion.said.in_channels == 8


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


def test_wrong_arguments_are_named():
    for arguments in (
        {"widths": ()},
        {"widths": (4,) * 5},
        {"widths": (4, 4), "stride": 32},
    ):
        widths = list(arguments["widths"])
        refused(ValueError, partial(PyramidDecoder, PYRAMID, **arguments), "`widths`", widths)
    levels = FeatureInfo((4, 5, 6), (4, 8, 16))
    for blocks in ((), (1, 1), (1, 1, 1, 1)):
        refused(ValueError, partial(PromptUNet, levels, 3, blocks=blocks), "`blocks`", 3)


@pytest.mark.parametrize("blocks", [(1, 1, 1), (0, 2, 3)])
def test_blocks_are_residual_ones(blocks):
    fusion = PromptUNet(FeatureInfo((4, 5, 6), (4, 8, 16)), 3, blocks=blocks)
    assert fusion.channels == 4
    convolutions = [
        sum(isinstance(part, nn.Conv2d) for part in level.modules()) for level in fusion.blocks
    ]
    assert convolutions == [blocks[0], 2 * blocks[1], 2 * blocks[2]]


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


def test_wrong_strides_and_levels_are_named():
    levels = FeatureInfo((4, 5), (14, 16))
    refused(ValueError, partial(PromptUNet, levels, 3, (1, 1)), "`inputs`", "(14, 16)")
    one = partial(PromptUNet, FeatureInfo((4,), (16,)), 3, (1,), PromptPropagation)
    refused(ValueError, one, "`propagation_level`", 1)
