"""A training against the clock, and what it gained over the network that it began with."""

from __future__ import annotations

import json
import logging
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.seed import isolate_rng

from probseg import reports
from probseg.callbacks.base import from_all_processes, provenance
from probseg.callbacks.last_checkpoint import AtomicCheckpointIO
from probseg.callbacks.run_folder import chooser, is_dry, monitored, run_folder, start_score
from probseg.errors import require
from probseg.evaluation import ObjectRecord, get_protocol, run_objects
from probseg.evaluation.journal import RESULTS
from probseg.interact.session import prepare_model
from probseg.paths import FIRST_WEIGHTS, MEAN, write_text
from probseg.reports.comparison import Comparison, compare
from probseg.reports.comparison_inputs import read_result
from probseg.reports.comparison_report import write_comparison
from probseg.tasks.base import PolynomialThenConstant
from probseg.texts import count
from probseg.zoo.trained import CURVE, GAIN, LAST, read_checkpoint, weights_digest

_logger = logging.getLogger(__name__)

BEFORE, AFTER = "before", "after"  # results in its folder `gain/`, of the first and the mean
# photographs held out, with fewer of which nothing is claimed, and all those of their folder
ENOUGH, ALL = 20, 70
# batches before the clock starts, and before it stops, with which an epoch is estimated
_WARM_UP, _TIMED = 2, 8
# seconds of training for each second of validation, at least
_SPARSE = 4


class Budget(L.Callback):
    """Ends a training after some minutes, its validations and the comparison at the end included.

    The first batches are timed; the number of epochs follows, with those between two validations,
    and the schedule of `PolynomialThenConstant`, which falls to its floor by then. From there on
    the training is like any other: one that continues keeps the numbers.

    Args:
        minutes: Of wall time, from the start of the training; at least one epoch is trained.

    Raises:
        ValueError: If `minutes` is not a finite number above 0.
    """

    def __init__(self, minutes: float) -> None:
        require(0 < minutes < math.inf, "minutes", "finite, above 0", minutes)
        self.minutes = minutes
        self.epochs: int | None = None
        self.every: int | None = 1  # number of epochs of which the last one is validated
        self._began = self._validated = self._clicked = self._warm = 0.0  # ends, on the clock

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers of epochs."""
        return {"epochs": self.epochs, "every": self.every}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the numbers of epochs of the training that continues."""
        self.epochs, self.every = state_dict["epochs"], state_dict.get("every", 1)

    def on_fit_start(self, *_: object) -> None:
        """Start the clock."""
        self._began = self._validated = monotonic()

    def on_sanity_check_end(self, *_: object) -> None:
        """Note how long a validation takes."""
        self._validated = monotonic()

    def on_train_epoch_start(self, *_: object) -> None:
        """Note how long `Gain` clicked with the first network, as it will with the last one."""
        self._clicked = monotonic()

    def on_train_start(self, trainer: L.Trainer, *_: object) -> None:
        """Go on with the numbers of epochs that were planned."""
        if self.epochs is not None:
            trainer.fit_loop.max_epochs = self.epochs
            trainer.check_val_every_n_epoch = self.every

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:  # noqa: ANN401
        """Plan the epochs once some batches have been timed."""
        batch, last = args[3], int(trainer.num_training_batches) - 1
        if batch == min(_WARM_UP, last) - 1:
            self._warm = monotonic()
        if self.epochs is not None or batch < min(_WARM_UP + _TIMED, last):
            return
        now, timed = monotonic(), batch + 1 - _WARM_UP
        validation, comparison = self._validated - self._began, self._clicked - self._validated
        batch_seconds = (now - (self._warm or self._clicked)) / max(1, timed)
        seconds, trained = batch_seconds * (last + 1), batch_seconds * (batch + 1)
        left = 60 * self.minutes - (now - self._began) - comparison + trained
        every = max(1, math.ceil(_SPARSE * validation / seconds))
        epochs = math.floor(left / (every * seconds + validation)) * every
        if epochs <= 0:  # a single validation, at the end
            every = epochs = max(1, math.floor((left - validation) / seconds))
        epochs, every = self.epochs, self.every = trainer.strategy.broadcast((epochs, every))
        self.on_train_start(trainer)
        for stepped in trainer.lr_scheduler_configs:
            if isinstance(stepped.scheduler, PolynomialThenConstant):
                stepped.scheduler.decay_epochs = epochs
        planned = count(epochs, "epoch")
        _logger.info("%g min: %s, one each %.0f s", self.minutes, planned, seconds)


class _Gain(NamedTuple):
    """What `gain.json` has: see `probseg.zoo.trained.Run`."""

    sentence: str
    before: float
    after: float
    saved: tuple[float, float, float] | None = None  # clicks, and the ends of their interval


class Gain(L.Callback):
    """Keeps the network that a training began with until another one saves clicks.

    At the end the mean of the weights of that network and of the best checkpoint is written as
    `mean.ckpt`: it forgets less of what the first one knew. Where no validation was
    better than the start's, the last epoch takes the place of the best one, since validations are
    shorter than what people do. The mean and the first network then click through the validation
    objects, each up to the IoU that counts. The mean is the best checkpoint of the run; or the
    first network, if no clicks are saved, and the log says why.
    `gain/` in the folder of the run has both results and their comparison, see `probseg compare`.

    Args:
        protocol: Of the comparison, a name in `probseg.evaluation.PROTOCOLS`.
        percent: IoU to which clicks are counted, in percent: 85 or 90.
        batch_size: Limit of images in one call of the network.
        share: Weight of the best checkpoint in the mean; the smaller, the less is forgotten, and
            the less is gained.

    Raises:
        UnknownNameError: If there is no such protocol.
        ValueError: If `percent` is another one, or `share` is not above 0, or above 1.
    """

    def __init__(
        self, protocol: str = "probseg", percent: int = 90, batch_size: int = 8, share: float = 0.75
    ) -> None:
        require(percent in (85, 90), "percent", "85 or 90", percent)
        require(0 < share <= 1, "share", "above 0, at most 1", share)
        self.protocol = replace(get_protocol(protocol), target_iou=percent / 100)
        self.percent = percent
        self.batch_size = batch_size
        self.share = share
        self._curve: list[tuple[float, float]] = []  # minutes and score of each validation
        self._began = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return minutes and scores of all validations."""
        return {"curve": self._curve}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the validations of the training that continues."""
        self._curve = list(state_dict["curve"])

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget what an earlier training in this folder gained, and start the clock."""
        self._began = monotonic() - (60 * self._curve[-1][0] if self._curve else 0)
        if trainer.is_global_zero:
            for name in (GAIN,) if self._curve else (GAIN, CURVE):
                (run_folder(trainer) / name).unlink(missing_ok=True)

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the network, and make it the best checkpoint so far."""
        keep, whole = chooser(trainer), trainer.num_sanity_val_steps == math.inf
        if trainer.ckpt_path or is_dry(trainer) or keep is None or not whole:
            return
        score = trainer.callback_metrics.get(str(keep.monitor))
        if score is not None:
            path = run_folder(trainer) / FIRST_WEIGHTS
            trainer.save_checkpoint(path, weights_only=True)
            _prefer(keep, path, score.detach().cpu())

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Click through the validation objects with the first network, once for all starts."""
        start = run_folder(trainer) / FIRST_WEIGHTS
        known = trainer.ckpt_path and (run_folder(trainer) / "gain" / BEFORE / RESULTS).is_file()
        if chooser(trainer) is not None and start.is_file() and not known:
            with isolate_rng():
                self._click(trainer, pl_module, BEFORE, start)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep the score of an epoch, and write all of them, after that of the start."""
        name = monitored(trainer) or ""
        score = trainer.callback_metrics.get(name)
        if score is None or trainer.sanity_checking:
            return
        self._curve.append(((monotonic() - self._began) / 60, float(score)))
        start = start_score(run_folder(trainer), name)
        if trainer.is_global_zero and start is not None:
            write_text(run_folder(trainer) / CURVE, json.dumps([(0, start), *self._curve]) + "\n")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compare the best checkpoint with the start; say and write what it saves."""
        keep, start = chooser(trainer), run_folder(trainer) / FIRST_WEIGHTS
        if keep is None or not self._curve or not start.is_file():
            return
        score, best = keep.best_model_score, Path(keep.best_model_path)
        rose = best != start
        best = _mean(trainer, start, best, self.share)
        self._click(trainer, pl_module, AFTER, best)
        gain = self._compared(trainer)
        if gain.after >= gain.before:
            best, began = start, start_score(run_folder(trainer), str(keep.monitor))
            score = torch.tensor(began)
            told = f"{gain.sentence}; the run keeps the one that it began with"
            gain = gain._replace(sentence=f"{told}: {self._reason(rose=rose)}")
        _prefer(keep, best, cast("torch.Tensor", score))
        last = run_folder(trainer) / "checkpoints" / LAST  # was written before
        if trainer.is_global_zero and last.is_file():
            stored = read_checkpoint(last)
            stored["callbacks"][keep.state_key] = keep.state_dict()
            AtomicCheckpointIO().save_checkpoint(stored, last)
        if trainer.is_global_zero:
            _logger.info("%s", gain.sentence)
            write_text(run_folder(trainer) / GAIN, json.dumps(gain._asdict()) + "\n")

    def _click(
        self, trainer: L.Trainer, pl_module: L.LightningModule, name: str, path: Path
    ) -> None:
        """Click through the validation objects with the network of a checkpoint; write a report."""
        task = deepcopy(pl_module)
        task.load_state_dict(read_checkpoint(path)["state_dict"])
        digest = weights_digest(task.state_dict())
        model = prepare_model(task.model, pl_module.device)  # type: ignore[arg-type]
        records: list[ObjectRecord] = []
        loaders: Any = trainer.val_dataloaders
        with torch.inference_mode():
            for loader in loaders if isinstance(loaders, list) else [loaders]:
                for samples in loader:
                    records += run_objects(
                        model,
                        samples,
                        self.protocol,
                        device=pl_module.device,
                        batch_size=self.batch_size,
                        keep_pictures=True,
                    )
        records = from_all_processes(records)
        if trainer.is_global_zero:
            about = provenance(trainer, pl_module, {"seed": 0, "adaptation": None})
            about |= {"checkpoint": str(path), "weights_sha256": digest}
            about["stage"] = f"{name} the training"
            reports.write_report(run_folder(trainer) / "gain" / name, records, self.protocol, about)
        trainer.strategy.barrier()

    def _compared(self, trainer: L.Trainer) -> _Gain:
        """Compare both results, and write the comparison; the same in all processes."""
        folder, gain = run_folder(trainer) / "gain", None
        if trainer.is_global_zero:
            results = [read_result(folder / name, name) for name in (BEFORE, AFTER)]
            comparison = compare(results, metrics=[f"noc@{self.percent}", "miou@1"])
            write_comparison(folder, comparison)
            _logger.info("before and after, object by object: %s", folder)
            gain = _gain(comparison, self.percent)
        return cast("_Gain", trainer.strategy.broadcast(gain))

    def _reason(self, *, rose: bool) -> str:
        """Say why no checkpoint is better, as far as the validations show it."""
        scores = [score for _, score in self._curve]
        if scores[-1] == max(scores) and len(scores) > 1:
            return "validation was still rising; train longer"
        if rose:
            return "validation rose, but the clicks did not become fewer"
        if scores[-1] < scores[0] and len(scores) > 1:
            return (
                "validation fell while the training went on; more photographs help, or fewer epochs"
            )
        return "validation hardly moved; the network may know such objects already"


def _mean(trainer: L.Trainer, start: Path, best: Path, share: float) -> Path:
    """Write the mean of two networks, which forgets less than the second one, and return its path.

    Where no validation was better than the start's, the second one is that of the last epoch.
    See Wortsman et al., Robust fine-tuning of zero-shot models, CVPR 2022.
    """
    mean = start.with_name(MEAN)
    if best == start:
        trainer.save_checkpoint(mean, weights_only=True)
    if trainer.is_global_zero and best != mean:  # of a training that went on, and gained no more
        first = read_checkpoint(start)["state_dict"]
        stored = read_checkpoint(mean if best == start else best)
        stored["state_dict"] = {
            name: first[name].lerp(value, share) if value.is_floating_point() else value
            for name, value in stored["state_dict"].items()
        }
        AtomicCheckpointIO().save_checkpoint(stored, mean)
    trainer.strategy.barrier()
    return mean


def _prefer(keep: ModelCheckpoint, path: Path, score: torch.Tensor) -> None:
    """Make a checkpoint the best one, until a validation has a better score."""
    keep.best_model_path = keep.kth_best_model_path = str(path)
    keep.best_model_score = keep.kth_value = score
    keep.best_k_models = {str(path): score}


def _gain(comparison: Comparison, percent: int) -> _Gain:
    """Say in plain words how many clicks are saved, and how sure that is."""
    row, of = comparison.rows[0], comparison.curves[0]
    means, photographs = (row.reference_mean, row.other_mean), count(of.n_photos, "photograph")
    took = f"{means[1]:.2f} clicks to {percent} % where {means[0]:.2f} were taken"
    if of.n_photos < ENOUGH or row.low is None or row.high is None:
        enough = f"{ENOUGH} (some {ALL} in all) would say whether that is chance"
        return _Gain(f"the new network takes {took}, on {photographs} held out; {enough}", *means)
    saved = (-row.difference, -row.high, -row.low)
    told = f"saves {saved[0]:.2f} of {means[0]:.2f} clicks to {percent} %"
    if saved[0] <= 0:
        told = f"is not better: {took}"
    chance = "" if saved[1] > 0 or saved[2] < 0 else ", so it may be chance"
    sure = f"{count(of.n_objects, 'object')}; 95 % interval {saved[1]:+.2f} to {saved[2]:+.2f}"
    told = f"the new network {told} on {photographs} that it did not see ({sure}{chance})"
    return _Gain(told, *means, saved)
