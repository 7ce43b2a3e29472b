"""The pyramid over a plain vision transformer."""

from functools import partial

import pytest
import torch

from probseg.backbones import TimmBackbone
from probseg.heads import ConvHead, PromptPropagation, PromptUNet, PyramidDecoder, SimplePyramid
from probseg.models import Segmenter
from probseg.types import FeatureInfo
from support.network_cases import assert_all_learn, maps_of, opened, prompts
from support.refusals import refused
from support.rows import each

PLAIN = FeatureInfo((12, 12, 12), (16, 16, 16))
DEPTHS = FeatureInfo((12, 16, 20, 24), (16, 16, 16, 16))


def levels_of(decoder, maps):
    decoded = decoder(maps)
    return [decoded.features, *decoded.coarser]


@each("inputs", [PLAIN, DEPTHS])
@each("widths", [(6,), (6, 7), (6, 7, 8, 9)])
def test_levels_have_the_described_shapes(inputs, widths):
    decoder = SimplePyramid(inputs, widths).eval()
    assert decoder.features == FeatureInfo(widths, (4, 8, 16, 32)[: len(widths)])
    levels = levels_of(decoder, maps_of(inputs, 2, 64, 96))
    for level, width, stride in zip(levels, *decoder.features[:2], strict=True):
        assert level.shape == (2, width, 64 // stride, 96 // stride)


@pytest.mark.parametrize(("inputs", "used"), [(PLAIN, [2]), (DEPTHS, [0, 1, 2, 3])])
def test_each_level_takes_its_depth_or_all_take_the_last_map(inputs, used):
    maps = [own.requires_grad_() for own in maps_of(inputs, 2, 64, 64)]
    decoder = SimplePyramid(inputs, (6, 7, 8, 9)).train()
    levels = levels_of(decoder, maps)
    sum((level * torch.randn_like(level)).sum() for level in levels).backward()
    assert [n for n, own in enumerate(maps) if own.grad is not None] == used
    assert_all_learn(decoder)
    if used == [0, 1, 2, 3]:
        (finest,) = torch.autograd.grad(levels_of(decoder, maps)[0].sum(), maps[0])
        assert finest.any()


def test_cells_of_all_levels_lie_at_the_same_place():
    """A change in one cell changes cells of each level around its centre, and no others."""
    decoder = SimplePyramid(PLAIN, (6, 7, 8, 9)).eval()
    maps = [torch.zeros(1, 12, 8, 8) for _ in range(3)]
    changed = [own.clone() for own in maps]
    changed[-1][..., 4, 6] = torch.randn(12)
    with torch.no_grad():
        before, after = levels_of(decoder, maps), levels_of(decoder, changed)
    for one, other, stride in zip(before, after, decoder.features.strides, strict=True):
        rows, columns = (one != other).any(1)[0].nonzero().T
        for cells, centre in ((rows, 4.5 * 16), (columns, 6.5 * 16)):
            pixels = (cells + 0.5) * stride
            assert (pixels - centre).abs().max() <= 1.5 * stride + 8
            assert (pixels - centre).abs().min() <= stride


def test_the_scale_of_the_maps_has_no_effect():
    maps = maps_of(PLAIN, 1, 64, 64)
    decoder = SimplePyramid(PLAIN).eval()
    for one, other in zip(
        levels_of(decoder, maps), levels_of(decoder, [100 * own for own in maps]), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("depths", [[-1], [0, 1, 2, 3]])
def test_a_transformer_with_patches_of_14_pixels_answers_clicks(depths):
    small = {"embed_dim": 48, "depth": 4, "num_heads": 3, "patch_size": 16, "out_indices": depths}
    propagation = partial(PromptPropagation, units=2)
    model = opened(
        Segmenter(
            TimmBackbone("vit_small_patch14_dinov2", options=small),
            partial(SimplePyramid, widths=(8, 8, 12, 16)),
            ConvHead,
            prompts="head",
            fusion=partial(PromptUNet, propagation=propagation),
        )
    )
    assert model.cell == 32
    logits = model.train()(torch.rand(2, 3, 37, 66), prompts((60, 9, 1), (9, 30, 0), batch=2))
    assert logits.shape == (2, 1, 37, 66)
    (logits * torch.randn_like(logits)).sum().backward()
    assert_all_learn(torch.nn.ModuleList([model.decoder, model.fusion, model.head]))
    assert all(own.grad is not None for own in model.backbone.network.model.blocks.parameters())


def test_wrong_arguments_are_named():
    several = FeatureInfo((3, 4), (8, 16))
    fourteen = FeatureInfo((3,), (14,))
    refused(ValueError, partial(SimplePyramid, several), "`inputs`", "(8, 16)", "PyramidDecoder")
    refused(ValueError, partial(SimplePyramid, fourteen), "`inputs`", "(14,)", "patch_size 16")
    for widths in ((), (1, 2, 3, 4, 5)):
        refused(ValueError, partial(SimplePyramid, PLAIN, widths), "`widths`", list(widths))
    refused(ValueError, partial(PyramidDecoder, PLAIN), "`widths`", "(16, 16, 16)", "SimplePyramid")
