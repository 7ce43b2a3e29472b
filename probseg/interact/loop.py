"""The interaction: predict, compare with the truth, click, predict again.

The state is explicit. `start` and `step` take what there is and return a new `InteractionState`;
nothing is kept between calls. Clicks and boxes in a state are in pixels of the whole image; only
`predict_probability` sees those of the crop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probseg.clicks.annotators import CLICK_RULES, BoolMap
from probseg.clicks.boxes import Box
from probseg.interact.protocols import Protocol as Rules
from probseg.interact.protocols import draw_view
from probseg.metrics import iou
from probseg.types import Click, Prompts, Sample


class Model(Protocol):
    """What answers to clicks: `Segmenter`, or anything else with these two functions."""

    def encode(self, image: Tensor) -> Any:  # noqa: ANN401 (the model's own affair)
        """Take in an image ``(1, 3, H, W)`` in [0, 1]; called once for each image or crop."""

    def decode(self, encoded: Any, prompts: Prompts) -> Tensor:  # noqa: ANN401
        """Return logits ``(1, 1, H, W)`` for all prompts so far; called for each click."""


class OneStep(NamedTuple):
    """A model that is one function of image ``(1, 3, H, W)`` and prompts.

    Args:
        predict: Returns logits ``(1, 1, H, W)``.
    """

    predict: Callable[[Tensor, Prompts], Tensor]

    def encode(self, image: Tensor) -> Tensor:
        """Hand the image on."""
        return image

    def decode(self, encoded: Tensor, prompts: Prompts) -> Tensor:
        """Ask the function."""
        return self.predict(encoded, prompts)


PICTURE_CLICKS = (0, 1, 3, 5)
"""Numbers of clicks whose predictions a `Picture` keeps, besides the last one."""


class InteractionState(NamedTuple):
    """Where an interaction stands.

    Args:
        image: RGB in [0, 1], float32, on the model's device, shape ``(3, H, W)``.
        crop: The part of the image that the model sees.
        encoded: What the model made of the crop; None before it has seen it.
        box: The annotator's box, or None.
        clicks: The clicks so far.
        probability: Of the object, float32, shape ``(H, W)``; 0 outside the crop.
        seconds: Time of the last answer, with the encoding of the crop if it was new; None before
            the first.
    """

    image: Tensor
    crop: Box
    encoded: Any
    box: Box | None
    clicks: tuple[Click, ...]
    probability: npt.NDArray[np.float32]
    seconds: float | None


class Step(NamedTuple):
    """One line of a run.

    Args:
        k: Number of corrective clicks given so far; 0 is before the first.
        x: Column of the k-th click in the whole image; None without a click.
        y: Row of the k-th click in the whole image; None without a click.
        positive: Sign of the k-th click; None without a click.
        iou: IoU over the whole image after it.
        seconds: Time of the model's call; None without a call.
    """

    k: int
    x: int | None
    y: int | None
    positive: bool | None
    iou: float
    seconds: float | None


class Frame(NamedTuple):
    """A prediction worth looking at: bool, shape ``(h, w)`` of the crop, after ``k`` clicks."""

    k: int
    prediction: BoolMap
    iou: float


@dataclass(frozen=True)
class Picture:
    """What it takes to draw a run; all coordinates are those of the crop.

    Args:
        image: RGB, uint8, shape ``(h, w, 3)``.
        mask: uint8, shape ``(h, w)``: 1 object, 0 background, 255 ignored.
        box: The annotator's box, or None.
        clicks: All clicks, in order.
        frames: Predictions by rising number of clicks; the last one is the final prediction.
    """

    image: npt.NDArray[np.uint8]
    mask: npt.NDArray[np.uint8]
    box: Box | None
    clicks: tuple[Click, ...]
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class ObjectRecord:
    """One run: one object, one trial.

    Args:
        dataset: Name of the data set.
        name: Name of the object within its data set.
        trial: Number of the run.
        steps: One per number of clicks, ``0 ... max_clicks``.
        stopped_at: Number of clicks after which no error was left to click on, or None. The
            steps that follow repeat its IoU and have neither click nor time.
        picture: What it takes to draw the run, where it was asked for.
    """

    dataset: str
    name: str
    trial: int
    steps: tuple[Step, ...]
    stopped_at: int | None = None
    picture: Picture | None = None


def image_tensor(image: npt.NDArray[np.uint8], device: torch.device | str = "cpu") -> Tensor:
    """Turn RGB uint8 ``(H, W, 3)`` into float32 ``(3, H, W)`` in [0, 1]."""
    pixels = torch.tensor(np.ascontiguousarray(image), device=device)  # views may run backwards
    return pixels.permute(2, 0, 1).float() / 255


@torch.inference_mode()
def predict_probability(
    model: Model,
    encoded: Any,  # noqa: ANN401
    size: tuple[int, int],
    clicks: Sequence[Click],
    box: Sequence[float] | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Ask the model once.

    Args:
        model: In evaluation mode.
        encoded: The image, encoded by the model.
        size: ``(H, W)`` of that image.
        clicks: Clicks in its pixels.
        box: Box in its pixels, or None.
        device: Device of the model.

    Returns:
        Probability of the object, float32, shape ``(H, W)``.

    Raises:
        ValueError: If the logits are not of shape ``(1, 1, H, W)``.
    """
    places = [[click.x, click.y] for click in clicks]
    corners = [float("nan")] * 4 if box is None else list(box)
    prompts = Prompts(
        points=torch.tensor(places, dtype=torch.float32, device=device).reshape(1, -1, 2),
        labels=torch.tensor([[int(click.positive) for click in clicks]], device=device).long(),
        boxes=torch.tensor([corners], dtype=torch.float32, device=device),
    )
    logits = model.decode(encoded, prompts)
    expected = (1, 1, *size)
    if logits.shape != expected:
        message = f"model: expected logits of shape {expected}, got {tuple(logits.shape)}"
        raise ValueError(message)
    return logits[0, 0].float().sigmoid()  # fp32 also under autocast


def start(
    model: Model, image: Tensor, *, crop: Box | None = None, box: Box | None = None
) -> InteractionState:
    """Begin an interaction. The model is asked where there is a box, and only then.

    Args:
        model: See `Model`; in evaluation mode.
        image: RGB in [0, 1], shape ``(3, H, W)``, on the model's device.
        crop: The part of the image that the model sees; None is all of it.
        box: The annotator's box in whole-image pixels, or None.

    Returns:
        State without clicks; its probability is 0 everywhere where there is no box.
    """
    height, width = image.shape[1:]
    nothing = np.zeros((height, width), dtype=np.float32)
    state = InteractionState(image, crop or (0, 0, width, height), None, box, (), nothing, None)
    return state if box is None else ask(model, state)


def step(model: Model, state: InteractionState, click: Click) -> InteractionState:
    """Add a click, in pixels of the whole image, and ask the model."""
    return ask(model, state._replace(clicks=(*state.clicks, click)))


def look(model: Model, state: InteractionState, crop: Box) -> InteractionState:
    """Return the state with a crop that the model has seen; the same crop is not encoded again."""
    if state.encoded is not None and crop == state.crop:
        return state
    x0, y0, x1, y1 = crop
    with torch.inference_mode():
        encoded = model.encode(state.image[None, :, y0:y1, x0:x1])
    return state._replace(crop=crop, encoded=encoded)


def ask(model: Model, state: InteractionState, crop: Box | None = None) -> InteractionState:
    """Return the state with the model's answer to its box and clicks.

    Args:
        model: See `Model`; in evaluation mode.
        state: With all prompts.
        crop: Another part of the image to look at; None for the same.
    """
    device = state.image.device
    _synchronise(device)
    began = time.perf_counter()
    state = look(model, state, crop or state.crop)
    x0, y0, x1, y1 = state.crop
    clicks = _moved(state.clicks, -x0, -y0)
    box = state.box and _moved_box(state.box, -x0, -y0)
    inside = predict_probability(
        model, state.encoded, (y1 - y0, x1 - x0), clicks, box, device
    )  # (h, w)
    _synchronise(device)
    seconds = time.perf_counter() - began
    probability = np.zeros(state.probability.shape, dtype=np.float32)
    probability[y0:y1, x0:x1] = inside.cpu().numpy()
    return state._replace(probability=probability, seconds=seconds)


def run_object(
    model: Model,
    sample: Sample,
    protocol: Rules,
    *,
    trial: int = 0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    keep_picture: bool = False,
) -> ObjectRecord:
    """Segment one object with simulated clicks.

    Every run gets all clicks of the protocol, however good it is, so that the mean IoU after ``k``
    clicks is over all objects. Where no error is left to click on, the run stops and its last IoU
    is held.

    Args:
        model: See `Model`; in evaluation mode.
        sample: The object.
        protocol: Box, clicks and threshold.
        trial: Number of the run; see `draw_view`.
        seed: Seed of the evaluation.
        device: Device of the model.
        keep_picture: Whether to keep the crop and some predictions for drawing.

    Raises:
        DataError: If the mask has no object pixel.
    """
    view = draw_view(sample, protocol, trial=trial, seed=seed)
    next_click = CLICK_RULES[protocol.click_rule]
    state = start(model, image_tensor(sample.image, device), crop=view.crop, box=view.box)
    prediction = state.probability > protocol.threshold
    steps = [Step(0, None, None, None, iou(prediction, sample.mask), state.seconds)]
    predictions = {0: prediction}
    stopped_at = None
    for k in range(1, protocol.max_clicks + 1):
        click = next_click(prediction, sample.mask, state.clicks)
        if click is None:
            stopped_at = k - 1
            held = steps[-1].iou
            steps += [
                Step(later, None, None, None, held, None)
                for later in range(k, protocol.max_clicks + 1)
            ]
            break
        state = step(model, state, click)
        prediction = state.probability > protocol.threshold
        score = iou(prediction, sample.mask)
        steps.append(Step(k, int(click.x), int(click.y), click.positive, score, state.seconds))
        if keep_picture:
            predictions = {n: kept for n, kept in predictions.items() if n in PICTURE_CLICKS}
            predictions[k] = prediction
    frames = {k: (kept, steps[k].iou) for k, kept in predictions.items()}
    picture = _picture(sample, state, frames) if keep_picture else None
    return ObjectRecord(sample.dataset, sample.name, trial, tuple(steps), stopped_at, picture)


def _picture(
    sample: Sample, state: InteractionState, frames: dict[int, tuple[BoolMap, float]]
) -> Picture:
    x0, y0, x1, y1 = state.crop
    return Picture(
        image=sample.image[y0:y1, x0:x1].copy(),
        mask=sample.mask[y0:y1, x0:x1].copy(),
        box=state.box and _moved_box(state.box, -x0, -y0),
        clicks=_moved(state.clicks, -x0, -y0),
        frames=tuple(
            Frame(k, prediction[y0:y1, x0:x1].copy(), score)
            for k, (prediction, score) in frames.items()
        ),
    )


def _moved(clicks: Sequence[Click], dx: int, dy: int) -> tuple[Click, ...]:
    return tuple(Click(click.x + dx, click.y + dy, click.positive) for click in clicks)


def _moved_box(box: Box, dx: int, dy: int) -> Box:
    return box[0] + dx, box[1] + dy, box[2] + dx, box[3] + dy


def _synchronise(device: torch.device) -> None:
    """Wait for the device, so that a clock measures its work and not only its queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
