"""Predictive coding with normalised errors against loops and its own free energy."""

import math
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from probseg.family.predictive_coding import (
    free_energy_descent,
    normalised_errors,
    predictive_coding_inference,
)
from support.ops_cases import draw
from support.refusals import refused


def looped(
    children: Tensor, predictions: Tensor, kappa: Tensor, log_prior: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One item and head: bottom-up and top-down errors, masses, and the free energy."""
    bottom_up, top_down = torch.zeros_like(predictions), torch.zeros_like(children)
    mass, energy = torch.zeros(len(predictions), dtype=torch.float64), 0.0
    for n, x in enumerate(children):
        squares = [kappa[n] * ((x - p) ** 2).sum() for p in predictions]
        joint = [math.exp(log_prior[n, k] - s / 2) for k, s in enumerate(squares)]
        energy -= math.log(sum(joint))
        for k, p in enumerate(predictions):
            w = joint[k] / sum(joint)
            bottom_up[k] += w * kappa[n] * (x - p)
            top_down[n] += w * kappa[n] * (x - p)
            mass[k] += w * kappa[n]
    return bottom_up, top_down, mass, torch.tensor(energy, dtype=torch.float64)


@given(
    st.tuples(*(st.integers(1, 4),) * 3),
    st.sampled_from([(), (1,), (2, 1), (2, 2, -1)]),
    st.booleans(),
    st.integers(0, 99),
)
def test_errors_in_loops(sizes, shape, with_prior, seed):
    n, m, d = sizes
    shape = tuple(n if size == -1 else size for size in shape)
    children, predictions = draw(2, 2, n, d, seed=seed), draw(2, 2, m, d, seed=seed + 1)
    kappa = draw(*shape, seed=seed + 2).exp()
    prior = draw(2, 2, n, m, seed=seed + 3) * with_prior
    found = normalised_errors(
        children,
        predictions,
        precision=kappa if shape else float(kappa),
        log_prior=prior if with_prior else None,
    )
    kappas = kappa.expand(2, 2, n)
    for b in range(2):
        for g in range(2):
            wanted = looped(children[b, g], predictions[b, g], kappas[b, g], prior[b, g])
            torch.testing.assert_close(tuple(part[b, g] for part in found), wanted)


def test_gradients_of_all_that_is_returned():
    children, predictions = draw(1, 2, 4, 2), draw(1, 2, 3, 2, seed=1)
    kappa, prior = draw(1, 2, 4, seed=2).exp(), draw(4, 3, seed=3)
    inputs = [tensor.requires_grad_() for tensor in (children, predictions, kappa, prior)]
    assert gradcheck(
        lambda x, p, k, prior: tuple(normalised_errors(x, p, precision=k, log_prior=prior)), inputs
    )


def test_what_a_prior_hides_takes_no_part():
    children, predictions = draw(1, 1, 4, 2).requires_grad_(), draw(1, 1, 3, 2, seed=1)
    predictions.requires_grad_()
    prior = torch.zeros(4, 3, dtype=torch.float64)
    prior[1], prior[:, 2] = -math.inf, -math.inf
    errors = normalised_errors(children, predictions, log_prior=prior)
    some = normalised_errors(children[:, :, [0, 2, 3]], predictions[:, :, :2])
    torch.testing.assert_close(errors.bottom_up[:, :, :2], some.bottom_up)
    torch.testing.assert_close(errors.top_down[:, :, [0, 2, 3]], some.top_down)
    torch.testing.assert_close(errors.free_energy, some.free_energy)
    assert (errors.top_down[:, :, 1] == 0).all()
    assert (errors.bottom_up[:, :, 2] == 0).all()
    assert errors.mass[0, 0, 2] == 0
    total = sum(part.sum() for part in errors)
    for gradient in torch.autograd.grad(total, (children, predictions)):
        assert gradient.isfinite().all()


def test_a_far_origin_costs_no_digits_in_single_precision():
    children, predictions = draw(1, 1, 30, 4), draw(1, 1, 5, 4, seed=1)
    exact = normalised_errors(children, predictions)
    far = normalised_errors((children + 1000).float(), (predictions + 1000).float())
    for found, wanted in zip(far, exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-3, atol=2e-3)


def hierarchy(widths: list[int], counts: list[int], seed: int, size: float = 1.0):
    """Observed tokens, latent layers, generative matrices and precisions."""
    observed, *states = (
        draw(2, 2, count, width, seed=seed + i)
        for i, (count, width) in enumerate(zip(counts, widths, strict=True))
    )
    weights = [
        size * draw(2, below, above, seed=seed + 20 + i)
        for i, (below, above) in enumerate(pairwise(widths))
    ]
    precisions = [float(draw(1, seed=seed + 40 + i).exp()) for i in range(len(states))]
    return 3 * observed, states, weights, precisions


def energy(observed, states, weights, precisions, prior_precision) -> Tensor:
    """The free energy written out, (B, G)."""
    total = prior_precision / 2 * states[-1].square().sum((-2, -1))
    below = observed
    for state, weight, kappa in zip(states, weights, precisions, strict=True):
        p = torch.einsum("bgma,gda->bgmd", state, weight)
        squares = (below[:, :, :, None] - p[:, :, None]).square().sum(-1)
        total = total - (-kappa / 2 * squares).logsumexp(-1).sum(-1)
        below = state
    return total


LAYERS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=2, max_size=4)


@given(LAYERS, st.floats(0.05, 1.99), st.sampled_from([0.1, 1.0, 5.0]), st.integers(0, 99))
def test_the_free_energy_never_increases(layers, rate, size, seed):
    widths, counts = zip(*layers, strict=True)
    problem = hierarchy(list(widths), list(counts), seed, size)
    observed, states, weights, precisions = problem
    before = energy(*problem, 0.5)
    for _ in range(4):
        states = predictive_coding_inference(
            observed, states, weights, precisions=precisions, prior_precision=0.5, rate=rate
        )
        after = energy(observed, states, weights, precisions, 0.5)
        assert (after <= before + 1e-9 * (1 + before.abs())).all()
        before = after


def test_two_layers_that_move_towards_each_other_do_not_pass():
    """Both change what is between them: the bound of a layer counts the step of the one below."""
    observed, weight = torch.zeros(1, 1, 1, 1).double(), torch.full((1, 1, 1), 0.5).double()
    states = [torch.full_like(observed, 1.0), torch.full_like(observed, -1.0)]
    weights, precisions = [weight, weight], [1e-3, 1e3]
    before = energy(observed, states, weights, precisions, 1e-3)
    states = predictive_coding_inference(
        observed, states, weights, precisions=precisions, prior_precision=1e-3, rate=1.9
    )
    assert energy(observed, states, weights, precisions, 1e-3) < before


@given(LAYERS, st.integers(0, 99))
def test_directions_are_the_gradient_of_the_hierarchy(layers, seed):
    widths, counts = zip(*layers, strict=True)
    observed, states, weights, precisions = hierarchy(list(widths), list(counts), seed)
    for state in states:
        state.requires_grad_()
    wanted = energy(observed, states, weights, precisions, 0.5)
    found = free_energy_descent(
        observed, states, weights, precisions=precisions, prior_precision=0.5
    )
    torch.testing.assert_close(found.free_energy, wanted)
    for gradients in (
        torch.autograd.grad(wanted.sum(), states),
        torch.autograd.grad(found.free_energy.sum(), states),
    ):
        torch.testing.assert_close(tuple(-gradient for gradient in gradients), found.directions)


def test_one_layer_with_orthogonal_weights_takes_the_step_of_expectation_maximisation():
    """The bound of the curvature is then exact: its lowest point is the M step."""
    observed, (state,), _, _ = hierarchy([3, 3], [40, 4], 0)
    rotation = torch.linalg.qr(draw(2, 3, 3, seed=5)).Q
    p = torch.einsum("bgma,gda->bgmd", state, rotation)
    w = (-0.7 / 2 * torch.cdist(observed, p).square()).softmax(-1)
    sums = torch.einsum("bgnm,bgnd,gda->bgma", w, observed, rotation)
    wanted = 0.7 * sums / (0.7 * w.sum(-2)[..., None] + 0.5)
    (found,) = predictive_coding_inference(
        observed, [state], [rotation], precisions=[0.7], prior_precision=0.5
    )
    torch.testing.assert_close(found, wanted)


def test_gradients_through_the_steps():
    observed, states, weights, _ = hierarchy([2, 3, 2], [4, 3, 2], 2)
    inputs = [tensor[:1].requires_grad_() for tensor in (observed, *states)]
    inputs += [weight.requires_grad_() for weight in weights]
    inputs.append(draw(3, seed=9).exp().requires_grad_())

    def run(observed, low, high, first, second, kappa):
        return predictive_coding_inference(
            observed, [low, high], [first, second], precisions=[0.4, kappa], steps=2, rate=0.9
        )

    assert gradcheck(run, inputs)


def test_wrong_arguments_are_named():
    x, w = torch.zeros(1, 2, 4, 3), torch.zeros(2, 3, 3)

    def infer(states=(x,), weights=(w,), precisions=(1.0,), **options):
        return predictive_coding_inference(x, states, weights, precisions=precisions, **options)

    for call, named in (
        (lambda: normalised_errors(x, x[..., :2]), "predictions"),
        (lambda: normalised_errors(x, x, precision=0.0), "precision"),
        (lambda: infer(weights=(w, w)), "as many layers"),
        (lambda: infer((), (), ()), "as many layers"),
        (lambda: infer(rate=2), "`rate`"),
        (lambda: infer(steps=-1), "`steps`"),
        (lambda: infer(prior_precision=0.0), "`prior_precision`"),
    ):
        refused(ValueError, call, named)
