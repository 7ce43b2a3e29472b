"""JSON files that are read entry by entry, as a whole one may not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ijson

from probseg.texts import ShallowJSON, open_as_utf8


def entries(path: Path, of: str) -> Iterator[Any]:
    """Yield the entries of a list in a file."""
    with open_as_utf8(path) as file:
        yield from ijson.items(ShallowJSON(file), f"{of}.item".lstrip("."), use_float=True)
