"""Reading many files at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from probseg.transfer import Progress, silent

BATCH = 4096
"""Items that are queued at once."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_threads(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    what: str,
    progress: Progress = silent,
) -> Iterator[_Result]:
    """Apply a function that reads files to all items; the results are in their order."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(items), BATCH):
            results = pool.map(function, items[start : start + BATCH])
            for number, result in enumerate(results, start=start + 1):
                progress(what, number, len(items))
                yield result
