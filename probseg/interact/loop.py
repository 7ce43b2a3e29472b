"""The interaction loop: a prediction for each new prompt.

What it computes for one object (`tests/interact/test_straight_line.py` is the same in 60 lines):

1. Without a zoom, or while nothing is predicted, the model sees the crop: the whole image, or the
   annotator's box and its surroundings. The first click is also answered from smaller windows
   around it, and the answer that expects the largest IoU counts. From the second click on, the
   model sees a window around the last answer and all clicks on the object
   (`probseg.geometry.next_window`).
2. Image, clicks, box and last answer are cut and resized to this view; the logits of the view and
   of the mirrored view are averaged (`flip`), and their sigmoid is put back into the image.
3. Clicked pixels get the label of their click (`ProbabilityMap.with_clicks`).
4. A second look at a smaller window around the last click, with this answer as its previous mask,
   is blended into the answer, and fades out on its rim. Before the second click there is no such
   window: the same view is answered once more, then a window around this answer, and of these two
   answers the one counts that expects the larger IoU.

Validation, testing, the Python predictor and annotation tools share `InteractionLoop`. Its states
are explicit: every function takes states and returns new ones, and nothing is kept between calls.
It works on many interactions at once, which the model answers in batches. Clicks and boxes in a
state are in pixels of the whole image; only the model gets pixels of its view.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probseg import geometry
from probseg.errors import require
from probseg.geometry import Box, View, Zoom, box_size, check_box, check_click
from probseg.interact.mask import ProbabilityMap
from probseg.interact.photograph import Photograph, resize_aligned
from probseg.models import Segmenter
from probseg.models.network import Model, SegmenterModel
from probseg.types import Click, Prompts


class InteractionState(NamedTuple):
    """State of an interaction.

    Args:
        photograph: The image, on the model's device.
        crop: Part of the image that the model may see, in whole-image pixels.
        box: The annotator's box, or None.
        clicks: The clicks so far.
        answer: Probability of the object; 0 outside of the last view.
        window: Part of the image that a zoom chose last; None before, and without one.
        view: The view that `encoded` belongs to; None before the first.
        encoded: The model's encoding of the view.
        look: View of the last second look, with its encoding; None before the first.
        tried: The answers to a first click at all its scales, where the loop `keeps_scales`, in the
            order of `Zoom.first`; without those to further prompts.
        seconds: Time of the last answer, with the encoding of the image if it was new; where
            several were computed together, the share of one. None before the first.
    """

    photograph: Photograph
    crop: Box
    box: Box | None
    clicks: tuple[Click, ...]
    answer: ProbabilityMap
    window: Box | None = None
    view: View | None = None
    encoded: Any = None
    look: tuple[View, Any] | None = None
    seconds: float | None = None
    tried: tuple[InteractionState, ...] = ()

    @property
    def image(self) -> Tensor:
        """The image at full size, RGB, uint8, shape `(3, H, W)`."""
        return self.photograph.full

    @property
    def probability(self) -> npt.NDArray[np.float32]:
        """Probability of the object, float32, shape `(H, W)`, read-only; computed at each call."""
        return self.answer.full()


def begin(
    image: Tensor | Photograph,
    *,
    crop: Box | None = None,
    box: Box | None = None,
    clicks: Sequence[Click] = (),
    initial: npt.NDArray[np.bool_] | None = None,
) -> InteractionState:
    """Return the initial state of an interaction.

    Args:
        image: RGB, uint8, shape `(3, H, W)`, on the model's device, see `image_tensor`, which the
            model sees at full size; or a photograph.
        crop: Part of the image that the model may see; None is all of it.
        box: The annotator's box in whole-image pixels, or None.
        clicks: Clicks before the first answer.
        initial: A mask to correct, bool, shape `(H, W)`; without one nothing is object yet.

    Raises:
        ValueError: If the box or a click is outside the image.
    """
    photograph = Photograph.from_tensor(image) if isinstance(image, Tensor) else image
    if box is not None:
        check_box(box, photograph.size)
    for click in clicks:
        check_click(click, photograph.size)
    answer = ProbabilityMap.zero(photograph.size)
    if initial is not None:
        answer = ProbabilityMap.from_array(initial.astype(np.float32))
    height, width = photograph.size
    return InteractionState(photograph, crop or (0, 0, width, height), box, tuple(clicks), answer)


@dataclass(frozen=True)
class InteractionLoop:
    """Answers clicks, for one interaction or for many at once.

    Args:
        model: A `Segmenter`, or another `Model`, in evaluation mode.
        batch_size: Limit of images in one call of the model, at least 2 with `flip`; bounds its
            memory.
        zoom: Settings of the zoom-in; None for none.
        flip: Whether to average the logits with the logits of the mirrored image.
        previous_mask: Whether the model is handed its last answer with the prompts.
        keep_clicks: Whether clicked pixels get the label of their click in every answer, see
            `probseg.geometry.keep_clicks`.
        keeps_scales: Whether states have the answers of all scales, for `at_scale`.

    Raises:
        ValueError: If `batch_size` is not positive, or the model has no such methods or is in
            training mode.
    """

    model: Model | Segmenter
    batch_size: int = 8
    zoom: Zoom | None = None
    flip: bool = False
    previous_mask: bool = False
    keep_clicks: bool = False
    keeps_scales: bool = False

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, "batch_size", "at least 1", self.batch_size)
        methods = {"batch_key", "encode_each", "decode_each"}
        if not isinstance(self.model, Segmenter) and not methods <= {*dir(self.model)}:
            raise ValueError(
                "`model` must have the methods `batch_key`, `encode_each` and `decode_each` of "
                f"`probseg.interact.Model`, got {type(self.model).__name__}; "
                "`probseg.interact.OneStep(model)` makes one of any function of images and prompts"
            )
        right = not getattr(self.model, "training", False)
        require(right, "model", "in evaluation mode", "training mode", "call model.eval() first")

    @cached_property
    def _model(self) -> Model:
        """The model, for images of several sizes in one call."""
        return SegmenterModel(self.model) if isinstance(self.model, Segmenter) else self.model

    def step(
        self, states: Sequence[InteractionState], clicks: Sequence[Click]
    ) -> list[InteractionState]:
        """Add a click to each interaction, in pixels of the whole image, and answer.

        Raises:
            ValueError: If a click is outside its image, or see `answer`.
        """
        pairs = list(zip(states, clicks, strict=True))
        for state, click in pairs:
            check_click(click, state.photograph.size)
        return self.answer(
            [state._replace(clicks=(*state.clicks, click)) for state, click in pairs]
        )

    @torch.inference_mode()
    def encode(self, state: InteractionState) -> InteractionState:
        """Return the state with its crop encoded, before any answer."""
        return self._encode([(state, state.photograph.unzoomed_view(state.crop))])[0]

    @torch.inference_mode()
    def answer(self, states: Sequence[InteractionState]) -> list[InteractionState]:
        """Return the states with the model's answers to all their prompts.

        Raises:
            ValueError: If the model's logits are not of the view's shape.
        """
        choices = [self._next_views(state) for state in states]
        trials = [
            (state._replace(window=window, seconds=0.0, tried=()), view)
            for state, views in zip(states, choices, strict=True)
            for view, window in views
        ]
        zoom = self.zoom if self.previous_mask and self.zoom and self.zoom.look else None
        looks = {
            i: _second_look(zoom, state, choices[i][0][0])
            for i, state in enumerate(states)
            if zoom is not None and len(state.clicks) > zoom.skip_clicks
        }
        # The window of a look is known before the answer that it refines: one call encodes both.
        encoded = self._encode([*trials, *looks.values()])
        answered = iter(self._decode(encoded[: len(trials)]))
        several = [tuple(next(answered) for _ in views) for views in choices]
        best = [_choose_best(answers) for answers in several]
        if self.keeps_scales:
            tried = [answers if len(answers) > 1 else () for answers in several]
            best = [state._replace(tried=all_) for state, all_ in zip(best, tried, strict=True)]
        if zoom is None:
            return best
        looking = zip(looks, encoded[len(trials) :], strict=True)
        looked = self._decode([look._replace(answer=best[i].answer) for i, look in looking])
        closer = {i: self._with_look(best[i], look) for i, look in zip(looks, looked, strict=True)}
        others = iter(self._once_more([best[i] for i in range(len(best)) if i not in looks]))
        return [closer[i] if i in looks else next(others) for i in range(len(best))]

    @torch.inference_mode()
    def at_scale(self, state: InteractionState, number: int) -> InteractionState:
        """Return the answer to a first click at another of its scales, if the state has it."""
        if number >= len(state.tried):
            return state
        other = state.tried[number]._replace(tried=state.tried, seconds=0.0)
        looks = self.previous_mask and self.zoom and self.zoom.look
        return self._once_more([other])[0] if looks else other

    def _once_more(self, states: Sequence[InteractionState]) -> list[InteractionState]:
        """Return answers without a look given again, those to clicks also from around them."""
        assert self.zoom is not None, "only with a zoom"
        again, around = self._decode(states), {}
        for i, state in enumerate(again):
            fits = geometry.fitting_window(self.zoom, state.answer, state.clicks)
            if fits is not None and state.box is None:
                view = geometry.window_view(self.zoom, fits)
                around[i] = state._replace(window=fits, seconds=0.0), view
        nearer = self._decode(self._encode([*around.values()]))
        for i, near in zip(around, nearer, strict=True):
            best = _choose_best([again[i], near])  # the next click sees the window in any case
            again[i] = near._replace(answer=best.answer, seconds=best.seconds)
        return again

    def _next_views(self, state: InteractionState) -> list[tuple[View, Box | None]]:
        """Return the next views for the model, and the window to remember with each."""
        zoom, clicks = self.zoom, state.clicks
        whole = state.photograph.unzoomed_view(state.crop)
        if zoom is None:
            return [(whole, None)]
        if len(clicks) == 1 and clicks[0].positive and state.box is None and not state.answer.any():
            windows = geometry.first_windows(zoom, clicks[0], box_size(state.crop))
        else:
            windows = [geometry.next_window(zoom, state.window, state.answer, clicks)]
            # As published: the answer to the whole image will be squeezed into the old window.
            if windows == [None] and zoom.stale and len(clicks) > zoom.skip_clicks:
                return [(whole, state.window)]
        return [
            (whole if window is None else geometry.window_view(zoom, window), window)
            for window in windows
        ]

    def _encode(self, chosen: Sequence[tuple[InteractionState, View]]) -> list[InteractionState]:
        """Return the states with these views encoded; unchanged views are not encoded again."""
        encoded, views = [state for state, _ in chosen], [view for _, view in chosen]
        # Trials of one image share its views: each new view is encoded once, for all of them.
        new: dict[tuple[int, View], list[int]] = defaultdict(list)
        for i, (state, view) in enumerate(chosen):
            if state.view != view:
                new[id(state.photograph.levels[0]), view].append(i)
        groups = {alike[0]: alike for alike in new.values()}
        for part in self._batches(views, list(groups)):
            timed = _Stopwatch(encoded[part[0]].photograph.device)
            images = [encoded[i].photograph.render(views[i]) for i in part]
            mirrored = [image.flip(-1) for image in images] if self.flip else []
            encodings = self._model.encode_each([*images, *mirrored])
            share = timed.seconds() / sum(len(groups[i]) for i in part)
            for n, first in enumerate(part):
                sides = tuple(encodings[n :: len(part)])
                for i in groups[first]:
                    seconds = (encoded[i].seconds or 0.0) + share
                    encoded[i] = encoded[i]._replace(view=views[i], encoded=sides, seconds=seconds)
        return encoded

    def _decode(self, states: Sequence[InteractionState]) -> list[InteractionState]:
        """Return encoded states with the model's answers to their views."""
        decoded = list(states)
        for part in self._batches([_view(state) for state in states]):
            timed = _Stopwatch(states[part[0]].photograph.device)
            answers = self._ask_model([states[i] for i in part])
            share = timed.seconds() / len(part)
            for i, answer in zip(part, answers, strict=True):
                if self.keep_clicks:
                    answer = answer.with_clicks(states[i].clicks)
                seconds = (states[i].seconds or 0.0) + share
                decoded[i] = states[i]._replace(answer=answer, seconds=seconds)
        return decoded

    def _ask_model(self, states: Sequence[InteractionState]) -> list[ProbabilityMap]:
        """Return the model's answers for the encoded views of states."""
        sides = [(state, side) for side in range(1 + self.flip) for state in states]
        logits, quality = self._model.decode_each(
            [state.encoded[side] for state, side in sides],
            [self._prompts(state, mirrored=side == 1) for state, side in sides],
        )
        for (state, _), answer in zip(sides, logits, strict=True):
            shape, size = tuple(answer.shape), _view(state).size
            require(shape == size, "model", f"one that returns logits of shape {size}", shape)
        answers = []
        for n, state in enumerate(states):
            mean = logits[n].float()  # also under autocast
            if self.flip:
                mean = (mean + logits[n + len(states)].float().flip(-1)) / 2
            values, place = mean.sigmoid(), state.window or state.crop
            if not state.photograph.is_large:
                values = resize_aligned(values[None], box_size(place))[0]
            predicted = None if quality is None else fmean(map(float, quality[n :: len(states)]))
            answers.append(ProbabilityMap(values, place, state.photograph.size, predicted))
        return answers

    def _with_look(self, state: InteractionState, look: InteractionState) -> InteractionState:
        """Return the state with a second look in its answer."""
        seconds = (state.seconds or 0.0) + (look.seconds or 0.0)
        if look.view == state.view:
            return state._replace(answer=look.answer, seconds=seconds)
        answer = state.answer.with_look(look.answer)
        if self.keep_clicks:  # again: blending resamples the answers of large photographs
            answer = answer.with_clicks(state.clicks)
        return state._replace(answer=answer, look=(_view(look), look.encoded), seconds=seconds)

    def _prompts(self, state: InteractionState, mirrored: bool) -> Prompts:
        """Return box and clicks in pixels of the view."""
        view = _view(state)
        shifted = self.zoom is not None and self.zoom.shifted
        clicked = np.array([click[:2] for click in state.clicks], float).reshape(-1, 2)
        points = geometry.to_samples(clicked, view, shifted=shifted)
        box = geometry.box_to_samples(state.box, view, shifted=shifted)
        if mirrored:
            points[:, 0] = view.size[1] - 1 - points[:, 0]
            box[:, 0] = view.size[1] - box[::-1, 0]
        device = state.photograph.device
        previous = None
        if self.previous_mask:
            previous = state.answer.part(view).to(device)[None]  # (1, 1, h, w)
            previous = previous.flip(-1) if mirrored else previous
        return Prompts(
            points=torch.tensor(points, dtype=torch.float32, device=device)[None],
            labels=torch.tensor(
                [[int(click.positive) for click in state.clicks]], device=device
            ).long(),
            boxes=torch.tensor(box.reshape(1, 4), dtype=torch.float32, device=device),
            previous=previous,
        )

    def _batches(
        self, views: Sequence[View], chosen: Sequence[int] | None = None
    ) -> Iterator[list[int]]:
        """Yield the numbers of views that the model can take in one call."""
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for i in range(len(views)) if chosen is None else chosen:
            groups[self._model.batch_key(views[i].size)].append(i)
        most = max(1, self.batch_size // 2) if self.flip else self.batch_size  # both sides count
        for group in groups.values():
            yield from (group[first : first + most] for first in range(0, len(group), most))


def _second_look(zoom: Zoom, state: InteractionState, view: View) -> tuple[InteractionState, View]:
    """Return the state of a second look, with its window, and its view."""
    last, encoded = state.look or (None, None)
    old = None if last is None else last.box
    window = geometry.look_window(zoom, view.box, state.clicks[-1], state.photograph.size, old)
    inner = state._replace(window=window, view=last, encoded=encoded, seconds=0.0)
    return inner, View(window, geometry.look_size(zoom, window))


def _choose_best(answers: Sequence[InteractionState]) -> InteractionState:
    """Return the answer that expects the largest IoU, less if cut, with the time of all."""
    if len(answers) == 1:
        return answers[0]
    best = max(answers, key=lambda state: geometry.sureness(state.answer))
    return best._replace(seconds=sum(state.seconds or 0.0 for state in answers))


def _view(state: InteractionState) -> View:
    assert state.view is not None, "decoded before it was encoded"
    return state.view


class _Stopwatch:
    """Measures the time of a device's work, not only of queueing it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._began = self._now()

    def seconds(self) -> float:
        """Return the time since the beginning."""
        return self._now() - self._began

    def _now(self) -> float:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        return time.perf_counter()
