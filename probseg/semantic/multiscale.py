"""Class probabilities averaged over sizes of the photograph and its mirror image."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from probseg.models.network import resized
from probseg.semantic.network import SemanticSegmenter


def predict_classes(
    model: SemanticSegmenter,
    image: Tensor,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
) -> Tensor:
    """Predict the class of each pixel.

    With several sizes, or mirrored, it is the class of the highest mean probability, as is usual in
    tests "MS" and "Flip" (Li et al. 2019, Tab. 1).

    Args:
        model: The network, in evaluation mode.
        image: RGB in [0, 1], shape `(B, 3, H, W)`.
        scales: Sizes relative to the image, positive.
        flip: Predict mirrored images too.

    Returns:
        Class numbers, int64, shape `(B, H, W)`.

    Raises:
        ValueError: If there is no scale, or one is not positive.
    """
    if not scales or min(scales) <= 0:
        msg = f"`scales` must be positive numbers, at least one, got {tuple(scales)}"
        raise ValueError(msg)
    if tuple(scales) == (1.0,) and not flip:  # the order of logits is that of probabilities
        logits: Tensor = model(image)
        return logits.argmax(dim=1)
    return class_probabilities(model, image, scales, flip).argmax(dim=1)


def class_probabilities(
    model: SemanticSegmenter,
    image: Tensor,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
) -> Tensor:
    """Return the mean of the class probabilities over all scales, mirrored images included.

    Args:
        model: The network, in evaluation mode.
        image: RGB in [0, 1], shape `(B, 3, H, W)`.
        scales: Sizes relative to the image, positive; resizing is bilinear.
        flip: Predict mirrored images too.

    Returns:
        Probabilities, float32, shape `(B, C, H, W)`.
    """
    size = image.shape[-2], image.shape[-1]
    total: Tensor | None = None
    for scale in scales:
        scaled = resized(image, (max(1, round(scale * size[0])), max(1, round(scale * size[1]))))
        for mirrored in (False, True) if flip else (False,):
            logits = model(scaled.flip(-1) if mirrored else scaled)
            probabilities = resized(logits.softmax(dim=1), size)
            probabilities = probabilities.flip(-1) if mirrored else probabilities
            total = probabilities if total is None else total.add_(probabilities)
    assert total is not None, "at least one scale"
    return total / (len(scales) * (1 + flip))
