"""The verbs zoo publish, push, table and verify."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError
from rich.console import Console

from probseg.cli.arguments import add_device, check_writable
from probseg.errors import DataError, DatasetNotFoundError, DownloadError, UsageError
from probseg.paths import offline, zoo_dir
from probseg.release.card import render_table, write_table
from probseg.release.evaluations import Evaluation, read_evaluations
from probseg.release.publish import Facts, check_same_weights, facts_of, publish
from probseg.terminal import Grid, Terminal, console, print_table
from probseg.texts import read_text, tell
from probseg.zoo.create import create_model
from probseg.zoo.index import CARD, CHECKSUMS, INDEX, Entry, is_clicks, read_index
from probseg.zoo.lookup import PREFIX, ZooModel, all_models, find_verified
from probseg.zoo.store import checksum_lines
from probseg.zoo.trained import Trained, read_trained

if TYPE_CHECKING:
    from probseg.cli.arguments import Verbs

# what some facts have to be; all others are `TEXT`
FACTS = {
    "data": "a list of texts",
    "limits": "a list of texts",
    "hours": "a number",
    "seed": "a whole number",
}

TEXT = "text, in quotes if it looks like a number"


def add_publish(verbs: Verbs) -> None:
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
    changes = _object(options.changes or "{}", "--changes")
    console = Terminal(highlight=False, markup=False, soft_wrap=True)

    def measure(model: Any, evaluation: Evaluation) -> dict[str, float]:  # noqa: ANN401
        console.print(f"measuring {evaluation.key} with the weights in half precision")
        try:
            return reevaluate(model.to(options.device), evaluation, options.device)
        except (DataError, DatasetNotFoundError) as error:
            reason = str(error).removesuffix(".")
            raise UsageError(
                f"{reason}. --no-parity publishes without this check, and the card says so"
            ) from error

    entry = publish(
        trained,
        options.name,
        root,
        facts,
        evaluations,
        untrained=_evaluations(options.untrained, None),
        changes=changes,
        preset=options.preset,
        measure=None if options.no_parity else measure,
    )
    console.print(f"wrote {root / entry.name}")


def _evaluations(paths: list[Path], trained: Trained | None) -> list[Evaluation]:
    """Read results, which must be of the weights if these are given."""
    from probseg.release.reevaluation import read_results, recorded_digest

    evaluations = []
    for path in paths:
        evaluations += read_results(path)
        if trained is not None:
            check_same_weights(trained, recorded_digest(path), path)
    return evaluations


def _facts(path: Path | None, published: Entry | None, trained: Trained) -> Facts:
    """Return the facts in a file, completed by the facts of the model of this name."""
    facts = {} if published is None else dataclasses.asdict(facts_of(published))
    of_run = {name for name in ("seed", "commit") if getattr(trained, name) is not None}
    facts = {name: value for name, value in facts.items() if name not in of_run}
    stated = {} if path is None else _object(read_text(path, "check --facts"), str(path))
    known = [field.name for field in dataclasses.fields(Facts)]
    faults = [name for name in stated if name not in known]
    try:
        if not faults:
            return Facts(**facts | stated)
    except ValidationError as error:
        faults = list(dict.fromkeys(str(fault["loc"][0]) for fault in error.errors()))
    expected = {**dict.fromkeys(known, TEXT), **FACTS}
    strange = f"left out, as it is not among {', '.join(known)}"
    wrong = [
        f"{name} must be {expected.get(name, strange)}, got {stated[name]!r}"
        for name in faults
        if name in stated
    ]
    missing = f"{', '.join(faults)} must be given, in a YAML or JSON file"
    raise UsageError(f"{path or '--facts'}: {wrong[0] if wrong else missing}")


def _object(text: str, name: str) -> dict[str, Any]:
    """Read an object in JSON or YAML."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        content = error
    if not isinstance(content, dict):
        raise UsageError(f"{name}: must be names with their values, JSON or YAML, got {content}")
    return content


def add_push(verbs: Verbs) -> None:
    """Add push to the verbs of `probseg zoo`."""
    verb = verbs.add_parser("push", help="upload a model to the Hugging Face hub")
    verb.add_argument("name", help="architecture.tag")
    verb.add_argument("repository", help="owner/name on the hub; created if necessary")
    verb.add_argument("--private", action="store_true", help="a new repository is private")
    verb.add_argument("--zoo", type=Path, help="zoo folder; probseg's by default")
    verb.set_defaults(action=_push)


def add_table(verbs: Verbs) -> None:
    """Add table to the verbs of `probseg zoo`."""
    verb = verbs.add_parser("table", help="the models of a zoo as a table in Markdown")
    verb.add_argument("--into", type=Path, metavar="FILE", help="write it between the marks there")
    verb.add_argument("--check", action="store_true", help="only check whether FILE is up to date")
    verb.add_argument("--zoo", type=Path, help="zoo folder; probseg's by default")
    verb.set_defaults(action=_table)


def add_verify(verbs: Verbs) -> None:
    """Add verify to the verbs of `probseg zoo`."""
    verb = verbs.add_parser("verify", help="check files, and with --metrics figures, of models")
    add = verb.add_argument
    add("name", nargs="*", help="models to check; by default all on this machine")
    add("--metrics", action="store_true", help="test again, and compare with the recorded figures")
    add("--on", nargs="+", metavar="SET", help="test on these data sets only: SamplePhotos")
    add("--data", type=Path, metavar="DIR", help="folder of the data sets, instead of PROBSEG_DATA")
    add_device(verb)
    add("--zoo", type=Path, help="zoo folder; by default probseg's and the folders in PROBSEG_ZOO")
    verb.set_defaults(action=_verify)


def _verify(options: argparse.Namespace) -> None:
    """Check models; exit with status 1 if a figure differs from the index."""
    if options.on and not options.metrics:
        raise UsageError("--on must come with --metrics, which tests on these data sets; add it")
    if options.data is not None:
        os.environ["PROBSEG_DATA"] = str(options.data)
    terminal = console(highlight=False, markup=False, soft_wrap=True)
    wrong: list[list[str]] = []  # rows of the table
    names = options.name or [model.entry.name for model in all_models(options.zoo)]
    asked, tested = {*(options.on or ())}, False
    for model in (find_verified(name, options.zoo) for name in names):
        entry, folder = model.entry, model.folder
        terminal.print(f"{entry.name}: all checksums are right")
        if not options.metrics:
            continue
        evaluations = read_evaluations(folder)
        known = {evaluation.dataset for evaluation in evaluations}
        if asked and not options.name and asked.isdisjoint(known):
            terminal.print(f"  not tested: its figures are on {', '.join(sorted(known))}")
            continue
        missing = sorted(asked - known)
        if missing or not evaluations:
            lacking = ", ".join(missing) or "any data set with recorded settings"
            raise UsageError(
                f"{entry.name} was not tested on {lacking}; its figures are on "
                f"{', '.join(sorted(known)) or 'nothing'}"
            )
        chosen = [test for test in evaluations if not asked or test.dataset in asked]
        wrong += _measured(model, chosen, options, terminal)
        tested = True
    if options.metrics and not tested:
        raise UsageError(
            f"--on {' '.join(sorted(asked))}: no model was tested on it; leave --on out"
        )
    if wrong:
        grid = Grid(["figure", "recorded", "found", "difference", "allowed"], wrong)
        print_table(terminal, "Figures that differ from the index", grid, texts=["figure"])
        raise SystemExit(1)


def _measured(
    listed: ZooModel,
    evaluations: Sequence[Evaluation],
    options: argparse.Namespace,
    terminal: Console,
) -> list[list[str]]:
    """Test a model again; return rows of the figures that differ from the index."""
    # Loads Lightning, which checksums need not wait for.
    from probseg.release.reevaluation import REPRODUCED, reevaluate

    entry = listed.entry
    model = create_model(str(listed.folder.resolve()), pretrained=True).to(options.device)
    wrong: list[list[str]] = []
    tested = 0
    for evaluation in evaluations:
        try:
            measured = reevaluate(model, evaluation, options.device)
        except DatasetNotFoundError as error:
            if options.on:
                raise
            terminal.print(f"  {evaluation.key}: not tested. {error}")
            continue
        tested += 1
        bad, worst = 0, {"points": 0.0, "clicks": 0.0}
        for name in evaluation.figures:
            figure = f"{evaluation.key}/{name}"
            recorded = entry.metrics[figure].value if figure in entry.metrics else None
            allowed = REPRODUCED.of(name)
            if recorded is None or abs(measured[name] - recorded) > allowed:
                bad += 1
                before = ["-", "-"]
                if recorded is not None:
                    before = [f"{recorded:.4f}", f"{measured[name] - recorded:+.4f}"]
                row = [before[0], f"{measured[name]:.4f}", before[1], f"{allowed:g}"]
                wrong.append([f"{entry.name} {figure}", *row])
                continue
            unit, scale = ("clicks", 1) if is_clicks(name) else ("points", 100)
            worst[unit] = max(worst[unit], scale * abs(measured[name] - recorded))
        differences = ", ".join(f"{value:.2f} {unit}" for unit, value in worst.items())
        right = len(evaluation.figures) - bad
        terminal.print(f"  {evaluation.key}: {right} figures are right (within {differences})")
    if not tested:
        raise UsageError(
            f"{entry.name}: none of its figures could be tested, for lack of data; fetch some with "
            "`probseg data fetch`, or say with --data where they are"
        )
    return wrong


def _push(options: argparse.Namespace) -> None:
    """Upload a model's folder in one commit; the card on the hub loads the model from there.

    `HF_TOKEN`, or the token that `hf auth login` keeps, says who uploads; `HF_ENDPOINT` is the hub.
    A new repository may be private; an old one stays what it is.
    """
    # Half a second to import, which models of the zoo need not wait for.
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    repository = options.repository
    if offline():
        raise UsageError(
            f"push {options.name}: PROBSEG_OFFLINE or HF_HUB_OFFLINE is set, and the hub must not "
            "be asked; push without them"
        )
    model = find_verified(options.name, options.zoo)
    entry, folder = model.entry, model.folder
    card = (folder / CARD).read_text(encoding="utf-8")
    card = card.replace(f'"{entry.name}"', f'"{PREFIX}{repository}"')
    files = [CommitOperationAdd(file, folder / file) for file in entry.files]
    files.append(CommitOperationAdd(CHECKSUMS, checksum_lines(entry.files).encode()))
    files.append(CommitOperationAdd(CARD, card.encode()))
    try:
        hub = HfApi(library_name="probseg")
        hub.create_repo(repository, private=options.private, exist_ok=True)
        commit = hub.create_commit(repository, files, commit_message=f"Publish {entry.name}")
    except (OSError, ValueError, HTTPError) as error:
        reason = str(error).strip().split("\n")[0]
        raise DownloadError(
            f"{entry.name} could not be pushed to {repository} ({reason}); check the name, which "
            "is owner/name, the network, and that HF_TOKEN is one that may write there"
        ) from error
    address = f"pushed {entry.name}: {commit.commit_url}"
    Terminal(highlight=False, markup=False, soft_wrap=True).print(address)


def _table(options: argparse.Namespace) -> None:
    table = render_table(read_index(options.zoo or zoo_dir()).values())
    if options.into is None:
        tell(table)
    else:
        write_table(options.into, table, check=options.check)
