"""The model as an annotation tool sees it: an image, then clicks, then masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from probseg.clicks.boxes import Box, padded_crop
from probseg.errors import UnknownNameError
from probseg.interact.loop import InteractionLoop
from probseg.interact.states import InteractionState, begin, check_box, check_click, image_tensor
from probseg.interact.waiting import warn_of_spinning
from probseg.interact.zoom import ZOOMS
from probseg.models import Segmenter
from probseg.types import Click
from probseg.zoo import create_interactive


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


class _Answered(NamedTuple):
    """A state with the model's answer, and the number of changes of settings before it."""

    state: InteractionState
    settings: int


class Predictor:
    """Segments one image at a time by clicks.

    With a box, the model sees the part of the image around box and clicks, cut as in the protocol
    ``gabbur2021``; without one it sees the whole image. Models whose prompts enter at the head pay
    for what they see once, and then answer each click in a fraction of the time.

    Models that take a previous mask get their last answer as an input: their next answer depends
    on which clicks came together. All answers to an image are kept, so that `undo` is exact and
    costs nothing.

    Args:
        model: The network; it is moved to the device, laid out with channels last and put into
            evaluation mode. Change its settings through `adapt`: what was encoded with others is
            not recognised as out of date.
        device: Where to compute.
        zoom: A name in `probseg.interact.ZOOMS`: from the second click on, the model sees the
            surroundings of the predicted object, enlarged, which takes a fifth to a quarter of the
            clicks away on photographs larger than the model's working size, and costs another
            encoding whenever that window moves. None always shows the whole image, or the
            surroundings of the box.

    Raises:
        UnknownNameError: If there is no such zoom.
    """

    def __init__(
        self,
        model: Segmenter,
        device: torch.device | str = "cpu",
        zoom: str | None = "fixed",
    ) -> None:
        if zoom is not None and zoom not in ZOOMS:
            raise UnknownNameError(kind="zoom", name=zoom, known=ZOOMS)
        self.device = torch.device(device)
        # With channels last, convolutions need not rearrange their maps: a fifth faster on the CPU.
        self.model = model.to(self.device).to(memory_format=torch.channels_last).eval()
        self._loop = InteractionLoop(
            self.model,
            previous_mask=self.model.previous_mask,
            zoom=None if zoom is None else ZOOMS[zoom],
        )
        self._empty: InteractionState | None = None  # of the image, without prompts
        self._state: InteractionState | None = None
        self._answers: list[_Answered] = []  # to all prompts of this object, in order
        self._settings = 0

    @classmethod
    def from_pretrained(
        cls, name: str, device: torch.device | str = "cpu", zoom: str | None = "fixed"
    ) -> Predictor:
        """Load a model of the zoo, a run, a local folder or the hub; see `probseg.create_model`.

        Raises:
            UsageError: If it is a model for semantic segmentation.
            UnknownNameError: If there is no such zoom.
        """
        return cls(create_interactive(name, pretrained=True), device, zoom)

    @property
    def clicks(self) -> tuple[Click, ...]:
        """The clicks so far, in order."""
        return () if self._state is None else self._state.clicks

    @property
    def view(self) -> Box | None:
        """Part ``(x0, y0, x1, y1)`` of the image that the model saw last, in pixels; None before.

        It moves where a zoom moves, and the model then encodes what it sees once more.
        """
        if self._state is None or self._state.seen is None:
            return None
        return self._state.seen.part

    def set_image(self, image: npt.NDArray[np.uint8]) -> None:
        """Begin with a new image; box and clicks of the last one are forgotten.

        Models whose prompts enter at the head look at it now, all others when they are asked.

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
        if self.device.type == "cpu":
            warn_of_spinning()
        self._empty = self._encoded(begin(image_tensor(image, self.device)))
        self.reset()

    def adapt(
        self,
        key_iterations: int | None = None,
        key_prior: float | None = None,
        value_iterations: int | None = None,
        value_prior: float | None = None,
        click_iterations: int | None = None,
        click_prior: float | None = None,
    ) -> None:
        """Switch key adaptation and value propagation, for this image and those to come.

        Args:
            key_iterations: See `Segmenter.adapt`, as for the others; None leaves a setting as it
                is.
            key_prior: Precision of the prior of the keys, 0 for maximum likelihood.
            value_iterations: EM iterations in which clicks propagate, 0 for none.
            value_prior: Precision of the prior of the value means.
            click_iterations: EM iterations in which the classifier adapts to the clicks, 0 for
                none.
            click_prior: Precision of the prior of the classifier's weights.

        Raises:
            ValueError: If a number is out of range, or the network has no layer to change.
        """
        self.model.adapt(
            key_iterations, key_prior, value_iterations, value_prior, click_iterations, click_prior
        )
        self._settings += 1
        if self._empty is not None and self._state is not None:
            # What was encoded with other keys is out of date.
            self._empty = self._encoded(self._empty._replace(seen=None, encoded=None))
            seen, encoded = self._empty.seen, self._empty.encoded
            self._state = self._state._replace(seen=seen, encoded=encoded)

    def predict(
        self,
        clicks: Sequence[Click] = (),
        box: tuple[float, float, float, float] | None = None,
    ) -> Mask:
        """Add prompts and segment the object.

        Without new prompts the answer is the last one, or a new one under changed settings.

        Args:
            clicks: New clicks, in pixels of the image.
            box: Half-open box ``(x0, y0, x1, y1)`` around the object, which is rounded outwards to
                whole pixels; replaces an earlier one.

        Returns:
            The mask for all prompts so far.

        Raises:
            RuntimeError: If no image was set.
            ValueError: If a click or the box is outside the image, or there is no prompt at all.
        """
        state = self._current()
        for click in clicks:
            check_click(click, state.image)
        if box is not None:
            check_box(box, state.image)
            x0, y0, x1, y1 = box
            drawn = (math.floor(x0), math.floor(y0), math.ceil(x1), math.ceil(y1))
            state = state._replace(box=drawn)
        state = state._replace(clicks=(*state.clicks, *clicks))
        if not state.clicks and state.box is None:
            msg = "`clicks` must have at least one click where there is no `box`, got none"
            raise ValueError(msg)
        if self._answers and not clicks and box is None:
            if self._answers[-1].settings == self._settings:
                return Mask(state.probability)
            self._answers.pop()
            return self._answer_again(state)
        return self._answer(state)

    def undo(self) -> Mask | None:
        """Take the last click back.

        Returns:
            The mask for the prompts that are left, as it was unless box or settings have changed
            since; None where no prompt is left.

        Raises:
            RuntimeError: If there is no click to take back.
        """
        if not self.clicks:
            msg = "no click to undo"
            raise RuntimeError(msg)
        state = self._current()
        left = state._replace(clicks=state.clicks[:-1])
        while self._answers and len(self._answers[-1].state.clicks) > len(left.clicks):
            self._answers.pop()
        if not left.clicks and left.box is None:
            self.reset()
            return None
        if self._answers:
            last = self._answers[-1].state
            if self._answers[-1].settings == self._settings and last.box == left.box:
                if last.clicks == left.clicks:
                    self._state = last
                    return Mask(last.probability)
            elif last.clicks == left.clicks:
                self._answers.pop()
        return self._answer_again(left)  # clicks came together, or box or settings are others

    def reset(self) -> None:
        """Forget box and clicks; the image stays."""
        self._state, self._answers = self._empty, []

    def _encoded(self, state: InteractionState) -> InteractionState:
        """Return a state encoded where that does not depend on prompts."""
        return self._loop.look(state) if self.model.prompts == "head" else state

    def _answer_again(self, state: InteractionState) -> Mask:
        """Answer the prompts of a state, which correct the last answer that is kept."""
        before = self._answers[-1].state if self._answers else self._empty
        assert before is not None, "there is an image"
        return self._answer(state._replace(probability=before.probability, window=before.window))

    def _answer(self, state: InteractionState) -> Mask:
        (self._state,) = self._loop.answer([state._replace(view=visible_part(state))])
        self._answers.append(_Answered(self._state, self._settings))
        return Mask(self._state.probability)

    def _current(self) -> InteractionState:
        if self._state is None:
            msg = "no image: call set_image(image) before predict(...)"
            raise RuntimeError(msg)
        return self._state


def visible_part(state: InteractionState) -> Box:
    """Return the part of the image that the model sees: all, or the surroundings of the box.

    The surroundings are those of the protocol ``gabbur2021`` unless a click lies outside, and then
    those of the box with all clicks: a crop that stays the same need not be encoded again.
    """
    height, width = state.image.shape[-2:]
    if state.box is None:
        return 0, 0, width, height
    columns = [math.floor(click.x) for click in state.clicks]
    rows = [math.floor(click.y) for click in state.clicks]
    x0, y0, x1, y1 = state.box
    crop = padded_crop(state.box, (height, width))
    inside = all(
        crop[0] <= column < crop[2] and crop[1] <= row < crop[3]
        for column, row in zip(columns, rows, strict=True)
    )
    if inside:
        return crop
    around = (
        min([x0, *columns]),
        min([y0, *rows]),
        max([x1, *(column + 1 for column in columns)]),
        max([y1, *(row + 1 for row in rows)]),
    )
    return padded_crop(around, (height, width))
