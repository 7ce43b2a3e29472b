"""Segmentation with an exported network; needs NumPy, and ONNX Runtime or PyTorch.

Copy this file and `geometry.py` into a project of yours. It answers as `probseg.Predictor(model)`
does, with the same zoom and kept clicks.

    runner = Runner("exported")
    runner.set_image(image)
    probability = runner.predict([(120, 80, True)])
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probseg import geometry
from probseg.geometry import Array, Box, Size, View, Zoom, box_size, positions, shrink_to

Graph = Callable[[Mapping[str, Array]], Sequence[Array]]


class Answer(NamedTuple):
    """An answer of the network.

    Args:
        values: Probabilities of the object, float32, shape `(h, w, 1)`: at all pixels of the box,
            or at fewer positions, spread evenly from its first to its last pixel.
        box: Outside of it nothing is object: that of the view, or around it and a second look.
        size: `(H, W)` of the image.
        view: What the network saw.
        window: Box that the zoom chose; None for the whole image, or the surroundings of a box.
        feed: What the graph was given.
        logits: What it returned, for the padded image.
        look: Window of the last second look; None before the first.
    """

    values: Array
    box: Box
    size: Size
    view: View
    window: Box | None
    feed: dict[str, Array]
    logits: Array
    look: Box | None = None

    @property
    def shape(self) -> Size:
        """`(h, w)` of the values."""
        return self.values.shape[0], self.values.shape[1]

    def array(self) -> Array:
        """Return the values, shape `(h, w)`."""
        return self.values[..., 0]

    def part(self, view: View) -> Array:
        """Return the probabilities in a box of the image, resized, float32, shape `(h, w, 1)`."""
        return interpolate(self.values, *geometry.view_samples(self, view))


class Runner:
    """Segments one image at a time by clicks.

    Args:
        folder: Written by `probseg export`.
        threads: Threads of ONNX Runtime; 0 lets it choose.
        zoom: Whether to zoom in, or else show the whole image or the surroundings of the box.

    Attributes:
        zoom: The settings of the zoom; None for none.
        answer: The last answer, which the next one depends on; None before the first. What is
            needed of it is read-only.
    """

    def __init__(self, folder: Path | str, threads: int = 0, zoom: bool = True) -> None:
        self.about = _read(Path(folder), "clicks")
        names = {field.name for field in fields(Zoom)}
        settings = {k: v for k, v in self.about["zoom"].items() if k in names}
        self.zoom: Zoom | None = Zoom(**settings) if zoom else None
        self.graphs = _load(self.about, Path(folder), threads)

    def set_image(self, image: npt.NDArray[np.uint8]) -> None:
        """Begin with a new image: RGB, uint8, shape `(H, W, 3)`, any size."""
        _check_image(image)
        self.image = image.copy()
        self.size: Size = image.shape[0], image.shape[1]
        self.copies: list[Array] = []  # reduced, the finest first; none of a small image
        if max(self.size) > self.about["large"]["copies"][0]:
            copy = self.image
            for longest in self.about["large"]["copies"]:
                copy = reduced(copy, shrink_to(self.size, longest))
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
        if not hasattr(self, "image"):
            raise RuntimeError("no image: call set_image(image) before predict(...)")
        for click in clicks:
            geometry.check_click(click, self.size)
        if box is not None:
            self.box = geometry.round_box(box, self.size)
        self.clicks += [(float(x), float(y), bool(positive)) for x, y, positive in clicks]
        if not self.clicks and self.box is None:
            raise ValueError("`clicks` must have at least one click without a `box`, got none")
        answer = self._answer()
        if self.box is not None and not self.clicks and geometry.misses_box(answer, self.box):
            self.clicks = [geometry.box_centre(self.box)]
            answer = self._answer()
            self.clicks = []
        probability = np.zeros(self.size, np.float32)
        x0, y0, x1, y1 = answer.box
        probability[y0:y1, x0:x1] = answer.part(View(answer.box, box_size(answer.box)))[..., 0]
        return probability

    def _answer(self) -> Answer:
        """Return the answer to all prompts, on which the next one depends."""
        zoom, last = self.zoom, None if self.answer is None else self.answer.look
        tried = [self._ask(view, window) for view, window in self._views()]
        self.answer = answer = max(tried, key=geometry.sureness)._replace(look=last)
        views = {self._whole()}  # with which the next object begins
        inputs = list(self.about["graphs"].values())[-1]["inputs"]
        takes_last = any(one["name"] == "previous" for one in inputs)
        if takes_last and zoom is not None and zoom.look is not None:
            # A closer answer, of which this one is the previous mask
            if len(self.clicks) > zoom.skip_clicks:
                click = self.clicks[-1]
                window = geometry.look_window(zoom, answer.view.box, click, self.size, last)
                view = View(window, geometry.look_size(zoom, window))
                views.add(view)
                look = self._ask(view, window)
                same = view == answer.view
                answer = look._replace(look=last) if same else self._laid(answer, look)
            else:
                self.answer = answer = self._ask(answer.view, answer.window)._replace(look=last)
                around = geometry.fitting_window(zoom, answer, self.clicks)
                if around is not None and self.box is None:
                    view = geometry.window_view(zoom, around)
                    views.add(view)  # which the next click sees
                    closer = self._ask(view, around)._replace(look=last)
                    answer = max(answer, closer, key=geometry.sureness)._replace(window=around)
            self.answer = answer
        views.add(answer.view)
        self._known = {view: known for view, known in self._known.items() if view in views}
        return answer

    def _whole(self) -> View:
        """Return what the network sees without a zoom: all, or the surroundings of the box."""
        crop = geometry.crop_around(self.box, self.clicks, self.size)
        longest = self.about["large"]["shown"] if self.copies else None
        return View(crop, shrink_to(box_size(crop), longest))

    def _views(self) -> list[tuple[View, Box | None]]:
        """Return the views to answer, of which the surest counts, with the zoom's windows."""
        zoom, answer = self.zoom, self.answer
        windows: list[Box | None] = [None]
        if zoom is not None:
            alone = len(self.clicks) == 1 and self.clicks[0][2] and self.box is None
            if alone and (answer is None or not answer.values.any()):
                windows = geometry.first_windows(zoom, self.clicks[0], self.size)
            elif answer is not None:
                windows = [geometry.next_window(zoom, answer.window, answer, self.clicks)]
        return [
            (self._whole(), None)
            if zoom is None or window is None
            else (geometry.window_view(zoom, window), window)
            for window in windows
        ]

    def _laid(self, answer: Answer, look: Answer) -> Answer:
        """Return an answer with the second look in its window, which fades out on its rim."""
        box, rows, columns = geometry.look_share(answer, look)
        view = View(box, (len(rows), len(columns)))
        share = (rows[:, None] * columns).astype(np.float32)[..., None]
        below, above = answer.part(view), look.part(view)
        values = self._kept(below + share * (above - below), box)
        return answer._replace(values=values, box=box, look=look.box)

    def _ask(self, view: View, window: Box | None) -> Answer:
        """Return the answer from a view."""
        if view not in self._known:
            self._known[view] = self._encode(view)
        size, encoded = self._known[view]
        feed = {**encoded, **self._prompts(view, size)}
        padded = self.graphs[list(self.about["graphs"])[-1]](feed)[0][0, 0]
        logits = resized(padded[: size[0], : size[1], None], view.size)
        values = sigmoid(logits / np.float32(self.about["temperature"]))
        if not self.copies:  # one for each pixel
            rows, columns = values.shape[:2]
            height, width = box_size(view.box)
            values = interpolate(values, positions(0, rows, height), positions(0, columns, width))
        values = self._kept(values, view.box)
        return Answer(values, view.box, self.size, view, window, feed, padded)

    def _kept(self, values: Array, box: Box) -> Array:
        """Return values `(h, w, 1)`, read-only, with each click's label at its pixel, if zoomed."""
        if self.zoom is not None:
            values = geometry.keep_clicks(values[..., 0], box, self.clicks)[..., None]
        values.flags.writeable = False  # the next answer needs them
        return values

    def _shown(self, view: View) -> Array:
        """Return the pixels of a view, in [0, 1], from the smallest copy that has enough."""
        (x0, y0, x1, y1), (h, w) = view
        sizes = [(copy.shape[0], copy.shape[1]) for copy in self.copies]
        number = geometry.find_copy(view, self.size, sizes)
        if number is None:
            rows, columns = positions(0, y1 - y0, h), positions(0, x1 - x0, w)
            return interpolate(self.image[y0:y1, x0:x1], rows, columns) / np.float32(255)
        copy, (height, width) = self.copies[number], sizes[number]
        if view == View((0, 0, self.size[1], self.size[0]), sizes[number]):
            return copy / np.float32(255)
        rows, columns = geometry.copy_samples(view, self.size, sizes[number])
        shown = interpolate(copy, rows.clip(0, height - 1), columns.clip(0, width - 1))
        return shown / np.float32(255)

    def _encode(self, view: View) -> tuple[Size, dict[str, Array]]:
        """Return the size at which the network works, and what all prompts on a view need."""
        size = shrink_to(view.size, self.about["working_size"])
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
        places = np.array([click[:2] for click in self.clicks], float).reshape(-1, 2)
        clicked, box = geometry.to_samples(places, view), geometry.box_to_samples(self.box, view)
        labels = [int(positive) for _, _, positive in self.clicks]
        points = (clicked.astype(np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
        previous = np.zeros((*size, 1), np.float32)
        if self.answer is not None:
            before = uncalibrate(self.answer.part(view), self.about["temperature"])
            previous = resized(before, size)
        # The graphs take two rows at least; those of label -1 are not clicks.
        return {
            "points": np.concatenate([points, np.zeros((2, 2), np.float32)])[None],
            "labels": np.array([[*labels, -1, -1]], np.int64),
            "box": (box.reshape(4).astype(np.float32) * np.tile(scale, 2))[None],
            "previous": self._padded(previous),
        }

    def _padded(self, maps: Array) -> Array:
        """Pad `(h, w, C)` to whole cells, at the bottom and on the right; return `(1, C, H, W)`."""
        bottom, right = (-side % self.about["cell"] for side in maps.shape[:2])
        padded = np.pad(maps, ((0, bottom), (0, right), (0, 0)))
        return np.ascontiguousarray(padded.transpose(2, 0, 1)[None], np.float32)


class ClassRunner:
    """Tells the class of each pixel.

    Args:
        folder: Written by `probseg export` of a model for semantic segmentation.
        threads: Threads of ONNX Runtime; 0 lets it choose.

    Attributes:
        classes: Their names, by number.
    """

    def __init__(self, folder: Path | str, threads: int = 0) -> None:
        self.about = _read(Path(folder), "classes")
        self.classes: list[str] = self.about["classes"]
        self.graphs = _load(self.about, Path(folder), threads)

    def predict(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return class numbers, uint8, shape `(H, W)`, of an image, RGB, uint8, `(H, W, 3)`."""
        _check_image(image)
        labels: npt.NDArray[np.uint8] = self.logits(image).argmax(axis=0).astype(np.uint8)
        return labels

    def logits(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return the logits of all classes, float32, shape `(C, H, W)`."""
        (height, width), cell = image.shape[:2], self.about["cell"]
        mean, std = (np.array(self.about[name], np.float32) for name in ("mean", "std"))
        pixels = (image / np.float32(255) - mean) / std
        # One pixel more than whole cells: samples lie on the corners of cells.
        around = ((0, -(height - 1) % cell), (0, -(width - 1) % cell), (0, 0))
        padded = np.pad(pixels, around).transpose(2, 0, 1)[None]
        outputs = self.graphs["classes"]({"image": np.ascontiguousarray(padded, np.float32)})
        logits: npt.NDArray[np.float32] = outputs[0][0, :, :height, :width]
        return logits


def _check_image(image: npt.NDArray[np.uint8]) -> None:
    if not isinstance(image, np.ndarray):
        raise ValueError(
            f"`image` must be an array, got {type(image).__name__}; np.asarray(Image.open(path)."
            'convert("RGB")) reads one'
        )
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
        raise ValueError(
            f"`image` must be RGB, uint8, of shape (H, W, 3), got {image.dtype} of shape "
            f"{image.shape}"
        )


def _read(folder: Path, wanted: str) -> dict[str, Any]:
    """Return the description of a network for clicks or for classes."""
    place = folder / "export.json"
    if not place.is_file():
        raise FileNotFoundError(f"{place}: no such file; give the folder of `probseg export`")
    about: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    held = "classes" if "classes" in about else "clicks"
    if held != wanted:
        use = "ClassRunner" if held == "classes" else "Runner"
        raise ValueError(
            f"`folder` must hold a network for {wanted}, got one for {held}: use {use}"
        )
    return about


def _load(about: Mapping[str, Any], folder: Path, threads: int) -> dict[str, Graph]:
    """Return a function of named arrays for each graph; it returns a list of arrays."""
    graphs: dict[str, Graph] = {}
    for name, graph in about["graphs"].items():
        file = str(folder / graph["file"])
        if file.endswith(".pt2"):
            import torch

            inputs = [one["name"] for one in graph["inputs"]]
            load = torch.export.load(file).module
            # Guards refuse images of one cell, which PyTorch 2.8 does not check.
            unchecked = {"check_guards"} & signature(load).parameters.keys()
            graphs[name] = partial(_run_torch, load(**dict.fromkeys(unchecked, False)), inputs)
            continue
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
        inputs = [one.name for one in session.get_inputs()]  # a slimmer may have left some out
        graphs[name] = partial(_run, session, inputs)
    return graphs


def _run(session: Any, names: Sequence[str], feed: Mapping[str, Array]) -> Sequence[Array]:  # noqa: ANN401
    """Run a session of ONNX Runtime."""
    outputs: Sequence[Array] = session.run(None, {name: feed[name] for name in names})
    return outputs


def _run_torch(module: Any, names: Sequence[str], feed: Mapping[str, Array]) -> Sequence[Array]:  # noqa: ANN401
    """Run a program of PyTorch."""
    import torch

    with torch.inference_mode():
        outputs = module(*(torch.tensor(feed[name]) for name in names))
    return [one.numpy() for one in (outputs if isinstance(outputs, tuple) else (outputs,))]


def interpolate(maps: Array, rows: Array, columns: Array) -> Array:
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


def reduced(image: npt.NDArray[np.uint8], size: Size) -> npt.NDArray[np.uint8]:
    """Reduce an image by means of areas: by OpenCV, as probseg does, where it is installed."""
    if find_spec("cv2") is None:
        return averaged(image, size)
    import cv2

    copy: npt.NDArray[np.uint8] = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
    return copy


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


def uncalibrate(probability: Array, temperature: float) -> Array:
    """Return the sigmoid of the logits before they were divided by the temperature."""
    if temperature == 1:
        return probability
    with np.errstate(divide="ignore"):  # the logits of 0 and 1 are infinite
        logits = np.log(probability) - np.log1p(-probability)
    return sigmoid(np.float32(temperature) * logits)
