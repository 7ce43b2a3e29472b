"""Segmentation by clicks with an exported network; needs NumPy and ONNX Runtime alone.

Copy this file into a project of yours. It answers as `probseg.Predictor(model, zoom=None)` does for
a network that pads all images to the same square.

    runner = Runner("exported")
    runner.set_image(image)
    probability = runner.predict([(120, 80, True)])
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Box = tuple[int, int, int, int]
Graph = Callable[[Mapping[str, Array]], Sequence[Array]]


class Runner:
    """Segments one image at a time by clicks.

    Args:
        folder: Written by `probseg export --to onnx`.
        threads: Threads of ONNX Runtime; 0 lets it choose.

    Attributes:
        feed: What the graph of the last answer was given; what the next one needs is read-only.
        logits: What it returned, for the padded image.
    """

    def __init__(self, folder: Path | str, threads: int = 0) -> None:
        self.about = json.loads((Path(folder) / "export.json").read_text(encoding="utf-8"))
        self.graphs = self.load(Path(folder), threads)

    def load(self, folder: Path, threads: int) -> dict[str, Graph]:
        """Return a function of named arrays for each graph; it returns a list of arrays."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        graphs: dict[str, Graph] = {}
        for name, graph in self.about["graphs"].items():
            file = str(folder / graph["file"])
            session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
            graphs[name] = partial(session.run, None)
        return graphs

    def set_image(self, image: npt.NDArray[np.uint8]) -> None:
        """Begin with a new image: RGB, uint8, shape `(H, W, 3)`, any size."""
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
            msg = (
                f"`image` must be RGB, uint8, of shape (H, W, 3), got {image.dtype} of shape "
                f"{image.shape}"
            )
            raise ValueError(msg)
        self.image = image.copy()
        self.crop: Box | None = None
        self.encoded: dict[str, Array] = {}
        self.reset()

    def reset(self) -> None:
        """Forget box and clicks; the image stays."""
        self.clicks: list[tuple[float, float, bool]] = []
        self.box: Box | None = None
        self.previous = np.zeros((*self.image.shape[:2], 1), np.float32)

    def predict(
        self,
        clicks: Sequence[tuple[float, float, bool]] = (),
        box: tuple[float, float, float, float] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Add prompts and return the probability of the object, float32, shape `(H, W)`.

        Args:
            clicks: `(x, y, positive)` each, in pixels of the image, x to the right.
            box: Half-open `(x0, y0, x1, y1)` around the object; replaces an earlier one.
        """
        height, width = self.image.shape[:2]
        for x, y, _ in clicks:
            if not (0 <= x < width and 0 <= y < height):
                msg = (
                    f"`clicks` must satisfy 0 <= x < {width} and 0 <= y < {height}, got ({x}, {y})"
                )
                raise ValueError(msg)
        if box is not None:
            x0, y0, x1, y1 = box
            if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
                msg = (
                    f"`box` must satisfy 0 <= x0 < x1 <= {width} and 0 <= y0 < y1 <= {height}, "
                    f"got {tuple(box)}"
                )
                raise ValueError(msg)
            self.box = (math.floor(x0), math.floor(y0), math.ceil(x1), math.ceil(y1))
        self.clicks += clicks
        if not self.clicks and self.box is None:
            msg = "`clicks` must have at least one click where there is no `box`, got none"
            raise ValueError(msg)
        x0, y0, x1, y1 = crop = self._crop()
        if crop != self.crop:
            self._encode(crop)
        feed = {**self.encoded, **self._prompts(crop)}
        last = list(self.about["graphs"])[-1]
        wanted = [one["name"] for one in self.about["graphs"][last]["inputs"]]
        self.feed = {name: feed[name] for name in wanted}
        self.logits = self.graphs[last](self.feed)[0][0, 0]
        h, w = self.working_size
        logits = resized(self.logits[:h, :w, None], (y1 - y0, x1 - x0))
        self.previous = np.zeros((height, width, 1), np.float32)
        self.previous[y0:y1, x0:x1] = sigmoid(logits)
        probability = np.zeros((height, width), np.float32)
        probability[y0:y1, x0:x1] = sigmoid(logits[..., 0] / self.about["temperature"])
        return probability

    def _crop(self) -> Box:
        """Return the part of the image that the network sees: all, or the surroundings of a box."""
        height, width = self.image.shape[:2]
        if self.box is None:
            return 0, 0, width, height
        crop = self._surroundings(self.box)
        xs, ys = ([math.floor(click[axis]) for click in self.clicks] for axis in (0, 1))
        if all(
            crop[0] <= x < crop[2] and crop[1] <= y < crop[3] for x, y in zip(xs, ys, strict=True)
        ):
            return crop
        x0, y0, x1, y1 = self.box
        right, bottom = max([x1, *(x + 1 for x in xs)]), max([y1, *(y + 1 for y in ys)])
        return self._surroundings((min([x0, *xs]), min([y0, *ys]), right, bottom))

    def _surroundings(self, box: Box) -> Box:
        height, width = self.image.shape[:2]
        x0, y0, x1, y1 = box
        share, pixels = self.about["crop_margin"]
        margin = max(pixels, math.ceil(share * max(x1 - x0, y1 - y0)))
        left, top = max(0, x0 - margin), max(0, y0 - margin)
        return left, top, min(width, x1 + margin), min(height, y1 + margin)

    def _encode(self, crop: Box) -> None:
        """Encode the crop, which is needed once for all clicks in it."""
        x0, y0, x1, y1 = crop
        size = (y1 - y0, x1 - x0)
        longest = self.about["working_size"]
        if max(size) > longest:
            factor = longest / max(size)
            size = max(1, round(size[0] * factor)), max(1, round(size[1] * factor))
        pixels = resized(self.image[y0:y1, x0:x1].astype(np.float32) / 255, size)
        pixels = (pixels - np.array(self.about["mean"], np.float32)) / np.array(
            self.about["std"], np.float32
        )
        self.crop, self.working_size = crop, size
        self.encoded = {"image": self._padded(pixels)}
        if "encode" in self.graphs:
            names = [one["name"] for one in self.about["graphs"]["encode"]["outputs"]]
            self.encoded.update(zip(names, self.graphs["encode"](self.encoded), strict=True))
        for array in self.encoded.values():  # of `feed`, too, but needed for the next answer
            array.flags.writeable = False

    def _prompts(self, crop: Box) -> dict[str, Array]:
        """Return the prompts as the network takes them, in pixels of what it sees."""
        x0, y0, x1, y1 = crop
        h, w = self.working_size
        corner, scale = (x0, y0), np.array([w / (x1 - x0), h / (y1 - y0)], np.float32)
        clicked = np.array([click[:2] for click in self.clicks]).reshape(-1, 2) - corner
        labels = [int(positive) for _, _, positive in self.clicks]
        box = np.full(4, np.nan) if self.box is None else np.subtract(self.box, corner * 2)
        points = (clicked.astype(np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
        previous = resized(self.previous[y0:y1, x0:x1], self.working_size)
        # The graphs take two rows at least; those of label -1 are no clicks.
        return {
            "points": np.concatenate([points, np.zeros((2, 2), np.float32)])[None],
            "labels": np.array([[*labels, -1, -1]], np.int64),
            "box": (box.astype(np.float32) * np.tile(scale, 2))[None],
            "previous": self._padded(previous),
        }

    def _padded(self, maps: Array) -> Array:
        """Pad `(h, w, C)` with zeros at the bottom and on the right; return `(1, C, S, S)`."""
        bottom, right = (self.about["side"] - side for side in maps.shape[:2])
        padded = np.pad(maps, ((0, bottom), (0, right), (0, 0)))
        return np.ascontiguousarray(padded.transpose(2, 0, 1)[None], np.float32)


def resized(maps: Array, size: tuple[int, int]) -> Array:
    """Resize maps `(H, W, C)` linearly, with a wider filter where they become smaller."""
    for axis, new in enumerate(size):
        old = maps.shape[axis]
        if old == new:
            continue
        reach = max(old / new, 1.0)
        centre = (np.arange(new)[:, None] + 0.5) * old / new
        taps = np.floor(centre - reach).astype(int) + np.arange(math.ceil(2 * reach) + 1)
        weights = np.clip(1 - np.abs(taps + 0.5 - centre) / reach, 0, None)
        weights *= (taps >= 0) & (taps < old)
        weights /= weights.sum(axis=1, keepdims=True)
        lines = np.moveaxis(maps, axis, 0)
        taps = taps.clip(0, old - 1)
        total = np.zeros((new, *lines.shape[1:]), np.float32)
        for tap, weight in zip(taps.T, weights.T, strict=True):
            total += weight[:, None, None].astype(np.float32) * lines[tap]
        maps = np.moveaxis(total, 0, axis)
    return maps


def sigmoid(logits: Array) -> npt.NDArray[np.float32]:
    """Return probabilities, float32."""
    return (0.5 * (1 + np.tanh(0.5 * logits))).astype(np.float32)
