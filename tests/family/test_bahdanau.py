"""A decoder step against its equations token by token."""

import math

import pytest
import torch
from torch import Tensor, nn

from probseg.family.kernels import BahdanauDecoderStep
from support.ops_cases import draw
from support.rows import each


def problem() -> tuple[BahdanauDecoderStep, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    step = BahdanauDecoderStep(3, 5, 4, hidden_channels=6).double()
    return step, draw(2, 5), draw(2, 7, 4, seed=1), draw(2, 3, seed=2)


def test_it_follows_its_equations():
    step, state, encoded, inputs = problem()
    step.requires_grad_(False)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 4:] = True
    found = step(state, encoded, inputs, padding)
    for b, length in enumerate((7, 4)):
        scores = [
            float(
                step.score[0]
                @ torch.tanh(step.query.weight @ state[b] + step.key.weight @ encoded[b, t])
            )
            for t in range(length)
        ]
        total = sum(math.exp(score) for score in scores)
        weights = [math.exp(score) / total for score in scores]
        context = sum(weight * encoded[b, t] for t, weight in enumerate(weights))
        wanted = torch.tensor(weights + [0.0] * (7 - length), dtype=torch.float64)
        torch.testing.assert_close(found.weights[b], wanted)
        torch.testing.assert_close(found.context[b], context)
        torch.testing.assert_close(
            found.state[b], recurrent(step.cell, inputs[b], context, state[b])
        )


def recurrent(cell: nn.GRUCell, inputs: Tensor, context: Tensor, state: Tensor) -> Tensor:
    """A gated recurrent unit, as in PyTorch's documentation."""
    x = torch.cat([inputs, context])
    of_input = (cell.weight_ih @ x + cell.bias_ih).chunk(3)
    of_state = (cell.weight_hh @ state + cell.bias_hh).chunk(3)
    reset, update = (torch.sigmoid(of_input[i] + of_state[i]) for i in range(2))
    new = torch.tanh(of_input[2] + reset * of_state[2])
    return (1 - update) * new + update * state


def test_padding_is_not_read():
    step, state, encoded, inputs = problem()
    padding = torch.arange(7).expand(2, 7) >= 5
    found = step(state, encoded, inputs, padding)
    changed = encoded.clone()
    changed[:, 5:] = 99.0
    torch.testing.assert_close(step(state, changed, inputs, padding), found)
    torch.testing.assert_close(step(state, encoded[:, :5], inputs).context, found.context)


def test_a_sequence_of_padding_alone_has_no_context():
    step, state, encoded, inputs = problem()
    padding = torch.tensor([[True] * 7, [False] * 7])
    found = step(state, encoded, inputs, padding)
    assert (found.context[0] == 0).all()
    assert (found.weights[0] == 0).all()
    torch.testing.assert_close(found.weights[1].sum(), torch.tensor(1.0).double())
    sum(part.sum() for part in found).backward()
    for parameter in step.parameters():
        assert parameter.grad.isfinite().all()


@each(
    ("name", "shape", "message"),
    [
        ("state", (2, 4), "state"),
        ("encoder_states", (2, 4), "encoder_states"),
        ("encoder_states", (2, 7, 3), "encoder_states"),
        ("inputs", (2, 4), "inputs"),
        ("padding", (2, 6), "padding"),
    ],
)
def test_wrong_shapes_are_named(name, shape, message):
    step, state, encoded, inputs = problem()
    given = {"state": state, "encoder_states": encoded, "inputs": inputs}
    given[name] = torch.zeros(shape, dtype=torch.bool if name == "padding" else torch.float64)
    with pytest.raises(ValueError, match=message):
        step(**given)
