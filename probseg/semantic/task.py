"""Training and prediction of semantic segmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from probseg.errors import UsageError
from probseg.interact import image_tensor
from probseg.ops.folding import fold_batch_norms
from probseg.semantic.datamodule import SemanticBatch, SemanticDataModule
from probseg.semantic.dataset import SemanticSample
from probseg.semantic.network import SemanticSegmenter, predict_classes
from probseg.semantic.scores import Confusion, semantic_scores
from probseg.tasks.base import NetworkTask, PolynomialDecay, trial_optimizer
from probseg.tasks.prediction import Photo, PhotoResult, Prediction
from probseg.types import IGNORE

RELEASED_MOMENTUM = 3e-4  # momentum of the batch normalisations in the code of EMANet's authors

# makes a schedule that is stepped every iteration, from the optimiser and their number
ScheduleOfIterations = Callable[[Optimizer, int], LRScheduler]


class SemanticSegmentation(NetworkTask):
    """Trains a `SemanticSegmenter` with cross-entropy; as published for EMANet by default.

    Evaluation is the business of the callback `SemanticEvaluation`, which runs on the validation
    and test photographs of this module.

    Args:
        model: The network.
        optimizer: Makes the optimiser; SGD with rate 0.009, momentum 0.9 and weight decay 1e-4 by
            default (Li et al. 2019, Sec. 6.1).
        lr_scheduler: Makes the schedule, stepped every iteration, from the optimiser and the number
            of iterations of the training.
        released: Train as the authors' code of EMANet does: batch normalisations have a momentum of
            3e-4, biases have twice the rate, neither they nor the weights of normalisations decay,
            and the loss is a mean over all pixels, of which ignored ones count as 0. Its rate
            changes every 10th iteration, `PolynomialDecay(every=10)`.

    Raises:
        ValueError: If the network has more than 255 classes, the most that labels tell apart.
    """

    def __init__(
        self,
        model: SemanticSegmenter,
        optimizer: OptimizerCallable = lambda p: torch.optim.SGD(
            p, lr=0.009, momentum=0.9, weight_decay=1e-4
        ),
        lr_scheduler: ScheduleOfIterations = PolynomialDecay,
        released: bool = False,
    ) -> None:
        if model.num_classes > IGNORE:
            raise ValueError(
                f"`num_classes` must be at most {IGNORE}, as labels have 8 bits, of which {IGNORE} "
                f"means ignored; got {model.num_classes}"
            )
        super().__init__(model, optimizer, lr_scheduler)
        lr_scheduler(trial_optimizer(optimizer), 1)
        self.model: SemanticSegmenter
        self.released = released
        if released:
            for part in model.modules():
                if isinstance(part, _NormBase):
                    part.momentum = RELEASED_MOMENTUM
        self.save_hyperparameters(ignore=["released"])

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits `(B, C, H, W)` of images `(B, 3, H, W)` in [0, 1]."""
        logits: Tensor = self.model(image)
        return logits

    def training_step(self, batch: SemanticBatch, batch_idx: int) -> dict[str, Tensor]:
        """Return `loss`, a scalar, and the predicted `classes` of the crops, uint8 `(B, H, W)`.

        The logits themselves would lie in memory until the next step.
        """
        images = batch.images.to(memory_format=torch.channels_last).float() / 255
        logits = self(images)
        loss = pixel_cross_entropy(logits, batch.labels, over_all=self.released)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(images))
        return {"loss": loss, "classes": logits.detach().argmax(dim=1).to(torch.uint8)}

    def setup(self, stage: str) -> None:
        """Check that network and data have the same classes."""
        super().setup(stage)
        data = getattr(self.trainer, "datamodule", None)  # absent where loaders were passed instead
        if data is not None:
            check_classes(self.model.num_classes, data)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Make the optimiser and the schedule."""
        total = self.trainer.estimated_stepping_batches
        if total == float("inf"):
            raise UsageError(
                "the learning rate decays over the whole training, which has no end; set "
                "--trainer.max_steps or --trainer.max_epochs"
            )
        optimizer = self.optimizer(released_groups(self) if self.released else self.parameters())
        for group in optimizer.param_groups:
            group["lr"] *= group.pop("rate", 1.0)
        return self.with_schedule(optimizer, self.lr_scheduler(optimizer, int(total)), "step")


def released_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters for an optimiser in the groups of the authors' code of EMANet.

    These are weights; weights of normalisations, which do not decay; biases, which do not decay
    either, with a `rate` of 2 relative to the others.
    """
    normalising = {id(p.weight) for p in network.modules() if isinstance(p, _NormBase)}
    named = list(network.named_parameters())
    biases = [parameter for name, parameter in named if name.endswith("bias")]
    scales = [parameter for _, parameter in named if id(parameter) in normalising]
    apart = {id(parameter) for parameter in (*biases, *scales)}
    return [
        {"params": [parameter for _, parameter in named if id(parameter) not in apart]},
        {"params": scales, "weight_decay": 0.0},
        {"params": biases, "weight_decay": 0.0, "rate": 2.0},
    ]


def pixel_cross_entropy(logits: Tensor, labels: Tensor, *, over_all: bool = False) -> Tensor:
    """Return the mean cross-entropy over the pixels that count.

    Without any such pixel it is zero, and so are its gradients: a process among several must not
    stay away from the backward pass, nor spread NaN. With `over_all`, the sum over them is divided
    by the number of all pixels. Logits are `(B, C, H, W)`, labels `(B, H, W)` with 255 for pixels
    that do not count; the result is a scalar in nats.
    """
    total = F.cross_entropy(logits, labels.long(), ignore_index=IGNORE, reduction="sum")
    return total / (labels.numel() if over_all else (labels != IGNORE).sum().clamp(min=1))


def check_classes(num_classes: int, data: Any) -> None:  # noqa: ANN401 (any data module)
    """Raise unless a data module has the network's number of classes."""
    if not isinstance(data, SemanticDataModule):
        raise UsageError(
            f"SemanticSegmentation needs photographs with a class for each pixel, got the data of "
            f"{type(data).__name__}, as --folder has them; set `data` to "
            "probseg.semantic.SemanticDataModule"
        )
    if len(data.classes) != num_classes:
        raise UsageError(
            f"the network tells {num_classes} classes apart and the data have "
            f"{len(data.classes)} ({', '.join(data.classes[:3])}, ...); set `num_classes: "
            f"{len(data.classes)}` among the arguments of the network's head, which are under "
            "`changes` for a network given by semantic_variant, or use other data"
        )


class ClassPrediction(Prediction):
    """Class maps of photographs, which go through the network one by one: their sizes differ."""

    def __init__(self, model: SemanticSegmenter, batch_size: int) -> None:
        small = model.mean.new_zeros(1, 3, 64, 64)
        super().__init__(fold_batch_norms(model.eval(), lambda network: network(small)), batch_size)

    def predict_step(self, batch: list[Photo], batch_idx: int) -> list[PhotoResult]:
        """Predict the classes of one photograph after the other."""
        return [PhotoResult(photo, {}, self._labels(photo.pixels), {}, {}) for photo in batch]

    def _labels(self, pixels: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.uint8] | None:
        if pixels is None:
            return None
        image = image_tensor(pixels, self.device)[None].float() / 255
        model = cast("SemanticSegmenter", self.model)
        labels: npt.NDArray[np.uint8] = predict_classes(model, image)[0].byte().cpu().numpy()
        return labels


def evaluate(
    model: SemanticSegmenter,
    loaders: Iterable[Iterable[list[SemanticSample]]],
    settings: Mapping[str, Any],
    device: str,
) -> tuple[dict[str, float], dict[str, int]]:
    """Return mean scores by name, and the number of photographs, on all test sets together.

    The settings are `scales`, `flip`, `iterations` and `output_stride` of the test.
    """
    confusion = Confusion(model.num_classes, device)
    changed = model.changed(settings["iterations"], settings["output_stride"])
    with changed, torch.inference_mode():
        for loader in loaders:
            for sample in (sample for samples in loader for sample in samples):
                pixels = torch.tensor(sample.image, device=device).permute(2, 0, 1)
                image = pixels.unsqueeze(0).float() / 255
                prediction = predict_classes(model, image, settings["scales"], settings["flip"])
                confusion.add(sample, prediction[0])
    scores = semantic_scores(confusion.matrix())._asdict()
    means = {name: float(score) for name, score in scores.items() if isinstance(score, float)}
    return means, {"photographs": confusion.photographs}
