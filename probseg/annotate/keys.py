"""The file with keys of the page, which a person may write: `keys.json`."""

from __future__ import annotations

import json
from pathlib import Path

from probseg.errors import UsageError

KEYS = "keys.json"


def read_keys(folder: Path) -> dict[str, list[str]]:
    """Return the keys of each action that `keys.json` names; none where there is no such file.

    Args:
        folder: Of the masks.

    Raises:
        UsageError: If the file is not as described in `docs/annotate.md`. Which actions there are
            and which of their keys collide, the page knows.
    """
    path = folder / KEYS
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{path}: cannot be read as JSON ({error}); correct or remove it"
        raise UsageError(msg) from error
    keys = {}
    for action, given in found.items() if isinstance(found, dict) else [("", None)]:
        several = [given] if isinstance(given, str) else given
        if not isinstance(several, list) or not all(isinstance(key, str) for key in several):
            example = '{"done": "w", "next": ["n", "PageDown"]}'
            msg = f"{path}: must be like {example}, got {found!r:.200}"
            raise UsageError(msg)
        keys[action] = several
    return keys
