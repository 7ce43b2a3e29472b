"""The interaction loop: a prediction for each new prompt.

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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probseg.clicks.boxes import Box
from probseg.interact.batches import Answered, Model, SegmenterModel
from probseg.interact.kept import keep_clicks
from probseg.interact.probability import ProbabilityMap
from probseg.interact.sampling import box_size, fitted, places
from probseg.interact.states import InteractionState, View, check_click
from probseg.interact.zoom import (
    Zoom,
    cut_factor,
    expected_iou,
    first_windows,
    look_size,
    look_window,
    next_window,
    scaled_size,
    with_look,
)
from probseg.models import Segmenter
from probseg.types import Click, Prompts


@dataclass(frozen=True)
class InteractionLoop:
    """Answers clicks, for one interaction or for many at once.

    Args:
        model: A `Segmenter`, or another `Model`, in evaluation mode.
        batch_size: Most images in one call of the model, at least 2 with `flip`; bounds its
            memory.
        zoom: Settings of the zoom-in; None for none.
        flip: Whether to average the logits with the logits of the mirrored image.
        previous_mask: Whether the model is handed its last answer with the prompts.
        keep_clicks: Whether clicked pixels get the label of their click in every answer, see
            `probseg.interact.kept`.

    Raises:
        ValueError: If `batch_size` is not positive, or the model is in training mode.
    """

    model: Model | Segmenter
    batch_size: int = 8
    zoom: Zoom | None = None
    flip: bool = False
    previous_mask: bool = False
    keep_clicks: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            message = f"`batch_size` must be at least 1, got {self.batch_size}"
            raise ValueError(message)
        if getattr(self.model, "training", False):
            message = (
                "`model` must be in evaluation mode, got training mode; call model.eval() first"
            )
            raise ValueError(message)

    @cached_property
    def _batched(self) -> Model:
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
    def answer(self, states: Sequence[InteractionState]) -> list[InteractionState]:
        """Return the states with the model's answers to all their prompts.

        Raises:
            ValueError: If the model's logits are not of the view's shape.
        """
        choices = [self._next_views(state) for state in states]
        tried = [
            (state._replace(window=window, seconds=0.0), view)
            for state, views in zip(states, choices, strict=True)
            for view, window in views
        ]
        looking = [i for i, state in enumerate(states) if self._looks_at(state)]
        looks = [self._look(states[i], choices[i][0][0]) for i in looking]
        encoded = self._encoded([*tried, *looks])
        answered = iter(self._decoded(encoded[: len(tried)]))
        best = [_best([next(answered) for _ in views]) for views in choices]
        if not self._looks:
            return best
        closer = [state._replace(seconds=0.0) for state in best]  # the same view once more
        for i, look in zip(looking, encoded[len(tried) :], strict=True):
            closer[i] = look._replace(answer=best[i].answer)
        pairs = zip(best, self._decoded(closer), strict=True)
        return [self._with_look(state, look) for state, look in pairs]

    @property
    def _looks(self) -> bool:
        """Whether each answer is followed by a closer one."""
        return self.previous_mask and self.zoom is not None and self.zoom.look is not None

    def _looks_at(self, state: InteractionState) -> bool:
        """Return whether the next answer is followed by a look around the last click."""
        return self._looks and self.zoom is not None and len(state.clicks) > self.zoom.skip_clicks

    def _look(self, state: InteractionState, view: View) -> tuple[InteractionState, View]:
        """Return the state of a second look, with its window, and its view."""
        assert self.zoom is not None, "it looks"
        last, encoded = state.look or (None, None)
        old = None if last is None else last.box
        window = look_window(self.zoom, view.box, state.clicks[-1], state.photograph.size, old)
        inner = state._replace(window=window, view=last, encoded=encoded, seconds=0.0)
        return inner, View(window, look_size(self.zoom, window))

    def _with_look(self, state: InteractionState, look: InteractionState) -> InteractionState:
        """Return the state with a second look in its answer."""
        seconds = (state.seconds or 0.0) + (look.seconds or 0.0)
        if look.view is None or look.view == state.view:
            return state._replace(answer=look.answer, seconds=seconds)
        answer = with_look(state.answer, look.answer)
        if self.keep_clicks:  # where the answers of large photographs are resampled
            answer = keep_clicks(answer, state.clicks)
        return state._replace(answer=answer, look=(look.view, look.encoded), seconds=seconds)

    def _decoded(self, states: Sequence[InteractionState]) -> list[InteractionState]:
        """Return encoded states with the answers of their views, one more time."""
        decoded = list(states)
        for part in self._together([_shown(state) for state in states]):
            timed = _Stopwatch(states[part[0]].photograph.device)
            answers = self._answers([states[i] for i in part])
            share = timed.seconds() / len(part)
            for i, answer in zip(part, answers, strict=True):
                took = (states[i].seconds or 0.0) + share
                state = _put_back(states[i], *answer)._replace(seconds=took)
                if self.keep_clicks:
                    state = state._replace(answer=keep_clicks(state.answer, state.clicks))
                decoded[i] = state
        return decoded

    @torch.inference_mode()
    def encode(self, state: InteractionState) -> InteractionState:
        """Return the state with its crop encoded, before any answer."""
        return self._encoded([(state, _whole(state))])[0]

    def _next_views(self, state: InteractionState) -> list[tuple[View, Box | None]]:
        """Return the next views for the model, and the window to remember with each."""
        if self.zoom is None:
            return [(_whole(state), None)]
        if _is_first(state):
            windows = first_windows(self.zoom, state.clicks[0], box_size(state.crop))
            return [(self._view(state, window), window) for window in windows]
        window = next_window(self.zoom, state.window, state.answer, state.clicks)
        if window is not None:
            return [(self._view(state, window), window)]
        forgets = len(state.clicks) <= self.zoom.skip_clicks or not self.zoom.stale
        return [(_whole(state), None if forgets else state.window)]

    def _view(self, state: InteractionState, window: Box | None) -> View:
        """Return the view of a window, None for the whole image."""
        if window is None or self.zoom is None:
            return _whole(state)
        return View(window, scaled_size(box_size(window), self.zoom.target))

    def _encoded(self, chosen: Sequence[tuple[InteractionState, View]]) -> list[InteractionState]:
        """Return the states with these views encoded; unchanged views are not encoded again."""
        states, views = [state for state, _ in chosen], [view for _, view in chosen]
        encoded = list(states)
        new: dict[tuple[int, View], list[int]] = defaultdict(list)  # trials share their image
        for i, view in enumerate(views):
            if states[i].view != view:
                new[_picture(states[i]), view].append(i)
        firsts = [alike[0] for alike in new.values()]
        for part in self._together(views, firsts):
            timed = _Stopwatch(states[part[0]].photograph.device)
            images = [states[i].photograph.shown(*views[i]) for i in part]
            mirrored = [image.flip(-1) for image in images] if self.flip else []
            encodings = self._batched.encode_each([*images, *mirrored])
            sides = [encodings[: len(part)], encodings[len(part) :]] if self.flip else [encodings]
            groups = [new[_picture(states[i]), views[i]] for i in part]
            share = timed.seconds() / sum(map(len, groups))
            for both_sides, alike in zip(zip(*sides, strict=True), groups, strict=True):
                for i in alike:
                    encoded[i] = states[i]._replace(
                        view=views[i],
                        encoded=both_sides,
                        seconds=(states[i].seconds or 0.0) + share,
                    )
        return encoded

    def _answers(self, states: Sequence[InteractionState]) -> list[tuple[Tensor, float | None]]:
        """Return probabilities `(h, w)` and predicted IoU for the encoded views of the states."""
        encoded = [state.encoded[0] for state in states]
        prompts = [self._prompts(state, mirrored=False) for state in states]
        if self.flip:
            encoded += [state.encoded[1] for state in states]
            prompts += [self._prompts(state, mirrored=True) for state in states]
        answers = self._asked(encoded, prompts)
        expected = [state.view.size for state in states if state.view is not None]
        for answer, size in zip(answers, expected * (1 + self.flip), strict=True):
            if tuple(answer.logits.shape) != size:
                message = (
                    f"`model` must return logits of shape {size} for each image, got "
                    f"{tuple(answer.logits.shape)}"
                )
                raise ValueError(message)
        means = [answer.logits.float() for answer in answers]  # fp32 also under autocast
        predicted = [None if one.quality is None else float(one.quality) for one in answers]
        if self.flip:
            count = len(states)
            means = [
                (mean + other.flip(-1)) / 2
                for mean, other in zip(means[:count], means[count:], strict=True)
            ]
            predicted = [
                None if one is None or other is None else (one + other) / 2
                for one, other in zip(predicted[:count], predicted[count:], strict=True)
            ]
        return [(mean.sigmoid(), own) for mean, own in zip(means, predicted, strict=True)]

    def _asked(self, encoded: Sequence[Any], prompts: Sequence[Prompts]) -> Sequence[Answered]:
        """Return the model's answers, with the predicted IoU where it predicts one."""
        if isinstance(self._batched, SegmenterModel):
            return self._batched.answer_each(encoded, prompts)
        return [Answered(logits) for logits in self._batched.decode_each(encoded, prompts)]

    def _prompts(self, state: InteractionState, mirrored: bool) -> Prompts:
        """Return box and clicks in pixels of the view."""
        assert state.view is not None, "decoded before it was encoded"
        width = state.view.size[1]
        shifted = self.zoom is not None and self.zoom.shifted
        clicked = np.array([[click.x, click.y] for click in state.clicks], float).reshape(-1, 2)
        points = places(clicked, *state.view, shifted=shifted)
        box = np.full((2, 2), np.nan)
        if state.box is not None:
            end = np.array([[0], [0 if shifted else 1]])  # behind its last pixel
            corners = np.array(state.box).reshape(2, 2) - end
            box = places(corners, *state.view, shifted=shifted) + end
        if mirrored:
            points[:, 0] = width - 1 - points[:, 0]
            box[:, 0] = width - box[::-1, 0]
        device = state.photograph.device
        previous = None
        if self.previous_mask:
            previous = state.answer.part(*state.view).to(device)[None]  # (1, 1, h, w)
            previous = previous.flip(-1) if mirrored else previous
        return Prompts(
            points=torch.tensor(points, dtype=torch.float32, device=device)[None],
            labels=torch.tensor(
                [[int(click.positive) for click in state.clicks]], device=device
            ).long(),
            boxes=torch.tensor(box.reshape(1, 4), dtype=torch.float32, device=device),
            previous=previous,
        )

    def _together(
        self, views: Sequence[View], chosen: Sequence[int] | None = None
    ) -> Iterator[list[int]]:
        """Yield the numbers of views that the model can take in one call."""
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for i in range(len(views)) if chosen is None else chosen:
            groups[self._batched.grid(views[i].size)].append(i)
        most = max(1, self.batch_size // 2) if self.flip else self.batch_size
        for group in groups.values():
            yield from (group[first : first + most] for first in range(0, len(group), most))


def _is_first(state: InteractionState) -> bool:
    """Return whether nothing is known but one click on the object."""
    alone = len(state.clicks) == 1 and state.clicks[0].positive and state.box is None
    return alone and not state.answer.any()


def _best(answers: Sequence[InteractionState]) -> InteractionState:
    """Return the answer that expects the largest IoU, less if cut, with the time of all."""
    if len(answers) == 1:
        return answers[0]
    best = max(answers, key=lambda state: expected_iou(state.answer) * cut_factor(state.answer))
    return best._replace(seconds=sum(state.seconds or 0.0 for state in answers))


def _shown(state: InteractionState) -> View:
    assert state.view is not None, "decoded before it was encoded"
    return state.view


def _whole(state: InteractionState) -> View:
    return View(state.crop, state.photograph.view_size(state.crop))


def _picture(state: InteractionState) -> int:
    """Return what states of one image have in common."""
    return id(state.photograph.levels[0])


def _put_back(
    state: InteractionState, probability: Tensor, quality: float | None
) -> InteractionState:
    """Return the state with the probabilities `(h, w)` of its view as the answer."""
    place = state.window or state.crop
    if not state.photograph.is_large:
        probability = fitted(probability[None], box_size(place))[0]
    answer = ProbabilityMap(probability, place, state.photograph.size, quality)
    return state._replace(answer=answer)


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
