"""Model, data, settings and machine of a result, as JSON values."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

import lightning as L
from torch import nn

from probseg.evaluation import environment
from probseg.zoo.trained import weights_digest

_logger = logging.getLogger(__name__)


def provenance(
    trainer: L.Trainer, pl_module: L.LightningModule, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything needed to repeat an evaluation.

    Args:
        trainer: Of the run.
        pl_module: The task.
        options: Of the evaluation itself, JSON values.
    """
    data = getattr(trainer, "datamodule", None)  # absent where loaders were passed instead
    return {
        **options,
        "model": _plain(pl_module.hparams.get("model", pl_module.model)),
        "checkpoint": str(trainer.ckpt_path) if trainer.ckpt_path else None,
        "weights_sha256": weights_digest(pl_module.state_dict()),
        "settings_sha256": _settings(pl_module),
        "data": None if data is None else _plain(data.hparams),
        "epoch": trainer.current_epoch,
        "precision": trainer.precision,
        "environment": environment(pl_module.device),
    }


def log_tested(about: Mapping[str, Any]) -> None:
    """Log which weights a test measures.

    Args:
        about: Of `provenance`.
    """
    source = about["checkpoint"]
    if source is None:
        model = about["model"] if isinstance(about["model"], Mapping) else {}
        arguments = {**(model.get("init_args") or {}), **(model.get("dict_kwargs") or {})}
        trained = arguments.get("pretrained") or "weights" in arguments
        name = arguments.get("name") or arguments.get("of") or model.get("class_path", "the model")
        source = f"{name} of the zoo" if trained else f"{name}, no checkpoint"
    _logger.info("testing %s (weights %s)", source, about["weights_sha256"][:12])


def _settings(pl_module: L.LightningModule) -> str:
    """Return a checksum of the network's parts, and of their numbers and names."""
    model = pl_module.model
    parts = dict(model.named_modules()) if isinstance(model, nn.Module) else {"": model}
    text = {name: [str(type(part)), _numbers(part)] for name, part in parts.items()}
    return hashlib.sha256(json.dumps(text, sort_keys=True, default=str).encode()).hexdigest()


def _numbers(part: object) -> dict[str, Any]:
    attributes = getattr(part, "__dict__", {})  # a named tuple has none
    return {name: value for name, value in attributes.items() if _is_setting(name, value)}


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
