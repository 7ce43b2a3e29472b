"""Short trainings inside the test process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, Checkpoint

from probseg.callbacks.last_checkpoint import AtomicCheckpointIO
from probseg.clicks import Curriculum
from probseg.data import InteractiveDataModule
from probseg.tasks import InteractiveSegmentation
from support.fakes import FakeObjects, micro_model


class Killed(BaseException):
    """Ends a training at once, as SIGKILL does: nothing is saved."""


def quiet_trainer(place: Path, *callbacks: Callback, **options: Any) -> L.Trainer:
    """A trainer on the CPU without logger, bar and summary, unless the options have them."""
    quiet = {
        "default_root_dir": place,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(c, Checkpoint) for c in callbacks),
    }
    return L.Trainer(accelerator="cpu", callbacks=list(callbacks), **{**quiet, **options})


def train(
    place: Path,
    *callbacks: Callback,
    objects: int,
    batch_size: int = 2,
    workers: int = 0,
    val: FakeObjects | None = None,
    seed: int = 0,
    resume: Path | None = None,
    **options: Any,
) -> L.Trainer:
    """Train a small network for three epochs, of boxes, random clicks and corrective ones."""
    L.seed_everything(seed, verbose=False)
    data = InteractiveDataModule(
        FakeObjects(objects, size=(32, 32)),
        val=val,
        batch_size=batch_size,
        crop_size=32,
        num_workers=workers,
        eval_batch_size=1,
    )
    curriculum = Curriculum(1, 1, box_dropout=0.3, rounds=(0, 2))
    task = InteractiveSegmentation(micro_model("micro_csa"), curriculum=curriculum)
    plugins = [AtomicCheckpointIO()]
    trainer = quiet_trainer(place, *callbacks, **{"max_epochs": 3, "plugins": plugins, **options})
    trainer.fit(task, data, ckpt_path=resume, weights_only=True)
    return trainer
