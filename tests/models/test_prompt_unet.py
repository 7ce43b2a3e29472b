"""Networks whose prompts meet a pyramid of features: `lite0_unet_prop` on a small backbone."""

import math

import pytest
import torch
from fakes import micro_model
from torch import nn

from probseg.heads import PromptPropagation, PromptUNet, PyramidDecoder
from probseg.models import build, override, read_preset
from probseg.types import FeatureInfo, Prompts

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
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        nn.init.ones_(norm.weight)  # some begin at 0, which hides what is before them
        norm.momentum = 1.0
    with torch.no_grad():  # so that numbers are of a usual size
        network.train()(torch.rand(4, 3, 64, 64), prompts((64, 64), 4))
    for norm in norms:
        norm.momentum = 0.1
    return network.eval()


def prompts(size, batch=1, seed=0, previous=True, clicks=3):
    """Clicks, a box in every other image, and a previous mask, in pixels of an image."""
    random = torch.Generator().manual_seed(seed)
    height, width = size
    boxes = torch.full((batch, 4), math.nan)
    boxes[1::2] = torch.tensor([0.2 * width, 0.1 * height, 0.8 * width, 0.7 * height])
    points = torch.rand(batch, clicks, 2, generator=random) * torch.tensor([width, height])
    labels = torch.tensor([1, 0, 1, -1])[:clicks].repeat(batch, 1)
    before = torch.rand(batch, 1, *size, generator=random) if previous else None
    return Prompts(points, labels, boxes, before)


@pytest.mark.parametrize("size", [(64, 48), (37, 53), (1, 9), (130, 75)])
@pytest.mark.parametrize("name", PRESETS)
def test_encoding_and_decoding_is_the_whole_road(name, size):
    network, image = model(name), torch.rand(2, 3, *size)
    with torch.no_grad():
        encoded = network.encode(image)
        logits = network.decode(encoded, prompts(size, 2))
        assert torch.equal(logits, network(image, prompts(size, 2)))
        other = network.decode(encoded, prompts(size, 2, seed=1))
    assert logits.shape == (2, 1, *size)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
    assert not torch.allclose(logits, other, atol=1e-4)
    assert len(encoded.decoded.coarser) == 3
    assert (encoded.decoded.units is None) == (name == "lite0_unet")


def test_a_click_costs_fusion_and_head_alone():
    network, calls = model(), []
    for part in (network.backbone, network.decoder, network.fusion, network.head):
        part.register_forward_hook(lambda part, *_: calls.append(type(part).__name__))
    with torch.no_grad():
        encoded = network.encode(torch.rand(1, 3, 40, 40))
        assert calls == ["TimmBackbone", "PyramidDecoder"]
        calls.clear()
        network.decode(encoded, prompts((40, 40)))
    assert calls == ["PromptUNet", "ConvHead"]


@pytest.mark.parametrize("name", PRESETS)
def test_images_of_one_grid_together_are_as_one_by_one(name):
    network = model(name)
    sizes = [(40, 56), (37, 64), (64, 50)]
    assert {network.grid(size) for size in sizes[:2]} == {(64, 64)}
    images = [torch.rand(3, *size) for size in sizes]
    given = [prompts(size, seed=n, clicks=n + 1) for n, size in enumerate(sizes)]
    with torch.no_grad():
        encoded = network.encode_each(images)
        together = network.decode_each(encoded, given)
        mixed = network.decode_each(encoded[::-1], given[::-1])[::-1]
        for n, image in enumerate(images):
            alone = network(image[None], given[n])[0, 0]
            torch.testing.assert_close(together[n], alone, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(mixed[n], alone, atol=1e-5, rtol=1e-4)
            assert alone.std() > 1e-3


@pytest.mark.parametrize("name", [*PRESETS, "micro_csa"])
@pytest.mark.parametrize("times", [1, 3])
def test_repeated_encodings_are_those_of_repeated_images(name, times):
    network = model(name) if name in PRESETS else micro_model(name, prompts="head")
    image = torch.rand(2, 3, 40, 50)
    several = image.repeat_interleave(times, dim=0)
    given = prompts((40, 50), 2 * times, previous=network.previous_mask)
    with torch.no_grad():
        repeated = network.encode(image).repeated(times)
        assert len(repeated.image) == 2 * times
        expected = network.encode(several)
        assert torch.equal(repeated.image, expected.image)
        assert (repeated.size, repeated.working_size) == (expected.size, expected.working_size)
        torch.testing.assert_close(
            network.decode(repeated, given), network(several, given), atol=1e-5, rtol=1e-4
        )


def test_stem_networks_repeat_their_images():
    network, image = micro_model("micro_conv"), torch.rand(2, 3, 24, 24)
    given = prompts((24, 24), 4, previous=False)
    with torch.no_grad():
        repeated = network.encode(image).repeated(2)
        assert repeated.decoded is None
        expected = network(image.repeat_interleave(2, dim=0), given)
        torch.testing.assert_close(network.decode(repeated, given), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", PRESETS)
def test_all_parameters_learn_through_repeated_encodings(name):
    network = model(name).train()
    encoded = network.encode(torch.rand(2, 3, 64, 48)).repeated(2)
    logits = network.decode(encoded, prompts((64, 48), 4))
    (logits * torch.randn_like(logits)).sum().backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


@pytest.mark.parametrize("part", ["points", "boxes", "previous"])
@pytest.mark.parametrize("name", PRESETS)
def test_logits_depend_on_all_that_is_said(name, part):
    network, given = model(name), prompts((48, 48), 2)
    changed = given._replace(**{part: getattr(given, part).flip(-1) * 0.7})
    with torch.no_grad():
        encoded = network.encode(torch.rand(2, 3, 48, 48))
        one, other = network.decode(encoded, given), network.decode(encoded, changed)
    assert not torch.allclose(one[1], other[1], atol=1e-4)


def test_networks_without_prompts_answer_something():
    network = model()
    given = prompts((48, 48), previous=False, clicks=0)
    with torch.no_grad():
        logits = network(torch.rand(1, 3, 48, 48), given)
        padded = prompts((48, 48), previous=False, clicks=2)
        padded = padded._replace(labels=torch.full((1, 2), -1))
        torch.manual_seed(1)
        assert logits.isfinite().all()
        image = torch.rand(1, 3, 48, 48)
        assert torch.equal(network(image, padded), network(image, given))


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float64])
def test_networks_of_other_precisions_answer(precision):
    network, image = model(), torch.rand(1, 3, 48, 48)
    with torch.no_grad():
        exact = network(image, prompts((48, 48)))
        network.to(precision)
        other = network(image, prompts((48, 48)))
    assert other.dtype == torch.float32
    assert (other - exact).abs().max() < 0.1 * exact.abs().max() + 0.05


def test_autocast_encodes_and_answers():
    network, image, given = model(), torch.rand(1, 3, 48, 48), prompts((48, 48))
    with torch.no_grad():
        exact = network(image, given)
        with torch.autocast("cpu", torch.bfloat16):
            encoded = network.encode(image)
            inside = network.decode(encoded, given)
        outside = network.decode(encoded, given)
    assert encoded.decoded.features.dtype == torch.bfloat16
    assert encoded.decoded.units.queries.dtype == torch.float32
    for logits in (inside, outside):
        assert not torch.equal(logits, exact)
        assert (logits - exact).abs().max() < 0.1 * exact.abs().max() + 0.1


def test_presets_are_what_they_say():
    for name in PRESETS:
        with torch.device("meta"):
            network = build(read_preset(name))
        assert isinstance(network.decoder, PyramidDecoder)
        assert isinstance(network.fusion, PromptUNet)
        assert network.decoder.features == FeatureInfo((32, 48, 96, 128), (4, 8, 16, 32))
        assert network.previous_mask
        assert (network.fusion.propagation is None) == (name == "lite0_unet")


@pytest.mark.parametrize("level", [0, 1, 3])
def test_any_level_may_propagate(level):
    network = model(fusion={"propagation_level": level})
    assert network.fusion.propagation.stride == (4, 8, 16, 32)[level]
    assert network.fusion.propagation.embed.in_channels == (8, 8, 12, 16)[level]
    with torch.no_grad():
        encoded = network.encode(torch.rand(1, 3, 64, 64))
        assert network.decode(encoded, prompts((64, 64))).isfinite().all()
    assert encoded.decoded.units.queries.shape[2] == (64 // (4, 8, 16, 32)[level]) ** 2


def test_descriptions_reach_the_propagation():
    network = build(override(read_preset("lite0_unet_prop"), SMALL | {
        "fusion": {"propagation": {"spaces": 2, "dims": 3, "units": 5}},
    }))  # fmt: skip
    propagation = network.fusion.propagation
    assert (propagation.spaces, propagation.dims, propagation.units) == (2, 3, 5)
    assert network.fusion.said.in_channels == 8


# --- the parts alone ------------------------------------------------------------------------------


def maps(batch, height, width):
    return [
        torch.randn(batch, channels, -(-height // stride), -(-width // stride))
        for channels, stride in zip(*PYRAMID, strict=True)
    ]


def test_each_level_knows_of_the_coarser_ones():
    decoder = PyramidDecoder(PYRAMID, widths=(4, 5, 6)).eval()
    given = [m.requires_grad_() for m in maps(1, 64, 64)]
    decoded = decoder(given)
    assert decoder.features == FeatureInfo((4, 5, 6), (4, 8, 16))
    for level, features in enumerate((decoded.features, *decoded.coarser)):
        gradients = torch.autograd.grad(
            features.square().sum(), given, retain_graph=True, allow_unused=True
        )
        seen = [n for n, gradient in enumerate(gradients) if gradient is not None]
        assert seen == list(range(level + 1, 4)), "neither stride 2 nor what has no width"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"widths": ()}, ["widths", "at least one", "at most 4", "[]"]),
        ({"widths": (4,) * 5}, ["widths", "at most 4", "(2, 4, 8, 16, 32)", "[4, 4, 4, 4, 4]"]),
        ({"widths": (4, 4), "stride": 32}, ["widths", "at most 1", "from 32 on", "[4, 4]"]),
    ],
)
def test_wrong_widths_are_named(arguments, parts):
    with pytest.raises(ValueError, match="must be") as caught:
        PyramidDecoder(PYRAMID, **arguments)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("blocks", [(), (1, 1), (1, 1, 1, 1)])
def test_wrong_blocks_are_named(blocks):
    levels = FeatureInfo((4, 5, 6), (4, 8, 16))
    with pytest.raises(
        ValueError, match="blocks must be one number for each of 3 levels"
    ) as caught:
        PromptUNet(levels, 3, blocks=blocks)
    assert str(list(blocks)) in str(caught.value)


@pytest.mark.parametrize("blocks", [(1, 1, 1), (0, 2, 3)])
def test_blocks_are_residual_ones(blocks):
    fusion = PromptUNet(FeatureInfo((4, 5, 6), (4, 8, 16)), 3, blocks=blocks)
    assert fusion.channels == 4
    convolutions = [
        sum(isinstance(part, nn.Conv2d) for part in level.modules()) for level in fusion.blocks
    ]
    assert convolutions == [blocks[0], 2 * blocks[1], 2 * blocks[2]]


@pytest.mark.parametrize(("row", "column"), [(0, 0), (13, 30), (31, 5)])
def test_a_single_clicked_pixel_reaches_every_level(row, column):
    decoder = PyramidDecoder(PYRAMID, widths=(4, 5, 6)).eval()
    fusion = PromptUNet(decoder.features, 3, blocks=(1, 1, 1)).eval()
    nothing = prompts((32, 32), previous=False, clicks=0)
    seen = []
    for blocks in fusion.blocks:
        blocks.register_forward_hook(lambda module, given, result: seen.append(given[0]))
    with torch.no_grad():
        decoded = decoder(maps(1, 32, 32))
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


def test_propagations_are_prepared_before_clicks():
    fusion = PromptUNet(
        FeatureInfo((4, 5), (4, 8)), 3, blocks=(1, 1), propagation=PromptPropagation
    ).eval()
    decoded = PyramidDecoder(PYRAMID, widths=(4, 5)).eval()(maps(2, 32, 32))
    prepared = fusion.prepare(decoded, torch.rand(2, 3, 32, 32))
    assert prepared.units.queries.shape == (2, 4, 16, 17)
    assert prepared.units.keys.shape == (2, 4, 64, 17)
    assert torch.equal(prepared.features, decoded.features)
    plain = PromptUNet(FeatureInfo((4, 5), (4, 8)), 3, blocks=(1, 1))
    assert plain.prepare(decoded, torch.rand(2, 3, 32, 32)) is decoded
