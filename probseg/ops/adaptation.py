"""Adaptation of the keys to the queries that they are responsible for.

Each step is an M step of EM with the responsibilities of the previous mixture. The means move
first and the precisions follow with the new means, so that no step lowers the posterior of a
mixture whose prior is fixed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from probseg.ops.attention import assign_checked
from probseg.ops.backends.interface import Assigned
from probseg.ops.mixture import LogJoint, Mixture, in_full, query_logits
from probseg.ops.modes import mean_gate, precision_mode
from probseg.ops.updates import KeyAdaptation


def adapt_keys(mixture: Mixture, queries: Tensor, update: KeyAdaptation, backend: str) -> Mixture:
    """Move the keys to the queries they are responsible for (Eqs. 18, 34 and 36).

    Args:
        mixture: The M units.
        queries: `(B, G, N, D)`.
        update: Number of iterations and priors.
        backend: As in `attend`.
    """
    initial, gamma = mixture.keys, update.precision_prior
    if gamma is not None:
        mixture = in_full(mixture)  # squared distances cannot be had from half-precision products
    for _ in range(update.iterations):
        prior_mean = initial if update.prior_mean == "initial" else mixture.keys
        joint = query_logits(mixture, queries)
        if gamma is None:
            means, log_mass = _assign(joint, queries, backend)
            mixture = mixture._replace(keys=_mode(means, log_mass, prior_mean, mixture, update))
            continue
        # Distances do not depend on the origin: near the means, their squares lose fewest digits.
        centre = prior_mean.mean(-2, keepdim=True).detach()  # (B, G, 1, D)
        centred = queries - centre
        squares = centred.square().sum(-1, keepdim=True)
        moments, log_mass = _assign(joint, torch.cat([centred, squares], dim=-1), backend)
        means, square = moments[..., :-1] + centre, moments[..., -1]
        keys = _mode(means, log_mass, prior_mean, mixture, update)
        # E_k = m(|x|²) - 2 x_k·m_k + |x_k|²; the variance in it is not negative but for rounding.
        variance = (square - moments[..., :-1].square().sum(-1)).clamp_min(0.0)
        error = variance + (means - keys).square().sum(-1)  # (B, G, M)
        alpha = precision_mode(log_mass, error, queries.shape[-1], gamma)
        mixture = mixture._replace(keys=keys, query_precision=alpha)
    return mixture


def _assign(joint: LogJoint, observations: Tensor, backend: str) -> Assigned:
    dtype = joint.queries.dtype  # half only where the backend multiplies in half precision
    assigned = assign_checked(*joint[:2], observations.to(dtype), *joint[2:], backend)
    return Assigned(assigned.means.to(observations.dtype), assigned.log_mass)


def _mode(
    means: Tensor, log_mass: Tensor, prior_mean: Tensor, mixture: Mixture, update: KeyAdaptation
) -> Tensor:
    gate = mean_gate(log_mass, mixture.query_precision, update.prior_precision)  # (B, G, M)
    return torch.lerp(prior_mean, means, gate.unsqueeze(-1))  # (B, G, M, D)
