"""Evaluation by clicks during validation and testing."""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import lightning as L

from probseg import reports
from probseg.attention import Adaptation, restored
from probseg.callbacks.base import (
    Evaluation,
    Stage,
    from_all_processes,
    log_tested,
    provenance,
    writes_reports,
)
from probseg.callbacks.loggers import log_curve, log_picture
from probseg.callbacks.run_folder import keeps_files, run_folder
from probseg.clicks import Mistakes
from probseg.errors import require
from probseg.evaluation import (
    Journal,
    ObjectRecord,
    Protocol,
    best_and_worst,
    checksum,
    find_unfinished,
    get_protocol,
    remove_journal,
    run_objects,
    scores_of,
)
from probseg.evaluation.summary import Summary, percents_up_to, summaries_of
from probseg.interact import Model
from probseg.interact.session import prepare_model
from probseg.metrics import MeanIoUAtK, NumberOfClicks
from probseg.metrics.interaction import Floats
from probseg.models import Segmenter
from probseg.terminal import console, print_paths
from probseg.texts import count
from probseg.types import Sample

_logger = logging.getLogger(__name__)

Key = tuple[str, str, int]  # data set, object and trial


class Collection:
    """Keeps all records, and pictures: of the `first` objects of a set, and of the best and worst.

    With a journal, the evaluation survives being killed. Runs that are taken over from an earlier
    one have no pictures: a batch with one of the best or worst is run again.
    """

    def __init__(
        self,
        protocol: Protocol,
        first: int,
        journal: Journal | None = None,
        taken_over: Sequence[ObjectRecord] = (),
    ) -> None:
        self.protocol = protocol
        self._first = first
        self._journal = journal
        self._records: dict[Key, ObjectRecord] = {}
        self._left = {record.key: record for record in taken_over}
        self._written = {record.key: record.pixels for record in taken_over}
        self._unpictured = best_and_worst(taken_over)
        self._shown: dict[str, list[Key]] = defaultdict(list)

    @property
    def records(self) -> list[ObjectRecord]:
        """All records so far."""
        return list(self._records.values())

    def take_over(self, samples: Sequence[Sample]) -> bool:
        """Reuse the earlier runs of these objects; False if one is missing or needs a picture."""
        if not self._left or self._shows_more(samples):
            return False
        runs: list[ObjectRecord] = []
        for sample in samples:
            pixels = checksum(sample)
            for trial in range(self.protocol.trials):
                run = self._left.get((sample.dataset, sample.name, trial))
                if run is None or run.pixels != pixels or run.key in self._unpictured:
                    return False
                runs.append(run)
        self._records |= {run.key: run for run in runs}
        return True

    def wants_pictures(self, samples: Sequence[Sample]) -> bool:
        """Whether pictures of these objects may be kept; in a test they may be best or worst."""
        return self._journal is not None or self._shows_more(samples)

    def add(self, records: Sequence[ObjectRecord]) -> None:
        """Add the runs of some objects."""
        self._records |= {record.key: record for record in records}
        if self._journal is not None:
            new = [record for record in records if self._written.get(record.key) != record.pixels]
            self._journal.add(new)
        for record in records:
            shown = self._shown[record.dataset]
            if record.picture is not None and len(shown) < self._first:
                shown.append(record.key)
        drawn = {key for shown in self._shown.values() for key in shown}
        if self._journal is not None:
            drawn |= best_and_worst(self._records.values())
        for key, record in self._records.items():
            if record.picture is not None and key not in drawn:
                self._records[key] = dataclasses.replace(record, picture=None)

    def _shows_more(self, samples: Sequence[Sample]) -> bool:
        return any(len(self._shown[sample.dataset]) < self._first for sample in samples)

    def close(self) -> None:
        """Remove the journal after a report has been written."""
        if self._journal is not None:
            self._journal.close()


class InteractiveEvaluation(Evaluation):
    """Evaluates the objects of the validation and test sets with a simulated annotator.

    The task must hold its network, any `probseg.interact.Model`, as `model`.

    Validation is short: the first protocol with `val_clicks` clicks, one trial and no zoom. It logs
    `val/<data set>/miou@k` and `val/miou@5`, the mean over the data sets, which
    checkpoints are chosen by. Testing runs all protocols in full, logs
    `test/<data set>/miou@k` and `noc@q` (with the protocol's name in between when there are
    several), and writes for each protocol `results.json`, `objects.csv`, `report.html`,
    `report.md`, `curve.png`, `survival.png` and `overlays.png` into
    `<run>/test/<protocol>/`, over those of an earlier test. Finished objects go into a journal
    there; after a kill, the same test continues with the others.

    Args:
        protocols: Names in `probseg.evaluation.PROTOCOLS`.
        max_clicks: Corrective clicks of a test, instead of each protocol's own number.
        trials: Runs per object in a test, for the protocols with noise, instead of their number.
        changes: Other fields of the protocols, see `probseg.evaluation.Protocol`; for instance
            `{"zoom": "fixed", "flip": true}`. The protocol's description names them.
        val_clicks: Corrective clicks of a validation, at least 5.
        batch_size: Limit of images in one call of the network. With the data's `eval_batch_size`,
            the number of objects held at once, it bounds the memory of an evaluation.
        pictures: Number of objects of each data set, the first ones, that are drawn besides the
            best and worst.
        seed: Seed of the simulated annotator.
        adaptation: Settings of key adaptation and value propagation that hold during a test only,
            whatever the network was trained with; None tests it as it is. The network must be a
            `Segmenter` then.

    Raises:
        UnknownNameError: If there is no such protocol.
        ValueError: If there is no protocol, or a number or a change does not fit.
    """

    def __init__(
        self,
        protocols: Sequence[str] = ("gabbur2021",),
        max_clicks: int | None = None,
        trials: int | None = None,
        changes: dict[str, Any] | None = None,
        val_clicks: int = 5,
        batch_size: int = 8,
        pictures: int = 8,
        seed: int = 0,
        adaptation: Adaptation | None = None,
    ) -> None:
        super().__init__()
        once = bool(protocols) and len(set(protocols)) == len(protocols)
        require(once, "protocols", "names of protocols, such as ['ritm'], each once", protocols)
        require(val_clicks >= 5, "val_clicks", "at least 5, as val/miou@5 is logged", val_clicks)
        require(batch_size >= 1, "batch_size", "at least 1", batch_size)
        chosen = [_with_changes(get_protocol(name), changes or {}) for name in protocols]
        self.val_protocol = dataclasses.replace(
            chosen[0], max_clicks=val_clicks, trials=1, zoom=None, keep_clicks=False
        )
        self.test_protocols = []
        for protocol in chosen:
            numbers: dict[str, int] = {}
            if max_clicks is not None and protocol.max_clicks > 0:
                numbers["max_clicks"] = max_clicks
            if trials is not None and protocol.is_random:  # others keep their single trial
                numbers["trials"] = trials
            self.test_protocols.append(dataclasses.replace(protocol, **numbers))  # type: ignore[arg-type]
        self.batch_size = batch_size
        self.pictures = pictures
        self.seed = seed
        self.adaptation = adaptation
        self._collections: list[Collection] = []
        self._tested: Model | Segmenter | None = None
        self._about: dict[str, Any] = {}

    def on_validation_epoch_start(self, *_: object, **__: object) -> None:
        """Forget the objects of the last validation."""
        self._collections = [Collection(self.val_protocol, self.pictures)]

    def on_test_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Adapt the network, and look for records of the same test that was killed."""
        model = _network(trainer)
        if self.adaptation is not None:
            if not isinstance(model, Segmenter):
                kind = type(model).__name__
                raise TypeError(
                    f"`adaptation` must be None unless the model is a Segmenter, got {kind}"
                )
            self.network_changes.enter_context(restored(model))
            model.adapt(self.adaptation)
        self._tested = (
            prepare_model(model, pl_module.device) if isinstance(model, Segmenter) else model
        )
        self._about = provenance(trainer, pl_module, self._options(self.adaptation))
        if trainer.is_global_zero:
            log_tested(self._about)
        self._collections = [
            self._collection(trainer, protocol) for protocol in self.test_protocols
        ]

    def evaluate(
        self, trainer: L.Trainer, batch: Sequence[Sample], batch_idx: int, stage: Stage
    ) -> None:
        """Click through the objects of a batch."""
        for collection in self._collections:
            if collection.take_over(batch):
                continue
            records = run_objects(
                self._tested or _network(trainer),
                batch,
                collection.protocol,
                seed=self.seed,
                device=trainer.lightning_module.device,
                batch_size=self.batch_size,
                keep_pictures=collection.wants_pictures(batch),
            )
            collection.add(records)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the figures of a validation, and its report."""
        (collection,) = self._collections
        records = from_all_processes(collection.records)
        scores = scores_of(records, self.val_protocol.first_result)
        summaries = summaries_of(scores, self.val_protocol)
        for name, of_set in scores.items():
            _log_scores(pl_module, f"val/{name}", of_set.ious, self.val_protocol)
        average = sum(summary.miou[5] for summary in summaries.values()) / len(summaries)
        pl_module.log("val/miou@5", average, prog_bar=True, sync_dist=True)
        if writes_reports(trainer):
            about = provenance(trainer, pl_module, self._options(None))
            folder = run_folder(trainer) / "val"
            paths = reports.write_report(folder, records, self.val_protocol, about, brief=True)
            _log_figures(trainer, "val", paths, summaries)

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the figures of a test, write its report and print its tables."""
        self.network_changes.close()
        self._tested = None
        several = len(self.test_protocols) > 1
        for collection in self._collections:
            protocol = collection.protocol
            records = from_all_processes(collection.records)
            scores = scores_of(records, protocol.first_result)
            summaries = summaries_of(scores, protocol)
            for name, of_set in scores.items():
                prefix = f"test/{name}/{protocol.name}" if several else f"test/{name}"
                _log_scores(pl_module, prefix, of_set.ious, protocol)
            paths: Mapping[str, Path] = {}
            if writes_reports(trainer):
                folder = _test_folder(trainer, protocol)
                paths = reports.write_report(folder, records, protocol, self._about)
                _log_figures(trainer, f"test/{protocol.name}", paths, summaries)
                collection.close()
            if trainer.is_global_zero:
                terminal = console()
                reports.print_summary(terminal, summaries, protocol)
                names = ("page", "curve", "overlays", "objects")
                print_paths(terminal, [paths[name] for name in names if name in paths])

    def _options(self, adaptation: Adaptation | None) -> dict[str, Any]:
        """Return the settings of an evaluation besides its protocol, as JSON values."""
        values = None if adaptation is None else dataclasses.asdict(adaptation)
        return {"seed": self.seed, "adaptation": values}

    def _collection(self, trainer: L.Trainer, protocol: Protocol) -> Collection:
        """Open the journal of a test, with the runs of one that was killed."""
        if not keeps_files(trainer):
            return Collection(protocol, self.pictures)
        # All that the figures depend on; the same weights may be in another file.
        subject = {key: value for key, value in self._about.items() if key != "checkpoint"}
        subject |= {"protocol": dataclasses.asdict(protocol), "batch_size": self.batch_size}
        folder = Path(trainer.strategy.broadcast(str(_test_folder(trainer, protocol))))
        place, taken_over = find_unfinished(folder, subject, folder.parents[2])
        trainer.strategy.barrier("every process has read what was left")
        mine = taken_over if trainer.is_global_zero else ()
        journal = Journal(folder, subject, trainer.global_rank, mine)
        if taken_over and trainer.is_global_zero:
            _logger.info("%s taken over from %s", count(len(taken_over), "run"), place)
            if place != folder:
                remove_journal(place)
        return Collection(protocol, self.pictures, journal, taken_over)


def _with_changes(protocol: Protocol, changes: Mapping[str, Any]) -> Protocol:
    """Return a protocol with other values in these fields, and in its description."""
    known = {field.name for field in dataclasses.fields(Protocol)}
    strange = sorted(changes.keys() - known)
    fields = f"fields of a protocol ({', '.join(sorted(known))})"
    require(not strange, "changes", fields, strange)
    if not changes:
        return protocol
    described = ", ".join(f"{field} {value}" for field, value in changes.items())
    try:
        if isinstance(changes.get("mistakes"), Mapping):
            changes = {**changes, "mistakes": Mistakes(**changes["mistakes"])}
        return dataclasses.replace(
            protocol, **{"description": f"{protocol.description} Changed: {described}.", **changes}
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"`changes` of protocol {protocol.name} ({described}): {error}") from error


def _log_figures(
    trainer: L.Trainer, key: str, paths: Mapping[str, Path], summaries: Mapping[str, Summary]
) -> None:
    for name in ("curve", "overlays"):
        if name in paths:
            log_picture(trainer, f"{key}/{name}", paths[name])
    for name, summary in summaries.items():
        log_curve(trainer, f"{key}/{name}/clicks", summary.miou)


def _test_folder(trainer: L.Trainer, protocol: Protocol) -> Path:
    return run_folder(trainer) / "test" / protocol.name


def _network(trainer: L.Trainer) -> Model:
    """Return the network of the task."""
    task = trainer.lightning_module
    if not hasattr(task, "model"):
        raise ValueError(
            f"`{type(task).__name__}.model` must be a `probseg.models.Segmenter` or another "
            "`probseg.interact.Model`, such as `probseg.interact.OneStep(function)`, got none"
        )
    return cast("Model", task.model)


def _log_scores(task: L.LightningModule, prefix: str, ious: Floats, protocol: Protocol) -> None:
    """Log what the metrics say of the runs of all processes, which each process has."""
    clicks = [MeanIoUAtK(k, sync_on_compute=False) for k in range(ious.shape[2])]
    percents = percents_up_to(protocol.target_iou)
    reached = [NumberOfClicks(percent / 100, sync_on_compute=False) for percent in percents]
    for metric in (*clicks, *reached):
        metric.update(ious)
        figure = float(metric.compute()[metric.title])
        task.log(f"{prefix}/{metric.title}", figure, sync_dist=True)
