"""The verbs fit, validate and test: LightningCLI with probseg's defaults."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence, Set
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
from jsonargparse import ArgumentError, Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import LearningRateFinder, LearningRateMonitor, ModelSummary
from lightning.pytorch.cli import ArgsType, LightningArgumentParser
from lightning.pytorch.loggers import Logger  # so that --trainer.logger WandbLogger is found
from lightning.pytorch.plugins.io import CheckpointIO
from torch.utils.data import Dataset

import probseg
import probseg.backbones
import probseg.data
import probseg.heads
import probseg.tasks
from probseg.callbacks import SaveConfig
from probseg.callbacks.finite_loss import FiniteLoss
from probseg.callbacks.last_checkpoint import AtomicCheckpointIO
from probseg.callbacks.loggers import make_logger
from probseg.callbacks.run_folder import (
    STARTS,
    StartScore,
    is_dry,
    missing_versions,
    own_folder,
    run_folder,
)
from probseg.cli.checkpoints import (
    RANDOM,
    best_of_run,
    check_continues,
    check_readable,
    check_run_folder,
    find_last,
    how_finished,
    initial_weights,
    last_of,
    next_commands,
    take_paths_of_run,
    without_pretrained_backbones,
)
from probseg.cli.faults import (
    explain,
    explain_options,
    how_to_continue,
    interruption,
    silence_notices,
    silence_notices_about_checkpoints,
)
from probseg.cli.help import ALL, EXAMPLES
from probseg.cli.invocation import FOLDER, OF_WINGS, ROLES, Invocation
from probseg.cli.machine import check_accelerator, check_processes, choose_cpu_precision
from probseg.clicks import IteratedClicks
from probseg.errors import UsageError, disk_fault, history, user_error
from probseg.kinds import TASKS, TaskName, find
from probseg.lightning_internals import DataFirstParser, NetworkSummary, VerbCLI
from probseg.paths import run_of
from probseg.texts import tell
from probseg.zoo.trained import LAST

_Set = TypeVar("_Set", bound=Dataset[Any])


class ProbsegCLI(VerbCLI):
    """LightningCLI with evaluation callbacks, each configured by the option of its task.

    The evaluation of the network's task takes part in the run.
    """

    def __init__(self, verb: str, tasks: Sequence[TaskName], **options: Any) -> None:  # noqa: ANN401
        self.evaluations: dict[TaskName, type[L.Callback]] = {
            task: find(TASKS[task].evaluation) for task in tasks
        }
        super().__init__(verb, L.LightningModule, L.LightningDataModule, **options)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the evaluations."""
        for task, evaluation in self.evaluations.items():
            parser.add_lightning_class_args(evaluation, TASKS[task].option)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the arguments and find the checkpoint that they mean.

        `--ckpt_path last` is the newest `last.ckpt` of this configuration's runs; `fit` goes
        on in the folder of that run, and ends the process if nothing is left to do. A test or
        validation with the `config.yaml` of a run, and without `--ckpt_path`, takes the run's best
        checkpoint.
        """
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            if user_error(error):
                raise
            explained = explain_options(error, self.option_names())
            asked = [word for word in args or () if str(word).endswith(".help")]
            if asked and "expected one argument" in explained:
                explained = f"{asked[0]} needs a class: {asked[0]} CLASS"
            raise UsageError(f"{explained}\nAll options: probseg {self.verb} {ALL}") from error
        self.run_to_continue: Path | None = None
        self.stored: dict[str, Any] | None = None  # content of the checkpoint
        config = self.config[self.verb]
        restore_nulls(config.model)
        take_paths_of_run(config, self.verb)
        # Until the classes are made: Lightning would let the hyper-parameters in the checkpoint
        # replace those of the command line.
        self.checkpoint, config.ckpt_path = config.ckpt_path, None
        ckpt_path = str(self.checkpoint)
        if self.checkpoint is None and self.verb != "fit":
            self.checkpoint = best_of_run([Path(str(path)) for path in config.config or ()])
            if self.checkpoint is not None:
                last = Path(self.checkpoint).name == LAST
                which = (
                    "last checkpoint of the run, never validated"
                    if last
                    else "best checkpoint of the run"
                )
                tell(f"probseg: {which}: {self.checkpoint}\n", sys.stderr)
        if self.checkpoint is None or "://" in str(self.checkpoint):
            return
        if ckpt_path == "best":
            raise UsageError(
                "--ckpt_path best: it is known only while a training runs; give the file's path"
            )
        if ckpt_path == "last":
            self.checkpoint = str(find_last(config.trainer, config.data.as_dict()))
            if self.verb == "fit":
                self.run_to_continue = Path(self.checkpoint).parent.parent
        self.stored = check_readable(Path(self.checkpoint))
        if self.verb == "fit" and (done := how_finished(self.stored, config.trainer)) is not None:
            tell(f"probseg: {self.checkpoint}: {done}\n", sys.stderr)
            raise FinishedTraining(run_of(Path(self.checkpoint)))
        if ckpt_path == "last":
            tell(f"probseg: continuing from {self.checkpoint}\n", sys.stderr)

    def instantiate_classes(self) -> None:
        """Make trainer, model and data."""
        config = self.config[self.verb]
        config.ckpt_path = self.checkpoint
        check_run_folder(config.trainer)
        check_accelerator(config.trainer.accelerator)
        check_processes(config.trainer)
        # Before the configuration is saved.
        choose_cpu_precision(config.trainer, trains=self.verb == "fit")
        names = []
        if self.run_to_continue is not None:
            names = missing_versions(config.trainer.get("logger"), self.run_to_continue)
        weights = initial_weights(config.model.as_dict())
        self.begins_trained = self.checkpoint is None and not weights.startswith(RANDOM)
        asked, weights_only = config.model.clone(), config.weights_only
        if weights_only is None:  # Lightning would unpickle checkpoints from addresses
            config.weights_only = True
        datasets = _Datasets()
        self.parser.add_instantiator(datasets, Dataset)
        self.parser.add_instantiator(make_logger, Logger)
        try:
            check_clicks(config.model)
            for logger, name in names:
                logger["version"] = name
            if config.ckpt_path is not None:  # whose weights replace any that could be downloaded
                without_pretrained_backbones(config.model)
            super().instantiate_classes()
            if self.verb == "fit" and self.stored is not None:
                check_continues(self.stored, self.model, str(self.checkpoint))
        except (ValueError, OSError, MisconfigurationException) as error:
            *_, innermost = history(error)  # without the layers that the parser puts around it
            reason = user_error(error) or datasets.refused or innermost
            raise UsageError(str(reason)) from error
        if self.verb == "fit" and self.checkpoint is None:
            tell(f"probseg: weights to begin with: {weights}\n", sys.stderr)
        config.model, config.weights_only = asked, weights_only
        for logger, _ in names:  # the saved configuration must not tie later runs to this folder
            logger["version"] = None

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:  # noqa: ANN401
        """Build the trainer; of the evaluations it keeps that of the network's task.

        Every fit gets two safeguards, whatever the configuration: against losses that are not
        finite, and against a process that ends while it writes a checkpoint. A fit that begins with
        trained weights validates them first.
        """
        fits = self.verb == "fit"
        if self.run_to_continue is not None or not fits:
            silence_notices_about_checkpoints()
        config = self.config_init[self.verb]
        if fits:
            plugins = config.trainer.get("plugins") or []
            plugins = list(plugins) if isinstance(plugins, list) else [plugins]
            if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
                plugins.append(AtomicCheckpointIO())
            kwargs["plugins"] = plugins
            if self.begins_trained and config.trainer.get("num_sanity_val_steps") is None:
                kwargs["num_sanity_val_steps"] = -1  # for the score before the first step
        trainer = super().instantiate_trainer(**kwargs)
        # Models that are not probseg networks, such as baselines, are tested on clicks.
        network = getattr(self.model, "model", None)
        task: TaskName = getattr(network, "task", "interactive")
        others = tuple(kind for name, kind in self.evaluations.items() if name != task)
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        callbacks[:] = [callback for callback in callbacks if not isinstance(callback, others)]
        if task not in self.evaluations:  # a configuration that names classes of a user alone
            callbacks.append(find(TASKS[task].evaluation)())
        if fits:
            for place, callback in enumerate(callbacks):
                theirs = type(callback).__module__.startswith("lightning.")
                if isinstance(callback, ModelSummary) and theirs:
                    callbacks[place] = NetworkSummary(callback)
            callbacks[:0] = [FiniteLoss(), StartScore()]
            if not trainer.loggers:
                callbacks[:] = [c for c in callbacks if not isinstance(c, LearningRateMonitor)]
            if any(isinstance(callback, LearningRateFinder) for callback in callbacks):
                raise UsageError(
                    "LearningRateFinder cannot set the rate of this training, which is "
                    "--model.optimizer.lr; try several rates, as configs/sweep/folder.yaml does"
                )
        return trainer

    def prepare_parser(self, parser: LightningArgumentParser) -> None:
        """Leave out Lightning's list of scores after a test: the evaluations print tables."""
        if self.verb == "test":
            parser.set_defaults(verbose=False)

    def after_fit(self) -> None:
        """Print where the training is, how good it is, and what to do with it."""
        if self.trainer.is_global_zero and not is_dry(self.trainer):
            tell(next_commands(self.trainer), sys.stderr)

    def run_verb(self) -> None:
        """Train or evaluate; explain errors, and end after signals with the status of shells."""
        explained = None
        try:
            with own_folder(self.trainer, self.verb):
                super().run_verb()
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            last = last_of(self.trainer) if self.verb == "fit" else None
            if (stopped := interruption(error, self.trainer.received_sigterm)) is not None:
                status, by = stopped
                if self.trainer.is_global_zero:
                    tell(
                        f"probseg: stopped by {by}; {how_to_continue(self.verb, last)}\n",
                        sys.stderr,
                    )
                raise SystemExit(status) from error
            explained = explain(error, self.verb, self.config[self.verb], last) or (
                None if user_error(error) else disk_fault(error, run_folder(self.trainer))
            )
            if explained is None:
                raise
        if explained is not None:  # outside of the block: without a chain of other errors
            raise explained


class FinishedTraining(SystemExit):
    """Ends the process with status 0: nothing is left to do in a run."""

    def __init__(self, run: Path) -> None:
        super().__init__(0)
        self.run = run


class _Datasets:
    """Builds data sets for the parser, and keeps the error of the last one.

    Where an argument takes one class or a list of them, the parser tries both and chains its error
    to that of the first alone: the error of an element of the list would be lost.
    """

    def __init__(self) -> None:
        self.refused: Exception | None = None

    def __call__(self, kind: type[_Set], *args: object, **kwargs: object) -> _Set:
        try:
            return kind(*args, **kwargs)
        except Exception as error:
            self.refused = error
            raise


def run(invocation: Invocation) -> ProbsegCLI:
    """Parse a command line and run it; return it with its trainer, model and data."""
    silence_notices()
    add_code(invocation)
    import_named(invocation.words)
    verb = invocation.verb
    folder = f"{FOLDER} DIR: all objects of a folder with images/ and masks/ are the data. "
    return ProbsegCLI(
        verb,
        invocation.tasks(),
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_callback=SaveConfig,
        auto_configure_optimizers=False,
        seed_everything_default=0,
        parser_class=DataFirstParser,
        parser_kwargs={
            "version": f"probseg {probseg.__version__}",
            "exit_on_error": False,
            "allow_abbrev": False,
            verb: {"epilog": f"{folder if verb in ROLES else ''}example: {EXAMPLES[verb]}"},
        },
        args=["--help" if argument == ALL else argument for argument in invocation.arguments],
    )


def add_code(invocation: Invocation) -> None:
    """Let Python find the modules whose classes are named, beside the configurations or here.

    For the configuration of a run, also where it was started and where its configurations were.
    """
    folders = [Path.cwd()]
    for path in invocation.configs:
        folders.append(path.absolute().parent)
        if path.name == "config.yaml" and (starts := path.with_name(STARTS)).is_file():
            for line in starts.read_text(encoding="utf-8").splitlines():
                start = json.loads(line)
                folders += map(Path, [start.get("folder", "."), *start.get("code", ())])
    for module in sorted({word.partition(".")[0] for word in invocation.words if "." in word}):
        for folder in folders:
            path = folder / module
            is_code = path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
            if module and is_code and str(folder) not in sys.path:
                sys.path.append(str(folder))  # last: no other module is replaced
    for attention in sorted(invocation.attentions()):
        try:
            import_module(attention.rpartition(".")[0])
        except ModuleNotFoundError as error:
            raise UsageError(
                f"attention: {attention}: there is no module {error.name!r} here or beside the "
                "configuration; PYTHONPATH=FOLDER finds it elsewhere"
            ) from error


def import_named(words: Set[str]) -> None:
    """Import the classes among some words: the parser finds short names of imported ones only."""
    for_help = any("help" in word.split(".") for word in words)  # which lists all
    for package in (probseg.backbones, probseg.data, probseg.heads):
        for name in package.__all__:
            if for_help or name in words:
                getattr(package, name)
    for name in words & OF_WINGS.keys():
        find(OF_WINGS[name])


def check_clicks(model: Namespace) -> None:
    """Raise for wrong values of `IteratedClicks`; the parser tells why they are no `Curriculum`."""
    curriculum = model.get("init_args.curriculum")
    if isinstance(curriculum, Namespace) and "most_rounds" in curriculum:
        IteratedClicks(**vars(curriculum))


def restore_nulls(node: Namespace | dict[str, Any] | list[Any]) -> None:
    """Replace the text `None` by None at any depth of a part of a configuration, in place.

    The parser turns null into text where an argument takes texts, too, as in
    `--model.model.changes.head '{normalisation: null}'`. No argument of a network takes `None`.
    """
    values: Any = vars(node) if isinstance(node, Namespace) else node
    for key, value in list(enumerate(values) if isinstance(values, list) else values.items()):
        if value == "None":
            values[key] = None
        elif isinstance(value, Namespace | dict | list):
            restore_nulls(value)
