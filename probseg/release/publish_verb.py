"""The verb zoo publish."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from probseg.cli.arguments import add_device, check_writable
from probseg.errors import DataError, DatasetNotFoundError, UsageError
from probseg.paths import zoo_dir
from probseg.release.evaluations import Evaluation
from probseg.release.facts import Facts, facts_of
from probseg.release.publish import check_same_weights, publish
from probseg.terminal import Terminal
from probseg.texts import read_text
from probseg.zoo.index import INDEX, Entry, read_index
from probseg.zoo.trained import Trained, read_trained

if TYPE_CHECKING:
    from probseg.cli.arguments import Verbs

_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "data": ("a list of texts", lambda value: _is_texts(value)),
    "limits": ("a list of texts", lambda value: _is_texts(value)),
    "hours": ("a number", lambda value: isinstance(value, int | float)),
    "seed": ("a whole number", lambda value: isinstance(value, int)),
}
"""Types of facts: description and test; all other facts are text."""

_TEXT = ("text, in quotes if it looks like a number", lambda value: isinstance(value, str))


def add_verb(verbs: Verbs) -> None:
    """Add publish to the verbs of `probseg zoo`."""
    verb = verbs.add_parser("publish", help="make a zoo model from a training run")
    add = verb.add_argument
    add("source", type=Path, help="folder of a run of `probseg fit`, checkpoint, or model folder")
    add("name", help="architecture.tag")
    add(
        "--weights",
        choices=("best", "last", "ema"),
        help="weights of a run: of its best validation (default), after its last step, or the "
        "average of EMAWeightAveraging after its last step",
    )
    add(
        "--facts",
        type=Path,
        help="YAML or JSON file for the card: description, data, license, hardware, hours, limits, "
        "and recipe, seed, commit if the run lacks them; default: the facts of the published "
        "model of this name",
    )
    add("--results", type=Path, nargs="*", default=[], help="results.json of tests")
    add(
        "--untrained",
        type=Path,
        nargs="*",
        default=[],
        help="results.json of the same tests of the untrained network",
    )
    add("--changes", help="arguments of the network to change: '{\"working_size\": 256}'")
    add("--preset", help="preset of the network; by default the architecture in its name")
    add(
        "--no-parity",
        action="store_true",
        help="do not repeat the tests with the weights in half precision; the card says so",
    )
    add_device(verb)
    add("--zoo", type=Path, help="zoo folder; probseg's by default")
    verb.set_defaults(action=_publish)


def _publish(options: argparse.Namespace) -> None:
    # Loads Lightning, which the help need not wait for.
    from probseg.release.reevaluation import reevaluate

    root = options.zoo or zoo_dir()
    check_writable("--zoo", root)
    entries = read_index(root) if (root / INDEX).is_file() else {}
    trained = read_trained(options.source, options.weights)
    facts = _facts(options.facts, entries.get(options.name), trained)
    evaluations = _evaluations(options.results, trained)
    console = Terminal(highlight=False, markup=False, soft_wrap=True)

    def measure(model: Any, evaluation: Evaluation) -> dict[str, float]:  # noqa: ANN401
        console.print(f"measuring {evaluation.key} with the weights in half precision")
        try:
            return reevaluate(model.to(options.device), evaluation, options.device)
        except (DataError, DatasetNotFoundError) as error:
            reason = str(error).removesuffix(".")
        # Outside of the block: the command line shows the innermost error of a chain.
        msg = f"{reason}. --no-parity publishes without this check, and the card says so"
        raise UsageError(msg)

    entry = publish(
        trained,
        options.name,
        root,
        facts,
        evaluations,
        untrained=_evaluations(options.untrained, None),
        changes=_changes(options.changes),
        preset=options.preset,
        measure=None if options.no_parity else measure,
    )
    console.print(f"wrote {root / entry.name}")


def _evaluations(paths: list[Path], trained: Trained | None) -> list[Evaluation]:
    """Read results, which must be of the weights if these are given."""
    from probseg.release.recorded import read_results, recorded_digest

    evaluations = []
    for path in paths:
        evaluations += read_results(path)
        if trained is not None:
            check_same_weights(trained, recorded_digest(path), path)
    return evaluations


def _changes(text: str | None) -> dict[str, Any]:
    """Read `--changes`."""
    try:
        changes = yaml.safe_load(text or "{}")
    except yaml.YAMLError as error:
        msg = f"--changes must be JSON or YAML: {error}"
        raise UsageError(msg) from error
    if not isinstance(changes, dict):
        msg = f"--changes must be arguments with their values, got {changes!r}"
        raise UsageError(msg)
    return changes


def _facts(path: Path | None, published: Entry | None, trained: Trained) -> Facts:
    """Return the facts in a file, completed by the facts of the model of this name.

    Raises:
        UsageError: If some are missing, or the file cannot be used.
    """
    facts = {} if published is None else dataclasses.asdict(facts_of(published))
    of_run = {name for name in ("seed", "commit") if getattr(trained, name) is not None}
    facts = {name: value for name, value in facts.items() if name not in of_run}
    facts |= {} if path is None else _read_facts(path)
    fields = dataclasses.fields(Facts)
    needed = [field.name for field in fields if field.default is dataclasses.MISSING]
    if missing := [name for name in needed if name not in facts]:
        msg = f"{path or '--facts'}: {', '.join(missing)} must be given, in a YAML or JSON file"
        raise UsageError(msg)
    return Facts(**facts)


def _read_facts(path: Path) -> dict[str, Any]:
    """Read the file for `--facts`; errors name it."""
    try:
        given = yaml.safe_load(read_text(path, "check --facts"))
    except yaml.YAMLError as error:
        msg = f"{path}: must be JSON or YAML: {error}"
        raise UsageError(msg) from error
    known = [field.name for field in dataclasses.fields(Facts)]
    if not isinstance(given, dict) or not given.keys() <= set(known):
        msg = f"{path}: must be an object with keys among {', '.join(known)}, got {given!r}"
        raise UsageError(msg)
    for name, value in given.items():
        expected, fits = _KINDS.get(name, _TEXT)
        if isinstance(value, bool) or not fits(value):
            msg = f"{path}: {name} must be {expected}, got {value!r}"
            raise UsageError(msg)
    return given


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
