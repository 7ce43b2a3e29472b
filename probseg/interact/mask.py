"""The mask that answers an object's prompts, and its forms."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probseg.clicks.boxes import Box, mask_box
from probseg.formats import png, run_lengths
from probseg.formats.polygons import Polygon, trace
from probseg.interact.probability import ProbabilityMap
from probseg.interact.zoom import expected_iou


class Mask:
    """Answer of the model, at the image's own size.

    Args:
        probability: Probability of the object, float32, shape `(H, W)`; or where it lies in the
            image, whose pixels are then computed when they are first asked for.
    """

    def __init__(self, probability: npt.NDArray[np.float32] | ProbabilityMap) -> None:
        if isinstance(probability, np.ndarray):
            probability = ProbabilityMap.of(probability)
        self._answer = probability

    @cached_property
    def probability(self) -> npt.NDArray[np.float32]:
        """Probability of the object, float32, shape `(H, W)`.

        It is read-only, as the next answer may depend on it: change a copy.
        """
        return self._answer.full()

    def __repr__(self) -> str:
        height, width = self.probability.shape
        binary = self.binary
        area = int(binary.sum())
        if not area:
            return f"Mask({width} x {height} pixels, empty)"
        return (
            f"Mask({width} x {height} pixels, object of {area} pixels "
            f"({100 * area / binary.size:.1f} %) in the box {mask_box(binary)})"
        )

    @property
    def binary(self) -> npt.NDArray[np.bool_]:
        """Pixels that are more likely object than not, shape `(H, W)`."""
        return self.probability > 0.5

    @cached_property
    def quality(self) -> float:
        """IoU with the object that the binary mask is expected to have, from 0 to 1.

        Networks with a `probseg.heads.MaskQuality` predict it, as they have learnt it from their
        answers to simulated clicks on training photographs; what lies outside of the window that
        a zoom shows them they do not know. For other networks, and for masks that no network has
        answered, it is the IoU that follows from the probabilities of independent pixels, see
        `probseg.interact.zoom.expected_iou`: a mask without probabilities gets 1. It has been
        measured on held-out photographs in entry 23 of benchmarks/notebook.
        """
        predicted = self._answer.quality
        return expected_iou(self._answer) if predicted is None else predicted

    @property
    def uncertainty(self) -> npt.NDArray[np.float32]:
        """Entropy of each pixel's label in bits, from 0 (sure) to 1, shape `(H, W)`."""
        p = self.probability.astype(np.float64)
        entropy = np.zeros_like(p)
        for q in (p, 1 - p):
            np.subtract(entropy, q * np.log2(q, where=q > 0, out=np.zeros_like(q)), out=entropy)
        return entropy.astype(np.float32)

    @property
    def rle(self) -> dict[str, Any]:
        """The binary mask as run lengths of COCO, `{"size": [H, W], "counts": text}`.

        pycocotools reads it, and it is the `segmentation` of an annotation in JSON.
        """
        return run_lengths.encode(self.binary)

    def save(self, path: Path | str) -> None:
        """Write the binary mask as a PNG of its size: 255 on the object, 0 elsewhere.

        Args:
            path: The file to be, ending in `.png`; it appears whole, in a folder that is made if
                need be.

        Raises:
            ValueError: If the path has another suffix.
        """
        if Path(path).suffix.lower() != ".png":
            msg = f"`path` must end in .png, a lossless format, got {str(path)!r}"
            raise ValueError(msg)
        png.write_binary(Path(path), self.binary)

    def polygons(self, tolerance: float = 0.0) -> list[Polygon]:
        """Return the outlines of the binary mask, one polygon with its holes for each part.

        Args:
            tolerance: Largest distance in pixels of a simplified outline from the exact one; 0
                keeps every pixel, and `probseg.formats.polygons.fill` gives the mask back.

        Raises:
            ValueError: If `tolerance` is negative.
        """
        return trace(self.binary, tolerance)

    def crop(self, image: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], Box]:
        """Cut the object out of its image.

        Args:
            image: The RGB image that was segmented, uint8, shape `(H, W, 3)`.

        Returns:
            RGBA, uint8, shape `(h, w, 4)`, with alpha 255 on the object and 0 elsewhere, and the
            smallest box around the object, half-open `(x0, y0, x1, y1)`, that it was cut from.

        Raises:
            ValueError: If `image` has another size, or the mask is empty.
        """
        if image.shape != (*self.probability.shape, 3):
            msg = (
                f"`image` must be the image of the mask, of shape {(*self.probability.shape, 3)}, "
                f"got {image.shape}"
            )
            raise ValueError(msg)
        binary = self.binary
        if not binary.any():
            msg = "the mask is empty: there is nothing to crop; add a click on the object"
            raise ValueError(msg)
        x0, y0, x1, y1 = box = mask_box(binary)
        alpha = np.where(binary, 255, 0).astype(np.uint8)
        return np.dstack([image, alpha])[y0:y1, x0:x1], box
