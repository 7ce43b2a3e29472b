"""Evaluation by clicks during validation and testing."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, cast

import lightning as L
import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console

from probseg.attention import Adaptation, restored
from probseg.callbacks.logging import log_curve, log_picture
from probseg.callbacks.run_folder import run_folder
from probseg.interact import (
    Model,
    ObjectRecord,
    Protocol,
    environment,
    get_protocol,
    print_summary,
    run_object,
    summarise_records,
    write_report,
)
from probseg.metrics import Summary
from probseg.models import Segmenter
from probseg.types import Sample


class InteractiveEvaluation(L.Callback):
    """Clicks through the objects of the validation and test sets with a simulated annotator.

    The task must hold its network, any `probseg.interact.Model`, as ``model``.

    Validation is short: the first protocol with ``val_clicks`` clicks and one trial. It logs
    ``val/<data set>/miou@k`` and ``val/miou@5``, the mean over the data sets, which
    checkpoints are chosen by. Testing runs all protocols in full, logs
    ``test/<data set>/miou@k`` and ``noc@q`` (with the protocol's name in between when there are
    several), and writes for each protocol ``results.json``, ``objects.csv``, ``table.md``,
    ``curve.png`` and ``overlays.png`` into ``<run>/test/<protocol>/``.

    Args:
        protocols: Names in `probseg.interact.PROTOCOLS`.
        max_clicks: Corrective clicks of a test, instead of each protocol's own number.
        trials: Runs per object in a test, for the protocols with noise, instead of their number.
        val_clicks: Corrective clicks of a validation, at least 5.
        pictures: Number of objects, the first ones, that are drawn.
        seed: Seed of the simulated annotator.
        adaptation: Settings of key adaptation and value propagation that hold during a test only,
            whatever the network was trained with; None tests it as it is. The network must be a
            `Segmenter` then.

    Raises:
        UnknownNameError: If there is no such protocol.
        ValueError: If there is no protocol, or a number is out of range.
    """

    def __init__(
        self,
        protocols: Sequence[str] = ("gabbur2021",),
        max_clicks: int | None = None,
        trials: int | None = None,
        val_clicks: int = 5,
        pictures: int = 8,
        seed: int = 0,
        adaptation: Adaptation | None = None,
    ) -> None:
        if not protocols:
            msg = "protocols must name at least one protocol, for instance ['gabbur2021']"
            raise ValueError(msg)
        if val_clicks < 5:
            msg = f"val_clicks must be at least 5, since val/miou@5 is logged; got {val_clicks}"
            raise ValueError(msg)
        chosen = [get_protocol(name) for name in protocols]
        short = _changed(chosen[0], max_clicks=val_clicks, trials=1)
        self.val_protocols = [short]
        self.test_protocols = [_changed(p, max_clicks=max_clicks, trials=trials) for p in chosen]
        self.pictures = pictures
        self.seed = seed
        self.adaptation = adaptation
        self._adapted = ExitStack()
        self._records: dict[str, list[ObjectRecord]] = {}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Look up commit and versions now: the files may change while a training runs."""
        environment()

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget the objects of the last validation."""
        self._records = {protocol.name: [] for protocol in self.val_protocols}

    def on_test_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget earlier objects, and adapt the network."""
        self._records = {protocol.name: [] for protocol in self.test_protocols}
        if self.adaptation is not None:
            model = _network(trainer)
            if not isinstance(model, Segmenter):
                msg = (
                    f"adaptation needs a Segmenter as the task's model, got {type(model).__name__}"
                )
                raise TypeError(msg)
            self._adapted.enter_context(restored(model))
            model.adapt(**dataclasses.asdict(self.adaptation))

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: list[Sample],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Click through the objects of a batch."""
        self._run(trainer, batch, self.val_protocols, batch_idx)

    def on_test_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: list[Sample],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Click through the objects of a batch."""
        self._run(trainer, batch, self.test_protocols, batch_idx)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the figures of a validation, and its picture sheet."""
        protocol = self.val_protocols[0]
        records = _gathered(self._records[protocol.name])
        summaries = summarise_records(records)
        _log(pl_module, "val", summaries)
        average = sum(summary.miou[5] for summary in summaries.values()) / len(summaries)
        pl_module.log("val/miou@5", average, prog_bar=True, sync_dist=True)
        if trainer.is_global_zero and not trainer.sanity_checking:
            folder = run_folder(trainer) / "val"
            self._report(trainer, pl_module, folder, "val", records, summaries, protocol)

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the figures of a test, write its report and print its tables."""
        self._adapted.close()
        several = len(self.test_protocols) > 1
        for protocol in self.test_protocols:
            records = _gathered(self._records[protocol.name])
            summaries = summarise_records(records)
            _log(pl_module, "test", summaries, protocol.name if several else None)
            if trainer.is_global_zero:
                folder = run_folder(trainer) / "test" / protocol.name
                key = f"test/{protocol.name}"
                self._report(trainer, pl_module, folder, key, records, summaries, protocol)
                _tell(summaries, protocol, folder)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Leave the network as it was."""
        self._adapted.close()

    def _run(
        self,
        trainer: L.Trainer,
        batch: Sequence[Sample],
        protocols: Sequence[Protocol],
        batch_idx: int,
    ) -> None:
        model = _network(trainer)
        # Lightning has left this context when it calls the hooks after a batch.
        with trainer.precision_plugin.forward_context():
            for sample in batch:
                for protocol in protocols:
                    self._records[protocol.name] += [
                        run_object(
                            model,
                            sample,
                            protocol,
                            trial=trial,
                            seed=self.seed,
                            device=trainer.lightning_module.device,
                            keep_picture=batch_idx < self.pictures and trial == 0,
                        )
                        for trial in range(protocol.trials)
                    ]

    def _report(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        folder: Path,
        key: str,
        records: Sequence[ObjectRecord],
        summaries: Mapping[str, Summary],
        protocol: Protocol,
    ) -> None:
        data = getattr(trainer, "datamodule", None)  # absent where loaders were passed instead
        metadata = {
            "seed": self.seed,
            "adaptation": self.adaptation and dataclasses.asdict(self.adaptation),
            "model": _plain(pl_module.hparams.get("model")),
            "checkpoint": str(trainer.ckpt_path) if trainer.ckpt_path else None,
            "weights_sha256": _digest(pl_module),
            "data": None if data is None else _plain(data.hparams),
            "epoch": trainer.current_epoch,
            "precision": trainer.precision,
            "environment": environment(pl_module.device),
        }
        paths = write_report(folder, records, protocol, metadata)
        for name in ("curve", "overlays"):
            if name in paths:
                log_picture(trainer, f"{key}/{name}", paths[name])
        for name, summary in summaries.items():
            log_curve(trainer, f"{key}/{name}/clicks", summary.miou)


def _network(trainer: L.Trainer) -> Model:
    """Return the network of the task."""
    return cast("Model", trainer.lightning_module.model)


def _changed(protocol: Protocol, max_clicks: int | None, trials: int | None) -> Protocol:
    """Return a protocol with other numbers; a deterministic one keeps its single trial."""
    changes: dict[str, int] = {}
    if max_clicks is not None:
        changes["max_clicks"] = max_clicks
    if trials is not None and protocol.corner_noise > 0:
        changes["trials"] = trials
    return dataclasses.replace(protocol, **changes)  # type: ignore[arg-type]


def _gathered(records: list[ObjectRecord]) -> list[ObjectRecord]:
    """Collect the records of all processes; `write_report` drops what a sampler repeated."""
    if not dist.is_initialized():
        return records
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, records)
    return [record for part in parts for record in part]


def _log(
    pl_module: L.LightningModule,
    stage: Literal["val", "test"],
    summaries: Mapping[str, Summary],
    protocol: str | None = None,
) -> None:
    for name, summary in summaries.items():
        prefix = f"{stage}/{name}" if protocol is None else f"{stage}/{name}/{protocol}"
        figures = {f"{prefix}/miou@{k}": value for k, value in enumerate(summary.miou)}
        figures |= {f"{prefix}/noc@{q}": value for q, value in summary.noc.items()}
        # Every process has the records of all, so that the mean over processes changes nothing.
        pl_module.log_dict(figures, sync_dist=True)


@rank_zero_only
def _tell(summaries: Mapping[str, Summary], protocol: Protocol, folder: Path) -> None:
    console = Console(width=None if Console().is_terminal else 160)
    print_summary(console, summaries, protocol)
    for name in ("curve.png", "overlays.png", "objects.csv", "results.json"):
        console.print(f"  {folder / name}", highlight=False, soft_wrap=True)


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
