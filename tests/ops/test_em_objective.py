"""What EM climbs: the log posterior of the mixture, written with PyTorch's distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet, Gamma, Normal

from probseg.ops import (
    DirichletPrior,
    GammaPrior,
    KeyAdaptation,
    ProbabilisticAttention,
    ValuePropagation,
    probabilistic_attention,
)
from support.ops_cases import draw
from support.rows import each, pairwise

ROUNDING = 1e-10
N, M, D, V = 9, 4, 3, 2


def density(points: Tensor, means: Tensor, precision: Tensor) -> Tensor:
    """`log N(x_i | m_j, 1/p_j)` for all pairs, (n, m) (Eqs. 8 and 9)."""
    deviation = precision.rsqrt().unsqueeze(-1)
    return Normal(means, deviation).log_prob(points.unsqueeze(-2)).sum(-1)


def log_joint(
    log_pi: Tensor,
    queries: Tensor,
    keys: Tensor,
    alpha: Tensor,
    values: Tensor | None = None,
    unit_values: Tensor | None = None,
    beta: Tensor | None = None,
) -> Tensor:
    """`log p_i(q_i, v_i, u_j)`, (n, m) (Eqs. 2 and 7)."""
    joint = log_pi + density(queries, keys, alpha)
    return joint if values is None else joint + density(values, unit_values, beta)


def log_prior_of_means(means: Tensor, initial: Tensor, theta: float) -> Tensor | float:
    """Gaussian prior of the means; a precision of 0 has none."""
    return Normal(initial, theta**-0.5).log_prob(means).sum() if theta > 0 else 0.0


class Keys:
    """Queries in two clusters, and a mixture with a fixed prior that adapts to them."""

    def __init__(self, seed: int, theta: float, mean: str, gamma: GammaPrior | None) -> None:
        self.theta, self.mean, self.gamma = theta, mean, gamma
        self.queries = draw(N, D, seed=seed) + 2 * draw(N, 1, seed=seed + 1).sign()
        self.keys, self.values = draw(M, D, seed=seed + 2), draw(M, V, seed=seed + 3)
        self.alpha = draw(M, seed=seed + 4).exp()
        self.log_pi = draw(M, seed=seed + 5).log_softmax(-1)

    def adapted(self, iterations: int) -> tuple[Tensor, Tensor]:
        result = probabilistic_attention(
            *(x[None, None] for x in (self.queries, self.keys, self.values)),
            query_precision=self.alpha,
            log_prior=self.log_pi,
            key_adaptation=KeyAdaptation(iterations, self.theta, self.mean, self.gamma),
        )
        evidence = log_joint(
            self.log_pi, self.queries, result.keys[0, 0], result.query_precision[0, 0]
        ).logsumexp(-1)
        torch.testing.assert_close(result.log_evidence[0, 0], evidence)
        return result.keys[0, 0], result.query_precision[0, 0]

    def objective(self, keys: Tensor, alpha: Tensor) -> Tensor:
        """Log likelihood and log priors; without that of the keys for the previous mean."""
        total = log_joint(self.log_pi, self.queries, keys, alpha).logsumexp(-1).sum()
        if self.gamma is not None:
            total = total + Gamma(self.gamma.shape, self.gamma.rate).log_prob(alpha).sum()
        theta = self.theta if self.mean == "initial" else 0.0
        return total + log_prior_of_means(keys, self.keys, theta)


GAMMAS = [None, GammaPrior(2.0, 3.0), GammaPrior(1.0, 0.5)]


@pytest.mark.parametrize(
    ("theta", "mean", "gamma"), pairwise([0.0, 0.8, 20.0], ["initial", "previous"], GAMMAS)
)
def test_key_adaptation_never_descends(theta, mean, gamma):
    for seed in (0, 10, 20):
        case = Keys(seed, theta, mean, gamma)
        path = torch.stack([case.objective(*case.adapted(t)) for t in range(7)])
        assert path[-1] > path[0] + 1e-2
        assert path.diff().min() > -ROUNDING


@pytest.mark.parametrize("gamma", GAMMAS[:2], ids=["fixed", "gamma"])
@pytest.mark.parametrize(("theta", "mean"), [(0.8, "initial"), (0.0, "initial"), (0.3, "previous")])
def test_key_adaptation_stops_at_a_mode(theta, mean, gamma):
    """Of the posterior for the initial mean, of the likelihood for the previous one."""
    case = Keys(3, theta, mean, gamma)
    start = case.keys.requires_grad_(), case.alpha.requires_grad_()
    slope = torch.autograd.grad(case.objective(*start), start)
    assert slope[0].abs().max() > 0.1  # there is something to climb
    with torch.no_grad():
        top = case.adapted(600)
    keys, alpha = (x.clone().requires_grad_() for x in top)
    case.keys = case.keys.detach()
    d_keys, d_alpha = torch.autograd.grad(case.objective(keys, alpha), (keys, alpha))
    assert d_keys.abs().max() < 1e-6
    assert gamma is None or d_alpha.abs().max() < 1e-6


class Values:
    """Tokens of which some are fixed, and a mixture with a fixed prior that adapts to them."""

    def __init__(
        self,
        seed: int,
        *,
        theta: float = 0.5,
        mean: str = "initial",
        gamma: GammaPrior | None = None,
        dirichlet: DirichletPrior | None = None,
    ) -> None:
        self.update = (theta, mean, gamma, dirichlet)
        self.queries, self.keys = draw(N, D, seed=seed), draw(M, D, seed=seed + 1)
        self.values, self.fixed = draw(M, V, seed=seed + 2), 2 * draw(N, V, seed=seed + 3)
        self.alpha, self.beta = draw(M, seed=seed + 4).exp(), draw(M, seed=seed + 5).exp()
        self.log_pi = draw(N, M, seed=seed + 6).log_softmax(-1)
        if dirichlet is not None:
            self.log_pi = self.log_pi[:1].expand(N, M)
        self.clicked = torch.arange(N) % 3 != 0

    def adapted(self, iterations: int) -> ProbabilisticAttention:
        return probabilistic_attention(
            *(x[None, None] for x in (self.queries, self.keys, self.values)),
            query_precision=self.alpha,
            value_precision=self.beta,
            log_prior=self.log_pi if self.log_pi.stride(0) else self.log_pi[0],
            initial_values=self.fixed[None, None],
            value_propagation=ValuePropagation(iterations, *self.update),
            fixed_values=self.fixed[None, None],
            fixed_mask=self.clicked[None],
        )

    def log_joint(self, log_pi: Tensor, values: Tensor, beta: Tensor) -> Tensor:
        some = self.clicked
        return log_joint(
            log_pi, self.queries[some], self.keys, self.alpha, self.fixed[some], values, beta
        )

    def objective(self, log_pi: Tensor, values: Tensor, beta: Tensor) -> Tensor:
        theta, mean, gamma, dirichlet = self.update
        total = self.log_joint(log_pi, values, beta).logsumexp(-1).sum()
        total = total + log_prior_of_means(values, self.values, theta if mean == "initial" else 0.0)
        if gamma is not None:
            total = total + Gamma(gamma.shape, gamma.rate).log_prob(beta).sum()
        if dirichlet is not None:
            prior = Dirichlet(torch.full((M,), dirichlet.concentration).double())
            total = total + prior.log_prob(log_pi[0].exp())
        return total

    def path(self, length: int) -> Tensor:
        """The objective after each number of iterations."""
        objective = []
        log_pi, state = self.log_pi[self.clicked], (self.values, self.beta)
        for iterations in range(length):
            if iterations:
                log_pi = self.weights(self.log_joint(log_pi, *state), log_pi)
            result = self.adapted(iterations)
            state = result.unit_values[0, 0], result.value_precision[0, 0]
            evidence = self.log_joint(log_pi, *state).logsumexp(-1)
            torch.testing.assert_close(result.log_evidence[0, 0, self.clicked], evidence)
            objective.append(self.objective(log_pi, *state))
        return torch.stack(objective)

    def weights(self, joint: Tensor, log_pi: Tensor) -> Tensor:
        """The M step of the weights (Eq. 38)."""
        dirichlet = self.update[3]
        if dirichlet is None:
            return log_pi
        counts = joint.softmax(-1).sum(0, keepdim=True)
        counts = (counts + dirichlet.concentration - 1).expand(len(joint), M)
        return (counts / counts.sum(-1, keepdim=True)).log()


UPDATES = {
    "means": {},
    "maximum likelihood": {"theta": 0.0},
    "previous mean": {"mean": "previous"},
    "precisions": {"gamma": GammaPrior(1.6, 0.8)},
    "weights": {"dirichlet": DirichletPrior(1.4)},
    "all": {"gamma": GammaPrior(2.0, 2.0), "dirichlet": DirichletPrior(3.0)},
}


@each("update", UPDATES.values())
def test_value_propagation_never_descends(update):
    for seed in range(0, 60, 10):
        path = Values(seed, **update).path(7)
        assert path[-1] > path[0] + 1e-2
        assert path.diff().min() > -ROUNDING


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_value_propagation_stops_at_a_mode(update):
    case = Values(5, **update)
    result = case.adapted(500)
    state = result.unit_values[0, 0], result.value_precision[0, 0]
    log_pi = case.log_pi[case.clicked]
    for _ in range(500):  # the weights that stay as they are
        log_pi = case.weights(case.log_joint(log_pi, *state), log_pi)
    evidence = case.log_joint(log_pi, *state).logsumexp(-1)
    torch.testing.assert_close(result.log_evidence[0, 0, case.clicked], evidence)
    weights = log_pi[:1] if "dirichlet" in update else log_pi
    free = [x.clone().requires_grad_() for x in (weights, *state)]
    total = case.objective(free[0].log_softmax(-1).expand_as(log_pi), *free[1:])
    d_weights, d_values, d_beta = torch.autograd.grad(total, free)
    assert d_values.abs().max() < 1e-6
    assert "gamma" not in update or d_beta.abs().max() < 1e-6
    assert "dirichlet" not in update or d_weights.abs().max() < 1e-6


# --- Value inference ---


def inference(seed: int, iterations: int) -> tuple[ProbabilisticAttention, Values]:
    case = Values(seed)
    result = probabilistic_attention(
        *(x[None, None] for x in (case.queries, case.keys, 2 * case.values)),
        query_precision=case.alpha,
        value_precision=case.beta,
        log_prior=case.log_pi,
        value_iterations=iterations,
        initial_values=case.fixed[None, None],
    )
    return result, case


def log_density(case: Values, values: Tensor) -> Tensor:
    """`log p_i(q_i, v_i)` of each token."""
    joint = log_joint(
        case.log_pi, case.queries, case.keys, case.alpha, values, 2 * case.values, case.beta
    )
    return joint.logsumexp(-1)


@each("seed", range(0, 50, 10))
def test_value_inference_never_descends(seed):
    path = [log_density(inference(seed, 1)[1], inference(seed, 1)[1].fixed)]
    for iterations in range(1, 9):
        result, case = inference(seed, iterations)
        torch.testing.assert_close(result.log_evidence[0, 0], path[-1])  # of what was put in
        path.append(log_density(case, result.values[0, 0]))
    climb = torch.stack(path).diff(dim=0)
    assert climb.min() > -ROUNDING
    assert climb.sum(0).min() > 1e-3


def slope_at(case: Values, values: Tensor) -> Tensor:
    top = values.clone().requires_grad_()
    return torch.autograd.grad(log_density(case, top).sum(), top)[0]


def test_value_inference_stops_at_a_mode_and_the_printed_weights_do_not():
    """Eq. 28 weighs by `beta_j` where the posterior has `beta_j` to the power of V/2."""
    result, case = inference(0, 800)
    assert slope_at(case, result.values[0, 0]).abs().max() < 1e-6
    values, units = case.fixed, 2 * case.values
    for _ in range(800):
        joint = log_joint(case.log_pi, case.queries, case.keys, case.alpha)
        joint = joint - D / 2 * (case.alpha / (2 * math.pi)).log()
        distance = (values.unsqueeze(-2) - units).square().sum(-1)
        weights = (joint - case.beta / 2 * distance).exp() * case.beta
        values = weights @ units / weights.sum(-1, keepdim=True)
    assert slope_at(case, values).abs().max() > 1e-2
