"""Segmentation by clicks with an exported network; needs NumPy and ONNX Runtime alone.

Copy this file into a project of yours. It answers as `probseg.Predictor(model)` does for a network
that pads all images to the same square, with the same zoom and kept clicks.

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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Box = tuple[int, int, int, int]
Size = tuple[int, int]
Graph = Callable[[Mapping[str, Array]], Sequence[Array]]


class View(NamedTuple):
    """What the network sees: a box of the image, resized to `(h, w)`."""

    box: Box
    size: Size


class Answer(NamedTuple):
    """An answer of the network.

    Args:
        values: Probabilities of the object, float32, shape `(h, w, 1)`: at all pixels of the box,
            or at fewer positions, spread evenly from its first to its last pixel.
        box: Outside of it nothing is object: that of the view, or around it and a second look.
        view: What the network saw.
        window: Box that the zoom chose; None for the whole image, or the surroundings of a box.
        feed: What the graph was given.
        logits: What it returned, for the padded image.
        look: Window of the last second look; None before the first.
    """

    values: Array
    box: Box
    view: View
    window: Box | None
    feed: dict[str, Array]
    logits: Array
    look: Box | None = None

    def part(self, box: Box, size: Size) -> Array:
        """Return the probabilities in a box of the image, resized, float32, shape `(h, w, 1)`."""
        x0, y0, x1, y1 = self.box
        rows, columns = self.values.shape[:2]
        return sampled(
            self.values,
            (positions(box[1], box[3], size[0]) - y0) * ((rows - 1) / max(1, y1 - y0 - 1)),
            (positions(box[0], box[2], size[1]) - x0) * ((columns - 1) / max(1, x1 - x0 - 1)),
        )

    def object_box(self, threshold: float) -> Box | None:
        """Return the smallest box around all above a threshold; None for nothing."""
        above = self.values[..., 0] > threshold
        if not above.any():
            return None
        x0, y0, x1, y1 = self.box
        left, right = _ends(np.flatnonzero(above.any(axis=0)), above.shape[1], x0, x1)
        top, bottom = _ends(np.flatnonzero(above.any(axis=1)), above.shape[0], y0, y1)
        return left, top, right, bottom


class Runner:
    """Segments one image at a time by clicks.

    Args:
        folder: Written by `probseg export --to onnx`.
        threads: Threads of ONNX Runtime; 0 lets it choose.
        zoom: Whether to zoom in, or else show the whole image or the surroundings of the box.

    Attributes:
        zoom: The settings of the zoom; None for none.
        answer: The last answer, which the next one depends on; None before the first. What is
            needed of it is read-only.
    """

    def __init__(self, folder: Path | str, threads: int = 0, zoom: bool = True) -> None:
        self.about = json.loads((Path(folder) / "export.json").read_text(encoding="utf-8"))
        self.zoom: dict[str, Any] | None = self.about["zoom"] if zoom else None
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
        self.size: Size = image.shape[0], image.shape[1]
        self.copies: list[Array] = []  # reduced, the finest first; none of a small image
        if max(self.size) > self.about["large"]["copies"][0]:
            copy = self.image
            for longest in self.about["large"]["copies"]:
                copy = averaged(copy, _reduced(self.size, longest))
                self.copies.append(copy)
        self._known: dict[View, tuple[Size, dict[str, Array]]] = {}
        self.reset()

    def reset(self) -> None:
        """Forget box and clicks; the image stays."""
        self.clicks: list[tuple[float, float, bool]] = []
        self.box: Box | None = None
        self.answer: Answer | None = None

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
        height, width = self.size
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
        tried = [self._ask(self._view(window), window) for window in self._windows()]
        best = tried[0] if len(tried) == 1 else max(tried, key=self._surety)
        last = None if self.answer is None else self.answer.look
        self.answer = answer = best._replace(look=last)
        views = {answer.view, self._view(None)}  # the next object begins with the second
        if self._looks:
            window, view = answer.window, answer.view
            if self.zoom is not None and len(self.clicks) > self.zoom["skip_clicks"]:
                window = self._look_window(view.box, last)
                view = View(window, self._look_size(window))
                views.add(view)
            look = self._ask(view, window)
            same = view == answer.view
            answer = look._replace(look=last) if same else self._with_look(answer, look)
            self.answer = answer
        self._known = {view: known for view, known in self._known.items() if view in views}
        probability = np.zeros(self.size, np.float32)
        x0, y0, x1, y1 = answer.box
        probability[y0:y1, x0:x1] = answer.part(answer.box, box_size(answer.box))[..., 0]
        return probability

    @property
    def _looks(self) -> bool:
        """Whether each answer is followed by a closer one, of which it is the previous mask."""
        inputs = list(self.about["graphs"].values())[-1]["inputs"]
        takes = any(one["name"] == "previous" for one in inputs)
        return takes and self.zoom is not None and self.zoom["look"] is not None

    def _look_window(self, window: Box, last: Box | None) -> Box:
        """Return the window of the second look: the last one where it serves."""
        assert self.zoom is not None, "it looks"
        x, y, _ = self.clicks[-1]
        new = _square(
            x,
            y,
            round(self.zoom["look"] * max(*box_size(window), self.zoom["min_side"])),
            self.size,
        )
        if last is None or _overlap(last, new) < self.zoom["keep_above"]:
            return new
        x0, y0, x1, y1 = self._within_rim(last)
        return last if x0 <= x < x1 and y0 <= y < y1 else new

    def _look_size(self, window: Box) -> Size:
        assert self.zoom is not None, "it looks"
        size = box_size(window)
        return _scaled(size, min(max(*size, self.zoom["look_target"]), self.zoom["target"]))

    def _within_rim(self, look: Box) -> Box:
        """Return the window of a look without its rim, which it has not at the image's border."""
        assert self.zoom is not None, "it looks"
        (x0, y0, x1, y1), (height, width) = look, self.size
        rim = max(box_size(look)) // self.zoom["rim"]
        left, top = x0 + rim * (x0 > 0), y0 + rim * (y0 > 0)
        return left, top, x1 - rim * (x1 < width), y1 - rim * (y1 < height)

    def _with_look(self, answer: Answer, look: Answer) -> Answer:
        """Return an answer with the second look in its window, which fades out on its rim."""
        box = (
            min(answer.box[0], look.box[0]),
            min(answer.box[1], look.box[1]),
            max(answer.box[2], look.box[2]),
            max(answer.box[3], look.box[3]),
        )
        inner, shares, counts = self._within_rim(look.box), [], []
        for axis in (1, 0):
            lengths = [one.box[axis + 2] - one.box[axis] for one in (answer, look)]
            dense = [
                one.values.shape[1 - axis] / n
                for one, n in zip((answer, look), lengths, strict=True)
            ]
            counts.append(round((box[axis + 2] - box[axis]) * min(1, max(dense))))
            at = positions(box[axis], box[axis + 2], counts[-1])
            shares.append(_share(at, look.box[axis::2], inner[axis::2]))
        size = counts[0], counts[1]
        share = (shares[0][:, None] * shares[1]).astype(np.float32)[..., None]
        below, above = answer.part(box, size), look.part(box, size)
        values = self._kept(below + share * (above - below), box)
        values.flags.writeable = False
        return answer._replace(values=values, box=box, look=look.box)

    def _ask(self, view: View, window: Box | None) -> Answer:
        """Return the answer from a view."""
        if view not in self._known:
            self._known[view] = self._encode(view)
        size, encoded = self._known[view]
        feed = {**encoded, **self._prompts(view, size)}
        last = list(self.about["graphs"])[-1]
        feed = {one["name"]: feed[one["name"]] for one in self.about["graphs"][last]["inputs"]}
        padded = self.graphs[last](feed)[0][0, 0]
        logits = resized(padded[: size[0], : size[1], None], view.size)
        values = sigmoid(logits / np.float32(self.about["temperature"]))
        if not self.copies:  # one for each pixel
            height, width = box_size(view.box)
            rows, columns = values.shape[:2]
            values = sampled(values, positions(0, rows, height), positions(0, columns, width))
        if self.zoom is not None:
            values = self._kept(values, view.box)
        values.flags.writeable = False  # the next answer needs them
        return Answer(values, view.box, view, window, feed, padded)

    def _kept(self, values: Array, box: Box) -> Array:
        """Return the values `(h, w, 1)` of a box with each click's label at its pixel."""
        (x0, y0, x1, y1), (rows, columns) = box, values.shape[:2]
        view = View(box, (rows, columns))
        labels: dict[tuple[int, int], int] = {}
        for x, y, positive in self.clicks:
            if x0 <= x < x1 and y0 <= y < y1:
                ((column, row),) = _places(np.floor([[x, y]]), view)
                for at in {(r, c) for r in _around(row, rows) for c in _around(column, columns)}:
                    labels[at] = 1 if positive else -1
        if not labels:
            return values
        settings, signs = self.about["kept"], np.array(list(labels.values()))
        samples = np.array(list(labels))
        given = _logits(values[samples[:, 0], samples[:, 1], 0], settings["clamped"])
        fails = given * signs < settings["margin"]
        if not fails.any():
            return values
        wanted = np.where(fails, settings["margin"] * signs, given)
        return conditioned(values[..., 0], samples, wanted, settings)[..., None]

    def _view(self, window: Box | None) -> View:
        if window is not None and self.zoom is not None:
            return View(window, _scaled(box_size(window), self.zoom["target"]))
        seen, longest = self._crop(), self.about["large"]["shown"]
        return View(seen, _reduced(box_size(seen), longest if self.copies else None))

    def _windows(self) -> list[Box | None]:
        """Return the windows among whose answers the surest is chosen."""
        zoom = self.zoom
        if zoom is None:
            return [None]
        alone = len(self.clicks) == 1 and self.clicks[0][2] and self.box is None
        if alone and (self.answer is None or not self.answer.values.any()):
            return self._first_windows(zoom)
        found = None if self.answer is None else self.answer.object_box(zoom["threshold"])
        if len(self.clicks) <= zoom["skip_clicks"] or found is None:
            return [None]
        positive = [(int(x), int(y)) for x, y, label in self.clicks if label]
        xs = [found[0], found[2] - 1, *(x for x, _ in positive)]
        ys = [found[1], found[3] - 1, *(y for _, y in positive)]
        left, right = _widened(min(xs), max(xs), zoom, self.size[1])
        top, bottom = _widened(min(ys), max(ys), zoom, self.size[0])
        new = left, top, right, bottom
        old = None if self.answer is None else self.answer.window
        if old is None:
            return [new]
        x0, y0, x1, y1 = old
        inside = all(x0 <= x < x1 - 1 and y0 <= y < y1 - 1 for x, y in positive)
        return [old if inside and _overlap(old, new) >= zoom["keep_above"] else new]

    def _first_windows(self, zoom: Mapping[str, Any]) -> list[Box | None]:
        """Return squares of several sizes around the first click, None for the whole image."""
        x, y, _ = self.clicks[0]
        windows: list[Box | None] = []
        for scale in zoom["first"]:
            side = max(zoom["smallest_side"], round(scale * max(self.size)))
            window = _square(x, y, side, self.size)
            windows.append(None if box_size(window) == self.size else window)
        return list(dict.fromkeys(windows))

    def _surety(self, answer: Answer) -> float:
        """Return the IoU that an answer expects of itself, less where its window cuts the mask."""
        assert self.zoom is not None, "several answers"
        probability = answer.values[..., 0]
        inside = probability > 0.5
        area = int(inside.sum())
        if not area:
            return 0.0
        hit = float(probability[inside].sum())
        expected = hit / (area + float(probability.sum()) - hit)
        (x0, y0, x1, y1), (height, width) = answer.view.box, self.size
        cut = (
            (x0 > 0 and inside[:, 0].any())
            or (x1 < width and inside[:, -1].any())
            or (y0 > 0 and inside[0].any())
            or (y1 < height and inside[-1].any())
        )
        return expected * self.zoom["cut"] if cut else expected

    def _crop(self) -> Box:
        """Return what the network sees without a zoom: all, or the surroundings of a box."""
        height, width = self.size
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
        height, width = self.size
        x0, y0, x1, y1 = box
        share, pixels = self.about["crop_margin"]
        margin = max(pixels, math.ceil(share * max(x1 - x0, y1 - y0)))
        left, top = max(0, x0 - margin), max(0, y0 - margin)
        return left, top, min(width, x1 + margin), min(height, y1 + margin)

    def _shown(self, view: View) -> Array:
        """Return the pixels of a view, in [0, 1], from the smallest copy that has enough."""
        (x0, y0, x1, y1), (h, w) = view
        height, width = self.size
        for copy in reversed(self.copies):
            if view == View((0, 0, width, height), copy.shape[:2]):
                return copy / np.float32(255)
            scale_y, scale_x = copy.shape[0] / height, copy.shape[1] / width
            if (y1 - y0) * scale_y >= h and (x1 - x0) * scale_x >= w:
                rows = ((positions(y0, y1, h) + 0.5) * scale_y - 0.5).clip(0, copy.shape[0] - 1)
                columns = ((positions(x0, x1, w) + 0.5) * scale_x - 0.5).clip(0, copy.shape[1] - 1)
                return sampled(copy, rows, columns) / np.float32(255)
        part = self.image[y0:y1, x0:x1]
        return sampled(part, positions(0, y1 - y0, h), positions(0, x1 - x0, w)) / np.float32(255)

    def _encode(self, view: View) -> tuple[Size, dict[str, Array]]:
        """Return the size at which the network works, and what all prompts on a view need."""
        size = _reduced(view.size, self.about["working_size"])
        mean, std = (np.array(self.about[name], np.float32) for name in ("mean", "std"))
        encoded = {"image": self._padded((resized(self._shown(view), size) - mean) / std)}
        if "encode" in self.graphs:
            names = [one["name"] for one in self.about["graphs"]["encode"]["outputs"]]
            encoded.update(zip(names, self.graphs["encode"](encoded), strict=True))
        for array in encoded.values():  # of `feed`, too, but needed for the next answer
            array.flags.writeable = False
        return size, encoded

    def _prompts(self, view: View, size: Size) -> dict[str, Array]:
        """Return the prompts as the network takes them, in pixels of what it sees."""
        h, w = view.size
        scale = np.array([size[1] / w, size[0] / h], np.float32)
        clicked = _places(np.array([click[:2] for click in self.clicks]).reshape(-1, 2), view)
        labels = [int(positive) for _, _, positive in self.clicks]
        box = np.full(4, np.nan)
        if self.box is not None:
            ends = np.array([[0], [1]])  # behind its last pixel
            box = (_places(np.reshape(self.box, (2, 2)) - ends, view) + ends).reshape(4)
        points = (clicked.astype(np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
        previous = np.zeros((*size, 1), np.float32)
        if self.answer is not None:
            before = uncalibrated(self.answer.part(*view), self.about["temperature"])
            previous = resized(before, size)
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


def box_size(box: Box) -> Size:
    """Return `(H, W)` of a box."""
    return box[3] - box[1], box[2] - box[0]


def positions(first: int, end: int, count: int) -> Array:
    """Return the places of samples from the first pixel of an interval to the last one."""
    return np.linspace(first, end - 1, count) if count > 1 else np.array([float(first)])


def sampled(maps: Array, rows: Array, columns: Array) -> Array:
    """Interpolate maps `(H, W, C)` on a grid, in pixels; outside of the maps is 0."""
    for axis, at in ((1, columns), (0, rows)):
        length = maps.shape[axis]
        if len(at) == length and np.array_equal(at, np.arange(length)):
            continue
        first = np.floor(at).astype(int)
        taps = first[:, None] + np.arange(2)
        weights = np.stack([1 - (at - first), at - first], axis=1)
        maps = _weighted(maps, axis, taps, weights)
    return maps


def resized(maps: Array, size: Size) -> Array:
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
        maps = _weighted(maps, axis, taps, weights)
    return maps


def averaged(image: npt.NDArray[np.uint8], size: Size) -> npt.NDArray[np.uint8]:
    """Reduce an image `(H, W, 3)`: each pixel is the mean of the area that it covers."""
    maps: Array = image
    for axis, new in enumerate(size):
        ratio = maps.shape[axis] / new
        first = np.arange(new)[:, None] * ratio
        taps = np.floor(first).astype(int) + np.arange(math.ceil(ratio) + 1)
        covered = np.minimum(taps + 1, first + ratio) - np.maximum(taps, first)
        maps = _weighted(maps, axis, taps, covered.clip(0) / ratio)
    return (maps + np.float32(0.5)).astype(np.uint8)


def _weighted(maps: Array, axis: int, taps: Array, weights: Array) -> Array:
    """Return sums of lines of maps along an axis, float32; lines outside of the maps are 0.

    Args:
        maps: Shape `(H, W, C)`.
        axis: 0 or 1.
        taps: Numbers of the lines of each sum, shape `(n, k)`.
        weights: Their factors, shape `(n, k)`.
    """
    lines = np.moveaxis(maps, axis, 0)
    weights = (weights * ((taps >= 0) & (taps < len(lines)))).astype(np.float32)
    total = np.zeros((len(taps), *lines.shape[1:]), np.float32)
    for tap, weight in zip(taps.clip(0, len(lines) - 1).T, weights.T, strict=True):
        total += weight[:, None, None] * lines[tap]
    return np.ascontiguousarray(np.moveaxis(total, 0, axis))


def sigmoid(logits: Array) -> npt.NDArray[np.float32]:
    """Return probabilities, float32."""
    return (0.5 * (1 + np.tanh(0.5 * logits))).astype(np.float32)


def conditioned(values: Array, samples: Array, logits: Array, settings: Mapping[str, Any]) -> Array:
    """Return probabilities whose logits, the mean of a Gaussian process, meet observations.

    Args:
        values: Probabilities, shape `(h, w)`.
        samples: Rows and columns of the observed values, shape `(n, 2)`.
        logits: The observations, shape `(n,)`.
        settings: Those of `kept` in `export.json`.
    """
    length, clamped = settings["length"] * max(values.shape), settings["clamped"]

    def kernel(steps: Array, axis: int) -> Array:
        factors: Array = np.exp(-(((steps[:, None] - samples[:, axis]) / length) ** 2) / 2)
        return factors

    covariance = kernel(samples[:, 0], 0) * kernel(samples[:, 1], 1)
    covariance += settings["jitter"] * np.eye(len(samples))
    before = _logits(values[samples[:, 0], samples[:, 1]], clamped)
    weights = np.linalg.solve(covariance, logits - before)
    reach = math.ceil(settings["reach"] * length)
    result = values.copy()
    for row, column in samples[np.abs(weights) > settings["negligible"]].tolist():
        top, left = max(0, row - reach), max(0, column - reach)
        window = slice(top, row + reach + 1), slice(left, column + reach + 1)
        given = _logits(values[window], clamped)
        rows = kernel(top + np.arange(given.shape[0]), 0)
        columns = kernel(left + np.arange(given.shape[1]), 1)
        result[window] = sigmoid(given + (rows * weights) @ columns.T)
    result[samples[:, 0], samples[:, 1]] = sigmoid(logits)
    return result


def _logits(values: Array, clamped: float) -> Array:
    """Return the logits of probabilities, float64."""
    values = values.astype(np.float64).clip(clamped, 1 - clamped)
    return np.log(values) - np.log1p(-values)


def _places(points: Array, view: View) -> Array:
    """Return where points `(x, y)` of the image lie among the samples of a view, corners aligned.

    A point with a fraction belongs to its pixel: on the last one it lies on the last sample.
    """
    (x0, y0, x1, y1), (h, w) = view
    pixels, samples = np.array([x1 - x0, y1 - y0]), np.array([w, h])
    relative: Array = points - (x0, y0)
    if (pixels == samples).all():
        return relative
    relative = np.where(relative < pixels, np.minimum(relative, pixels - 1), relative)
    moved: Array = relative * ((samples - 1) / np.maximum(pixels - 1, 1))
    return moved


def _around(place: float, count: int) -> range:
    """Return the one or two of so many samples nearest to a place, as far as the next ones."""
    return range(math.floor(place), min(math.ceil(place), count - 1) + 1)


def uncalibrated(probability: Array, temperature: float) -> Array:
    """Return the sigmoid of the logits before they were divided by the temperature."""
    if temperature == 1:
        return probability
    with np.errstate(divide="ignore"):  # the logits of 0 and 1 are infinite
        logits = np.log(probability) - np.log1p(-probability)
    return sigmoid(np.float32(temperature) * logits)


def _reduced(size: Size, longest: int | None) -> Size:
    """Return the size that fits into the longest side."""
    if longest is None or max(size) <= longest:
        return size
    return _scaled(size, longest)


def _scaled(size: Size, longest: int) -> Size:
    """Return the size whose longer side is this."""
    factor = longest / max(size)
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def _ends(places: Array, count: int, first: int, end: int) -> tuple[int, int]:
    """Return the pixels of an interval, half-open, on which the outermost of its samples lie."""
    pixels = [int(place) * (end - first - 1) / max(1, count - 1) for place in places[[0, -1]]]
    return first + round(pixels[0]), first + round(pixels[1]) + 1


def _widened(first: int, last: int, zoom: Mapping[str, Any], length: int) -> tuple[int, int]:
    """Widen an interval about its centre, and cut it at the border of the image; half-open."""
    centre = 0.5 * (first + last)
    side = max(zoom["expansion"] * (last - first + 1), zoom["min_side"])
    return max(0, round(centre - 0.5 * side)), min(length - 1, round(centre + 0.5 * side)) + 1


def _square(x: float, y: float, side: int, size: Size) -> Box:
    """Return a square of this side about a point, moved and cut to lie in the image `(H, W)`."""
    height, width = (min(side, length) for length in size)
    left = min(max(int(x) - width // 2, 0), size[1] - width)
    top = min(max(int(y) - height // 2, 0), size[0] - height)
    return left, top, left + width, top + height


def _share(at: Array, outer: Sequence[int], inner: Sequence[int]) -> Array:
    """Return the share of a look at places of an axis: 1 in an interval, 0 outside of another."""
    rising = (at - outer[0] + 1) / (inner[0] - outer[0] + 1)
    falling = (outer[1] - at) / (outer[1] - inner[1] + 1)
    share: Array = np.minimum(rising, falling).clip(0, 1)
    return share * ((at >= outer[0]) & (at <= outer[1] - 1))


def _overlap(a: Box, b: Box) -> float:
    """Return the product of the IoUs of rows and columns."""
    return _interval_iou(a[0::2], b[0::2]) * _interval_iou(a[1::2], b[1::2])


def _interval_iou(a: Sequence[int], b: Sequence[int]) -> float:
    """Return the IoU of two half-open intervals of pixels."""
    inside = max(0, min(a[1], b[1]) - max(a[0], b[0]))
    return inside / max(1e-6, max(a[1], b[1]) - min(a[0], b[0]))
