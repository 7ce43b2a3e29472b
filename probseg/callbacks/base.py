"""What evaluations share: a method for batches, records of all processes, and provenance."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any, Literal, TypeVar

import lightning as L
import torch.distributed as dist
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn

from probseg.callbacks.run_folder import keeps_files
from probseg.evaluation import environment
from probseg.lightning_internals import launched_processes
from probseg.zoo.trained import weights_digest

_logger = logging.getLogger(__name__)

T = TypeVar("T")

Stage = Literal["val", "test"]


class Evaluation(L.Callback, ABC):
    """Base of the callbacks that evaluate the network of a task during validation and testing.

    Attributes:
        network_changes: Hold during an evaluation; closing it undoes them.
    """

    def __init__(self) -> None:
        self.network_changes = ExitStack()

    @abstractmethod
    def evaluate(
        self, trainer: L.Trainer, batch: Sequence[Any], batch_idx: int, stage: Stage
    ) -> None:
        """Evaluate the samples of a batch, in the precision of the trainer."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Record commit and versions now: the files may change while a training runs."""
        environment()

    def on_validation_start(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """Handle SIGTERM, unless the validation is part of a training, which does."""
        if trainer.state.fn != TrainerFn.FITTING:
            end_together(trainer)

    def on_test_start(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """Handle SIGTERM."""
        end_together(trainer)

    def on_validation_batch_end(self, trainer: L.Trainer, *batch: Any, **_: object) -> None:  # noqa: ANN401
        """Evaluate a batch of a validation."""
        self._evaluate(trainer, *batch, stage="val")

    def on_test_batch_end(self, trainer: L.Trainer, *batch: Any, **_: object) -> None:  # noqa: ANN401
        """Evaluate a batch of a test."""
        self._evaluate(trainer, *batch, stage="test")

    def on_exception(self, *_: object, **__: object) -> None:
        """Leave the network as it was."""
        self.network_changes.close()

    def _evaluate(
        self,
        trainer: L.Trainer,
        pl_module: object,
        outputs: object,
        batch: Sequence[Any],
        batch_idx: int,
        *_: object,
        stage: Stage,
    ) -> None:
        # Lightning has left this context when it calls the hooks after a batch.
        with trainer.precision_plugin.forward_context():
            self.evaluate(trainer, batch, batch_idx, stage)


def end_together(trainer: L.Trainer) -> None:
    """Let SIGTERM to one of several processes end all of them, until Lightning's loop ends.

    Lightning's own handler waits for the other processes, which may wait for this one.
    """

    def end(number: int, frame: FrameType | None) -> None:
        for process in launched_processes(trainer):
            process.send_signal(number)
        raise SIGTERMException

    if trainer.world_size > 1:
        signal.signal(signal.SIGTERM, end)


def writes_reports(trainer: L.Trainer) -> bool:
    """Return whether this process writes the reports of an evaluation: the first one.

    There are none of a sanity check, and of a run that keeps no files.
    """
    return trainer.is_global_zero and not trainer.sanity_checking and keeps_files(trainer)


def from_all_processes(values: list[T]) -> list[T]:
    """Return the values of all processes, each of which must call this, in the order of ranks."""
    if not dist.is_initialized():
        return values
    shares: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shares, values)
    return [value for share in shares for value in share]


def provenance(
    trainer: L.Trainer, pl_module: L.LightningModule, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all that is needed to repeat an evaluation with its own `options`, as JSON values."""
    data = getattr(trainer, "datamodule", None)  # absent where loaders were passed instead
    model, settings = pl_module.model, {}
    parts = model.named_modules() if isinstance(model, nn.Module) else [("", model)]
    for name, part in parts:
        attributes = getattr(part, "__dict__", {})  # a named tuple has none
        plain = {key: value for key, value in attributes.items() if _is_setting(key, value)}
        settings[name] = [str(type(part)), plain]
    text = json.dumps(settings, sort_keys=True, default=str)
    return {
        **options,
        "model": _plain(pl_module.hparams.get("model", pl_module.model)),
        "checkpoint": str(trainer.ckpt_path) if trainer.ckpt_path else None,
        "weights_sha256": weights_digest(pl_module.state_dict()),
        "settings_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "data": None if data is None else _plain(data.hparams),
        "epoch": trainer.current_epoch,
        "precision": trainer.precision,
        "environment": environment(pl_module.device),
    }


def log_tested(about: Mapping[str, Any]) -> None:
    """Log which weights a test measures, from its `provenance`."""
    source = about["checkpoint"]
    if source is None:
        model = about["model"] if isinstance(about["model"], Mapping) else {}
        arguments = {**(model.get("init_args") or {}), **(model.get("dict_kwargs") or {})}
        trained = arguments.get("pretrained") or "weights" in arguments
        name = arguments.get("name") or arguments.get("of") or model.get("class_path", "the model")
        source = name if trained else f"{name}, no checkpoint"
    _logger.info("testing %s (weights %s)", source, about["weights_sha256"][:12])


def _is_setting(name: str, value: Any) -> bool:  # noqa: ANN401
    if name == "training":
        return False
    if isinstance(value, tuple):
        return all(_is_setting("", item) for item in value)
    is_plain = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_plain or isinstance(value, str | int | float | bool | None)


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return a description as JSON values; a module that was built by hand becomes its name."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__
