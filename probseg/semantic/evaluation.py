"""Evaluation of semantic segmentation during validation and testing."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple, cast

import lightning as L
import numpy as np
import torch

from probseg.attention.bases import Bases
from probseg.callbacks.base import (
    Evaluation,
    Stage,
    from_all_processes,
    log_tested,
    provenance,
    writes_reports,
)
from probseg.callbacks.loggers import log_picture
from probseg.callbacks.run_folder import run_folder
from probseg.errors import UsageError, log_drawing_errors, require
from probseg.semantic.datamodule import SemanticDataModule
from probseg.semantic.dataset import SemanticSample
from probseg.semantic.heads import EMAHead
from probseg.semantic.network import SemanticSegmenter, enlarge, predict_classes
from probseg.semantic.pictures import SemanticPicture, draw_sheet
from probseg.semantic.scores import (
    Confusion,
    Counts,
    SemanticScores,
    print_scores,
    semantic_scores,
    write_scores,
)
from probseg.terminal import console, print_paths

_logger = logging.getLogger(__name__)

# number of the batch, and of the process: the order of photographs that processes share
Order = tuple[int, int]


class Totals(NamedTuple):
    """Counts of a data set, and pictures of its first photographs."""

    confusion: Counts  # (C, C), the truth in rows
    photographs: int
    pictures: list[tuple[Order, SemanticPicture]]


class Accumulator:
    """Counts confusions of classes, and keeps pictures: one data set, one process."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.confusion = Confusion(num_classes, device)
        self.pictures: list[tuple[Order, SemanticPicture]] = []


def gather_totals(accumulators: dict[str, Accumulator], pictures: int) -> dict[str, Totals]:
    """Add the counts of all processes by data set, and keep the first pictures of each."""
    mine = {
        name: Totals(of.confusion.matrix(), of.confusion.photographs, of.pictures)
        for name, of in accumulators.items()
    }
    parts: dict[str, list[Totals]] = {}
    for name, part in from_all_processes([*mine.items()]):
        parts.setdefault(name, []).append(part)
    every = {}
    for name, of_set in parts.items():
        drawn = sorted((each for part in of_set for each in part.pictures), key=itemgetter(0))
        matrix: Counts = np.sum([part.confusion for part in of_set], axis=0)
        every[name] = Totals(matrix, sum(p.photographs for p in of_set), drawn[:pictures])
    return every


class SemanticEvaluation(Evaluation):
    """Predicts the classes of the photographs of the validation and test sets, at their own size.

    The task must hold its network, a `SemanticSegmenter`, as `model`.

    Scores are those of each data set's confusion matrix, however many processes share it; classes
    that are neither in the truth nor predicted are left out of means. Validation logs
    `val/<data set>/miou` and `val/miou`, the mean over the data sets, which checkpoints are
    chosen by. Testing logs `test/<data set>/miou`, `pixel_accuracy` and `mean_accuracy`, and
    prints tables. Both write `results.json`, `classes.csv`, `confusion.csv` and
    `overlays.png` into `<run>/val/<data set>/` or `<run>/test/<data set>/`.

    Args:
        scales: Sizes of a test's photographs, relative to their own, over which probabilities are
            averaged. Validation has the photographs as they are.
        flip: Average over mirrored photographs too, in a test.
        iterations: EM iterations of each evaluation, instead of the network's own number.
        output_stride: Of the backbone in each evaluation, instead of the network's own.
        pictures: Number of photographs of each data set, the first ones, that are drawn.
        bases: Numbers of the bases whose responsibilities are drawn; a network without bases has
            none.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        scales: Sequence[float] = (1.0,),
        flip: bool = False,
        iterations: int | None = None,
        output_stride: int | None = None,
        pictures: int = 8,
        bases: Sequence[int] = (0, 1, 2, 3),
    ) -> None:
        super().__init__()
        for fine, name, expected, value in (
            (scales and min(scales) > 0, "scales", "positive numbers, at least one", scales),
            (pictures >= 0, "pictures", "at least 0", pictures),
            (min(bases, default=0) >= 0, "bases", "numbers from 0", bases),
        ):
            require(fine, name, expected, value)
        self.scales = tuple(scales)
        self.flip = flip
        self.iterations = iterations
        self.output_stride = output_stride
        self.pictures = pictures
        self.bases = tuple(bases)
        self._tallies: dict[str, Accumulator] = {}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Try the settings on the network, and record commit and versions before they change."""
        super().setup(trainer, pl_module, stage)
        model = _network(pl_module)
        try:
            with model.changed(self.iterations, self.output_stride):
                pass
        except ValueError as error:
            raise UsageError(f"semantic_evaluation: {error}") from error
        known = _number_of_bases(model)
        if known and self.pictures and max(self.bases, default=0) >= known:
            raise UsageError(
                f"`semantic_evaluation.bases`: the network has {known} bases, numbered from 0, got "
                f"{list(self.bases)}"
            )

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Give the network what is asked of it, and forget the last evaluation."""
        self._begin(pl_module)

    def on_test_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Give the network what is asked of it, and forget the last evaluation."""
        self._begin(pl_module)
        if trainer.is_global_zero:
            log_tested(self._about(trainer, "test"))

    def evaluate(
        self, trainer: L.Trainer, batch: Sequence[SemanticSample], batch_idx: int, stage: Stage
    ) -> None:
        """Predict the classes of some photographs."""
        scales, flip = (self.scales, self.flip) if stage == "test" else ((1.0,), False)
        model, device = _network(trainer.lightning_module), trainer.lightning_module.device
        for sample in batch:
            pixels = torch.tensor(sample.image, device=device)
            image = pixels.permute(2, 0, 1).unsqueeze(0).float() / 255
            prediction = predict_classes(model, image, scales, flip).squeeze(0)
            if sample.dataset not in self._tallies:
                self._tallies[sample.dataset] = Accumulator(model.num_classes, device)
            accumulator = self._tallies[sample.dataset]
            accumulator.confusion.add(sample, prediction)
            if len(accumulator.pictures) < self.pictures:
                with log_drawing_errors(f"{sample.dataset} / {sample.name}"):
                    height, width = image.shape[-2:]
                    maps = np.zeros((0, height, width), np.float32)
                    if self.bases and _number_of_bases(model):
                        shares = model.responsibilities(image)[:, list(self.bases)]
                        stride = model.backbone.features.strides[-1]
                        maps = enlarge(shares, stride, (height, width))[0].cpu().numpy()
                    predicted = prediction.to(torch.uint8).cpu().numpy()
                    picture = SemanticPicture(
                        sample.name, sample.image, sample.labels, predicted, maps
                    )
                    accumulator.pictures.append(((batch_idx, trainer.global_rank), picture))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the scores of a validation, write its report, and leave the network as it was."""
        every, scores = self._counted(trainer)
        figures = {f"val/{name}/miou": of_set.miou for name, of_set in scores.items()}
        pl_module.log_dict(figures, sync_dist=True)
        finite = [miou for miou in figures.values() if math.isfinite(miou)]  # a set may be ignored
        average = sum(finite) / len(finite) if finite else math.nan
        pl_module.log("val/miou", average, prog_bar=True, sync_dist=True)
        if writes_reports(trainer):
            self._report(trainer, "val", every, scores)
        self.network_changes.close()

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the scores of a test, write its report, and leave the network as it was."""
        every, scores = self._counted(trainer)
        for name, of_set in scores.items():
            for figure in ("miou", "pixel_accuracy", "mean_accuracy"):
                pl_module.log(f"test/{name}/{figure}", getattr(of_set, figure), sync_dist=True)
        if writes_reports(trainer):
            self._report(trainer, "test", every, scores)
        if trainer.is_global_zero:
            self._print(trainer, scores)
        self.network_changes.close()

    def _begin(self, pl_module: L.LightningModule) -> None:
        """Give the network what is asked of it, and forget the last evaluation."""
        model = _network(pl_module)
        self.network_changes.enter_context(model.changed(self.iterations, self.output_stride))
        self._tallies = {}

    def _counted(self, trainer: L.Trainer) -> tuple[dict[str, Totals], dict[str, SemanticScores]]:
        """Return the counts over all processes, and the scores of each data set."""
        every = gather_totals(self._tallies, self.pictures)
        for name, counted in every.items():
            if trainer.is_global_zero and not counted.confusion.any():
                _logger.warning(
                    "%s: no score: in all %d photographs all pixels are ignored (255)",
                    name,
                    counted.photographs,
                )
        return every, {name: semantic_scores(counted.confusion) for name, counted in every.items()}

    def _report(
        self,
        trainer: L.Trainer,
        stage: Stage,
        every: dict[str, Totals],
        scores: dict[str, SemanticScores],
    ) -> None:
        """Write the files of an evaluation."""
        about = self._about(trainer, stage)
        model = _network(trainer.lightning_module)
        classes = _class_names(trainer, model.num_classes)
        bases = self.bases if _number_of_bases(model) else ()
        for name, counted in every.items():
            folder = run_folder(trainer) / stage / name
            facts = {**about, "photographs": counted.photographs}
            write_scores(folder, name, classes, counted.confusion, scores[name], facts)
            if counted.pictures:
                sheet = folder / "overlays.png"
                with log_drawing_errors(sheet):
                    draw_sheet(sheet, [picture for _, picture in counted.pictures], classes, bases)
                if sheet.is_file():
                    log_picture(trainer, f"{stage}/{name}/overlays", sheet)

    def _print(self, trainer: L.Trainer, scores: dict[str, SemanticScores]) -> None:
        """Print the tables of a test, and where its files are."""
        classes = _class_names(trainer, _network(trainer.lightning_module).num_classes)
        terminal = console()
        for name, of_set in scores.items():
            print_scores(terminal, name, classes, of_set)
            if writes_reports(trainer):
                print_paths(terminal, sorted((run_folder(trainer) / "test" / name).iterdir()))

    def _about(self, trainer: L.Trainer, stage: Stage) -> dict[str, Any]:
        """Return settings and versions of the evaluation, as JSON values."""
        model = _network(trainer.lightning_module)
        of_bases = [layer for layer in model.modules() if isinstance(layer, Bases)]
        options = {
            "scales": list(self.scales) if stage == "test" else [1.0],
            "flip": self.flip and stage == "test",
            "iterations": of_bases[0].eval_iterations if of_bases else None,
            "output_stride": model.backbone.features.strides[-1],
        }
        return provenance(trainer, trainer.lightning_module, options)


def _network(task: L.LightningModule) -> SemanticSegmenter:
    """Return the network of the task."""
    return cast("SemanticSegmenter", task.model)


def _number_of_bases(model: SemanticSegmenter) -> int:
    """Return how many bases have responsibilities to draw, 0 where there are none."""
    if not isinstance(model.head, EMAHead) or model.head.emau.bases is None:
        return 0
    return model.head.emau.bases.initial.shape[-2]


def _class_names(trainer: L.Trainer, num_classes: int) -> tuple[str, ...]:
    """Return the names of the classes, which are numbers where loaders were passed by hand."""
    data = getattr(trainer, "datamodule", None)
    if isinstance(data, SemanticDataModule):
        return data.classes
    return tuple(str(number) for number in range(num_classes))
