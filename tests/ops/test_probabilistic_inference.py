"""probabilistic_attention against the equations of Gabbur et al., 2021, and its limits."""

import math
from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from probseg.errors import UnknownNameError
from probseg.ops import KeyAdaptation, ValuePropagation, attend, probabilistic_attention


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def problem(b: int = 2, g: int = 2, n: int = 6, m: int = 6, d: int = 3, v: int = 2) -> list[Tensor]:
    return [draw(b, g, n, d), draw(b, g, m, d, seed=1), draw(b, g, m, v, seed=2)]


# --- The equations, literally, for one head: q (n, d), xi (m, d), mu (m, v), alpha, beta (m,) ---


def gaussian(x: np.ndarray, mean: np.ndarray, precision: float) -> float:
    """Eqs. 8 and 9."""
    width = len(x)
    distance = ((x - mean) ** 2).sum()
    return (precision / (2 * math.pi)) ** (width / 2) * math.exp(-precision / 2 * distance)


class Oracle:
    def __init__(self, q, xi, mu, alpha, beta, prior, mask):
        self.q, self.xi, self.mu, self.alpha, self.beta = q, xi, mu, alpha, beta
        self.prior, self.mask = prior, mask

    def pi(self) -> np.ndarray:
        """Eqs. 10 and 11, (n, m); a given prior as it is."""
        if not isinstance(self.prior, str):
            return np.exp(self.prior)
        pi = np.ones(len(self.xi))
        for j in range(len(self.xi)):
            if self.prior in ("magnitude", "key_magnitude"):
                pi[j] *= math.exp(self.alpha[j] / 2 * (self.xi[j] ** 2).sum())
            if self.prior == "magnitude":
                pi[j] *= math.exp(self.beta[j] / 2 * (self.mu[j] ** 2).sum())
        return np.tile(pi / pi.sum(), (len(self.q), 1))

    def joint(self, values: np.ndarray | None) -> np.ndarray:
        """Eqs. 2 and 7: pi_ij p(q_i | u_j) [p(v_i | u_j)]."""
        joint = self.pi() * np.exp(self.mask)
        for i in range(len(self.q)):
            for j in range(len(self.xi)):
                joint[i, j] *= gaussian(self.q[i], self.xi[j], self.alpha[j])
                if values is not None:
                    joint[i, j] *= gaussian(values[i], self.mu[j], self.beta[j])
        return joint

    def posterior(self, values: np.ndarray | None) -> np.ndarray:
        """Eqs. 5, 24 and 34; a row without any unit stays 0."""
        joint = self.joint(values)
        total = joint.sum(1, keepdims=True)
        return joint / np.where(total > 0, total, 1)

    def adapt_keys(self, update: KeyAdaptation) -> None:
        """Eq. 18."""
        initial = self.xi
        for _ in range(update.iterations):
            w = self.posterior(None)
            centre = initial if update.prior_mean == "initial" else self.xi
            self.xi = self.m_step(w, self.q, centre, self.alpha, update.prior_precision)

    def propagate(self, fixed: np.ndarray, clicked: np.ndarray, update: ValuePropagation) -> None:
        """Eq. 23 with the weights of Eq. 24; i runs over the clicked units only."""
        initial = self.mu
        for _ in range(update.iterations):
            w = self.posterior(np.where(clicked[:, None], fixed, 0.0))[clicked]
            centre = initial if update.prior_mean == "initial" else self.mu
            self.mu = self.m_step(w, fixed[clicked], centre, self.beta, update.prior_precision)

    @staticmethod
    def m_step(w, x, centre, precision, theta):
        updated = centre.copy()
        for k in range(len(centre)):
            numerator, denominator = theta * centre[k], theta
            for i in range(len(x)):
                numerator = numerator + precision[k] * w[i, k] * x[i]
                denominator = denominator + precision[k] * w[i, k]
            if denominator > 0:
                updated[k] = numerator / denominator
        return updated

    def infer(self, values: np.ndarray | None, iterations: int) -> tuple[np.ndarray, np.ndarray]:
        """Solution of Eq. 29 with the weights of Eq. 5: v = sum_j w beta mu / sum_j w beta."""
        for _ in range(iterations):
            evidence = self.joint(values).sum(1)
            weighted = self.posterior(values) * self.beta
            total = weighted.sum(1, keepdims=True)
            values = weighted @ self.mu / np.where(total > 0, total, 1)
        return values, evidence


SETTINGS = st.fixed_dictionaries(
    {
        "sizes": st.tuples(*(st.integers(1, high) for high in (2, 2, 5, 5, 3, 3))),
        "prior": st.sampled_from(["magnitude", "key_magnitude", "uniform", "unit", "pair"]),
        "alpha": st.sampled_from(["default", "float", "scalar", "unit"]),
        "beta": st.sampled_from(["float", "scalar", "unit"]),
        "keys": st.none()
        | st.builds(
            KeyAdaptation,
            st.integers(0, 3),
            st.sampled_from([0.0, 0.7]),
            st.sampled_from(["initial", "previous"]),
        ),
        "propagation": st.none()
        | st.builds(
            ValuePropagation,
            st.integers(0, 3),
            st.sampled_from([0.0, 1.0]),
            st.sampled_from(["initial", "previous"]),
        ),
        "initial": st.booleans(),
        "masked": st.booleans(),
        "value_iterations": st.integers(1, 3),
        "seed": st.integers(0, 999),
    }
)


@settings(max_examples=250, deadline=None)
@given(SETTINGS)
def test_equals_the_equations(case):
    b, g, n, m, d, v = case["sizes"]
    seed = case["seed"]
    queries = draw(b, g, n, d, seed=seed)
    keys = draw(b, g, m, d, seed=seed + 1)
    values = draw(b, g, m, v, seed=seed + 2)
    alpha = {
        "default": None,
        "float": 0.8,
        "scalar": torch.tensor(0.8).double(),
        "unit": draw(b, g, m, seed=seed + 3).exp(),
    }[case["alpha"]]
    beta = {
        "float": 0.4,
        "scalar": torch.tensor(0.4).double(),
        "unit": draw(g, m, seed=seed + 4).exp(),
    }[case["beta"]]
    prior = {
        "unit": draw(m, seed=seed + 5),
        "pair": draw(b, g, n, m, seed=seed + 6),
    }.get(case["prior"], case["prior"])
    mask = torch.zeros(n, m).masked_fill(draw(n, m, seed=seed + 7) > 0.8, -inf)
    fixed = draw(b, g, n, v, seed=seed + 8)
    clicked = draw(b, n, seed=seed + 9) > 0.3
    initial = draw(b, g, n, v, seed=seed + 10) if case["initial"] else None
    propagation = case["propagation"]
    result = probabilistic_attention(
        queries,
        keys,
        values,
        query_precision=alpha,
        value_precision=beta,
        log_prior=prior,
        log_mask=mask if case["masked"] else None,
        value_iterations=case["value_iterations"],
        initial_values=initial,
        key_adaptation=case["keys"],
        value_propagation=propagation,
        fixed_values=None if propagation is None else fixed,
        fixed_mask=None if propagation is None else clicked,
    )
    alpha = d**-0.5 if alpha is None else alpha
    dense_alpha = torch.as_tensor(alpha, dtype=torch.float64).expand(b, g, m)
    dense_beta = torch.as_tensor(beta, dtype=torch.float64).expand(b, g, m)
    torch.testing.assert_close(result.query_precision, dense_alpha)
    torch.testing.assert_close(result.value_precision, dense_beta)
    for i in range(b):
        for j in range(g):
            oracle = Oracle(
                queries[i, j].numpy(),
                keys[i, j].numpy(),
                values[i, j].numpy(),
                dense_alpha[i, j].numpy(),
                dense_beta[i, j].numpy(),
                prior if isinstance(prior, str) else prior.expand(b, g, n, m)[i, j].numpy(),
                mask.numpy() if case["masked"] else np.zeros((n, m)),
            )
            if case["keys"] is not None:
                oracle.adapt_keys(case["keys"])
            if propagation is not None:
                oracle.propagate(fixed[i, j].numpy(), clicked[i].numpy(), propagation)
            inferred, evidence = oracle.infer(
                None if initial is None else initial[i, j].numpy(), case["value_iterations"]
            )
            close = {"rtol": 1e-9, "atol": 1e-10}
            np.testing.assert_allclose(result.keys[i, j], oracle.xi, **close)
            np.testing.assert_allclose(result.unit_values[i, j], oracle.mu, **close)
            np.testing.assert_allclose(result.values[i, j], inferred, **close)
            np.testing.assert_allclose(result.log_evidence[i, j].exp(), evidence, **close)
            pi = np.broadcast_to(result.log_prior[i, j].exp(), (n, m))
            np.testing.assert_allclose(pi, oracle.pi(), **close)


# --- Limits and properties ---


def test_defaults_are_standard_attention():
    q, k, v = problem()
    expected = attend(q, k, v, scale=3**-0.5).values
    assert torch.equal(probabilistic_attention(q, k, v).values, expected)
    many = probabilistic_attention(q, k, v, value_iterations=5, initial_values=draw(2, 2, 6, 2))
    assert torch.equal(many.values, expected)


def test_small_value_precision_tends_to_none():
    q, k, v = problem()
    near = probabilistic_attention(q, k, v, value_precision=1e-9, value_iterations=3)
    torch.testing.assert_close(near.values, probabilistic_attention(q, k, v).values)


def test_zero_iterations_change_nothing():
    q, k, v = problem()
    none = probabilistic_attention(
        q,
        k,
        v,
        value_precision=0.1,
        key_adaptation=KeyAdaptation(0),
        value_propagation=ValuePropagation(0),
        fixed_values=v,
        fixed_mask=torch.ones(2, 6, dtype=torch.bool),
    )
    assert torch.equal(none.keys, k)
    assert torch.equal(none.unit_values, v)


def test_a_strong_prior_keeps_keys_and_values():
    q, k, v = problem()
    strong = probabilistic_attention(
        q,
        k,
        v,
        value_precision=0.1,
        key_adaptation=KeyAdaptation(3, 1e12),
        value_propagation=ValuePropagation(3, 1e12),
        fixed_values=v + 1,
        fixed_mask=torch.ones(2, 6, dtype=torch.bool),
    )
    torch.testing.assert_close(strong.keys, k)
    torch.testing.assert_close(strong.unit_values, v)


def test_maximum_likelihood_is_the_limit_of_a_weak_prior():
    q, k, v = problem()
    weak = probabilistic_attention(q, k, v, key_adaptation=KeyAdaptation(2, 1e-12))
    none = probabilistic_attention(q, k, v, key_adaptation=KeyAdaptation(2, 0.0))
    torch.testing.assert_close(weak.keys, none.keys)


def test_one_maximum_likelihood_step_is_doubly_normalised_attention():
    q, k, v = problem()
    weights = (q @ k.mT / math.sqrt(3)).softmax(-1)
    shares = weights / weights.sum(-2, keepdim=True)
    result = probabilistic_attention(q, k, v, key_adaptation=KeyAdaptation())
    torch.testing.assert_close(result.keys, shares.mT @ q)


def test_prior_means_agree_for_one_iteration_only():
    q, k, v = problem()

    def keys(iterations, mean):
        update = KeyAdaptation(iterations, 0.5, mean)
        return probabilistic_attention(q, k, v, key_adaptation=update).keys

    assert torch.equal(keys(1, "initial"), keys(1, "previous"))
    assert (keys(3, "initial") - keys(3, "previous")).abs().max() > 1e-2


@pytest.mark.parametrize("theta", [0.0, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_key_adaptation_never_decreases_its_objective(theta, seed):
    q, k, v = 2 * draw(1, 1, 9, 3, seed=seed), draw(1, 1, 4, 3, seed=seed + 50), draw(1, 1, 4, 1)
    prior, alpha = draw(4, seed=seed), draw(1, 1, 4, seed=seed + 7).exp()
    objective = []
    for iterations in range(8):
        result = probabilistic_attention(
            q,
            k,
            v,
            query_precision=alpha,
            log_prior=prior,
            key_adaptation=KeyAdaptation(iterations, theta),
        )
        penalty = theta / 2 * (result.keys - k).square().sum()
        objective.append((result.log_evidence.sum() - penalty).item())
    assert objective[-1] > objective[0] + 1e-3
    assert np.diff(objective).min() > -1e-10


@pytest.mark.parametrize("seed", range(4))
def test_value_inference_climbs_to_a_stationary_point(seed):
    q, k, v = draw(1, 1, 5, 3, seed=seed), draw(1, 1, 4, 3, seed=seed + 20), 2 * draw(1, 1, 4, 2)
    precision = {
        "query_precision": draw(1, 1, 4, seed=seed + 1).exp(),
        "value_precision": draw(1, 1, 4, seed=seed + 2).exp(),
        "log_prior": draw(4, seed=seed + 3),
    }
    start = draw(1, 1, 5, 2, seed=9)
    evidence = [
        probabilistic_attention(q, k, v, value_iterations=t, initial_values=start, **precision)
        for t in range(1, 12)
    ]
    climb = torch.stack([step.log_evidence for step in evidence]).diff(dim=0)
    assert climb.min() > -1e-10
    final = probabilistic_attention(
        q, k, v, value_iterations=800, initial_values=start, **precision
    ).values
    top = final.clone().requires_grad_()
    at_top = probabilistic_attention(q, k, v, initial_values=top, **precision).log_evidence
    (slope,) = torch.autograd.grad(at_top.sum(), top)
    assert slope.abs().max() < 1e-6


def test_propagation_never_decreases_its_objective():
    q, k, v = problem(1, 1, 6, 6)
    fixed, clicked = 2 * draw(1, 1, 6, 2, seed=5), torch.tensor([[True, False, True] * 2])
    prior = draw(6, seed=6)
    rows = clicked[0].nonzero()[:, 0]
    objective = []
    for iterations in range(8):
        moved = probabilistic_attention(
            q,
            k,
            v,
            value_precision=0.6,
            log_prior=prior,
            value_propagation=ValuePropagation(iterations, 0.5),
            fixed_values=fixed,
            fixed_mask=clicked,
        ).unit_values
        likelihood = probabilistic_attention(
            q[:, :, rows],
            k,
            moved,
            value_precision=0.6,
            log_prior=prior,
            initial_values=fixed[:, :, rows],
        ).log_evidence
        objective.append((likelihood.sum() - 0.25 * (moved - v).square().sum()).item())
    assert objective[-1] > objective[0] + 1e-3
    assert np.diff(objective).min() > -1e-10


def test_tied_prior_follows_the_keys():
    q, k, v = problem()
    update = KeyAdaptation(2)
    tied = probabilistic_attention(q, k, v, key_adaptation=update)
    held = probabilistic_attention(
        q, k, v, key_adaptation=update, log_prior=k.square().sum(-1) / 2 / math.sqrt(3)
    )
    expected = (tied.keys.square().sum(-1) / 2 / math.sqrt(3)).log_softmax(-1)
    torch.testing.assert_close(tied.log_prior, expected)
    assert (tied.values - held.values).abs().max() > 1e-3


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 7), st.integers(0, 99))
def test_equivariance_to_the_order_of_units(n, seed):
    q, k, v = problem(1, 2, n, n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    fixed, clicked = draw(1, 2, n, 2, seed=4), draw(1, n, seed=5) > 0
    mask = torch.zeros(n, n).masked_fill(draw(n, n, seed=6) > 1, -inf)
    options = {
        "value_precision": 0.3,
        "key_adaptation": KeyAdaptation(2, 0.1),
        "value_propagation": ValuePropagation(2),
    }
    straight = probabilistic_attention(
        q, k, v, log_mask=mask, fixed_values=fixed, fixed_mask=clicked, **options
    )
    shuffled = probabilistic_attention(
        *(x[:, :, order] for x in (q, k, v)),
        log_mask=mask[order][:, order],
        fixed_values=fixed[:, :, order],
        fixed_mask=clicked[:, order],
        **options,
    )
    for name in ("values", "keys", "unit_values", "log_evidence", "log_prior"):
        torch.testing.assert_close(
            getattr(shuffled, name), getattr(straight, name)[:, :, order], msg=name
        )


def test_images_do_not_see_each_other_and_padding_is_inert():
    q, k, v = problem(3)
    fixed = draw(3, 2, 6, 2, seed=4)
    clicked = torch.zeros(3, 6, dtype=torch.bool)
    clicked[0, [1, 4, 5]] = True
    clicked[1, 2] = True  # and none in the third image
    fixed[~clicked[:, None, :, None].expand_as(fixed)] = math.nan  # nobody may read these
    options = {
        "value_precision": 0.3,
        "value_propagation": ValuePropagation(3),
        "clamp_fixed": True,
    }
    whole = probabilistic_attention(q, k, v, fixed_values=fixed, fixed_mask=clicked, **options)
    for i in range(3):
        one = slice(i, i + 1)
        single = probabilistic_attention(
            q[one], k[one], v[one], fixed_values=fixed[one], fixed_mask=clicked[one], **options
        )
        for name, tensor in single._asdict().items():
            torch.testing.assert_close(tensor, getattr(whole, name)[one], msg=name)
    assert torch.equal(whole.unit_values[2], v[2])
    assert (whole.unit_values[1] - v[1]).abs().max() > 1e-3


def test_one_query_without_clicks():
    q, k, v = problem(n=1, m=4)
    result = probabilistic_attention(
        q,
        k,
        v,
        value_precision=0.3,
        value_propagation=ValuePropagation(),
        fixed_values=draw(2, 2, 1, 2),
        fixed_mask=torch.zeros(2, 1, dtype=torch.bool),
    )
    assert torch.equal(result.unit_values, v)


def test_clamping():
    q, k, v = problem()
    fixed, clicked = draw(2, 2, 6, 2, seed=4), draw(2, 6, seed=5) > 0
    free = probabilistic_attention(q, k, v).values
    clamped = probabilistic_attention(
        q, k, v, fixed_values=fixed, fixed_mask=clicked, clamp_fixed=True
    ).values
    where = clicked[:, None, :, None].expand_as(free)
    assert torch.equal(clamped[where], fixed[where])
    assert torch.equal(clamped[~where], free[~where])


@pytest.mark.parametrize("theta", [0.0, 0.5])
@pytest.mark.parametrize("prior", ["magnitude", "key_magnitude", "uniform"])
def test_gradients_through_both_adaptations(theta, prior):
    q, k, v = (x.requires_grad_() for x in problem(1, 2, 4, 4, 2, 2))
    fixed, clicked = draw(1, 2, 4, 2, seed=4).requires_grad_(), torch.tensor([[1, 0, 1, 0]]).bool()
    alpha, beta = (draw(1, 2, 4, seed=s).exp().requires_grad_() for s in (5, 6))

    def run(q, k, v, alpha, beta, fixed):
        result = probabilistic_attention(
            q,
            k,
            v,
            query_precision=alpha,
            value_precision=beta,
            log_prior=prior,
            value_iterations=2,
            key_adaptation=KeyAdaptation(2, theta),
            value_propagation=ValuePropagation(2, theta),
            fixed_values=fixed,
            fixed_mask=clicked,
        )
        return result.values, result.keys, result.unit_values, result.log_evidence

    assert gradcheck(run, (q, k, v, alpha, beta, fixed))


@pytest.mark.parametrize("prior", ["magnitude", "uniform"])
def test_gradients_with_floats_and_dead_units(prior):
    q, k, v = (x.requires_grad_() for x in problem(1, 1, 4, 4, 2, 1))
    mask = torch.zeros(4, 4)
    mask[1] = mask[:, 2] = -inf
    clicked = torch.tensor([[True, True, False, False]])

    def run(q, k, v):
        result = probabilistic_attention(
            q,
            k,
            v,
            value_precision=0.4,
            log_prior=prior,
            log_mask=mask,
            key_adaptation=KeyAdaptation(2),
            value_propagation=ValuePropagation(2, 0.0),
            fixed_values=torch.ones(1, 1, 4, 1).double(),
            fixed_mask=clicked,
        )
        return result.values, result.keys, result.unit_values

    values, keys, unit_values = run(q, k, v)
    assert (values[0, 0, 1] == 0).all()  # sees nothing
    assert torch.equal(keys[0, 0, 2], k[0, 0, 2])  # seen by nobody: keeps its prior mean
    assert torch.equal(unit_values[0, 0, 2], v[0, 0, 2])
    assert gradcheck(run, (q, k, v))


def test_a_query_that_sees_nothing_among_units_of_different_value_precision():
    q, k, v = (x.requires_grad_() for x in problem(1, 1, 3, 4))
    mask = torch.zeros(3, 4)
    mask[1] = -inf
    result = probabilistic_attention(
        q, k, v, value_precision=draw(4, seed=3).exp(), log_mask=mask, value_iterations=2
    )
    assert (result.values[0, 0, 1] == 0).all()
    assert result.log_evidence[0, 0, 1] == -inf
    for gradient in torch.autograd.grad(result.values.sum(), (q, k, v)):
        assert gradient.isfinite().all()


def test_autocast_changes_nothing():
    q, k, v = (4 * x.float() for x in problem())
    options = {
        "log_prior": "uniform",
        "value_precision": 0.2,
        "value_iterations": 2,
        "key_adaptation": KeyAdaptation(2, 0.1),
        "value_propagation": ValuePropagation(2),
        "fixed_values": v + 1,
        "fixed_mask": torch.eye(2, 6) > 0,
    }
    plain = probabilistic_attention(q, k, v, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = probabilistic_attention(q, k, v, **options)
    torch.testing.assert_close(cast, plain, rtol=0, atol=0)


def test_far_keys_keep_a_defined_mean():
    q, k, v = (x.float() for x in problem())
    k = k.clone()
    k[:, :, 0] = 1e3  # its mass underflows to 0 under the uniform prior
    result = probabilistic_attention(q, k, v, log_prior="uniform", key_adaptation=KeyAdaptation(2))
    exact = probabilistic_attention(
        q.double(), k.double(), v.double(), log_prior="uniform", key_adaptation=KeyAdaptation(2)
    )
    assert result.keys.isfinite().all()
    torch.testing.assert_close(result.values.double(), exact.values, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("prior", ["uniform", "tensor", "key_magnitude"])
def test_a_common_offset_costs_no_digits(prior):
    q, k, v = problem(1, 1, 32, 32, 16, 2)
    far = 30.0
    if prior == "key_magnitude":  # follows the keys' norms: only the values can be moved
        q, k, far_keys = q / 4, k / 4, 0.0
    else:
        far_keys = far
    options = {
        "log_prior": draw(32, seed=8) if prior == "tensor" else prior,
        "value_precision": 0.5,
        "value_iterations": 2,
    }
    moved = [q + far_keys, k + far_keys, v + far]
    single = [x.float() for x in moved]
    exact = probabilistic_attention(*(x.double() for x in single), **options)
    result = probabilistic_attention(*single, **options)
    error = (result.values.double() - exact.values).abs().max()
    assert error < 3e-5  # 30 has a resolution of 2e-6 in float32


def test_large_norms_do_not_overflow():
    q, k, v = (50 * x.float() for x in problem(d=64))
    result = probabilistic_attention(q, k, v, key_adaptation=KeyAdaptation(1, 0.001))
    assert all(tensor.isfinite().all() for tensor in result)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_half_precision(dtype, bound):
    q, k, v = (2 * x.to(dtype) for x in problem(1, 2, 48, 48, 32, 4))
    clicked = torch.zeros(1, 48, dtype=torch.bool)
    clicked[:, ::7] = True
    options = {
        "value_precision": 0.1,
        "key_adaptation": KeyAdaptation(1),
        "value_propagation": ValuePropagation(2),
        "fixed_mask": clicked,
    }
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = probabilistic_attention(q, k, v, fixed_values=v, **options)
    exact = probabilistic_attention(
        q.double(), k.double(), v.double(), fixed_values=v.double(), **options
    )
    for name in ("values", "keys", "unit_values"):
        got, wanted = getattr(half, name), getattr(exact, name)
        assert got.dtype == dtype
        assert (got.double() - wanted).norm() / wanted.norm() < bound
    for name in ("log_prior", "log_evidence", "query_precision", "value_precision"):
        assert getattr(half, name).dtype == torch.float32
    torch.testing.assert_close(half.log_evidence.double(), exact.log_evidence, rtol=1e-4, atol=1e-3)


# --- Wrong arguments ---

X = torch.zeros(2, 1, 4, 3)
CLICKS = torch.zeros(2, 4, dtype=torch.bool)
PROPAGATE = {"value_propagation": ValuePropagation(), "value_precision": 0.1}
WRONG = [
    ({"query_precision": 0.0}, ValueError, "query_precision must be finite and above 0, got 0.0"),
    ({"query_precision": inf}, ValueError, "query_precision must be finite"),
    (
        {"query_precision": torch.ones(3)},
        ValueError,
        r"query_precision must broadcast.*\(2, 1, 4\)",
    ),
    ({"value_precision": -1.0}, ValueError, "value_precision must be finite and 0 or more"),
    ({"value_precision": torch.ones(1, 2, 1, 4)}, ValueError, "value_precision must broadcast"),
    ({"log_prior": "magnitud"}, UnknownNameError, "unknown log prior.*'magnitude'"),
    ({"log_prior": torch.zeros(3)}, ValueError, r"log_prior must have shape \(M,\)"),
    ({"log_mask": torch.zeros(3, 4)}, ValueError, r"log_mask must have shape"),
    ({"log_mask": torch.ones(4, 4, dtype=torch.bool)}, TypeError, "log_mask must be floating"),
    ({"value_iterations": 0}, ValueError, "value_iterations must be at least 1"),
    ({"initial_values": X[..., :2]}, ValueError, r"initial_values must have shape \(B, G, N, V\)"),
    ({"initial_values": X.half()}, TypeError, "initial_values must have the dtype"),
    ({"fixed_values": X}, ValueError, "belong together"),
    ({"fixed_mask": CLICKS}, ValueError, "belong together"),
    ({"fixed_values": X, "fixed_mask": CLICKS}, ValueError, "no effect without value_propagation"),
    ({"clamp_fixed": True}, ValueError, "need fixed_values and fixed_mask"),
    (PROPAGATE, ValueError, "need fixed_values and fixed_mask"),
    (
        {"value_propagation": ValuePropagation(), "fixed_values": X, "fixed_mask": CLICKS},
        ValueError,
        "needs a value_precision above 0",
    ),
    (
        {**PROPAGATE, "fixed_values": X, "fixed_mask": CLICKS[:1]},
        ValueError,
        r"fixed_mask must have shape \(B, N\) = \(2, 4\), got \(1, 4\)",
    ),
    (
        {**PROPAGATE, "fixed_values": X, "fixed_mask": CLICKS.float()},
        TypeError,
        "fixed_mask must be bool",
    ),
    (
        {**PROPAGATE, "fixed_values": X[..., :1], "fixed_mask": CLICKS},
        ValueError,
        r"fixed_values must have shape",
    ),
    ({"backend": "fast"}, UnknownNameError, "unknown backend"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_wrong_arguments_are_named(options, error, message):
    with pytest.raises(error, match=message):
        probabilistic_attention(X, X, X, **options)


@pytest.mark.parametrize("update", [KeyAdaptation, ValuePropagation])
def test_wrong_updates_are_named(update):
    with pytest.raises(ValueError, match=f"{update.__name__}.iterations must be 0 or more, got -1"):
        update(-1)
    with pytest.raises(ValueError, match="prior_precision must be finite and not negative"):
        update(1, -0.5)
    with pytest.raises(UnknownNameError, match="prior_mean 'initail': did you mean 'initial'"):
        update(1, 0.5, "initail")
