"""The layers that infer before they read out: Hopfield, slots and block slots."""

import pytest
import torch
from torch import Tensor, nn

from probseg.attention import Attention2d, StandardAttention2d
from probseg.family.block_slots import BlockSlotAttention2d, Memories, block_slot_free_energy
from probseg.family.energy import HopfieldAttention2d
from probseg.family.slots import GRUSlotAttention2d, SlotAttention2d
from probseg.ops.axial import from_lines, to_lines
from support.ops_cases import draw
from support.rows import pairwise

SLOTS = [SlotAttention2d, GRUSlotAttention2d, BlockSlotAttention2d]
LAYERS = [HopfieldAttention2d, *SLOTS]
AXES = ["full", "height", "width"]


def build(layer: type[Attention2d], **options: object) -> Attention2d:
    torch.manual_seed(0)
    options = {"num_heads": 2, "head_channels": 4, **options}
    return layer(8, 6, **options).double()


def lines(layer: Attention2d, projection: nn.Conv2d, features: Tensor) -> Tensor:
    """Project a map, as lines `(B', G, N, C)`."""
    return to_lines(projection(features).unflatten(1, (layer.num_heads, -1)), layer.axis)


def plain(layer: Attention2d, features: Tensor) -> Tensor:
    """What the layers compute, written out with all N x N pairs."""
    q, v = (lines(layer, projection, features) for projection in (layer.query, layer.value))
    p = PLAIN[type(layer)](layer, q, features)
    return from_lines(p @ v, layer.axis, *features.shape[-2:]).flatten(1, 2)


def plain_hopfield(layer, states, features):
    k = lines(layer, layer.key, features)
    for _ in range(layer.iterations):
        states = (states @ k.mT / 2).softmax(-1) @ k
    return (states @ k.mT / 2).softmax(-1)


def through(w: Tensor) -> Tensor:
    """From a pixel to a slot, from there to a pixel."""
    return w @ (w / w.sum(-2, keepdim=True)).mT


def plain_slots(layer, q, features):
    slots = layer.initial
    for _ in range(layer.iterations):
        w = (q @ slots.mT).softmax(-1)
        slots = w.mT @ q / w.sum(-2)[..., None]
    return through((q @ slots.mT).softmax(-1))


def plain_gru_slots(layer, q, features):
    """Alg. 1 of Locatello et al. (2020), and the equations of the recurrent unit."""
    cell, first, second = layer.cell, layer.perceptron[1], layer.perceptron[3]

    def normalised(norm, x):
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        return norm.weight * x + norm.bias

    def weights(slots):
        return (q @ normalised(layer.norm, slots).mT / 2).softmax(-1)

    slots = layer.initial
    for _ in range(layer.iterations):
        w = weights(slots)
        means = (w / w.sum(-2, keepdim=True)).mT @ q
        of_means = (means @ cell.weight_ih.mT + cell.bias_ih).chunk(3, -1)
        of_slots = (slots @ cell.weight_hh.mT + cell.bias_hh).chunk(3, -1)
        reset = (of_means[0] + of_slots[0]).sigmoid()
        keep = (of_means[1] + of_slots[1]).sigmoid()
        new = (of_means[2] + reset * of_slots[2]).tanh()
        slots = (1 - keep) * new + keep * slots
        hidden = normalised(layer.perceptron[0], slots) @ first.weight.mT + first.bias
        slots = slots + hidden.clamp(min=0) @ second.weight.mT + second.bias
    return through(weights(slots))


def plain_block_slots(layer, q, features):
    q = q - q.mean(-2, keepdim=True)
    slots, m = layer.initial, layer.memories
    share = q.shape[-2] / slots.shape[-2]
    for _ in range(layer.iterations):
        w = (q @ slots.mT).softmax(-1)
        blocks = slots.expand(len(q), -1, -1, -1).chunk(m.shape[1], -1)
        recalled = [(z @ m[:, b].mT).softmax(-1) @ m[:, b] for b, z in enumerate(blocks)]
        slots = w.mT @ q / share + torch.cat(recalled, -1)
    return through((q @ slots.mT).softmax(-1))


PLAIN = {
    HopfieldAttention2d: plain_hopfield,
    SlotAttention2d: plain_slots,
    GRUSlotAttention2d: plain_gru_slots,
    BlockSlotAttention2d: plain_block_slots,
}


@pytest.fixture(params=LAYERS)
def layer(request) -> type[Attention2d]:
    return request.param


@pytest.fixture(params=SLOTS)
def slot_layer(request) -> type[SlotAttention2d]:
    return request.param


@pytest.mark.parametrize(("iterations", "axis"), pairwise([1, 3], AXES))
def test_equals_the_plain_implementation(layer, axis, iterations):
    attention = build(layer, axis=axis, iterations=iterations)
    features = draw(2, 8, 5, 7)
    torch.testing.assert_close(attention(features), plain(attention, features))


def test_the_same_pixels_in_a_larger_map_get_the_same_answer(layer):
    """Sums over pixels do not grow with their number."""
    attention = build(layer)
    features = draw(1, 8, 4, 5)
    tiled = attention(features.repeat(1, 1, 3, 2))
    torch.testing.assert_close(tiled, attention(features).repeat(1, 1, 3, 2))


def test_slots_stay_apart_in_a_new_layer(slot_layer):
    """Even where pixels have no structure at all, each of them prefers a slot."""
    torch.manual_seed(0)
    attention = slot_layer(64, 6, head_channels=32, num_slots=6)
    edges = attention.posterior(draw(1, 64, 24, 24).float())
    shares = (edges.scale * edges.tokens @ edges.bases.mT).softmax(-1)
    assert shares.amax(-1).mean() > (0.3 if slot_layer is GRUSlotAttention2d else 0.6)


def test_block_slots_lower_their_free_energy():
    attention = build(BlockSlotAttention2d)
    q = attention.posterior(draw(2, 8, 5, 7)).tokens
    share = q.shape[-2] / attention.initial.shape[-2]
    patterns = attention.memories.expand(2, -1, -1, -1, -1)
    energies = []
    for iterations in range(1, 6):
        attention.iterations = iterations
        slots = attention.infer(q, attention.initial.expand(2, -1, -1, -1))
        memories = Memories(patterns, strength=share)
        energies.append(block_slot_free_energy(q, slots, memories, precision=share))
    falls = torch.stack(energies).diff(dim=0)
    assert (falls < 0).all()


def test_a_span_bounds_what_hopfield_states_see():
    attention = build(HopfieldAttention2d, axis="width", span=3, iterations=3)
    features = draw(1, 8, 4, 9).requires_grad_()
    (gradient,) = torch.autograd.grad(attention(features)[0, :, 2, 4].sum(), features)
    seen = gradient[0].abs().sum(0) > 0
    expected = torch.zeros(4, 9, dtype=torch.bool)
    expected[2, 3:6] = True
    assert torch.equal(seen, expected)


def test_hopfield_layers_have_the_parameters_of_standard_ones():
    standard = StandardAttention2d(8, 6, num_heads=2, head_channels=4).double()
    attention = build(HopfieldAttention2d)
    attention.load_state_dict(standard.state_dict())
    features = draw(1, 8, 4, 5)
    assert (attention(features) - standard(features)).abs().max() > 1e-2
    attention.query.weight.data.zero_()  # states in the middle stay there, and see all alike
    keys = lines(attention, attention.key, features)
    states = keys.mean(-2, keepdim=True)
    expected = (states @ keys.mT / 2).softmax(-1) @ lines(attention, attention.value, features)
    torch.testing.assert_close(
        attention(features)[..., :1, :1].flatten(), expected.flatten(), rtol=1e-6, atol=1e-6
    )


def test_wrong_arguments_are_named(layer):
    with pytest.raises(ValueError, match="iterations"):
        build(layer, iterations=0)
    with pytest.raises(ValueError, match=r"`position` .*got 'factored'"):
        build(layer, position="factored")


def test_wrong_arguments_of_slots_are_named(slot_layer):
    with pytest.raises(ValueError, match="num_slots"):
        build(slot_layer, num_slots=0)
    with pytest.raises(ValueError, match=r"`span` .*got 3: its slots are shared"):
        build(slot_layer, axis="width", span=3)
    if slot_layer is BlockSlotAttention2d:
        with pytest.raises(ValueError, match=r"`num_blocks`, got 4 and 3"):
            build(slot_layer, num_blocks=3)
        with pytest.raises(ValueError, match="num_memories"):
            build(slot_layer, num_memories=0)
