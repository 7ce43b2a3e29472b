"""probabilistic_attention as the equations of Gabbur et al., 2021, in loops over single numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probseg.ops import DistancePrior, KeyAdaptation, ValuePropagation


def gaussian(x: np.ndarray, mean: np.ndarray, precision: float) -> float:
    """Eqs. 8 and 9."""
    width = len(x)
    distance = ((x - mean) ** 2).sum()
    return (precision / (2 * math.pi)) ** (width / 2) * math.exp(-precision / 2 * distance)


class Oracle:
    """One head: q (n, d), xi (m, d), mu (m, v), alpha and beta (m,), prior a name or (n, m).

    The parameters of updates are floats or tensors that broadcast to `units`, of which this head
    is the one at `place`.
    """

    def __init__(self, q, xi, mu, alpha, beta, prior, mask, units=None, place=(0, 0)):
        self.q, self.xi, self.mu, self.alpha, self.beta = q, xi, mu, alpha, beta
        self.prior, self.mask = prior, mask
        self.units, self.place = units or (1, 1, len(xi)), place

    def parameter(self, value: float | Tensor) -> np.ndarray:
        """A parameter of an update, for each of the m units."""
        dense = torch.as_tensor(value, dtype=torch.float64).detach().expand(self.units)
        return dense[self.place].numpy()

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
        visible = pi * np.exp(self.mask).any(0)
        if visible.any():  # a unit that the mask hides from all queries is as if absent
            pi = visible
        return np.tile(pi / pi.sum(), (len(self.q), 1))

    def joint(self, values: np.ndarray | None) -> np.ndarray:
        """Eqs. 2 and 7: pi_ij p(q_i | u_j) [p(v_i | u_j)]."""
        joint = self.pi() * np.exp(self.mask)
        for i in range(len(self.q)):
            for j in range(len(self.xi)):
                joint[i, j] *= gaussian(self.q[i], self.xi[j], self.alpha[j])
                if values is not None and self.beta is not None:
                    joint[i, j] *= gaussian(values[i], self.mu[j], self.beta[j])
        return joint

    def posterior(self, values: np.ndarray | None) -> np.ndarray:
        """Eqs. 5, 24 and 34; a row without any unit stays 0."""
        joint = self.joint(values)
        total = joint.sum(1, keepdims=True)
        return joint / np.where(total > 0, total, 1)

    def adapt_keys(self, update: KeyAdaptation) -> None:
        """Eqs. 18 and 36."""
        initial = self.xi
        for _ in range(update.iterations):
            w = self.posterior(None)
            centre = initial if update.prior_mean == "initial" else self.xi
            theta = self.parameter(update.prior_precision)
            self.xi = self.m_step(w, self.q, centre, self.alpha, theta)
            if update.precision_prior is not None:
                self.alpha = self.precisions(w, self.q, self.xi, update.precision_prior)

    def propagate(self, fixed: np.ndarray, clicked: np.ndarray, update: ValuePropagation) -> None:
        """Eqs. 23, 37 and 38 with the weights of Eq. 24; i runs over the clicked units only."""
        initial = self.mu
        dirichlet = update.dirichlet_prior
        if dirichlet is not None:
            with np.errstate(divide="ignore"):  # a unit that is masked has none
                self.prior = np.log(self.pi())  # does not follow the means any more
        for _ in range(update.iterations):
            seen = None if update.given == "queries" else np.where(clicked[:, None], fixed, 0.0)
            w = self.posterior(seen)[clicked]
            centre = initial if update.prior_mean == "initial" else self.mu
            theta = self.parameter(update.prior_precision)
            self.mu = self.m_step(w, fixed[clicked], centre, self.beta, theta)
            if update.precision_prior is not None:
                self.beta = self.precisions(w, fixed[clicked], self.mu, update.precision_prior)
            if dirichlet is None:
                continue
            concentration = self.parameter(dirichlet.concentration)
            weights = self.weights(w.sum(0), concentration)
            with np.errstate(divide="ignore"):
                self.prior = np.log(np.tile(weights, (len(self.q), 1)))

    @staticmethod
    def m_step(w, x, centre, precision, theta):
        """Eqs. 18 and 23; the centre where neither prior nor data say anything."""
        updated = centre.copy()
        for k in range(len(centre)):
            numerator, denominator = theta[k] * centre[k], theta[k]
            for i in range(len(x)):
                numerator = numerator + precision[k] * w[i, k] * x[i]
                denominator = denominator + precision[k] * w[i, k]
            if denominator > 0:
                updated[k] = numerator / denominator
        return updated

    def precisions(self, w, x, means, prior):
        """Eqs. 36 and 37, with half the number of channels of what is observed."""
        shape, rate = self.parameter(prior.shape), self.parameter(prior.rate)
        updated = np.zeros(len(means))
        for k in range(len(means)):
            numerator, denominator = shape[k] - 1, rate[k]
            for i in range(len(x)):
                numerator += x.shape[1] / 2 * w[i, k]
                denominator += w[i, k] / 2 * ((x[i] - means[k]) ** 2).sum()
            updated[k] = numerator / denominator
        return updated

    @staticmethod
    def weights(counts, concentration):
        """Eq. 38 with a denominator that sums all of the numerator; no counts at all: uniform."""
        counts = counts + concentration - 1
        total = counts.sum()
        return counts / total if total > 0 else np.full(len(counts), 1 / len(counts))

    def infer(self, values: np.ndarray | None, iterations: int) -> tuple[np.ndarray, np.ndarray]:
        """Solution of Eq. 29 with the weights of Eq. 5: v = sum_j w beta mu / sum_j w beta."""
        for _ in range(iterations):
            evidence = self.joint(values).sum(1)
            weighted = self.posterior(values) * (1.0 if self.beta is None else self.beta)
            total = weighted.sum(1, keepdims=True)
            values = weighted @ self.mu / np.where(total > 0, total, 1)
        return values, evidence


def dense_prior(prior: Any, sizes: Sequence[int]) -> np.ndarray:
    """Write out the terms of a log prior as (b, g, n, m)."""
    dense = np.zeros(tuple(sizes))
    for term in prior if isinstance(prior, tuple) else (prior,):
        if isinstance(term, DistancePrior):
            rows, columns = (
                p.detach().tolist() for p in (term.query_positions, term.key_positions)
            )
            distance = np.array([[math.dist(p, r) for r in columns] for p in rows])
            length = term.length.detach().expand(sizes[:2]).numpy()
            dense = dense - distance / length[:, :, None, None]
        elif term is not None:
            term = term.detach()
            dense = dense + (term[:, :, None] if term.ndim == 3 else term).numpy()
    return dense


def equations(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    query_precision: float | Tensor | None = None,
    value_precision: float | Tensor = 0.0,
    log_prior: Any = "magnitude",
    log_mask: Any = None,
    value_iterations: int = 1,
    initial_values: Tensor | None = None,
    key_adaptation: KeyAdaptation | None = None,
    value_propagation: ValuePropagation | None = None,
    fixed_values: Tensor | None = None,
    fixed_mask: Tensor | None = None,
    clamp_fixed: bool = False,
) -> SimpleNamespace:
    """Compute what `probabilistic_attention` returns, head by head."""
    b, g, n, d = queries.shape
    m, v = values.shape[2:]
    alpha = d**-0.5 if query_precision is None else query_precision
    alphas, betas = (
        torch.as_tensor(p, dtype=torch.float64).detach().expand(b, g, m).numpy()
        for p in (alpha, value_precision)
    )
    silent = not isinstance(value_precision, Tensor) and value_precision == 0
    mask = dense_prior(log_mask, (b, g, n, m))
    named = isinstance(log_prior, str)
    prior = None if named else dense_prior(log_prior, (b, g, n, m))
    arrays = [x.detach().double().numpy() for x in (queries, keys, values)]
    found = SimpleNamespace(
        values=torch.zeros(b, g, n, v).double(),
        keys=torch.zeros(b, g, m, d).double(),
        unit_values=torch.zeros(b, g, m, v).double(),
        query_precision=torch.zeros(b, g, m).double(),
        value_precision=torch.zeros(b, g, m).double(),
        prior=torch.zeros(b, g, n, m).double(),
        evidence=torch.zeros(b, g, n).double(),
    )
    for place in np.ndindex(b, g):
        oracle = Oracle(
            *(array[place] for array in arrays),
            alphas[place],
            betas[place] if not silent else None,
            log_prior if prior is None else prior[place],
            mask[place],
            (b, g, m),
            place,
        )
        if silent and log_prior == "magnitude":
            oracle.prior = "key_magnitude"
        if key_adaptation is not None:
            oracle.adapt_keys(key_adaptation)
        if value_propagation is not None:
            clicked = fixed_mask[place[0]].numpy()
            oracle.propagate(fixed_values[place].detach().numpy(), clicked, value_propagation)
        start = None if initial_values is None or silent else initial_values[place].detach().numpy()
        inferred, evidence = oracle.infer(start, 1 if silent else value_iterations)
        results = (
            inferred,
            oracle.xi,
            oracle.mu,
            oracle.alpha,
            np.zeros(m) if silent else oracle.beta,
            oracle.pi(),
            evidence,
        )
        for tensor, result in zip(vars(found).values(), results, strict=True):
            tensor[place] = torch.from_numpy(np.ascontiguousarray(result))
    if clamp_fixed:
        found.values = fixed_values.detach().where(fixed_mask[:, None, :, None], found.values)
    return found
