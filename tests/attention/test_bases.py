"""Bases: how they start, what moves them, and that processes move them together."""

from copy import deepcopy

import torch
from torch.utils.checkpoint import checkpoint

from probseg.attention import build_attention
from probseg.attention.bases import Bases
from probseg.errors import UnknownNameError
from probseg.semantic.heads import EMAU
from support.refusals import refused
from support.rows import each
from support.runs import in_two_processes

HEADS, BASES, CHANNELS = 2, 3, 4


def build(**options) -> Bases:
    torch.manual_seed(0)
    return Bases(BASES, CHANNELS, num_heads=HEADS, **options)


def fitted(batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(batch, HEADS, BASES, CHANNELS, generator=generator)
    return drawn / drawn.norm(dim=-1, keepdim=True)


@each("normalisation", ["l2", "layer", None])
def test_every_picture_starts_with_the_normalised_bases(normalisation):
    bases = build(normalisation=normalisation)
    found = bases.start(torch.zeros(5, HEADS, 6, CHANNELS))
    assert found.shape == (5, HEADS, BASES, CHANNELS)
    initial = bases.initial
    expected = {
        "l2": initial / initial.norm(dim=-1, keepdim=True),
        "layer": torch.nn.functional.layer_norm(initial, (CHANNELS,)),
        None: initial,
    }[normalisation]
    torch.testing.assert_close(found, expected.expand(5, -1, -1, -1))


@each("momentum", [0.0, 0.9, 1.0])
def test_the_moving_average(momentum):
    bases = build(momentum=momentum)
    before, pictures = bases.initial.clone(), fitted(3)
    bases.follow(pictures)
    mean = (pictures[0] + pictures[1] + pictures[2]) / 3
    torch.testing.assert_close(bases.initial, momentum * before + (1 - momentum) * mean)
    assert not bases.initial.requires_grad


@each("update", ["moving_average", "learnt", "fixed"])
@each("training", [True, False])
def test_only_the_moving_average_follows_and_only_in_training(update, training):
    bases = build(update=update).train(training)
    before = bases.initial.clone()
    bases.follow(fitted(2))
    moves = training and update == "moving_average"
    assert bases.follows == moves
    assert torch.equal(bases.initial, before) != moves
    assert bool(list(bases.parameters())) == (update == "learnt")


def test_gradients_go_through_bases_that_have_moved_since():
    bases = build(normalisation=None)
    weights = torch.randn(2, HEADS, BASES, CHANNELS, requires_grad=True)
    product = weights * bases.start(torch.zeros(2, HEADS, 6, CHANNELS))
    before = bases.initial.clone()
    bases.follow(fitted(2))
    product.sum().backward()
    torch.testing.assert_close(weights.grad, before.expand(2, -1, -1, -1))


@each("use_reentrant", [False, True])
@each("family", ["em", "emau"])
def test_gradient_checkpointing_changes_neither_gradients_nor_averages(use_reentrant, family):
    torch.manual_seed(0)
    layer = build_attention("em", 8, 8, num_bases=4) if family == "em" else EMAU(8, num_bases=4)
    images = [torch.randn(2, 8, 4, 5, requires_grad=True) for _ in range(3)]

    def trained(run):
        """Two passes before one backward pass, one of them stored, and another step."""
        copy = deepcopy(layer).train()
        (run(copy, images[0]) * copy(images[1]) + run(copy, images[2])).square().sum().backward()
        run(copy, images[1]).square().sum().backward()
        gradients = [weight.grad for weight in copy.parameters() if weight.grad is not None]
        return gradients, copy.bases.initial

    wanted = trained(lambda layer, x: layer(x))
    got = trained(lambda layer, x: checkpoint(layer, x, use_reentrant=use_reentrant))
    torch.testing.assert_close(got, wanted)


@each("wrong", [float("nan"), float("inf"), -float("inf")])
def test_pictures_that_overflowed_do_not_count(wrong):
    bases, others = build(), build()
    pictures = fitted(4)
    others.follow(pictures[[0, 3]])
    pictures[1, 1, 2, 3] = pictures[2, 0, 0, 0] = wrong
    bases.follow(pictures)
    torch.testing.assert_close(bases.initial, others.initial)


def test_without_a_finite_picture_the_bases_stay():
    bases = build()
    before = bases.initial.clone()
    for pictures in (torch.full_like(fitted(2), float("nan")), fitted(0)):
        bases.follow(pictures)
        assert torch.equal(bases.initial, before)


def test_wrong_arguments_are_named():
    for wrong, part in (
        ({"momentum": 1.5}, "momentum"),
        ({"train_iterations": 0}, "train_iterations"),
        ({"eval_iterations": -1}, "eval_iterations"),
        ({"update": "learned"}, "'learnt'"),
        ({"normalisation": "l1"}, "'l2'"),
    ):
        refused((ValueError, UnknownNameError), lambda wrong=wrong: build(**wrong), part)
    refused(ValueError, lambda: Bases(0, 4), "num_bases")


SHARES = [(2, 2), (4, 1), (2, 3), (1, 1)]
"""Pictures of the first and of the second process, by runs."""

SPOILED = [(), (), (1, 3), (0, 1)]
"""Those of them that have overflowed."""


def followed(shares: tuple[int, ...], spoiled: tuple[int, ...]) -> torch.Tensor:
    pictures = fitted(sum(shares))
    pictures[list(spoiled), 0] = float("nan")
    return pictures


def follow_in_a_process(rank):
    """Follow this process's share of the pictures, twice in each run; return the bases."""
    found = []
    for shares, spoiled in zip(SHARES, SPOILED, strict=True):
        bases = build()
        first = sum(shares[:rank])
        for _ in range(2):
            bases.follow(followed(shares, spoiled)[first : first + shares[rank]])
        found.append(bases.initial.tolist())
    return found


def test_two_processes_are_one_with_both_batches(tmp_path):
    found = in_two_processes(tmp_path, follow_in_a_process)
    assert found[0] == found[1]
    for initial, shares, spoiled in zip(found[0], SHARES, SPOILED, strict=True):
        alone = build()
        for _ in range(2):
            alone.follow(followed(shares, spoiled))
        assert (torch.tensor(initial) - alone.initial).abs().max() <= 1e-7
