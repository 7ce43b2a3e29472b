"""The file that holds all it takes to repeat one training step."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor

import probseg
from probseg.data.datamodule import TrainBatch
from probseg.data.semantic_module import SemanticBatch
from probseg.errors import WeightsError
from probseg.paths import replacing

FORMAT = 1
"""Number of the present layout of the file."""

HEADER = "probseg_replay"
"""Key of the format's number, by which the file is known."""

Batch = TrainBatch | SemanticBatch
BATCHES = {kind.__name__: kind for kind in (TrainBatch, SemanticBatch)}


@dataclass(frozen=True)
class Replay:
    """One training step of one process, as it was before the weights changed.

    Args:
        weights: ``state_dict`` of the task before the step, on the CPU.
        batch: The step's batch, on the CPU.
        loss: What the step's loss was.
        epoch: Number of the epoch, from 0.
        batch_idx: Number of the batch in the epoch, from 0.
        global_step: Number of optimiser steps before this one.
        batch_seed: Seed of the batch, `probseg.tasks.base.NetworkTask.batch_seed`.
        rank: Number of the process, from 0.
        world_size: Number of processes.
        precision: As Lightning names it: ``"32-true"``, ``"16-mixed"``.
        device: Kind of the device: ``"cpu"`` or ``"cuda"``.
        version: Version of probseg that wrote it.
    """

    weights: dict[str, Tensor]
    batch: Batch
    loss: float
    epoch: int
    batch_idx: int
    global_step: int
    batch_seed: int
    rank: int
    world_size: int
    precision: str
    device: str
    version: str = probseg.__version__


def with_tensors(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Return a batch each of whose tensors went through a function."""
    parts: list[Any] = [change(part) if isinstance(part, Tensor) else part for part in batch]
    return type(batch)(*parts)


def write_replay(replay: Replay, path: Path) -> None:
    """Write the file; it is there as a whole or not at all.

    It holds tensors, numbers and text only: ``torch.load(weights_only=True)`` reads it.

    Args:
        replay: What goes into it.
        path: Where to; the folder is made if need be.

    Raises:
        OSError: If it cannot be written.
    """
    content = {field.name: getattr(replay, field.name) for field in fields(replay)}
    content["batch"] = {"kind": type(replay.batch).__name__, **replay.batch._asdict()}
    try:
        with replacing(path) as draft:
            torch.save({HEADER: FORMAT, **content}, draft)
    except RuntimeError as error:  # which torch raises for a full disk
        raise OSError(str(error)) from error


def read_replay(path: Path) -> Replay:
    """Read what `write_replay` has written. The file may come from anybody: no code in it runs.

    Args:
        path: The file.

    Raises:
        WeightsError: If it is not there, damaged, of another kind, or of a newer format.
    """
    expected = "expected a file replay_step*.pt that `probseg fit` has written"
    if not zipfile.is_zipfile(path):  # of other files, torch's reader raises anything
        told = "is damaged, or of another kind" if path.exists() else "no such file"
        msg = f"{path}: {told}; {expected}"
        raise WeightsError(msg)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        msg = f"{path}: cannot be read; {expected}"
        raise WeightsError(msg) from error
    if not isinstance(content, dict) or not isinstance(content.get(HEADER), int):
        msg = f"{path}: holds no training step; {expected}"
        raise WeightsError(msg)
    if content[HEADER] != FORMAT:
        msg = (
            f"{path}: has the format {content[HEADER]}, written by probseg "
            f"{content.get('version')}; this is probseg {probseg.__version__}, which reads format "
            f"{FORMAT}: install that version"
        )
        raise WeightsError(msg)
    del content[HEADER]
    try:
        return _replay(content)
    except (KeyError, TypeError) as error:
        msg = f"{path}: is damaged, as for {error}; {expected}"
        raise WeightsError(msg) from error


def _replay(content: dict[str, Any]) -> Replay:
    """Make a replay of a file's content.

    Raises:
        KeyError: If a part is missing.
        TypeError: If one is of the wrong type, or unknown.
    """
    batch = dict(content["batch"])
    replay = Replay(**{**content, "batch": BATCHES[batch.pop("kind")](**batch)})
    for name, kind in {**get_type_hints(Replay), "weights": dict}.items():
        if not isinstance(getattr(replay, name), kind):
            raise TypeError(name)
    return replay
