"""Modern continuous Hopfield networks: retrieval of stored patterns (Ramsauer et al., 2021).

A state attends to the patterns and is replaced by the read-out, repeatedly. As inference, each
state is a latent node with one edge to one of the patterns (Singh & Buckley, 2023, §4.0.4).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from probseg.family.free_energy import edge_energy, node_energy
from probseg.ops.attention import LogPrior, attend, attend_checked, checked_terms
from probseg.ops.checks import check_iterations, check_units


class Hopfield(NamedTuple):
    """Result of `hopfield_retrieval`.

    Args:
        states: After the last update, `(B, G, N, D)`.
        log_evidence: Of the states before that update, `(B, G, N)`; -inf for a state that sees no
            pattern.
    """

    states: Tensor
    log_evidence: Tensor


def hopfield_retrieval(
    states: Tensor,
    patterns: Tensor,
    *,
    iterations: int = 1,
    scale: float = 1.0,
    log_prior: LogPrior | None = None,
    backend: str = "auto",
) -> Hopfield:
    """Let each state retrieve a pattern, `xi <- sum_j softmax_j(beta xi·x_j) x_j`.

    Ramsauer et al. (2021, Eq. 3); Singh and Buckley (2023, §4.0.4) for patterns that are projected
    already. No update raises `hopfield_energy`. One iteration is attention with the patterns as
    keys and values. If `beta` times the gap between a pattern's dot product with itself and with
    any other is large, states near the pattern end next to it; if it is small, they end between
    several patterns; for `beta = 0`, in the mean of all.

    Memory and precision are as in `attend`. Gradients go through every iteration.

    Args:
        states: Initial states, `(B, G, N, D)`.
        patterns: Stored patterns, `(B, G, M, D)`.
        iterations: Number of updates, at least 1; it is not shortened where states have settled.
        scale: Inverse temperature `beta`.
        log_prior: Of the patterns, as in `attend`; None is uniform.
        backend: As in `attend`.

    Returns:
        The states in the dtype of the arguments, and their log evidence in float32 (float64 for
        float64 arguments). A state that sees no pattern is zero.

    Raises:
        BackendError: If the named backend cannot serve these arguments.
        ValueError: If `iterations` is below 1, or a shape, a device or the scale is wrong.
        TypeError: If a dtype is wrong.
        UnknownNameError: If there is no backend of this name.
    """
    check_iterations(iterations)
    check_units(states, patterns, patterns, payload_name="patterns", payload_of="keys")
    terms = checked_terms(states, patterns, log_prior, scale)
    for _ in range(iterations):
        retrieved = attend_checked(states, patterns, patterns, terms, scale, backend)
        states = retrieved.values
    return Hopfield(states, retrieved.log_evidence)


def hopfield_energy(
    states: Tensor,
    patterns: Tensor,
    *,
    scale: float = 1.0,
    log_prior: LogPrior | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return the energy of each state, `|xi|²/2 - 1/beta log sum_j exp(beta xi·x_j)`.

    Ramsauer et al. (2021, Eq. 2) add `log M / beta + max_j |x_j|² / 2`, which does not depend on
    the state and is left out. With it, and without a prior, the energy of a mean of the patterns is
    between 0 and `2 max_j |x_j|²`.

    Args:
        states: `(B, G, N, D)`.
        patterns: `(B, G, M, D)`.
        scale: Inverse temperature `beta`, above 0.
        log_prior: Of the patterns, added to `beta xi·x_j`, as in `attend`.
        backend: As in `attend`.

    Returns:
        `(B, G, N)` in float32 (float64 for float64 arguments); inf for a state that sees no
        pattern.

    Raises:
        ValueError: If the scale is not above 0; and all that `hopfield_retrieval` raises.
    """
    read = attend(states, patterns, patterns, log_prior=log_prior, scale=scale, backend=backend)
    return node_energy(states) + edge_energy(read.log_evidence, scale)
