"""Measurements: benchmarks, tuning, baselines, and photographs that data sets share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probseg.kinds import lazy_getattr

if TYPE_CHECKING:
    from probseg.lab.baselines import Baseline

__all__ = ["Baseline"]

# Lightning takes seconds to load, which benchmarks need not wait for.
__getattr__ = lazy_getattr(__name__, {"Baseline": "probseg.lab.baselines.Baseline"})
