"""Resolves and checks `--ckpt_path` and the folder of a run, and prints how to continue it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
import yaml
from jsonargparse import Namespace
from lightning.pytorch.callbacks import ModelCheckpoint, WeightAveraging
from torch import nn

from probseg.callbacks.run_folder import START, STARTS, run_folder, start_score
from probseg.cli.arguments import check_writable
from probseg.errors import UsageError, WeightsError
from probseg.lightning_internals import finished_epochs
from probseg.models import Segmenter, build
from probseg.paths import FIRST_WEIGHTS, MEAN, find_data, is_path, no_file
from probseg.texts import read_yaml, tell
from probseg.zoo.store import check_fit
from probseg.zoo.trained import LAST, best_checkpoint, network_of, read_checkpoint

RANDOM = "random"  # first word about weights that are not trained, see `initial_weights`
# arguments of data modules that may change when a run resumes: the data stay the same
RESUMABLE_ARGUMENTS = ("batch_size", "crop_size", "eval_batch_size", "max_skipped", "num_workers")


# arguments of data sets that are paths, also where they have no slash
DATA_PATHS = ("annotations", "exclude", "images", "masks", "root")


def find_last(trainer: Mapping[str, Any], data: Mapping[str, Any]) -> Path:
    """Return the newest `last.ckpt` among the runs of a configuration.

    The first logger in the section `trainer` says where runs are. Those on other data, as their
    `config.yaml` says, are passed over; `RESUMABLE_ARGUMENTS` may differ. Lightning looks into the
    folder of the run that begins, which is new and empty, and then starts from scratch with no more
    than a warning.
    """
    root, inner = _place_of_runs(trainer)
    callbacks = trainer.get("callbacks") or []
    folders = [(callback.get("init_args") or {}).get("dirpath") for callback in callbacks]
    # Runs first: `LastCheckpoint` writes there. `save_last` of Lightning writes into `dirpath`.
    for place, pattern in ((root, inner), *((Path(path), LAST) for path in folders if path)):
        paths = place.absolute().glob(pattern)
        checkpoints = [path for path in paths if _trains_on(path.parent.parent, data)]
        if checkpoints:
            return max(checkpoints, key=lambda path: path.stat().st_mtime)
    raise UsageError(
        f"--ckpt_path last: no run on these data has a {root / inner} to continue from; leave "
        "the option out to start a new run, or give the path of a checkpoint"
    )


def take_paths_of_run(config: Namespace, verb: str) -> None:
    """Let relative paths in a run's `config.yaml` mean what they meant when it started, in place.

    Data and weights that are not here are looked for in the folder in which the run was started. A
    test or validation is written beside the run, unless options say where.
    """
    for path in map(Path, map(str, config.config or ())):
        run = path.absolute().parent
        if path.name != "config.yaml" or not (run / STARTS).is_file():
            continue
        last = (run / STARTS).read_text(encoding="utf-8").splitlines()[-1]
        if (started := json.loads(last).get("folder")) is not None:
            _look_there_too(config.data, Path(started))
            _look_there_too(config.model, Path(started))
        stored = (read_yaml(path) or {}).get("trainer") or {}
        place, _ = _place_of_runs(config.trainer)
        if verb == "fit" or place == run.parent or place != _place_of_runs(stored)[0]:
            continue
        loggers = config.trainer.get("logger")
        for logger in loggers if isinstance(loggers, list) else [loggers]:
            if not isinstance(logger, Namespace | dict):
                continue
            saved = Path(logger["init_args"].get("save_dir") or ".").absolute()
            inner = place.relative_to(saved).parts if place.is_relative_to(saved) else ("..",)
            if run.parts[:-1][len(run.parts) - 1 - len(inner) :] == inner:  # <save_dir>/<name>
                logger["init_args"]["save_dir"] = str(run.parents[len(inner)])


def _look_there_too(node: Any, started: Path) -> None:  # noqa: ANN401
    """Make paths that lead nowhere lead from another folder, at any depth, in place."""
    values = vars(node) if isinstance(node, Namespace) else node
    for key, value in list(enumerate(values) if isinstance(values, list) else values.items()):
        if isinstance(value, Namespace | dict | list):
            _look_there_too(value, started)
        elif isinstance(value, str | Path) and (key in DATA_PATHS or is_path(str(value))):
            there = [path for path in (started / value, started / "data" / value) if path.exists()]
            if there and not find_data(value).exists():
                values[key] = type(value)(there[0])


def check_run_folder(trainer: Mapping[str, Any]) -> None:
    """Check that files can be written where the run's folder will be."""
    place, _ = _place_of_runs(trainer)
    if trainer.get("fast_dev_run") or ":/" in str(place):
        return  # nothing is written, or to an address, of which a path has lost one slash
    check_writable("--trainer.logger.save_dir: the folder of the run,", place)


def best_of_run(configs: Sequence[Path]) -> str | None:
    """Return the best checkpoint of the run that has written the last of these configurations.

    None where no configuration is one of a run with checkpoints.
    """
    for path in reversed(configs):
        if path.name == "config.yaml" and any((path.parent / "checkpoints").rglob("*.ckpt")):
            return str(best_checkpoint(path.parent))
    return None


def check_readable(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint, which is read without running code.

    Where it is damaged, or something else, the newest in its folder that can be read is named.
    """
    if (fault := no_file(path)) is not None:
        checkpoints = [*path.glob("*.ckpt"), *path.glob("checkpoints/*.ckpt")]
        hint = f", here {max(checkpoints)}" if checkpoints else ""
        raise UsageError(
            f"--ckpt_path {path}: {fault}; give the path of a .ckpt file{hint}, or `last`"
        )
    try:
        return read_checkpoint(path)
    except WeightsError as error:
        msg = str(error) if str(path) in str(error) else f"{path}: {error}"
        others = {*path.parent.glob("*.ckpt")} - {path}
        for other in sorted(others, key=lambda other: other.stat().st_mtime, reverse=True):
            with suppress(WeightsError):
                read_checkpoint(other)
                msg += f"; --ckpt_path {other} can be read"
                break
        raise WeightsError(msg) from error


def how_finished(stored: Mapping[str, Any], trainer: Mapping[str, Any]) -> str | None:
    """Return a sentence if the training of a checkpoint has come to the end that `trainer` sets.

    A checkpoint of weights alone is refused.
    """
    epochs = finished_epochs(stored)
    if epochs is None:
        raise UsageError(
            "--ckpt_path: this checkpoint holds weights alone (`save_weights_only: true`), and a "
            "training continues from a whole one, such as `last`; to begin a new training with "
            "these weights: --model.model probseg.zoo.warm_start --model.model.of PRESET "
            "--model.model.weights FILE"
        )
    callbacks = [str(one.get("class_path")) for one in trainer.get("callbacks") or ()]
    timed = any(name.endswith(".Budget") for name in callbacks)
    planned = stored["callbacks"].get("Budget", {}).get("epochs") if timed else None
    if planned is not None:  # whatever `max_epochs` says
        over = f"this training has already finished (its minutes were {planned} epochs); begin anew"
        return over if planned <= epochs else None
    for done, unit in ((epochs, "epochs"), (stored["global_step"], "steps")):
        option = f"max_{unit}"
        most = trainer.get(option)
        if most is not None and 0 <= most <= done:
            return (
                f"this training has already finished ({done} of {most} {unit}); raise "
                f"--trainer.{option} to continue"
            )
    return None


def check_continues(stored: Mapping[str, Any], task: L.LightningModule, path: str) -> None:
    """Refuse to go on with another network or optimiser, before the run's files change.

    The settings of the optimiser are those of the checkpoint: where others are asked for, that is
    said.
    """
    kept, asked = dict(stored.get("hyper_parameters", {})), dict(task.hparams)
    anew = "leave it as in the run's config.yaml, or begin a new training with these weights"
    check_fit(task.state_dict(), stored["state_dict"], path)
    after = before = repr(task.model)
    with suppress(ValueError, LookupError), torch.device("meta"):  # of parts nobody has registered
        before = repr(build(network_of(stored, Path(path))[0]))
    for was, now in zip(before.splitlines(), after.splitlines(), strict=False):
        if was != now:
            of = f"`{was.strip()}`, now it is `{now.strip()}`"
            raise UsageError(f"--ckpt_path {path}: its network has {of}; {anew}")
    old, new = (part.get("optimizer") or {} for part in (kept, asked))
    asked["optimizer"] = new.get("class_path")
    kept["optimizer"] = old.get("class_path", asked["optimizer"])
    for name in ("optimizer", "backbone_rate", "layer_decay", "frozen"):
        if name in kept and kept[name] != asked.get(name):
            of = f"{kept[name]}, got {asked.get(name)}"
            raise UsageError(f"--model.{name} must be that of the checkpoint, {of}; {anew}")
    old, new = (optimizer.get("init_args") or {} for optimizer in (old, new))
    stay = [f"{name} {old[name]}" for name in old if name in new and old[name] != new[name]]
    if stay:
        tell(f"probseg: of the checkpoint, not of the options: {', '.join(stay)}\n", sys.stderr)


def next_commands(trainer: L.Trainer) -> str:
    """Return lines about the run that has ended: folder, best checkpoint, and commands."""
    run = run_folder(trainer)
    lines = [f"probseg: the run is in {run}"]
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.best_model_score is not None:
            name, best = str(callback.monitor), float(callback.best_model_score)
            path = Path(callback.best_model_path)
            if path.name in (FIRST_WEIGHTS, MEAN):  # what it gains has been said
                lines.append(f"  best checkpoint  {path}")
                break
            lines.append(f"  best checkpoint  {path} ({name} {best:.4g})")
            if (start := start_score(run, name)) is not None:
                better = best < start if callback.mode == "min" else best > start
                worse = f"  no checkpoint is better: {name} was {start:.4g} before the training"
                lines.append(f"  at the start     {name} {start:.4g}" if better else worse)
            break
    written = sorted((run / "checkpoints").rglob("*.ckpt"))
    averages = any(isinstance(c, WeightAveraging) for c in getattr(trainer, "callbacks", ()))
    for path in written if averages else ():
        if int(read_checkpoint(path).get("averaging_state", {}).get("n_averaged", 1)) == 0:
            lines.append(f"  not averaged     {path} has the weights of the beginning")
            lines.append(
                "                   for its average, which has had no update: start it earlier"
            )
    if written:
        name = json.dumps(str(run))
        here, config = shlex.quote(str(run)), shlex.quote(str(run / "config.yaml"))
        lines.append(f"  test it          probseg test --config {config}")
        if (run / START).is_file():
            lines.append("  test the start   the command of this training with `test` for `fit`")
        lines.append(f"  compare it       probseg compare OTHER_RUN {here}  # after tests of both")
        try:
            network_of({"hyper_parameters": trainer.lightning_module.hparams}, run)
        except (ValueError, LookupError):  # of parts that nobody has registered
            lines.append("  use it           rebuild the network in Python: its parts are your own")
            return "\n".join(lines) + "\n"
        model = cast("nn.Module", trainer.lightning_module.model)
        modules = {type(part).__module__ for part in model.modules()}
        own = sorted(m for m in modules if m.partition(".")[0] not in ("probseg", "torch", "timm"))
        if isinstance(model, Segmenter):
            first = f"import {', '.join(own)}; " if own else ""  # which register their classes
            tested = f"--config {config}" if own else here  # which has the modules' folder
            lines.append(f"  on other images  probseg test {tested} --folder OTHER_FOLDER")
            lines.append(f"  use it           {first}probseg.Predictor.from_pretrained({name})")
            if not own:
                lines.append(f"  click with it    probseg annotate PHOTOGRAPHS --model {here}")
        else:
            lines.append(f"  use it           probseg.create_model({name}, pretrained=True)")
    return "\n".join(lines) + "\n"


def last_of(trainer: L.Trainer) -> Path | None:
    """Return the newest `last.ckpt` of the present run, or None if there is none yet."""
    folders = {run_folder(trainer) / "checkpoints"}
    for callback in trainer.checkpoint_callbacks:
        folder = getattr(callback, "dirpath", None)
        folders |= {Path(folder)} if folder else set()
    written = [path for folder in folders if (path := folder / LAST).is_file()]
    return max(written, key=lambda path: path.stat().st_mtime, default=None)


def _trains_on(run: Path, data: Mapping[str, Any]) -> bool:
    """Return whether a run's configuration names these data, or there is no configuration."""
    path = run / "config.yaml"
    if not path.is_file():
        return True
    try:
        stored = read_yaml(path)
    except yaml.YAMLError:
        stored = None
    if not isinstance(stored, Mapping):  # cut off while it was written
        tell(f"probseg: {path} cannot be read; its run is left out\n", sys.stderr)
        return False
    return _text(stored.get("data")) == _text(data)


def _text(section: Any) -> str:  # noqa: ANN401
    """Return a section of a configuration as text that does not depend on how it was read."""
    if isinstance(section, Mapping):
        # Stored configurations leave out what is null.
        left_out = ("__path__", *RESUMABLE_ARGUMENTS)
        items = {k: _text(v) for k, v in section.items() if v is not None and k not in left_out}
        return str(sorted(items.items()))
    if isinstance(section, list | tuple):
        return str([_text(value) for value in section])
    return str(section)


def _place_of_runs(trainer: Mapping[str, Any]) -> tuple[Path, str]:
    """Return the folder of the runs, and the pattern of their `last.ckpt` in it."""
    root = Path(trainer.get("default_root_dir") or ".").absolute()
    logger = trainer.get("logger")
    if logger is False:
        return root, f"checkpoints/{LAST}"
    pattern = f"*/checkpoints/{LAST}"
    if isinstance(logger, list):  # of which the first one holds the checkpoints
        logger = logger[0] if logger else None
    if logger is None or isinstance(logger, bool):  # Lightning's default
        return root / "lightning_logs", pattern
    options = logger["init_args"]
    if logger["class_path"].endswith("WandbLogger"):  # whose `name` is only for show
        name = options.get("project") or os.environ.get("WANDB_PROJECT", "lightning_logs")
    else:
        name = options.get("name") or ""
    return Path(options.get("save_dir") or root).absolute() / name, pattern


def initial_weights(task: Mapping[str, Any]) -> str:
    """Return the weights that a new training of a configured task begins with.

    The text begins with `RANDOM` if none of them are trained.
    """
    network = (task.get("init_args") or {}).get("model") or {}
    arguments = network.get("init_args") or {}
    kind = str(network.get("class_path")).rpartition(".")[2]
    if kind == "warm_start":
        return f"those of {arguments.get('weights')} where they fit"
    if arguments.get("pretrained"):
        return f"those of {arguments.get('name')}"
    without = deepcopy(arguments)
    without_pretrained_backbones(without)
    return RANDOM if without == arguments else f"{RANDOM}, of the backbone pretrained"


def without_pretrained_backbones(node: dict[str, Any] | Namespace) -> None:
    """Disable the pretrained weights of all backbones in a configuration, in place."""
    parts: dict[str, Any] = node if isinstance(node, dict) else vars(node)
    for name, part in parts.items():
        if not isinstance(part, dict | Namespace):
            continue
        arguments = part.get("init_args") or part  # a preset's changes name arguments directly
        if name == "backbone" and arguments.get("pretrained"):
            arguments["pretrained"] = False
        if name == "backbone" and arguments.get("weights"):
            arguments["weights"] = None
        without_pretrained_backbones(part)
