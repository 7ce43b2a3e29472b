"""Class maps of many photographs, for `probseg predict`."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from probseg.interact import image_tensor
from probseg.ops.folding import folded
from probseg.semantic.multiscale import predict_classes
from probseg.semantic.network import SemanticSegmenter
from probseg.tasks.prediction import Photo, PhotoResult, Prediction


class ClassPrediction(Prediction):
    """Class maps of photographs, which go through the network one by one: their sizes differ."""

    def __init__(self, model: SemanticSegmenter, batch_size: int) -> None:
        small = model.mean.new_zeros(1, 3, 64, 64)
        super().__init__(folded(model.eval(), lambda network: network(small)), batch_size)

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
