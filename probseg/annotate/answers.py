"""The answers to the steps of open objects, in memory.

A budget bounds the memory. An answer that was dropped is computed from the stored steps.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from probseg.annotate.models import Answerer
from probseg.annotate.photographs import Photograph, read_readable
from probseg.annotate.steps import Step, Work
from probseg.annotate.store import Store
from probseg.formats import png

MEMORY = 1 << 30
"""Bytes of photographs, encodings and answers that are kept in memory."""


@dataclass
class _Opened:
    """A photograph in memory, and the answers to the steps of its open object."""

    work: Work
    finished: npt.NDArray[np.bool_] | None = None  # of all finished objects
    number: int | None = None  # of the object with these answers
    answers: dict[int, Work] = field(default_factory=dict)  # by number of steps of it

    @property
    def size(self) -> int:
        """Return the bytes that it holds."""
        finished = 0 if self.finished is None else self.finished.nbytes
        return finished + self.work.size + sum(work.own_size for work in self.answers.values())


class Answers:
    """Answers to the steps of the open object of each photograph.

    All methods are called under one lock.

    Args:
        answerer: Answers steps.
        store: Objects and their steps.
        avoid_finished: Whether masks leave out the finished objects of a photograph.
    """

    def __init__(self, answerer: Answerer, store: Store, avoid_finished: bool) -> None:
        self.avoid_finished = avoid_finished
        self._answerer, self._store = answerer, store
        self._opened: OrderedDict[str, _Opened] = OrderedDict()

    def __contains__(self, photograph: Photograph) -> bool:
        return photograph.id in self._opened

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(opened.size for opened in self._opened.values())

    def open(self, photograph: Photograph, image: npt.NDArray[np.uint8] | None = None) -> _Opened:
        """Return a photograph in memory, encoded where that does not depend on prompts.

        Args:
            photograph: The photograph.
            image: Its pixels, RGB, uint8, shape `(H, W, 3)`; None reads them if needed.

        Raises:
            DataError: If the photograph cannot be read.
        """
        opened = self._opened.get(photograph.id)
        if opened is None:
            image = read_readable(photograph) if image is None else image
            opened = self._opened[photograph.id] = _Opened(self._answerer.begin(image))
        self._opened.move_to_end(photograph.id)
        self._bound_memory(photograph)
        return opened

    def current(self, photograph: Photograph) -> Work:
        """Return the answer to the steps of the open object, computed where it is missing.

        An object that was opened again goes on from its finished mask.
        """
        opened = self.open(photograph)
        one = self._store.open_object(photograph.name)
        if one is None:
            return opened.work
        if opened.number != one.id:
            opened.number, opened.answers = one.id, {}
        known = max((n for n in opened.answers if n <= one.cursor), default=-1)
        if one.mask is not None and known < one.kept <= one.cursor and one.kept > 0:
            known, mask = one.kept, png.decode(one.mask) == 1
            work = opened.work.corrected(mask, one.steps[:known])
        elif known >= 0:
            work = opened.answers[known]
        elif one.base is not None:
            known, work = 0, opened.work.corrected(png.decode(one.base) == 1, ())
        else:
            known, work = 0, opened.work
        opened.answers[known] = work
        for n, step in enumerate(one.steps[known : one.cursor], start=known + 1):
            work = opened.answers[n] = self._answerer.answer(work, step)
            self._bound_memory(photograph)
        return work

    def with_step(self, photograph: Photograph, step: Step) -> Work:
        """Return the answer to one more step of the open object; it is not kept."""
        return self._answerer.answer(self.current(photograph), step)

    def preview(self, photograph: Photograph, step: Step) -> Work:
        """Return the answer to one more step of the open object at one scale; it is not kept."""
        return self._answerer.preview(self.current(photograph), step)

    def keep(self, photograph: Photograph, number: int, count: int, work: Work) -> None:
        """Keep the answer to the first `count` steps of an object, and drop those to more."""
        opened = self.open(photograph)
        earlier = opened.answers if opened.number == number else {}
        opened.number = number
        opened.answers = {n: answer for n, answer in earlier.items() if n < count}
        opened.answers[count] = work
        self._bound_memory(photograph)

    def mask(
        self, photograph: Photograph, work: Work | None = None
    ) -> npt.NDArray[np.bool_] | None:
        """Return the mask of an answer, by default of the current one; None before any step."""
        work = self.current(photograph) if work is None else work
        mask = work.mask()
        if mask is None or not self.avoid_finished:
            return mask
        opened = self.open(photograph)
        if opened.finished is None:
            opened.finished = np.zeros(mask.shape, np.bool_)
            for one in self._store.objects(photograph.name):
                if one.mask is not None and not one.open:
                    opened.finished |= png.decode(one.mask) == 1
        return mask & ~opened.finished

    def drop(self, photograph: Photograph) -> None:
        """Drop the answers to the open object; the photograph stays encoded."""
        if photograph in self:
            self._opened[photograph.id].answers.clear()

    def drop_finished(self, photograph: Photograph) -> None:
        """Drop the union of the finished objects, after they have changed."""
        if photograph in self:
            self._opened[photograph.id].finished = None

    def clear(self) -> None:
        """Drop all answers and encodings, after the model or its settings have changed."""
        self._opened.clear()

    def _bound_memory(self, photograph: Photograph) -> None:
        """Drop other photographs, then answers, until the memory budget is met."""
        total = self.size
        for name in list(self._opened):
            if total <= MEMORY or name == photograph.id:
                break
            total -= self._opened.pop(name).size
        opened = self._opened[photograph.id]
        while opened.size > MEMORY and len(opened.answers) > 1:  # undo computes them again
            del opened.answers[min(opened.answers)]
