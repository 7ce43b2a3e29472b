"""An answer: the probabilities of an object in a box of the image, and the mask from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probseg import geometry
from probseg.errors import require
from probseg.formats import png, run_lengths
from probseg.formats.polygons import Polygon, trace
from probseg.geometry import Box, Size, View, box_size, expected_iou, mask_box
from probseg.interact.photograph import interpolate, resize_aligned
from probseg.types import Click, read_only


@dataclass(frozen=True, eq=False)
class ProbabilityMap:
    """Probability of each pixel to be of the object; 0 outside of a box.

    Rows and columns of `values` are those of the box, or fewer, spread evenly from its first to
    its last pixel: between them the probability is interpolated.

    Args:
        values: float32, shape `(h, w)`; never changed.
        box: The box in pixels of the image.
        size: `(H, W)` of the image.
        quality: IoU of the mask with the part of the object in the box, as a network predicts it,
            from 0 to 1; None where none did.
    """

    values: Tensor
    box: Box
    size: Size
    quality: float | None = None

    @classmethod
    def from_array(cls, probability: npt.NDArray[np.float32]) -> ProbabilityMap:
        """Return the map of the probabilities of all pixels, shape `(H, W)`, which are copied."""
        height, width = probability.shape
        values = torch.tensor(probability, dtype=torch.float32)
        return cls(values, (0, 0, width, height), (height, width))

    @classmethod
    def zero(cls, size: Size) -> ProbabilityMap:
        """Return the map of an image `(H, W)` in which nothing is object."""
        return cls(torch.zeros(0, 0), (0, 0, 0, 0), size)

    @property
    def nbytes(self) -> int:
        """Bytes of its values and of the array of all pixels."""
        full = 4 * self.size[0] * self.size[1]
        return full if self.shape == self.size else full + self.values.nbytes

    @property
    def shape(self) -> Size:
        """`(h, w)` of the values."""
        return self.values.shape[0], self.values.shape[1]

    def array(self) -> npt.NDArray[np.float32]:
        """Return the values, float32, shape `(h, w)`, read-only."""
        array: npt.NDArray[np.float32] = self.values.cpu().numpy()
        array.flags.writeable = False
        return array

    def any(self) -> bool:
        """Return whether a pixel has a probability above 0."""
        return bool(self.values.any())

    def full(self) -> npt.NDArray[np.float32]:
        """Return the probabilities of all pixels, float32, shape `(H, W)`, read-only."""
        x0, y0, x1, y1 = self.box
        if not self.values.numel():
            return read_only(np.zeros(self.size, np.float32))
        part = resize_aligned(self.values[None], box_size(self.box))[0].cpu().numpy()
        if part.shape == self.size:
            return read_only(part)
        whole = np.zeros(self.size, np.float32)
        whole[y0:y1, x0:x1] = part
        return read_only(whole)

    def part(self, view: View) -> Tensor:
        """Return the probabilities in any box of the image, resized, float32 `(1, h, w)`."""
        (box, size), values = view, self.values[None]
        if not self.values.numel():
            return self.values.new_zeros(1, *size)
        if box == self.box:
            return resize_aligned(values, size)
        if self.shape != box_size(self.box):
            rows, columns = geometry.view_samples(self, view)
            return interpolate(values, columns, rows, "zeros")
        # There is one value for each pixel: nothing need be interpolated twice.
        x0, y0, x1, y1 = (*map(max, box[:2], self.box[:2]), *map(min, box[2:], self.box[2:]))
        part = self.values.new_zeros(1, *box_size(box))
        if x0 < x1 and y0 < y1:
            (left, top, _, _), (x, y, _, _) = self.box, box
            inside = self.values[y0 - top : y1 - top, x0 - left : x1 - left]
            part[0, y0 - y : y1 - y, x0 - x : x1 - x] = inside
        return resize_aligned(part, size)

    def with_clicks(self, clicks: Sequence[Click]) -> ProbabilityMap:
        """Return the map in which clicked pixels have the label of their click.

        See `probseg.geometry.keep_clicks`; a map that obeys all clicks is returned itself.
        """
        values = self.array()
        changed = geometry.keep_clicks(values, self.box, clicks)
        if changed is values:
            return self
        return replace(self, values=torch.from_numpy(changed).to(self.values.device))

    def with_look(self, look: ProbabilityMap) -> ProbabilityMap:
        """Return the map with a second look in its window, which fades out on its rim."""
        box, rows, columns = geometry.look_share(self, look)
        view = View(box, (len(rows), len(columns)))
        weight = torch.from_numpy(rows[:, None] * columns).to(self.values)
        values = torch.lerp(self.part(view)[0], look.part(view)[0], weight)
        return replace(self, values=values, box=box)


class Mask:
    """The model's answer, at the image's own size.

    Args:
        probability: Probability of the object, float32, shape `(H, W)`; or a map of it, whose
            pixels are computed on first use.
    """

    def __init__(self, probability: npt.NDArray[np.float32] | ProbabilityMap) -> None:
        if isinstance(probability, np.ndarray):
            probability = ProbabilityMap.from_array(probability)
        self._answer = probability

    @cached_property
    def probability(self) -> npt.NDArray[np.float32]:
        """Probability of the object, float32, shape `(H, W)`.

        It is read-only, as the next answer may depend on it: change a copy.
        """
        return self._answer.full()

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Return `binary`, as `np.asarray(mask)` and other libraries ask for it."""
        return self.binary if dtype is None else self.binary.astype(dtype)

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

        Networks with a `probseg.heads.MaskQuality` predict it, as learnt from their answers to
        simulated clicks on training photographs; they do not know what lies outside of the window
        that a zoom shows them. For other networks, and for masks that no network has answered, it
        follows from the probabilities, as if pixels were independent (see
        `probseg.geometry.expected_iou`): a mask without probabilities gets 1. Entry 23 of
        benchmarks/notebook measures it on held-out photographs.
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
        """The binary mask as COCO run lengths, `{"size": [H, W], "counts": text}`.

        pycocotools reads it, and it is the `segmentation` of an annotation in JSON.
        """
        return run_lengths.encode(self.binary)

    def save(self, path: Path | str) -> None:
        """Write the binary mask as a PNG of its size: 255 on the object, 0 elsewhere.

        Args:
            path: The file to write, ending in `.png`; it appears whole, and its folder is made.

        Raises:
            ValueError: If the path has another suffix.
        """
        fits = Path(path).suffix.lower() == ".png"
        require(fits, "path", "a .png file, which is lossless", repr(str(path)))
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
        shape = (*self.probability.shape, 3)
        given = getattr(image, "shape", type(image).__name__)
        require(given == shape, "image", f"an array of the mask's size, {shape}", given)
        binary = self.binary
        require(binary.any(), "mask", "not empty to be cropped", "no pixel", "add a click on it")
        x0, y0, x1, y1 = box = mask_box(binary)
        alpha = np.where(binary, 255, 0).astype(np.uint8)
        return np.dstack([image, alpha])[y0:y1, x0:x1], box
