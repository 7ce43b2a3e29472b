"""The verbs fit, validate and test: LightningCLI with probseg's defaults."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import lightning.pytorch.loggers  # noqa: F401 (so that --trainer.logger WandbLogger is found)
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

import probseg
import probseg.data
import probseg.tasks
from probseg.callbacks import InteractiveEvaluation, SaveConfig
from probseg.paths import configs_dir


class ProbsegCLI(LightningCLI):
    """LightningCLI whose evaluation callback is configured under ``--evaluation``."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the evaluation by clicks, which every run has."""
        parser.add_lightning_class_args(InteractiveEvaluation, "evaluation")

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the verbs that exist, with the arguments that Lightning fills in itself."""
        every = LightningCLI.subcommands()
        return {verb: every[verb] for verb in ("fit", "validate", "test")}


def run(arguments: Sequence[str]) -> ProbsegCLI:
    """Parse the arguments of a verb and run it.

    Args:
        arguments: Verb first, for instance ``["test", "--config", "configs/quickstart.yaml"]``.

    Returns:
        The finished command line, with its trainer, model and data.
    """
    # Lightning advertises other products at each start.
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_not_a_tip)
    sys.argv = ["probseg"]  # LightningCLI warns if arguments come both ways
    return ProbsegCLI(
        L.LightningModule,
        L.LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_callback=SaveConfig,
        auto_configure_optimizers=False,
        seed_everything_default=0,
        parser_kwargs=_parser_options(),
        args=with_shipped_configs(arguments),
    )


def with_shipped_configs(arguments: Sequence[str]) -> list[str]:
    """Point paths ``configs/...`` that do not exist here to the files that ship with probseg."""

    def found(argument: str) -> str:
        option, equals, value = argument.rpartition("=")
        path = Path(value)
        if path.parts[:1] != ("configs",) or path.suffix != ".yaml" or path.exists():
            return argument
        shipped = configs_dir().joinpath(*path.parts[1:])
        return f"{option}{equals}{shipped}" if shipped.exists() else argument

    return [found(argument) for argument in arguments]


def _parser_options() -> dict[str, Any]:
    examples = {
        "fit": "probseg fit --config configs/experiment/folder.yaml --data.root my_folder",
        "validate": "probseg validate --config RUN/config.yaml --ckpt_path CHECKPOINT",
        "test": "probseg test --config configs/quickstart.yaml",
    }
    options: dict[str, Any] = {verb: {"epilog": f"example: {e}"} for verb, e in examples.items()}
    return {"version": f"probseg {probseg.__version__}", **options}


def _not_a_tip(record: logging.LogRecord) -> bool:
    return "Tip:" not in record.getMessage()
