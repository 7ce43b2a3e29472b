"""DeepLabV3+, HRNet with OCR, and the pyramid of which all levels are used."""

from functools import partial

import pytest
import torch
from torch.nn import functional

from probseg.backbones import TimmBackbone
from probseg.heads import (
    DECODERS,
    ConvHead,
    PromptPropagation,
    PromptUNet,
    PyramidDecoder,
    SimplePyramid,
)
from probseg.heads.base import separable_conv
from probseg.heads.deeplab import AtrousPyramid, DeepLabV3PlusDecoder, DenseDeepLabDecoder
from probseg.heads.ocr import OCRDecoder, gather_regions
from probseg.heads.pyramid import FPNDecoder
from probseg.models import Segmenter
from probseg.types import FeatureInfo
from support.network_cases import assert_all_learn, maps_of, opened, prompts
from support.rows import each
from support.testers import PYRAMID, DecoderTester, built_by, randomise


class TestFPN(DecoderTester):
    build = FPNDecoder
    arguments = {"channels": 8}


class TestDeepLab(DecoderTester):
    build = DeepLabV3PlusDecoder
    arguments = {"channels": 6}
    channels = (6,)


class TestDenseDeepLab(DecoderTester):
    build = DenseDeepLabDecoder
    arguments = {"channels": 8}

    def test_one_image_is_enough_to_train(self):
        with pytest.raises(ValueError, match="more than 1 value per channel"):  # as documented
            super().test_one_image_is_enough_to_train()


class TestOCR(DecoderTester):
    build = OCRDecoder
    arguments = {"channels": 4}
    auxiliary = True


class TestPyramid(DecoderTester):
    build = PyramidDecoder
    arguments = {"widths": (6, 7, 9)}
    channels = (6, 7, 9)


class TestSimplePyramid(DecoderTester):
    build = SimplePyramid
    arguments = {"widths": (6, 7, 9)}
    inputs = FeatureInfo((12, 16, 20), (16, 16, 16))
    sizes = ((16, 16), (48, 80), (64, 48))
    channels = (6, 7, 9)


def test_all_decoders_are_tested():
    assert built_by(DecoderTester) == {*DECODERS.values()}


@each(
    ("build", "used"),
    [(DeepLabV3PlusDecoder, [1, 3]), (OCRDecoder, [1, 2, 3]), (FPNDecoder, [1, 2, 3])],
)
def test_which_maps_are_used(build, used):
    maps = [m.requires_grad_() for m in maps_of(PYRAMID, 1, 64, 64)]
    build(PYRAMID, channels=8).eval()(maps).features.square().sum().backward()
    assert [i for i, m in enumerate(maps) if m.grad is not None and m.grad.any()] == used


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gather_keeps_full_precision_under_autocast(dtype):
    pixels, logits = torch.rand(1, 2, 200, 300), torch.randn(1, 1, 200, 300).to(dtype)
    with torch.autocast("cpu", dtype):
        regions = gather_regions(pixels, torch.cat([logits, -logits], dim=1))
    both = torch.cat([logits, -logits], dim=1).double()
    weights = both.flatten(2).softmax(-1)  # about 1e-5
    expected = torch.einsum("bkn,bcn->bck", weights, pixels.double().flatten(2))
    torch.testing.assert_close(regions[..., 0], expected.float())


def block(sequence, x):
    """A 1x1 convolution, normalisation and ReLU of tokens `(B, N, C)`, written out."""
    conv, norm, _ = sequence
    x = torch.einsum("bnc,dc->bnd", x, conv.weight[:, :, 0, 0])
    x = (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    return (x * norm.weight + norm.bias).clamp(min=0)


def test_ocr_follows_the_equations():
    decoder = randomise(OCRDecoder(PYRAMID, channels=4)).double()
    maps = [m.double() for m in maps_of(PYRAMID, 2, 28, 44)]
    features, auxiliary, *_ = decoder(maps)
    fine = torch.cat([functional.interpolate(m, (7, 11), mode="bilinear") for m in maps[1:]], dim=1)
    x = decoder.pixels(fine).flatten(2).transpose(1, 2)
    first, last = decoder.auxiliary
    scores = block(first, fine.flatten(2).transpose(1, 2))
    scores = torch.einsum("bnc,kc->bnk", scores, last.weight[:, :, 0, 0]) + last.bias
    torch.testing.assert_close(auxiliary.flatten(2).transpose(1, 2), scores)
    scores = torch.stack([scores[..., 0], -scores[..., 0]], dim=-1)
    gather = scores.exp() / scores.exp().sum(1, keepdim=True)
    f = torch.einsum("bnk,bnc->bkc", gather, x)
    part = decoder.attention
    query = block(part.query[1], block(part.query[0], x))
    key = block(part.key[1], block(part.key[0], f))
    relation = (torch.einsum("bnc,bkc->bnk", query, key) / 4**0.5).softmax(-1)
    context = block(part.output, torch.einsum("bnk,bkc->bnc", relation, block(part.value, f)))
    expected = block(decoder.fuse[0], torch.cat([context, x], dim=-1))
    torch.testing.assert_close(features.flatten(2).transpose(1, 2), expected)


def test_pyramid_pooling_gives_each_place_the_mean_of_the_image():
    pyramid_ = AtrousPyramid(6, 8, rates=(2,), dropout=0.0).eval()
    seen = []
    pyramid_.project.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    features = torch.randn(2, 6, 5, 7)
    pyramid_(features)
    conv = pyramid_.pool[1]
    pooled = features.mean((2, 3)) @ conv.weight[:, :, 0, 0].T + conv.bias
    expected = pooled.clamp(min=0).view(2, 8, 1, 1).expand(2, 8, 5, 7)
    torch.testing.assert_close(seen[0][:, -8:], expected)


def test_fpn_adds_the_enlarged_coarser_level():
    decoder = FPNDecoder(FeatureInfo((2, 3), (4, 8)), channels=4).eval()
    fine, coarse = torch.randn(1, 2, 6, 6), torch.randn(1, 3, 3, 3)
    top = decoder.smooth[1](decoder.lateral[1](coarse))
    top = functional.interpolate(top, (6, 6), mode="bilinear")
    expected = decoder.smooth[0](decoder.lateral[0](fine) + top)
    torch.testing.assert_close(decoder([fine, coarse]).features, expected)


@pytest.mark.parametrize("rate", [1, 8])
def test_dilated_weights_learn_in_half_precision_with_channels_last(rate):
    convolution = separable_conv(64, 8, rate).to(memory_format=torch.channels_last)
    x = torch.randn(16, 64, 36, 36).contiguous(memory_format=torch.channels_last)
    target = torch.randn(16, 8, 36, 36)
    gradients = []
    for half in (False, True):
        convolution.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = (convolution(x) * target).sum()
        loss.backward()
        gradients.append(convolution[0].weight.grad.clone())
    assert gradients[1].isfinite().all()
    error = (gradients[1] - gradients[0]).norm() / gradients[0].norm()
    assert error < 0.15


PLAIN = FeatureInfo((12, 12, 12), (16, 16, 16))
DEPTHS = FeatureInfo((12, 16, 20, 24), (16, 16, 16, 16))


def levels_of(decoder, maps):
    decoded = decoder(maps)
    return [decoded.features, *decoded.coarser]


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
