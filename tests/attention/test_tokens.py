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


def test_an_attention_that_two_parents_share_stays_one():
    shared = nn.MultiheadAttention(4, 2, batch_first=True)
    model = convert_attention(nn.ModuleDict({"a": nn.Sequential(shared), "b": shared}))
    assert model["a"][0] is model["b"]


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
    ],
)
def test_what_cannot_be_converted_is_refused(model):
    refused(ValueError, lambda: convert_attention(model), "`model`")
