"""The verb of the zoo that checks files and recorded figures of models."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from probseg.cli.arguments import add_device
from probseg.errors import DatasetNotFoundError, UsageError
from probseg.release.evaluations import Evaluation, read_evaluations
from probseg.terminal import Grid, console, print_table
from probseg.zoo.create import create_model
from probseg.zoo.figures import is_clicks
from probseg.zoo.index import Entry
from probseg.zoo.lookup import ZooModel, all_models, verify

if TYPE_CHECKING:
    from probseg.cli.arguments import Verbs


class _Wrong(NamedTuple):
    """A figure that differs from the index; `recorded` is None if the index has none."""

    figure: str
    recorded: float | None
    found: float
    allowed: float


def add_verb(verbs: Verbs) -> None:
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
    """Check models.

    Raises:
        UsageError: If nothing can be tested, or not what was asked for.
        SystemExit: With status 1 if a figure differs from the index.
    """
    if options.on and not options.metrics:
        msg = "--on must come with --metrics, which tests on these data sets; add it"
        raise UsageError(msg)
    if options.data is not None:
        os.environ["PROBSEG_DATA"] = str(options.data)
    terminal = console(highlight=False, markup=False, soft_wrap=True)
    wrong: list[_Wrong] = []
    names = options.name or [model.entry.name for model in all_models(options.zoo)]
    asked, tested = {*(options.on or ())}, False
    for model in (verify(name, options.zoo) for name in names):
        entry, folder = model.entry, model.folder
        terminal.print(f"{entry.name}: all checksums are right")
        if not options.metrics:
            continue
        evaluations = read_evaluations(folder)
        known = {evaluation.dataset for evaluation in evaluations}
        if asked and not options.name and asked.isdisjoint(known):
            terminal.print(f"  not tested: its figures are on {', '.join(sorted(known))}")
            continue
        wrong += _measured(model, _chosen(entry, evaluations, options.on), options, terminal)
        tested = True
    if options.metrics and not tested:
        msg = f"--on {' '.join(sorted(asked))}: no model was tested on it; leave --on out"
        raise UsageError(msg)
    if wrong:
        _print_wrong(terminal, wrong)
        raise SystemExit(1)


def _measured(
    listed: ZooModel,
    evaluations: Sequence[Evaluation],
    options: argparse.Namespace,
    terminal: Console,
) -> list[_Wrong]:
    """Test a model again; return the figures that differ from the index."""
    # Loads Lightning, which checksums need not wait for.
    from probseg.release.reevaluation import REPRODUCED, reevaluate

    entry = listed.entry
    model = create_model(str(listed.folder.resolve()), pretrained=True).to(options.device)
    wrong, tested = [], 0
    for evaluation in evaluations:
        try:
            found = reevaluate(model, evaluation, options.device)
        except DatasetNotFoundError as error:
            if options.on:
                raise
            terminal.print(f"  {evaluation.key}: not tested. {error}")
            continue
        tested += 1
        bad, worst = [], {"points": 0.0, "clicks": 0.0}
        for name in evaluation.figures:
            figure = f"{evaluation.key}/{name}"
            recorded = entry.metrics[figure].value if figure in entry.metrics else None
            allowed = REPRODUCED.of(name)
            if recorded is None or abs(found[name] - recorded) > allowed:
                bad.append(_Wrong(f"{entry.name} {figure}", recorded, found[name], allowed))
                continue
            unit, scale = ("clicks", 1) if is_clicks(name) else ("points", 100)
            worst[unit] = max(worst[unit], scale * abs(found[name] - recorded))
        wrong += bad
        differences = ", ".join(f"{value:.2f} {unit}" for unit, value in worst.items())
        right = len(evaluation.figures) - len(bad)
        terminal.print(f"  {evaluation.key}: {right} figures are right (within {differences})")
    if not tested:
        msg = (
            f"{entry.name}: none of its figures could be tested, for lack of data; fetch some with "
            "`probseg data fetch`, or say with --data where they are"
        )
        raise UsageError(msg)
    return wrong


def _chosen(
    entry: Entry, evaluations: Sequence[Evaluation], sets: Sequence[str] | None
) -> list[Evaluation]:
    """Return the evaluations to repeat.

    Raises:
        UsageError: If there is none on one of the data sets.
    """
    known = {evaluation.dataset for evaluation in evaluations}
    missing = sorted(set(sets or ()) - known)
    if missing or not evaluations:
        lacking = ", ".join(missing) or "any data set with recorded settings"
        msg = (
            f"{entry.name} was not tested on {lacking}; its figures are on "
            f"{', '.join(sorted(known)) or 'nothing'}"
        )
        raise UsageError(msg)
    return [one for one in evaluations if sets is None or one.dataset in sets]


def _print_wrong(terminal: Console, wrong: Sequence[_Wrong]) -> None:
    rows = []
    for figure, recorded, found, allowed in wrong:
        before = "-" if recorded is None else f"{recorded:.4f}"
        difference = "-" if recorded is None else f"{found - recorded:+.4f}"
        rows.append([figure, before, f"{found:.4f}", difference, f"{allowed:g}"])
    grid = Grid(["figure", "recorded", "found", "difference", "allowed"], rows)
    print_table(terminal, "Figures that differ from the index", grid, texts=["figure"])
