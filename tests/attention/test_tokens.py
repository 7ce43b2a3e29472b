"""Attention on tokens, in the place of PyTorch's and of timm's."""

from copy import deepcopy

import pytest
import timm
import torch
from torch import nn

from probseg.attention import ProbabilisticAttention, convert_attention
from support.refusals import refused
from support.rows import each

HIDDEN = torch.tensor([[False] * 5, [False, False, False, True, True]])
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
MASKS = [
    {},
    {"key_padding_mask": HIDDEN},
    {"attn_mask": CAUSAL},
    {"attn_mask": CAUSAL, "is_causal": True},
    {"attn_mask": torch.randn(6, 5, 5, generator=torch.Generator().manual_seed(1))},
]


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@each("masks", MASKS)
def test_without_key_iterations_it_is_pytorchs_layer(masks):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    ours = convert_attention(nn.Sequential(deepcopy(theirs)))[0]
    x, y = tokens(2, 5, 12), tokens(2, 5, 12, seed=1)
    for call in ((x, x, x), (x, y, y), (x, y, x)):
        wanted = theirs(*call, need_weights=False, **masks)[0]
        torch.testing.assert_close(ours(*call, need_weights=False, **masks)[0], wanted)
    assert torch.equal(ours(x), ours(x, x, x)[0])


def test_padded_batches_are_single_sequences_with_adapted_keys():
    layer = ProbabilisticAttention(12, 3, key_iterations=2)
    x = tokens(2, 5, 12)
    whole, alone = layer(x, key_padding_mask=HIDDEN), layer(x[1:, :3])
    torch.testing.assert_close(whole[1:, :3], alone)
    torch.testing.assert_close(whole[:1], layer(x[:1]))
    assert (layer(x) - ProbabilisticAttention(12, 3)(x)).abs().max() > 1e-3
    causal = {"attn_mask": CAUSAL}
    padded = {**causal, "key_padding_mask": HIDDEN}
    for masks in ({"is_causal": True}, causal, padded, {"need_weights": True}):
        refused(ValueError, lambda masks=masks: layer(x, **masks))


def test_networks_of_timm_and_pytorch_keep_their_answers():
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=4, qk_norm=True, **options).eval()
    encoder = nn.TransformerEncoderLayer(12, 4, 24, batch_first=True).eval()
    for model, x in ((vit, tokens(2, 3, 32, 32)), (encoder, tokens(2, 5, 12))):
        wanted = model(x)
        converted = convert_attention(deepcopy(model))
        torch.testing.assert_close(converted(x), wanted, rtol=1e-5, atol=1e-5)
        assert converted(x[:0]).shape == (0, *wanted.shape[1:])
        adapted = convert_attention(deepcopy(model), key_iterations=1)(x)
        assert (adapted - wanted).abs().max() > 1e-5
        adapted.square().sum().backward()
    whole, padding = nn.TransformerEncoder(encoder, 2).eval(), torch.arange(5) > 3
    masked = {"src_key_padding_mask": padding.repeat(2, 1)}
    wanted = whole(x, **masked)[:, :4]
    with torch.inference_mode():  # where PyTorch's own encoder leaves padding out
        converted = convert_attention(deepcopy(whole))(x, **masked)[:, :4]
    torch.testing.assert_close(converted, wanted, rtol=1e-5, atol=1e-5)
    linears = {
        name for name, part in convert_attention(vit).named_modules() if type(part) is nn.Linear
    }
    assert {"blocks.0.attn.query", "blocks.0.attn.key", "blocks.0.attn.value"} <= linears


def test_masks_in_the_place_of_timms_attention_show_as_there():
    torch.manual_seed(0)
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=2).eval()
    x, shown = tokens(2, 3, 32, 32), torch.ones(2, 1, 5, 5, dtype=torch.bool)
    shown[..., 4] = False
    masks = (shown, shown.expand(2, 3, 5, 5).flatten(0, 1)[:3], shown[0, 0].log(), None)
    wanted = [vit.forward_features(x, attn_mask=mask) for mask in masks]
    converted = deepcopy(convert_attention(vit))
    for mask, features in zip(masks, wanted, strict=True):
        torch.testing.assert_close(converted.forward_features(x, attn_mask=mask), features)


def test_an_attention_that_parents_share_or_repeat_stays_one():
    shared = nn.MultiheadAttention(4, 2, batch_first=True)
    model = nn.ModuleDict({"a": nn.Sequential(shared, shared), "b": shared})
    convert_attention(model)
    assert isinstance(model["b"], ProbabilisticAttention)
    assert model["a"][0] is model["a"][1] is model["b"]


def test_weights_stay_frozen():
    model = nn.Sequential(nn.MultiheadAttention(4, 2, batch_first=True))
    model[0].in_proj_weight.requires_grad_(False)
    learns = {
        name for name, part in convert_attention(model)[0].named_parameters() if part.requires_grad
    }
    assert learns == {"query.bias", "key.bias", "value.bias", "proj.weight", "proj.bias"}
    frozen = nn.Sequential(nn.MultiheadAttention(4, 2, bias=False, batch_first=True))
    frozen.requires_grad_(False)
    assert not any(part.requires_grad for part in convert_attention(frozen).parameters())


class Turned(nn.MultiheadAttention):
    """An attention with a meaning of its own."""

    def forward(self, x):
        return super().forward(x.flip(1), x, x)[0]


def test_layers_whose_meaning_is_not_known_stay_as_they_are():
    others = [
        Turned(4, 2, batch_first=True),
        timm.models.beit.Attention(4, 2),
        timm.models.vision_transformer_sam.Attention(4, 2, use_rel_pos=True, input_size=(2, 2)),
    ]
    refused(ValueError, lambda: convert_attention(nn.Sequential(*others)), "`model`")
    model = convert_attention(nn.Sequential(timm.layers.Attention(4, 2), *others))
    assert isinstance(model[0], ProbabilisticAttention)
    assert list(model[1:]) == others


@each(
    ("layer", "option"),
    [
        (nn.MultiheadAttention(4, 2, 0.5, batch_first=True), "`dropout` 0.5"),
        (timm.layers.Attention(4, 2, attn_drop=0.5), "`attn_drop.p` 0.5"),
    ],
)
def test_dropout_of_weights_is_refused_in_training(layer, option):
    model = nn.Sequential(nn.MultiheadAttention(4, 2, batch_first=True), layer)
    refused(ValueError, lambda: convert_attention(model), option)
    assert type(model[0]) is nn.MultiheadAttention  # nothing is half converted
    assert isinstance(convert_attention(model.eval())[1], ProbabilisticAttention)


def test_biases_are_not_dropped():
    with_bias, without = (
        nn.Sequential(nn.MultiheadAttention(4, 2, batch_first=True, bias=bias))
        for bias in (True, False)
    )
    refused(ValueError, lambda: convert_attention(with_bias, bias=False), "`bias` must be True")
    assert convert_attention(without, bias=False)[0].query.bias is None


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(2, 2),
        nn.Sequential(nn.MultiheadAttention(4, 2)),
        nn.Sequential(nn.MultiheadAttention(4, 2, batch_first=True, add_zero_attn=True)),
        nn.Sequential(timm.layers.Attention(4, 2, attn_head_dim=4, dim_out=8)),
    ],
)
def test_what_cannot_be_converted_is_refused(model):
    refused(ValueError, lambda: convert_attention(model), "`model`")
