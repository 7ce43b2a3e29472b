"""Repeated tests of published networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from probseg.semantic.confusion import Confusion
from probseg.semantic.dataset import SemanticSample
from probseg.semantic.multiscale import predict_classes
from probseg.semantic.network import SemanticSegmenter
from probseg.semantic.scores import semantic_scores


def evaluate(
    model: SemanticSegmenter,
    loaders: Iterable[Iterable[list[SemanticSample]]],
    settings: Mapping[str, Any],
    device: str,
) -> tuple[dict[str, float], dict[str, int]]:
    """Measure the figures of a network on its test sets.

    Args:
        model: The network, in evaluation mode, on the device.
        loaders: Lists of photographs of each test set.
        settings: `scales`, `flip`, `iterations` and `output_stride` of the test.
        device: Of the network.

    Returns:
        The mean scores of `SemanticScores` by name, and the number of `photographs`.

    Raises:
        DataError: If a photograph cannot be read, or has classes that the network lacks.
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
