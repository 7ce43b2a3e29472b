"""The verb ablate: trainings of several settings, each with several seeds, and their table."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from probseg.cli.arguments import Parser, check_writable
from probseg.cli.compare import compare_settings
from probseg.cli.invocation import as_options
from probseg.errors import UsageError
from probseg.paths import write_text
from probseg.texts import read_json, read_yaml, tell
from probseg.zoo.trained import LAST

EXAMPLE = """\
a file that trains two attentions with three seeds:

  fit: {config: configs/experiment/folder.yaml, data.root: my_folder,
        model.model: configs/model/resnet18_csa.yaml}
  settings:
    standard: {model.model.init_args.head.init_args.attention: standard}
    mine: {model.model.init_args.head.init_args.attention: my_attention.Mine}
  seeds: [0, 1, 2]
  test: {evaluation.trials: 1}

example: probseg ablate ablation.yaml --latex"""

OPTIONS = "ablation.json"
"""File in a run's folder with the options that the plan had for it."""

Options = dict[str, Any]


class Plan(BaseModel):
    """An ablation: options of `probseg fit` for all and for each setting, seeds, and of `test`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    fit: Options
    settings: Annotated[dict[str, Options], Field(min_length=1)]
    seeds: Annotated[list[int], Field(min_length=1)] = [0]
    test: Options = {}


def run(arguments: Sequence[str]) -> None:
    """Run `probseg ablate` with the arguments that follow it."""
    parser = Parser(
        prog="probseg ablate",
        description="Train each setting with each seed, test all, and compare the settings: means "
        "with standard errors over seeds. What has results already is left as it is, and a "
        "training that was stopped goes on; both are refused if the plan has changed since.",
        epilog=EXAMPLE,
    )
    parser.add_argument("plan", type=Path, metavar="FILE", help="settings and seeds, in YAML")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("ablation"),
        metavar="DIR",
        help="folder of the runs, DIR/SETTING/seed_N, and of the tables (default: %(default)s)",
    )
    parser.add_argument("--metric", nargs="+", metavar="METRIC", help="as of probseg compare")
    parser.add_argument("--latex", action="store_true", help="write the table for a paper, too")
    options = parser.parse_args(list(arguments))
    check_writable("--output", options.output)
    try:
        plan = Plan.model_validate(read_yaml(options.plan))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{options.plan}: {place}: {first['msg']}; see --help") from error
    for name, changes in plan.settings.items():
        for seed in plan.seeds:
            folder = options.output / name / f"seed_{seed}"
            testing = folder / "testing"  # a protocol may have results, and the next none
            done = any(folder.glob("test/*/results.json")) and not testing.exists()
            last = folder / "checkpoints" / LAST
            fit = {**plan.fit, **changes}
            asked = json.dumps({"fit": fit, "test": plan.test}, default=str)
            if done or last.is_file():
                _check_same(asked, folder)
            if done:
                continue
            write_text(folder / OPTIONS, asked)
            run = {"save_dir": str(options.output), "name": name, "version": folder.name}
            logger = {f"trainer.logger.{key}": value for key, value in run.items()}
            goes_on = {"ckpt_path": last} if last.is_file() else {}
            _call("fit", {**fit, "seed_everything": seed, **logger, **goes_on})
            testing.touch()
            _call("test", {"config": folder / "config.yaml", **plan.test})
            testing.unlink()
    seeds = [f"seed_{seed}" for seed in plan.seeds]
    runs = {name: [options.output / name / seed for seed in seeds] for name in plan.settings}
    compare_settings(runs, options.output, options.metric, latex=options.latex)


def _check_same(asked: str, folder: Path) -> None:
    """Refuse a run that was made with other options, in JSON, if it says with which."""
    if not (folder / OPTIONS).is_file():
        return
    there, now = read_json(folder / OPTIONS), json.loads(asked)
    changed = [
        f"{verb}: {name}"
        for verb in now
        for name in sorted({*there[verb], *now[verb]})
        if there[verb].get(name) != now[verb].get(name)
    ]
    if changed:
        raise UsageError(
            f"{folder} was made with other options than the plan has now ({', '.join(changed)}); "
            "choose another --output, or remove that folder to make it anew"
        )


def _call(verb: str, options: Mapping[str, Any]) -> None:
    """Run a verb in a process of its own, so that no training knows of the one before."""
    words = as_options(options)
    tell(f"probseg: probseg {verb} {shlex.join(words)}\n")
    if subprocess.run([sys.executable, "-m", "probseg", verb, *words], check=False).returncode:
        raise UsageError(f"probseg {verb} of this setting failed, see above; the others are kept")
