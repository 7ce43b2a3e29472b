"""Measurements: benchmarks, tuning, baselines, and photographs that data sets share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probseg.lab.baseline_task import Baseline

__all__ = ["Baseline"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name == "Baseline":  # Lightning takes seconds to load, which benchmarks need not wait for
        from probseg.lab.baseline_task import Baseline

        return Baseline
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
