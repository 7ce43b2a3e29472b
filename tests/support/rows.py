"""Tests of many rows: one case for all rows that are quick, pairs of values for products."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch

COMPILES_WHOLE = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14),
    reason="older versions of PyTorch than 2.14 part graphs of layers, or fail",
)


def each(
    names: str | Sequence[str], rows: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with each row, as `pytest.mark.parametrize` does, but as one case.

    For rows that take milliseconds. The first row that fails is named in its error. Where the test
    takes `tmp_path`, each row has a folder of its own; other fixtures are made once for all rows.

    Args:
        names: Name of an argument, or a tuple of them.
        rows: A value for each row, or a tuple of values if there are several names.
    """
    keys = [names] if isinstance(names, str) else list(names)
    cases = [(row,) if isinstance(names, str) else tuple(row) for row in rows]
    if not cases or any(len(case) != len(keys) for case in cases):
        raise ValueError(f"`rows` must hold values of {keys}, got {cases}")

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*arguments: Any, **fixtures: Any) -> None:
            place = fixtures.get("tmp_path")
            for number, case in enumerate(cases):
                row = dict(zip(keys, case, strict=True))
                if place is not None:
                    fixtures["tmp_path"] = place / str(number)
                    fixtures["tmp_path"].mkdir()
                torch.manual_seed(0)  # as for each case
                try:
                    test(*arguments, **fixtures, **row)
                except BaseException as error:  # failures of pytest are no `Exception`
                    error.add_note(f"in the row {_described(row)}")
                    raise

        signature = inspect.signature(test)
        rest = [p for name, p in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=rest)  # pytest finds its fixtures there
        return run

    return decorate


def pairwise(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Choose rows of the product of the axes in which all pairs of two values occur.

    Most faults of combined options show in a pair of them, and this takes a fraction of the rows.
    """
    product = list(itertools.product(*(enumerate(axis) for axis in axes)))

    def pairs(row: tuple[Any, ...]) -> set[tuple[int, int, int, int]]:
        places = [(axis, number) for axis, (number, _) in enumerate(row)]
        return {(*one, *other) for one, other in itertools.combinations(places, 2)}

    missing = set().union(*map(pairs, product))
    chosen = []
    while missing:
        best = max(product, key=lambda row: len(pairs(row) & missing))
        missing -= pairs(best)
        chosen.append(tuple(value for _, value in best))
    return chosen


def _described(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r:.200}" for name, value in row.items())
