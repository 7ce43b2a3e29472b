"""What a result was made with, as JSON values."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import lightning as L

from probseg.attention import Adaptation
from probseg.interact import environment


def provenance(
    trainer: L.Trainer, pl_module: L.LightningModule, seed: int, adaptation: Adaptation | None
) -> dict[str, Any]:
    """Return what it takes to repeat an evaluation.

    Args:
        trainer: Of the run.
        pl_module: The task.
        seed: Seed of the simulated annotator.
        adaptation: What held during the test only.
    """
    data = getattr(trainer, "datamodule", None)  # absent where loaders were passed instead
    return {
        "seed": seed,
        "adaptation": adaptation and dataclasses.asdict(adaptation),
        "model": _plain(pl_module.hparams.get("model")),
        "checkpoint": str(trainer.ckpt_path) if trainer.ckpt_path else None,
        "weights_sha256": _digest(pl_module),
        "data": None if data is None else _plain(data.hparams),
        "epoch": trainer.current_epoch,
        "precision": trainer.precision,
        "environment": environment(pl_module.device),
    }


def _digest(pl_module: L.LightningModule) -> str:
    """Return a checksum of the weights, which no name or path can replace."""
    digest = hashlib.sha256()
    for name, tensor in sorted(pl_module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return a description as JSON values; a module that was built by hand becomes its name."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__
