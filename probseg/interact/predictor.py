"""The model as an annotation tool sees it: an image, then clicks, then masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probseg.interact.loop import image_tensor, predict_probability
from probseg.models import Segmenter
from probseg.types import Click
from probseg.zoo import create_model


@dataclass(frozen=True)
class Mask:
    """Answer of the model, at the image's own size.

    Args:
        probability: Probability of the object, float32, shape ``(H, W)``.
    """

    probability: npt.NDArray[np.float32]

    @property
    def binary(self) -> npt.NDArray[np.bool_]:
        """Pixels that are more likely object than not, shape ``(H, W)``."""
        return self.probability > 0.5

    @property
    def uncertainty(self) -> npt.NDArray[np.float32]:
        """Entropy of each pixel's label in bits, from 0 (sure) to 1, shape ``(H, W)``."""
        p = self.probability.astype(np.float64)
        entropy = np.zeros_like(p)
        for q in (p, 1 - p):
            np.subtract(entropy, q * np.log2(q, where=q > 0, out=np.zeros_like(q)), out=entropy)
        return entropy.astype(np.float32)


class Predictor:
    """Segments one image at a time by clicks.

    Args:
        model: The network; it is moved to the device and put into evaluation mode.
        device: Where to compute.
    """

    def __init__(self, model: Segmenter, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.model = model.to(self.device).eval()
        self._image: Tensor | None = None
        self._box: tuple[float, float, float, float] | None = None
        self._clicks: list[Click] = []

    @classmethod
    def from_pretrained(cls, name: str, device: torch.device | str = "cpu") -> Predictor:
        """Load a zoo model, or a local model folder; see `probseg.create_model`."""
        return cls(create_model(name, pretrained=True), device)

    @property
    def clicks(self) -> tuple[Click, ...]:
        """The clicks so far, in order."""
        return tuple(self._clicks)

    def set_image(self, image: npt.NDArray[np.uint8]) -> None:
        """Begin with a new image; box and clicks of the last one are forgotten.

        Args:
            image: RGB, uint8, shape ``(H, W, 3)``, any size.

        Raises:
            ValueError: If the array is of another shape or type.
        """
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
            msg = (
                "image must be RGB, uint8, of shape (H, W, 3); got shape "
                f"{image.shape} and dtype {image.dtype}; probseg.data.images.read_image converts "
                "files of other kinds"
            )
            raise ValueError(msg)
        self._image = image_tensor(image, self.device)
        self.reset()

    def predict(
        self,
        clicks: Sequence[Click] = (),
        box: tuple[float, float, float, float] | None = None,
    ) -> Mask:
        """Add prompts to those given so far and segment the object.

        Args:
            clicks: New clicks, in pixels of the image.
            box: Half-open box ``(x0, y0, x1, y1)`` around the object; replaces an earlier one.

        Returns:
            The mask for all prompts so far.

        Raises:
            RuntimeError: If no image was set.
            ValueError: If a click or the box is outside the image, or there is no prompt at all.
        """
        if self._image is None:
            msg = "no image: call set_image(image) before predict(...)"
            raise RuntimeError(msg)
        height, width = self._image.shape[-2:]
        for click in clicks:
            if not (0 <= click.x < width and 0 <= click.y < height):
                msg = (
                    f"click ({click.x}, {click.y}) is outside the image of {width} x {height} "
                    "pixels; clicks are (x, y) = (column, row), counted from 0"
                )
                raise ValueError(msg)
        if box is not None:
            x0, y0, x1, y1 = box
            if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
                msg = (
                    f"box {tuple(box)} must satisfy 0 <= x0 < x1 <= {width} and "
                    f"0 <= y0 < y1 <= {height} for this image; it is (x0, y0, x1, y1), half-open"
                )
                raise ValueError(msg)
        if not clicks and not self._clicks and box is None and self._box is None:
            msg = "nothing to go by: give at least one click or a box"
            raise ValueError(msg)
        self._clicks += list(clicks)
        self._box = box if box is not None else self._box
        probability = predict_probability(self.model, self._image, self._clicks, self._box)
        return Mask(probability.cpu().numpy())

    def undo(self) -> Mask | None:
        """Take the last click back.

        Returns:
            The mask for the prompts that are left, or None where none is left.

        Raises:
            RuntimeError: If there is no click to take back.
        """
        if not self._clicks:
            msg = "no click to undo"
            raise RuntimeError(msg)
        self._clicks.pop()
        return self.predict() if self._clicks or self._box is not None else None

    def reset(self) -> None:
        """Forget box and clicks; the image stays."""
        self._box = None
        self._clicks = []
