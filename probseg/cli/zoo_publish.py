"""The verbs of the zoo that make models."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from probseg.errors import UsageError
from probseg.paths import zoo_dir
from probseg.zoo.publish import Facts, publish

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


def add_verbs(verbs: Verbs) -> None:
    """Add publish to the verbs of ``probseg zoo``; verify is among them already."""
    verb = verbs.add_parser("publish", help="make a zoo model of a checkpoint")
    verb.add_argument("checkpoint", type=Path, help="checkpoint written by `probseg fit`")
    verb.add_argument("name", help="architecture.tag")
    verb.add_argument(
        "--facts",
        type=Path,
        required=True,
        help="JSON file for the card: description, data, license, recipe, commit, seed, "
        "hardware, limits",
    )
    verb.add_argument("--results", type=Path, nargs="*", default=[], help="results.json of tests")
    verb.add_argument(
        "--untrained",
        type=Path,
        nargs="*",
        default=[],
        help="results.json of the same tests of the untrained network",
    )
    verb.add_argument("--zoo", type=Path, default=None, help="zoo folder; probseg's by default")
    verb.set_defaults(action=_publish)


def _publish(options: argparse.Namespace) -> None:
    facts = _read_facts(options.facts)
    root = options.zoo or zoo_dir()
    entry = publish(
        options.checkpoint, options.name, root, facts, options.results, options.untrained
    )
    Console().print(f"wrote {root / entry.name}")


def _read_facts(path: Path) -> Facts:
    """Read the file for ``--facts``; what is wrong with it is said with its name."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        msg = f"{path}: is not JSON: {error}"
        raise UsageError(msg) from error
    wanted = [field.name for field in dataclasses.fields(Facts)]
    if not isinstance(given, dict) or set(given) != set(wanted):
        msg = f"{path}: expected an object with exactly the keys {', '.join(wanted)}"
        raise UsageError(msg)
    return Facts(**given)
