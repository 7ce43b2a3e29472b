"""Updates of keys, value means, precisions and weights against the equations, and closed forms."""

import math
from dataclasses import replace
from math import inf

import pytest
import torch
from hypothesis import example, given
from torch import Tensor
from torch.distributions import Dirichlet, Gamma, Normal

from probseg.ops import (
    DirichletPrior,
    DistancePrior,
    GammaPrior,
    KeyAdaptation,
    ProbabilisticAttention,
    ValuePropagation,
    probabilistic_attention,
)
from support.mechanisms import Mechanism, mechanisms
from support.ops_cases import draw
from support.oracle import equations
from support.rows import each, pairwise

FAR = Mechanism((2, 2, 6, 5), theta="tensor", gamma="tensor", iterations=(-1, 4, 1), fixed="all")
"""Fixed tokens whose products with each other are (V = 4) or are not (V = 1) written out."""


@given(mechanisms())
@example(Mechanism((2, 2, 5, 4), gamma="tensor", dirichlet="tensor", masked=True))
@example(Mechanism((1, 1, 1, 1), gamma="float", dirichlet="float", prior="magnitude"))
@example(Mechanism((2, 1, 1, 4), gamma="float", dirichlet="one", theta=0.0))
@example(Mechanism((2, 2, 5, 1), gamma="tensor", dirichlet="one", theta=0.0))
@example(Mechanism((1, 2, 4, 5), prior="distance", dirichlet="float", iterations=(3, 3, 3)))
@example(Mechanism(prior="magnitude", theta=0.0, gamma="one", iterations=(3, -1, 1)))
@example(Mechanism(prior="full", alpha="heads", mean="previous", iterations=(3, -1, 1)))
@example(Mechanism(gamma="none", dirichlet="one", fixed="none", iterations=(-1, 1, 1)))
@example(Mechanism((1, 1, 1, 2), (1, 1), prior="magnitude", dirichlet="float", masked=True, seed=1))
@example(Mechanism((1, 1, 2, 4), (1, 1), masked=True, prior="magnitude", seed=1))
@example(replace(FAR, channels=(3, 1), prior="magnitude", mean="previous", dirichlet="tensor"))
@example(replace(FAR, channels=(3, 4), prior="full", theta=0.0, gamma="none", beta="heads"))
def test_everything_at_once_equals_the_equations(mechanism):
    result, wanted = mechanism.call(), equations(**mechanism.arguments())
    close = {"rtol": 1e-9, "atol": 1e-10}
    for name in ("values", "keys", "unit_values", "query_precision", "value_precision"):
        torch.testing.assert_close(
            getattr(result, name),
            getattr(wanted, name),
            **close,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    torch.testing.assert_close(result.log_evidence.exp(), wanted.evidence, **close)
    if isinstance(result.log_prior, Tensor):
        prior = result.log_prior.exp()
        prior = prior.unsqueeze(-2) if prior.ndim == 3 else prior
        torch.testing.assert_close(prior.expand_as(wanted.prior), wanted.prior, **close)


def test_a_single_unit_fits_a_gaussian_to_all_tokens_and_another_to_the_fixed_ones():
    queries, fixed = draw(1, 1, 6, 3), draw(1, 1, 6, 2, seed=3)
    result = probabilistic_attention(
        queries,
        draw(1, 1, 1, 3, seed=1),
        draw(1, 1, 1, 2, seed=2),
        value_precision=0.3,
        key_adaptation=KeyAdaptation(1, 0.0, precision_prior=GammaPrior(2.0, 0.5)),
        value_propagation=ValuePropagation(1, 0.0, precision_prior=GammaPrior(1.7, 0.9)),
        fixed_values=fixed,
        fixed_mask=torch.arange(6).lt(4).unsqueeze(0),
    )
    queries, fixed = queries[0, 0], fixed[0, 0, :4]
    torch.testing.assert_close(result.keys[0, 0, 0], queries.mean(0))
    torch.testing.assert_close(result.unit_values[0, 0, 0], fixed.mean(0))
    scatter = queries.var(0, correction=0).sum() * 6
    assert result.query_precision.item() == pytest.approx((2 + 9 - 1) / (0.5 + scatter / 2))
    scatter = fixed.var(0, correction=0).sum() * 4  # and V / 2 for each, where Eq. 37 has d / 2
    assert result.value_precision.item() == pytest.approx((1.7 + 4 - 1) / (0.9 + scatter / 2))


def test_values_propagate_under_the_prior_of_their_own_image():
    length = torch.tensor([[0.5, 2.0], [3.0, 1.0]]).double()  # (B, G)
    places = draw(5, 2, seed=4), draw(4, 2, seed=5)
    tensors = [draw(2, 2, n, 3, seed=n) for n in (5, 4, 4, 5)]

    def propagated(rows: slice) -> Tensor:
        queries, keys, values, fixed = (tensor[rows] for tensor in tensors)
        return probabilistic_attention(
            queries,
            keys,
            values,
            value_precision=0.3,
            log_prior=DistancePrior(*places, length[rows]),
            value_propagation=ValuePropagation(2, 0.5),
            fixed_values=fixed,
            fixed_mask=torch.ones(len(fixed), 5, dtype=torch.bool),
        ).unit_values

    torch.testing.assert_close(propagated(slice(2))[1:], propagated(slice(1, 2)))


@each("prior", ["magnitude", "uniform"])
@each("fixed", ["ragged", "none"])
def test_values_stay_numbers_where_no_token_is_fixed_and_the_gamma_prior_is_flat(fixed, prior):
    """With a shape of 1 and nothing observed, the mode of all value precisions is 0."""
    mechanism = Mechanism(prior=prior, gamma="none", fixed=fixed, iterations=(-1, 2, 1))
    flat = ValuePropagation(2, 0.7, precision_prior=GammaPrior(1.0, 1.0))
    leaf = mechanism.arguments()["values"].requires_grad_()
    result = mechanism.call(value_propagation=flat, values=leaf)
    assert result.values.isfinite().all()
    assert result.log_evidence.isfinite().all()
    (gradient,) = torch.autograd.grad(result.values.sum(), leaf)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "theta", "backend"),
    pairwise([1.0, 1.5], [0.0, 0.5], ["reference", "chunked", "sdpa"]),
)
def test_a_hidden_unit_gives_finite_gradients(shape, theta, backend):
    """Nobody sees it, so that its precision is the mode of its prior: 0 for a shape of 1."""
    arguments = Mechanism(iterations=(3, -1, 1)).arguments()
    leaves = [arguments[name].requires_grad_() for name in ("queries", "keys", "values")]
    mask = torch.tensor([0.0, 0.0, -inf, 0.0])
    result = probabilistic_attention(
        *leaves,
        log_prior="uniform",
        log_mask=mask,
        key_adaptation=KeyAdaptation(3, theta, precision_prior=GammaPrior(shape, 2.0)),
        backend=backend,
    )
    assert (result.query_precision[:, :, 2] == (shape - 1) / 2).all()
    assert torch.equal(result.keys[:, :, 2], leaves[1][:, :, 2])
    outputs = [result.values, result.keys, result.query_precision, result.log_evidence]
    gradients = torch.autograd.grad([output.sum() for output in outputs], leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_a_flat_dirichlet_prior_and_a_hidden_unit_give_finite_gradients(kind):
    mechanism = Mechanism(gamma="none", iterations=(-1, 2, 1), fixed="all")
    queries = mechanism.arguments()["queries"].requires_grad_()
    dirichlet = DirichletPrior(kind(1.0))
    result = mechanism.call(
        queries=queries,
        log_mask=torch.tensor([0.0, 0.0, -inf, 0.0]),
        value_propagation=ValuePropagation(2, dirichlet_prior=dirichlet),
    )
    assert (result.log_prior[:, :, 2] == -inf).all()
    (gradient,) = torch.autograd.grad(result.values.sum() + result.log_evidence.sum(), queries)
    assert gradient.isfinite().all()


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


@each("gamma", [None, GammaPrior(2.0, 3.0)])
@each(("theta", "mean"), [(0.8, "initial"), (0.0, "initial"), (0.3, "previous")])
def test_key_adaptation_climbs_to_a_mode(theta, mean, gamma):
    """Of the posterior for the initial mean, of the likelihood for the previous one."""
    case = Keys(3, theta, mean, gamma)
    path = torch.stack([case.objective(*case.adapted(t)) for t in range(7)])
    assert path[-1] > path[0] + 1e-2
    assert path.diff().min() > -ROUNDING
    keys, alpha = (x.clone().requires_grad_() for x in case.adapted(600))
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
def test_value_propagation_climbs_to_a_mode(update):
    case = Values(5, **update)
    path = case.path(7)
    assert path[-1] > path[0] + 1e-2
    assert path.diff().min() > -ROUNDING
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


def one_step(queries, keys, **options):
    options = {"key_adaptation": KeyAdaptation(1, 0.0), **options}
    return probabilistic_attention(queries, keys, draw(1, 2, 48, 5, seed=2), **options)


@each("size", [1e-2, 1e-3])
def test_one_step_multiplies_the_keys_by_the_covariance_of_the_queries(size):
    """`xi' - mean = alpha Cov(q) (xi - mean)` to first order in the logits, wherever the keys lie.

    `mean` is that of the queries on the left, and of the keys on the right.
    """
    queries, spread = 3.0 + draw(1, 2, 64, 6), size * draw(1, 2, 48, 6, seed=1)
    result = one_step(queries, spread - 5.0)
    centred = queries - queries.mean(-2, keepdim=True)
    covariance = centred.mT @ centred / queries.shape[-2]
    expected = (spread - spread.mean(-2, keepdim=True)) @ covariance / math.sqrt(6)
    moved = result.keys - queries.mean(-2, keepdim=True)
    assert (moved - expected).norm() / expected.norm() < 5 * size


@each("adapts", [True, False])
def test_the_centre_of_the_keys_has_no_effect(adapts):
    """Under a prior that follows the keys, the distance to the queries' centre is never seen."""
    queries, keys = draw(1, 2, 64, 6), draw(1, 2, 48, 6, seed=1)
    options = {} if adapts else {"key_adaptation": None}
    apart, together = (one_step(queries, keys + by, **options).values for by in (0.0, 5.0))
    assert (apart - together).abs().max() < 1e-13
    other = one_step(queries, 0.5 * keys, **options).values
    assert (apart - other).abs().max() > 1e-2


@each("projections", [1, 2])
def test_one_projection_keeps_the_eigenvectors_of_the_learnt_form(projections):
    """Logits are `x'F y` of features; for white ones a step makes `F` `alpha Wq'Wq F`."""
    features = draw(512, 6)
    white = torch.linalg.qr(features - features.mean(0))[0] * math.sqrt(512)
    of_queries, of_keys = draw(6, 6), draw(6, 6, seed=projections - 1)
    seen = 0.01 * white[:48]
    adapted = probabilistic_attention(
        (white @ of_queries.T)[None, None],
        (seen @ of_keys.T)[None, None],
        seen[None, None],
        key_adaptation=KeyAdaptation(1, 0.0),
    ).keys[0, 0]
    columns = torch.cat([seen, torch.ones(48, 1).double()], dim=1)
    map_after = torch.linalg.lstsq(columns, adapted).solution[:6].T  # keys of features
    form, after = of_queries.T @ of_keys, of_queries.T @ map_after
    torch.testing.assert_close(after, of_queries.T @ of_queries @ form / 6**0.5, rtol=0.1, atol=0.1)
    turned = (form @ after - after @ form).norm() / (form @ after).norm()
    assert turned < 0.03 if projections == 1 else turned > 0.3
