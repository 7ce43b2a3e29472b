"""Prompts that enter behind the decoder: the image is paid for once, clicks a fraction."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from probseg.backbones import PromptStem
from probseg.heads import ConvHead, DecoderMaps, PromptFusion
from probseg.models import Segmenter
from probseg.models.network import moved_prompts
from probseg.types import FeatureInfo
from support.fakes import Coarse, micro_model
from support.micro import FUSION
from support.network_cases import prompts
from support.rows import each

MODELS = ["micro_conv", "micro_csa"]
ENTRIES = ["stem", "head"]


def build(name="micro_csa", entry="head", **changes):
    torch.manual_seed(0)
    if entry == "head":
        changes = {"fusion": FUSION, **changes}
    return micro_model(name, prompts=entry, **changes)


@pytest.fixture(scope="module", params=MODELS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name):
    return build(name)


CLICKS = prompts((20, 9, 1), (33, 30, 0), box=(5, 3, 40, 31))


def outputs(*parts):
    """Collect what modules return, in the order of their calls."""
    seen = []
    for part in parts:
        part.register_forward_hook(lambda module, arguments, output: seen.append(output))
    return seen


def test_the_backbone_runs_once_for_all_clicks(model):
    model = copy.deepcopy(model)
    backbone, decoder = outputs(model.backbone), outputs(model.decoder)
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 40, 56))
        assert (len(backbone), len(decoder)) == (1, 1)
        for clicks in ([], [(3, 4, 1)], [(3, 4, 1), (20, 20, 1)]):
            model.decode(encoded, prompts(*clicks))
    assert (len(backbone), len(decoder)) == (1, 1)


def test_with_prompts_at_the_stem_it_runs_for_every_click(name):
    model = build(name, "stem")
    backbone = outputs(model.backbone)
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 40, 56))
        assert encoded.decoder_maps is None
        assert not backbone
        for count in (1, 2):
            model.decode(encoded, prompts(*[(3, 4, 1)] * count))
            assert len(backbone) == count


@pytest.mark.parametrize("layout", ["axial", "full"])
def test_where_to_look_does_not_depend_on_prompts(layout):
    model = build(head={"layout": layout, **({"span": None} if layout == "full" else {})})
    first = model.head.last if layout == "full" else model.head.height
    looks, values = outputs(first.query, first.key), outputs(first)
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 40, 56))
        model.decode(encoded, prompts())
        model.decode(encoded, CLICKS)
    assert torch.equal(looks[0], looks[2])
    assert torch.equal(looks[1], looks[3])
    assert not torch.equal(values[0], values[1])


@each("entry", ENTRIES)
def test_at_a_working_size_prompts_stay_in_pixels_of_the_image(name, entry):
    model, image = build(name, entry), torch.rand(1, 3, 64, 128)
    given = prompts((90, 60, 1), (10, 5, 0), box=(60, 30, 96, 64))
    with torch.no_grad():
        model.working_size = 64
        logits = model(image, given)
        reduced = model.encode(image).image * model.std + model.mean
        model.working_size = None
        small = model(reduced, moved_prompts(given, (64, 128), (32, 64)))
        elsewhere = model(reduced, given)
    expected = functional.interpolate(small, (64, 128), mode="bilinear")
    torch.testing.assert_close(logits, expected)
    assert not torch.equal(small, elsewhere)


def test_features_encoded_under_autocast_are_half_precision(model):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        encoded = model.encode(torch.rand(1, 3, 40, 56))
    with torch.no_grad():
        answer = model.decode(encoded, CLICKS)
    assert encoded.decoder_maps.features.dtype == torch.bfloat16
    assert answer.dtype == torch.float32


def test_each_entry_has_its_own_parts(name):
    stem, head = build(name, "stem"), build(name, "head", fusion=None)
    assert (stem.prompts_enter, head.prompts_enter) == ("stem", "head")
    assert stem.fusion is None
    assert isinstance(head.fusion, PromptFusion)
    assert head.fusion.channels == 64, "the usual one"
    stems = [[m for m in model.modules() if isinstance(m, PromptStem)] for model in (stem, head)]
    assert [len(found) for found in stems] == [1, 0]


@each(("row", "column"), [(0, 0), (9, 6), (11, 15)])
def test_a_single_clicked_pixel_counts_however_coarse_the_features(row, column):
    fusion = PromptFusion(FeatureInfo((6,), (4,)), 3, channels=8, dilations=()).eval()
    decoded, maps = DecoderMaps(torch.randn(1, 6, 3, 4)), torch.zeros(1, 3, 12, 16)
    before = fusion(decoded, maps, prompts())
    maps[0, 1, row, column] = 1
    change = (fusion(decoded, maps, prompts()) - before)[0, :, row // 4, column // 4]
    torch.testing.assert_close(change, fusion.embed.weight[:, 1, 1, 1])


def test_blocks_of_the_fusion_reach_ever_further():
    def reach(dilations):
        fusion = PromptFusion(FeatureInfo((4,), (1,)), 3, channels=2, dilations=dilations).eval()
        for parameter in fusion.parameters():
            nn.init.ones_(parameter)
        decoded, maps = DecoderMaps(torch.ones(1, 4, 1, 41)), torch.zeros(1, 3, 1, 41)
        before = fusion(decoded, maps, prompts())
        maps[0, 1, 0, 20] = 1
        changed = (fusion(decoded, maps, prompts()) != before).any(dim=1).flatten().nonzero()
        return int(changed.max()) - 20

    assert [reach(d) for d in ((), (1,), (1, 2), (1, 2, 4, 8))] == [1, 2, 4, 16]


def test_auxiliary_logits_have_the_size_of_the_image_and_see_no_prompt():
    model = Segmenter(build().backbone, Coarse, ConvHead, working_size=30, prompts="head").eval()
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 37, 53))
        asked = [model.raw_logits(encoded, given) for given in (prompts(), CLICKS)]
    for logits in asked:
        assert logits.auxiliary.shape == logits.main.shape == (1, 1, 37, 53)
        assert logits.auxiliary.dtype == torch.float32
    assert torch.equal(asked[0].auxiliary, asked[1].auxiliary)
    assert not torch.equal(asked[0].main, asked[1].main)
    assert encoded.working_size == (21, 30)
    assert encoded.image.shape == (1, 3, 32, 32), "whole cells of stride 32"
    whole = functional.interpolate(encoded.decoder_maps.auxiliary, (32, 32), mode="bilinear")
    expected = functional.interpolate(whole[..., :21, :30], (37, 53), mode="bilinear")
    torch.testing.assert_close(asked[0].auxiliary, expected)
