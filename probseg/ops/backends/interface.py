"""What every backend of the two attention primitives takes and returns."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class Attended(NamedTuple):
    """Result of ``attend``.

    Args:
        values: Posterior mean of the values of each query, shape ``(B, G, N, V)``; zero for a
            query that sees no key.
        log_evidence: Row log-sum-exp of the logits, shape ``(B, G, N)``; -inf for a query that
            sees no key.
    """

    values: Tensor
    log_evidence: Tensor


class Assigned(NamedTuple):
    """Result of ``assign``.

    Args:
        means: Mean of the observations of each key, weighted by its responsibilities, shape
            ``(B, G, M, V)``; zero for a key that no query sees.
        log_mass: Logarithm of each key's summed responsibilities, shape ``(B, G, M)``; -inf for
            a key that no query sees.
    """

    means: Tensor
    log_mass: Tensor


class Backend(Protocol):
    """A module with both primitives, for arguments that were already checked.

    All tensors share one dtype (float32 or float64) and one device; ``log_prior`` is None or has
    four dimensions and broadcasts to ``(B, G, N, M)``.
    """

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, log_prior: Tensor | None, scale: float
    ) -> Attended:
        """Average the values of the keys by each query's responsibilities."""
        ...

    def assign(
        self,
        queries: Tensor,
        keys: Tensor,
        observations: Tensor,
        log_prior: Tensor | None,
        scale: float,
    ) -> Assigned:
        """Average the observations of the queries by each key's responsibilities."""
        ...
