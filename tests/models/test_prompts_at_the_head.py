"""Prompts that enter behind the decoder: the image is paid for once, clicks a fraction."""

import copy
import io
import math

import pytest
import torch
from fakes import Coarse, micro_model
from torch import nn
from torch.nn import functional

from probseg.backbones import PromptStem
from probseg.heads import ConvHead, Decoded, PromptFusion
from probseg.models import Segmenter
from probseg.models.encoded import moved_prompts
from probseg.types import FeatureInfo, Prompts

MODELS = ["micro_conv", "micro_csa"]
ENTRIES = ["stem", "head"]
FUSION = {
    "class_path": "probseg.heads.PromptFusion",
    "init_args": {"channels": 8, "dilations": [1, 2]},
}


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


def prompts(batch=1, points=(), labels=(), boxes=None):
    """The same clicks for every image."""
    return Prompts(
        torch.tensor(points, dtype=torch.float32).reshape(1, -1, 2).repeat(batch, 1, 1),
        torch.tensor(labels, dtype=torch.long).reshape(1, -1).repeat(batch, 1),
        torch.full((batch, 4), math.nan) if boxes is None else torch.tensor(boxes).float(),
    )


CLICKS = prompts(1, [(20, 9), (33, 30)], [1, 0], [[5, 3, 40, 31]])


def outputs(*parts):
    """Collect what modules return, in the order of their calls."""
    seen = []
    for part in parts:
        part.register_forward_hook(lambda module, arguments, output: seen.append(output))
    return seen


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("working_size", [None, 30])
@pytest.mark.parametrize("size", [(40, 56), (37, 53), (1, 9)])
def test_encoding_and_decoding_is_the_whole_road(name, entry, working_size, size):
    model, image = build(name, entry, working_size=working_size), torch.rand(2, 3, *size)
    given = prompts(2, [(0, 0), (8, 0)], [1, 0], [[0, 0, 6, 1]] * 2)
    with torch.no_grad():
        logits = model.decode(model.encode(image), given)
        assert torch.equal(logits, model(image, given))
    assert logits.shape == (2, 1, *size)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()


def test_the_backbone_runs_once_for_all_clicks(model):
    model = copy.deepcopy(model)
    backbone, decoder = outputs(model.backbone), outputs(model.decoder)
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 40, 56))
        assert (len(backbone), len(decoder)) == (1, 1)
        for points in ([], [(3, 4)], [(3, 4), (20, 20)]):
            model.decode(encoded, prompts(1, points, [1] * len(points)))
    assert (len(backbone), len(decoder)) == (1, 1)


def test_with_prompts_at_the_stem_it_runs_for_every_click(name):
    model = build(name, "stem")
    backbone = outputs(model.backbone)
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 40, 56))
        assert encoded.decoded is None
        assert not backbone
        for count in (1, 2):
            model.decode(encoded, prompts(1, [(3, 4)] * count, [1] * count))
            assert len(backbone) == count


def test_an_encoded_image_can_be_asked_in_any_order(model):
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 40, 56))
        first = model.decode(encoded, CLICKS)
        model.decode(encoded, prompts())
        assert torch.equal(model.decode(encoded, CLICKS), first)


@pytest.mark.parametrize("label", [0, 1])
def test_logits_depend_on_clicks_and_boxes(model, label):
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 40, 56))
        none = model.decode(encoded, prompts())
        one = model.decode(encoded, prompts(1, [(20, 20)], [label]))
        other = model.decode(encoded, prompts(1, [(44, 20)], [label]))
        box = model.decode(encoded, prompts(boxes=[[5, 5, 30, 30]]))
    seen = [none, one, other, box]
    for i, logits in enumerate(seen):
        assert not any(torch.equal(logits, later) for later in seen[i + 1 :])


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


def test_nor_does_it_with_prompts_at_the_stem_for_the_same_features():
    head = build("micro_csa", "stem").head
    looks, values = outputs(head.height.query, head.height.key), outputs(head.height)
    features = torch.randn(1, 16, 10, 14)
    with torch.no_grad():
        for clicks in (torch.zeros(1, 2, 40, 56), torch.ones(1, 2, 40, 56)):
            head(features, clicks)
    assert torch.equal(looks[0], looks[2])
    assert torch.equal(looks[1], looks[3])
    assert not torch.equal(values[0], values[1])


@pytest.mark.parametrize("entry", ENTRIES)
def test_at_a_working_size_prompts_stay_in_pixels_of_the_image(name, entry):
    model, image = build(name, entry), torch.rand(1, 3, 64, 96)
    given = prompts(1, [(90, 60), (10, 5)], [1, 0], [[60, 30, 96, 64]])
    with torch.no_grad():
        model.working_size = 48
        logits = model(image, given)
        reduced = model.encode(image).image * model.std + model.mean
        model.working_size = None
        small = model(reduced, moved_prompts(given, (64, 96), (32, 48)))
        elsewhere = model(reduced, given)
    expected = functional.interpolate(small, (64, 96), mode="bilinear")
    torch.testing.assert_close(logits, expected)
    assert not torch.equal(small, elsewhere)


def test_images_of_a_batch_do_not_see_each_other(model):
    images = torch.rand(3, 3, 37, 53)
    given = Prompts(
        torch.rand(3, 4, 2) * 36,
        torch.tensor([[1, 0, -1, -1], [1, 1, 0, 0], [-1, -1, -1, -1]]),
        torch.tensor([[3.0, 4.0, 30.0, 20.0], [math.nan] * 4, [0.0, 0.0, 53.0, 37.0]]),
    )
    with torch.no_grad():
        together = model(images, given)
        for i in range(3):
            alone = model(images[i : i + 1], Prompts(*(t[i : i + 1] for t in given[:3])))
            torch.testing.assert_close(together[i : i + 1], alone, atol=1e-4, rtol=1e-4)


def test_padding_of_the_clicks_draws_nothing(model):
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 40, 40))
        padded = model.decode(encoded, prompts(1, [(5, 9), (30, 30), (0, 0)], [1, -1, -1]))
        plain = model.decode(encoded, prompts(1, [(5, 9)], [1]))
    assert torch.equal(padded, plain)


def test_autocast_gives_float32_logits_close_to_the_exact_ones(model):
    image = torch.rand(1, 3, 40, 56)
    with torch.no_grad():
        exact = model(image, CLICKS)
        with torch.autocast("cpu", torch.bfloat16):
            encoded = model.encode(image)
            half = model.decode(encoded, CLICKS)
    assert encoded.decoded.features.dtype == torch.bfloat16
    assert half.dtype == torch.float32
    assert not torch.equal(half, exact)
    assert (half - exact).abs().max() < 0.1 * exact.abs().max() + 0.1


def test_all_parameters_learn(model):
    model = copy.deepcopy(model).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # timm begins some at 0, which stops the gradient
            nn.init.ones_(module.weight)
    clicks = prompts(2, [(10, 10), (30, 20)], [1, 0], [[5, 5, 30, 30]] * 2)
    model(torch.rand(2, 3, 48, 48), clicks).square().sum().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not without
    rooms = {n.split(".")[0] for n, _ in model.named_parameters()}
    assert rooms == {"backbone", "decoder", "fusion", "head"}


@pytest.mark.parametrize("entry", ENTRIES)
def test_weights_come_back_from_a_file(name, entry):
    model, file = build(name, entry), io.BytesIO()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    torch.save(model.state_dict(), file)
    file.seek(0)
    other, image = build(name, entry), torch.rand(1, 3, 37, 53)
    with torch.no_grad():
        expected = model(image, CLICKS)
        assert not torch.equal(other(image, CLICKS), expected)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(other(image, CLICKS), expected)


def test_each_entry_has_its_own_parts(name):
    stem, head = build(name, "stem"), build(name, "head")
    assert (stem.prompts, head.prompts) == ("stem", "head")
    assert stem.fusion is None
    assert isinstance(head.fusion, PromptFusion)
    stems = [[m for m in model.modules() if isinstance(m, PromptStem)] for model in (stem, head)]
    assert [len(found) for found in stems] == [1, 0]


def test_without_a_description_the_fusion_is_the_usual_one(name):
    model = micro_model(name, prompts="head")
    assert model.fusion.channels == 64
    with torch.no_grad():
        assert model(torch.rand(1, 3, 20, 20), prompts()).shape == (1, 1, 20, 20)


def test_prompts_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="fusion is for prompts='head'"):
        build("micro_csa", "stem", fusion=FUSION)
    with pytest.raises(ValueError, match="prompts must be 'stem' or 'head', got 'middle'"):
        build("micro_csa", "middle")


@pytest.mark.parametrize(("row", "column"), [(0, 0), (9, 6), (11, 15)])
def test_a_single_clicked_pixel_counts_however_coarse_the_features(row, column):
    fusion = PromptFusion(FeatureInfo((6,), (4,)), 3, channels=8, dilations=()).eval()
    decoded, maps = Decoded(torch.randn(1, 6, 3, 4)), torch.zeros(1, 3, 12, 16)
    before = fusion(decoded, maps, prompts())
    maps[0, 1, row, column] = 1
    change = (fusion(decoded, maps, prompts()) - before)[0, :, row // 4, column // 4]
    torch.testing.assert_close(change, fusion.embed.weight[:, 1, 1, 1])


def test_blocks_of_the_fusion_reach_ever_further():
    def reach(dilations):
        fusion = PromptFusion(FeatureInfo((4,), (1,)), 3, channels=2, dilations=dilations).eval()
        for parameter in fusion.parameters():
            nn.init.ones_(parameter)
        decoded, maps = Decoded(torch.ones(1, 4, 1, 41)), torch.zeros(1, 3, 1, 41)
        before = fusion(decoded, maps, prompts())
        maps[0, 1, 0, 20] = 1
        changed = (fusion(decoded, maps, prompts()) != before).any(dim=1).flatten().nonzero()
        return int(changed.max()) - 20

    assert [reach(d) for d in ((), (1,), (1, 2), (1, 2, 4, 8))] == [1, 2, 4, 16]


def test_auxiliary_logits_have_the_size_of_the_image_and_see_no_prompt():
    model = Segmenter(build().backbone, Coarse, ConvHead, working_size=30, prompts="head").eval()
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 37, 53))
        asked = [model.all_logits(encoded, given) for given in (prompts(), CLICKS)]
    for logits in asked:
        assert logits.auxiliary.shape == logits.main.shape == (1, 1, 37, 53)
        assert logits.auxiliary.dtype == torch.float32
    assert torch.equal(asked[0].auxiliary, asked[1].auxiliary)
    assert not torch.equal(asked[0].main, asked[1].main)
    assert encoded.working_size == (21, 30)
    assert encoded.image.shape == (1, 3, 24, 32), "whole cells of stride 4"
    whole = functional.interpolate(encoded.decoded.auxiliary, (24, 32), mode="bilinear")
    expected = functional.interpolate(whole[..., :21, :30], (37, 53), mode="bilinear")
    torch.testing.assert_close(asked[0].auxiliary, expected)


def test_decoders_without_a_loss_of_their_own_give_no_auxiliary_logits(model):
    with torch.no_grad():
        assert model.all_logits(model.encode(torch.rand(1, 3, 16, 16)), prompts()).auxiliary is None
