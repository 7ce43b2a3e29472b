"""Modes of the posteriors of a unit's parameters, given the observations that it explains.

They maximise the expected log posterior in the M step of EM (Gabbur et al., 2021, Eqs. 18, 23 and
36-38). Masses `N_k = sum_i w_ik` come in the log, as they may underflow.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probseg.ops.mixture import Precision, log_precision
from probseg.ops.updates import DirichletPrior, GammaPrior


def mean_gate(log_mass: Tensor, precision: Precision, prior_precision: Precision) -> Tensor:
    """Return how far the mode of a unit's mean lies from the prior's mean (Eqs. 18 and 23).

    The mode `(theta m0_k + p_k N_k m_k) / (theta + p_k N_k)` is `m0_k + g_k (m_k - m0_k)` with this
    gate, `g_k = p_k N_k / (theta + p_k N_k)`, for the mean `m_k` of the observations.

    Args:
        log_mass: `log N_k`, `(B, G, M)`; -inf for a unit that explains nothing.
        precision: `p` of the units.
        prior_precision: `theta`; the float 0 is maximum likelihood, with a gate of 1.

    Returns:
        The gate in [0, 1], `(B, G, M)`; 0 for a unit that explains nothing.
    """
    if not isinstance(prior_precision, Tensor) and prior_precision == 0.0:
        return (log_mass > -math.inf).to(log_mass.dtype)
    return torch.sigmoid(log_precision(precision) + log_mass - log_precision(prior_precision))


def precision_mode(log_mass: Tensor, error: Tensor, width: int, prior: GammaPrior) -> Tensor:
    """Return the mode of each unit's precision (Eqs. 36 and 37).

    `(theta_1 + C/2 N_k - 1) / (theta_2 + N_k E_k / 2)` for C channels and a mean squared error
    `E_k` about the new mean, all of shape `(B, G, M)`.
    """
    mass = log_mass.exp()
    return (prior.shape - 1.0 + width / 2 * mass) / (prior.rate + mass * error / 2)


def log_weight_mode(log_mass: Tensor, prior: DirichletPrior) -> Tensor:
    """Return the log of the mode of the mixture weights (Eq. 38), `(B, G, 1, M)`.

    `(N_k + theta_k - 1) / sum_k (N_k + theta_k - 1)`.
    """
    counts = log_mass.unsqueeze(-2)  # (B, G, 1, M)
    pseudo = prior.concentration - 1.0
    if isinstance(pseudo, Tensor):
        pseudo = pseudo.unsqueeze(-2)  # (B, G, 1, M)
        added = torch.logaddexp(counts, pseudo.where(pseudo > 0.0, 1.0).log())
        counts = added.where(pseudo > 0.0, counts)  # log(0) would have no gradient
    elif pseudo > 0.0:
        counts = torch.logaddexp(counts, torch.full_like(counts, math.log(pseudo)))
    # Rows without any responsibility or pseudo-count keep weights that hide nothing.
    alive = (counts > -math.inf).any(-1, keepdim=True)
    return counts.where(alive, 0.0).log_softmax(-1)
