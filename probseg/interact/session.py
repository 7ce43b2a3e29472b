"""The steps of one object on one image, and the answers to them: undo and redo of any step.

`Predictor`, the annotation server, the notebook and other tools share these functions, of which
`build_loop` alone decides how a model that serves people answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probseg import geometry
from probseg.errors import require
from probseg.geometry import (
    RECOMMENDED_ZOOM,
    ZOOMS,
    Box,
    box_centre,
    check_click,
    misses_box,
    round_box,
)
from probseg.interact.loop import InteractionLoop, InteractionState, begin
from probseg.interact.mask import Mask, ProbabilityMap
from probseg.interact.photograph import Photograph
from probseg.interact.steps import paint
from probseg.models import Segmenter
from probseg.ops.folding import fold_batch_norms
from probseg.types import BoxStep, Click, MaskStep, Patch, Prompts, ScaleStep, Step, Stroke


def prepare_model(model: Segmenter, device: torch.device | str) -> Segmenter:
    """Prepare a network to answer fast: on its device, channels last, batch norms folded.

    The network itself is moved, laid out and put into evaluation mode; its weights do not change.
    """
    # With channels last, convolutions need not rearrange their maps: a fifth faster on the CPU.
    model = model.to(device).to(memory_format=torch.channels_last).eval()
    image = model.mean.new_zeros(1, 3, 64, 64)
    points, labels = image.new_full((1, 1, 2), 32), torch.ones(1, 1, dtype=torch.long)
    no_box = image.new_full((1, 4), torch.nan)
    click = Prompts(points, labels.to(image.device), no_box)
    return fold_batch_norms(model, lambda network: network(image, click))


def build_loop(
    model: Segmenter, zoom: str | None = RECOMMENDED_ZOOM, batch_size: int = 8
) -> InteractionLoop:
    """Build the loop of a network in evaluation mode, which gets its last answer if it takes one.

    With a zoom, a name in `ZOOMS`, clicked pixels get the label of their click. Without a zoom,
    this would make late answers worse (entry 30 of benchmarks/notebook).
    """
    return InteractionLoop(
        model,
        batch_size=batch_size,
        zoom=None if zoom is None else ZOOMS[zoom],
        previous_mask=model.previous_mask,
        keep_clicks=zoom is not None,
        keeps_scales=True,
    )


def encode_image(model: Segmenter, photograph: Photograph) -> InteractionState:
    """Return the state of an image before any prompt, encoded where prompts enter at the head."""
    state = begin(photograph)
    return build_loop(model).encode(state) if model.prompts_enter == "head" else state


@dataclass(frozen=True)
class Answer:
    """The answer to some steps, with the strokes over it.

    Labels of strokes and patches are `(H, W)`: 1 object, -1 background, 0 neither.
    """

    state: InteractionState
    strokes: npt.NDArray[np.int8] | None = None  # None before the first one
    begun: bool = False  # whether there is a mask to show
    predicted: bool = False  # by the model since the beginning, or since a mask of its own

    @cached_property
    def mask(self) -> Mask | None:
        """The mask; None before a step that gives one."""
        return Mask(self.state.answer) if self.begun else None

    def drawn_over(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return a mask `(H, W)` with the strokes and patches over it."""
        return mask if self.strokes is None else np.where(self.strokes == 0, mask, self.strokes > 0)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the answer and of the encoded views, without the image."""
        return self.own_nbytes + sum(self.encoded.values())

    @cached_property
    def own_nbytes(self) -> int:
        """Bytes of the answer alone."""
        return self.state.answer.nbytes + (0 if self.strokes is None else self.strokes.nbytes)

    @cached_property
    def encoded(self) -> dict[int, int]:
        """Bytes of each tensor of the encoded views by its identity: answers share views."""
        sizes, waiting = {}, [(self.state.encoded, self.state.look)]
        waiting += [(state.encoded, None) for state in self.state.tried]
        while waiting:
            for part in waiting.pop():
                if isinstance(part, Tensor):
                    sizes[id(part)] = part.nbytes
                elif isinstance(part, tuple):
                    waiting.append(part)
        return sizes


def with_steps(before: Answer, steps: Sequence[Step]) -> Answer:
    """Add prompts and strokes without asking the model; only a `MaskStep` changes the mask."""
    state, strokes = before.state, before.strokes
    for step in steps:
        match step:
            case Click():
                check_click(step, state.photograph.size)
                state = state._replace(clicks=(*state.clicks, step))
            case BoxStep():
                state = state._replace(box=round_box(step.box, state.photograph.size))
            case Stroke() | Patch():
                strokes = paint(step, strokes, state.photograph.size)
            case MaskStep():
                shape, size = step.probability.shape, state.photograph.size
                require(shape == size, "probability", f"of the image's shape, {size}", shape)
                begun = ProbabilityMap.from_array(step.probability)
                blank = state._replace(clicks=(), box=None, window=None, look=None, tried=())
                state, strokes = blank._replace(answer=begun), None
    crop = geometry.crop_around(state.box, state.clicks, state.photograph.size)
    return replace(before, state=state._replace(crop=crop), strokes=strokes)


def answer_steps(loop: InteractionLoop, before: Answer, steps: Sequence[Step]) -> Answer:
    """Answer steps together: the model is asked once, then strokes and patches are painted over.

    A ValueError refuses steps outside of the image, masks of another shape, and any mask if the
    model takes none.
    """
    fits = loop.previous_mask or not any(isinstance(step, MaskStep) for step in steps)
    hint = "choose a model with previous_mask, such as 'lite2_unet_prop'"
    require(fits, "mask", "None for a model that takes no mask to begin with", "one", hint)
    asked = with_steps(before, steps)
    state, strokes = asked.state, asked.strokes
    prompted = bool(state.clicks) or state.box is not None or state.answer.any()
    asks = prompted and not all(isinstance(step, Stroke | Patch | ScaleStep) for step in steps)
    if asks:
        (state,) = answer_prompts(loop, [state])
    for step in steps:
        if isinstance(step, ScaleStep):
            state = loop.at_scale(state, step.number)
    if strokes is not None:
        covered = np.where(strokes == 0, state.probability, strokes > 0).astype(np.float32)
        state = state._replace(answer=ProbabilityMap.from_array(covered))
    begun, predicted = prompted or strokes is not None, asks or before.predicted
    return Answer(state, strokes, begun, predicted)


def answer_prompts(
    loop: InteractionLoop, states: Sequence[InteractionState]
) -> list[InteractionState]:
    """Return states with the answers to their prompts; a box alone is not answered by nothing.

    Where the model sees next to no object in a box, it is asked for the one in the middle.
    """
    answered = loop.answer(states)
    again = {}
    for n, state in enumerate(answered):
        if state.box and not state.clicks and misses_box(state.answer, state.box):
            again[n] = state._replace(clicks=(Click(*box_centre(state.box)),))
    for n, state in zip(again, loop.answer([*again.values()]) if again else (), strict=True):
        answered[n] = state._replace(clicks=())
    return answered


class Session:
    """One object on one image: its steps in order, and a cursor that undo and redo move.

    The answer depends only on the steps before the cursor: a new session with these steps gives
    the same. Steps that were added together are answered together, and so are those of them that
    an undo leaves. An answer that is not in memory is computed from the last one before it.

    Args:
        loop: The loop that asks the model.
        image: The image without prompts, from `encode_image`.
        steps: Earlier steps, each answered on its own.
        masks: Masks, bool, shape `(H, W)`, by number of steps: they replace the model's answers.
        memory: Limit in bytes of the computed answers, besides the last one; None keeps all.
    """

    def __init__(
        self,
        loop: InteractionLoop,
        image: InteractionState,
        steps: Sequence[Step] = (),
        masks: Mapping[int, npt.NDArray[np.bool_]] | None = None,
        memory: int | None = None,
    ) -> None:
        self._loop, self._memory = loop, memory
        self._steps = tuple(steps)
        self._firsts = tuple(range(len(self._steps)))  # of the steps that were added together
        self._cursor = len(self._steps)  # steps that count
        self._answers = {0: Answer(image)}  # by number of steps
        for count, mask in (masks or {}).items():
            asked = with_steps(Answer(image), self._steps[:count])
            state = asked.state._replace(answer=ProbabilityMap.from_array(mask.astype(np.float32)))
            self._answers[count] = replace(asked, state=state, begun=True)
        self._fixed = {*self._answers}  # numbers of steps whose answers cannot be computed again

    @property
    def photograph(self) -> Photograph:
        """The image."""
        return self._answers[0].state.photograph

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that count, in order."""
        return self._steps[: self._cursor]

    @property
    def undone(self) -> tuple[Step, ...]:
        """The steps that `redo` brings back, the next one first."""
        return self._steps[self._cursor :]

    @property
    def clicks(self) -> tuple[Click, ...]:
        """The clicks that the model answers, in order."""
        return self.answer.state.clicks

    @property
    def box(self) -> Box | None:
        """The box that the model answers; None without."""
        return self.answer.state.box

    @property
    def answer(self) -> Answer:
        """The answer to the steps that count."""
        return self._answers.get(self._cursor) or self._compute(self._cursor)

    @property
    def nbytes(self) -> int:
        """Bytes of the answers in memory; views that they share count once."""
        encoded: dict[int, int] = {}
        for answer in self._answers.values():
            encoded |= answer.encoded
        return sum(encoded.values()) + sum(answer.own_nbytes for answer in self._answers.values())

    def add(self, *steps: Step) -> Answer:
        """Replace the steps that were undone by new ones, and answer these together.

        An error changes nothing.

        Raises:
            ValueError: If a click or a box is outside of the image, a mask or a patch has another
                shape, or the model takes no mask.
        """
        answer = answer_steps(self._loop, self.answer, steps)
        count = self._cursor
        if self.undone:
            self._steps, self._firsts = self._steps[:count], self._firsts[:count]
            self._answers = {n: answer for n, answer in self._answers.items() if n <= count}
            self._fixed &= {*self._answers}
        self._steps += steps
        self._firsts += (count,) * len(steps)
        self._cursor = len(self._steps)
        self._remember(self._cursor, answer)
        return answer

    def preview(self, *steps: Step) -> Answer:
        """Return the answer to more steps at one scale, in time for a moving pointer.

        Nothing is changed.
        """
        zoom = self._loop.zoom
        if zoom is not None:
            zoom = replace(zoom, first=(1.0,), look=None)
        return answer_steps(replace(self._loop, zoom=zoom), self.answer, steps)

    def scales(self) -> list[Answer]:
        """Return the answers at all scales of a first click, as `ScaleStep` numbers them."""
        count = len(self.answer.state.tried)
        return [answer_steps(self._loop, self.answer, [ScaleStep(n)]) for n in range(count)]

    def move_to(self, cursor: int) -> None:
        """Undo or redo until `cursor` steps count.

        Raises:
            ValueError: If there are fewer steps.
        """
        right = 0 <= cursor <= len(self._steps)
        require(right, "cursor", f"from 0 to {len(self._steps)}, the number of steps", cursor)
        self._cursor = cursor

    def begin_again(self, image: InteractionState) -> None:
        """Forget all answers, for the image without prompts, encoded with new settings."""
        view = {"view": image.view, "encoded": image.encoded, "look": None}
        self._answers = {
            count: replace(answer, state=answer.state._replace(**view))
            for count, answer in self._answers.items()
            if count in self._fixed
        }

    def _compute(self, count: int) -> Answer:
        """Compute the answer to the first steps, after those before it that are missing."""
        missing = []
        while count not in self._answers:
            missing.append(count)
            count = self._firsts[count - 1]
        answer = self._answers[count]
        for end in reversed(missing):
            answer = answer_steps(self._loop, answer, self._steps[count:end])
            self._remember(end, answer)
            count = end
        return answer

    def _remember(self, count: int, answer: Answer) -> None:
        """Remember an answer, and drop the oldest ones beyond the memory limit."""
        self._answers[count] = answer
        if self._memory is not None:
            oldest = sorted(self._answers.keys() - self._fixed - {count}, reverse=True)
            while oldest and self.nbytes > self._memory:
                del self._answers[oldest.pop()]
