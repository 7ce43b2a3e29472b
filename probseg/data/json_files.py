"""JSON files that are read entry by entry, as a whole one may not fit into memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ijson


def entries(path: Path, of: str) -> Iterator[Any]:
    """Yield the entries of a list in a file.

    Args:
        path: In UTF-8, with or without a byte-order mark.
        of: Key of the list; "" if the file is the list. There are none where it is missing.

    Raises:
        ijson.JSONError: If the file is no JSON.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        yield from ijson.items(file, f"{of}.item".lstrip("."), use_float=True)
