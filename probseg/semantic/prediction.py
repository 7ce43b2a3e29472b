"""Class maps for `probseg predict`, and repeated tests of published networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from probseg.interact import image_tensor
from probseg.ops.folding import fold_batch_norms
from probseg.semantic.dataset import SemanticSample
from probseg.semantic.network import SemanticSegmenter, predict_classes
from probseg.semantic.scores import Confusion, semantic_scores
from probseg.tasks.prediction import Photo, PhotoResult, Prediction


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
