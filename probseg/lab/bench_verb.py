"""The verb bench."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import torch

from probseg.cli.arguments import Parser, new_file
from probseg.errors import UnknownNameError, UsageError
from probseg.evaluation.versions import environment
from probseg.geometry import shrink_to
from probseg.lab.benchmark import CONVENTIONS, Record, Settings, measure_elsewhere
from probseg.models import list_presets, task_of
from probseg.paths import is_path, write_text
from probseg.terminal import Grid, console, print_table
from probseg.texts import tell
from probseg.zoo import list_models
from probseg.zoo.trained import description_for

EXAMPLES = """\
examples:
  probseg bench model resnet18_csa fast_resnet18_csa
  probseg bench model lite2_unet_prop.objects lite0_unet_prop.objects --working-size own
  probseg bench model "micro_*" --size 256 --device cpu --threads 2 --json micro.json
  probseg bench model resnet18_csa --prompts head --key-iterations 0 --no-train
"""
NOTES = "what the numbers mean:\n" + "\n".join(
    f"  {name}: {meaning}" for name, meaning in CONVENTIONS.items()
)


def run(arguments: Sequence[str]) -> None:
    """Run `probseg bench`; exit with status 1 if a model could not be measured."""
    parser = Parser(
        prog="probseg bench",
        description="Measure the cost of models, each in a separate process.",
        epilog=EXAMPLES,
    )
    verbs = parser.add_subparsers(required=True, metavar="model")
    verb = verbs.add_parser(
        "model",
        help="parameters, multiply-adds, milliseconds of a click, memory and training throughput",
        description="Measure parameters, multiply-adds, milliseconds of the first and of a later "
        "click, memory and training throughput of models.",
        epilog=f"{EXAMPLES}\n{NOTES}\n",
    )
    add = verb.add_argument
    add("name", nargs="+", help="preset, architecture.tag of the zoo, run, folder/, or a pattern")
    for field in fields(Settings):
        flag = "no-train" if field.name == "train" else field.name.replace("_", "-")
        add(f"--{flag}", dest=field.name, **{"default": field.default, **field.metadata})
    add("--json", type=new_file, metavar="FILE", help="write the numbers to a file")
    options = parser.parse_args(list(arguments))
    json_file: Path | None = options.json
    names: list[str] = []
    for name in options.name:
        if any(sign in name for sign in "*?["):
            matching = list_models(name, pretrained="." in name, task="interactive")
            if not matching:
                raise UnknownNameError(kind="model", name=name, known=list_presets())
            names += matching
            continue
        description = description_for(name, pretrained="." in name or is_path(name))
        if task_of(description) != "interactive":
            raise UsageError(
                f"`name` must be a model for clicks, got {name!r}, which is for semantic "
                "segmentation"
            )
        names.append(name)
    names = list(dict.fromkeys(names))
    if options.device is None:
        has_accelerator = torch.accelerator.is_available()
        options.device = str(torch.accelerator.current_accelerator()) if has_accelerator else "cpu"
    settings = Settings(**{field.name: getattr(options, field.name) for field in fields(Settings)})
    records: list[Record] = []
    for number, name in enumerate(names, start=1):
        tell(f"measuring {name} ({number} of {len(names)})\n", sys.stderr)
        records.append(measure_elsewhere(name, settings))
        if json_file is not None:  # after each, so that a long run leaves something if it is ended
            machine = environment(settings.device)
            result = {
                "conventions": CONVENTIONS,
                "environment": {**machine, "threads": settings.threads or machine["threads"]},
                "options": asdict(settings),
                "records": [asdict(record) for record in records],
            }
            write_text(json_file, json.dumps(result, indent=2) + "\n")
    _print_table(records, settings)
    failed = [record for record in records if record.error is not None]
    for record in failed:
        console().print(f"{record.model} failed: {record.error}", style="red", markup=False)
    if failed:
        raise SystemExit(1)


def _print_table(records: Sequence[Record], settings: Settings) -> None:
    height, width = settings.size
    title = f"Clicks on an image of {height} x {width} pixels (H x W), {settings.device}"
    if settings.train:
        title += f"; training with {settings.train_batch} x {settings.train_size} pixels"
    header = [
        "model",
        "prompts",
        "works at\npixels",
        "parameters\nM",
        "first click\nMACs, G",
        "next click\nMACs, G",
        "first click\nms",
        "next click\nms",
        "zoomed\nms",
        "undo\nms",
        "peak\nMiB",
        "training\nimages/s",
    ]
    rows = []
    for record in records:
        works_at = shrink_to(settings.size, record.working_size)
        rows.append(
            [
                record.model,
                record.prompts or "failed",
                f"{works_at[0]}x{works_at[1]}" if record.prompts else "",
                _number(record.parameters_m, 3),
                _number(record.first_multiply_adds_g, 3),
                _number(record.next_multiply_adds_g, 3),
                f"{_number(record.first_ms, 1)} ({_number(record.first_ms_p95, 1)})",
                f"{_number(record.next_ms, 1)} ({_number(record.next_ms_p95, 1)})",
                _number(record.zoomed_ms, 1),
                _number(record.undo_ms, 1),
                _number(record.peak_mib, 1),
                _number(record.train_images_per_second, 1),
            ]
        )
    caption = f"MACs: {CONVENTIONS['multiply_adds']}. ms: median (p95)."
    print_table(console(), title, Grid(header, rows), caption)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
