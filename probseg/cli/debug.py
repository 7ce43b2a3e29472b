"""The verb debug."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from probseg.callbacks.replay_file import Replay, read_replay
from probseg.cli.arguments import Parser, device, new_file
from probseg.cli.replay import Repetition, Step, not_finite, task_of
from probseg.errors import UsageError

EXAMPLES = """\
examples:
  probseg debug replay runs/probseg/version_0/replay_step120.pt
  probseg debug replay replay_step120.pt --config config.yaml --device cuda --json found.json
"""
NAMED = 5
"""Most weights that the report names."""

WIDTH = 150
"""Columns of the report where the output is no terminal."""


@dataclass(frozen=True)
class Findings:
    """What a repeated step shows.

    Args:
        reproduced: Whether the loss is not finite again.
        precision: With which it was repeated.
        device: On which it was repeated.
        weights: Names of the weights that are not finite before the step.
        inputs: Names of the batch's tensors that are not finite.
        step: The step.
        images: Names of the images, with the loss of the step with copies of each in place of the
            whole batch; None where the problem was not reproduced, or the batch has one image.
    """

    reproduced: bool
    precision: str
    device: str
    weights: list[str]
    inputs: list[str]
    step: Step
    images: list[tuple[str, float | None]]


def run(arguments: Sequence[str]) -> None:
    """Run ``probseg debug``.

    Args:
        arguments: What follows ``debug`` on the command line.

    Raises:
        UsageError: If an option cannot be used.
        WeightsError: If the file cannot be used.
        SystemExit: With status 1 if the problem is reproduced.
    """
    options = _parser().parse_args(list(arguments))
    options.action(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="probseg debug",
        description="Find out what went wrong in a training.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(required=True, metavar="replay")
    verb = verbs.add_parser(
        "replay",
        help="repeat a training step whose loss was not finite",
        description="Repeat the training step that a file replay_step*.pt holds, and show where "
        "numbers stop being finite. Exit status: 1 if the loss is not finite again, 0 if it is "
        "finite, 2 if the file cannot be used.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.set_defaults(action=_replay)
    add = verb.add_argument
    add("file", type=Path, help="the file that `probseg fit` has left in the run's folder")
    add(
        "--config",
        type=Path,
        help="config.yaml of the run, whose classes are imported; by default that beside the file",
    )
    add("--device", type=device, help="cpu, cuda or cuda:N; that of the training if it is there")
    add("--json", type=new_file, metavar="FILE", help="write the findings to a file")
    return parser


def _replay(options: argparse.Namespace) -> None:
    replay = read_replay(options.file)
    # Not one that the file names: it may come from anybody, and what is named is imported.
    config = options.config or options.file.absolute().with_name("config.yaml")
    there = replay.device == "cuda" and torch.cuda.is_available()
    where = options.device or ("cuda" if there else "cpu")
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    console.print(f"configuration: {escape(str(config))}", soft_wrap=True)
    repetition = Repetition(replay, task_of(config), where)
    findings = find(repetition)
    _show(console, replay, findings)
    if options.json is not None:
        _write_json(options.json, findings)
    if findings.reproduced:
        raise SystemExit(1)


def find(repetition: Repetition) -> Findings:
    """Repeat a step, and with each of its images alone where its loss is not finite again.

    Args:
        repetition: The step, set up.
    """
    replay = repetition.replay
    names = replay.batch.names
    step = repetition.run(replay.batch, backward=True)
    reproduced = not math.isfinite(step.loss)
    single = reproduced and len(names) > 1
    losses = [repetition.alone(i).loss if single else None for i in range(len(names))]
    return Findings(
        reproduced=reproduced,
        precision=str(repetition.trainer.precision),
        device=str(repetition.device),
        weights=not_finite(replay.weights),
        inputs=not_finite(replay.batch._asdict()),
        step=step,
        images=list(zip(names, losses, strict=True)),
    )


def _show(console: Console, replay: Replay, findings: Findings) -> None:
    """Print the report; names come from files and are no markup."""
    step = findings.step
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    rows = [
        ("step", f"{replay.global_step} (epoch {replay.epoch}, batch {replay.batch_idx})"),
        ("trained with", f"probseg {replay.version}, {replay.precision} on {_place(replay)}"),
        ("repeated with", f"{findings.precision} on {findings.device}"),
        ("weights before the step", _listed(findings.weights)),
        ("images and truth", _listed(findings.inputs)),
        ("loss", f"{step.loss:g} (in the training: {replay.loss:g})"),
        *((f"  {name}", f"{value:g}") for name, value in step.parts.items()),
        ("first output not finite", _suspect(step)),
        ("first gradient not finite", step.gradient or "none"),
    ]
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    console.print(table)
    images = Table("image", "loss with copies of it alone", box=box.SIMPLE)
    for name, loss in findings.images:
        images.add_row(escape(name), "-" if loss is None else f"{loss:g}")
    console.print(images)
    console.print(_verdict(replay, findings))


def _place(replay: Replay) -> str:
    several = f", process {replay.rank} of {replay.world_size}" if replay.world_size > 1 else ""
    return f"{replay.device}{several}"


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "all finite"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"not finite: {', '.join(names[:NAMED])}{more}"


def _suspect(step: Step) -> str:
    suspect = step.suspect
    if suspect is None:
        return "none"
    given = " ".join(str(tuple(shape)) for shape in suspect.inputs)
    returned = " ".join(str(tuple(shape)) for shape in suspect.outputs)
    finite = "" if suspect.inputs_finite else ", and some not finite"
    return (
        f"{suspect.name} ({suspect.kind}): {given} to {returned}; "
        f"input up to {suspect.largest_input:.3g} in magnitude{finite}"
    )


def _verdict(replay: Replay, findings: Findings) -> str:
    if findings.reproduced:
        return "reproduced: the loss is not finite"
    apart = [
        f"{name} {now} instead of {then}"
        for name, now, then in (
            ("the precision", findings.precision, replay.precision),
            ("the device", findings.device.partition(":")[0], replay.device),
            ("the number of processes", "1", str(replay.world_size)),
        )
        if now != then
    ]
    differs = f"; what differs from the training: {', '.join(apart)}" if apart else ""
    return f"not reproduced: the loss is finite{differs}"


def _write_json(path: Path, findings: Findings) -> None:
    images = [{"name": name, "loss": loss} for name, loss in findings.images]
    content = _plain({**asdict(findings), "images": images})
    try:
        path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        msg = f"--json {path}: cannot be written: {error}"
        raise UsageError(msg) from error


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Write numbers that JSON does not have as text: ``"nan"``, ``"inf"``, ``"-inf"``."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
