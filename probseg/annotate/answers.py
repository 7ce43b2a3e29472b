"""The sessions of open objects in memory, and their masks.

A budget bounds the memory. An answer that was dropped is computed from the stored steps.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from probseg.annotate.models import Answerer
from probseg.annotate.photographs import Photograph, read_readable, stored_labels
from probseg.annotate.steps import StoredStep, as_step, check_place
from probseg.annotate.store import Store, StoredObject
from probseg.errors import DataError
from probseg.interact.session import Answer, Session
from probseg.interact.states import InteractionState

MEMORY = 1 << 30
"""Bytes of photographs, encodings and answers that are kept in memory."""


@dataclass
class _Opened:
    """A photograph in memory.

    Args:
        image: The photograph without prompts.
        image_nbytes: Bytes of it and its encoding.
        finished: All finished objects, bool, shape `(H, W)`; None if not known.
        number: Of the object of the session; None for one that is not stored.
        steps: Of the session, those that were undone included.
        session: Steps of the open object; None if not known.
    """

    image: InteractionState
    image_nbytes: int
    finished: npt.NDArray[np.bool_] | None = None
    number: int | None = None
    steps: tuple[StoredStep, ...] = ()
    session: Session | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        finished = 0 if self.finished is None else self.finished.nbytes
        return self.image_nbytes + finished + (0 if self.session is None else self.session.nbytes)


class Answers:
    """Answers to the steps of the open object of each photograph.

    All methods are called under one lock.

    Args:
        answerer: The model.
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
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(opened.nbytes for opened in self._opened.values())

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
            state = self._answerer.begin(image)
            opened = _Opened(state, state.photograph.nbytes + Answer(state).nbytes)
            self._opened[photograph.id] = opened
            self._bound_memory(photograph)
        self._opened.move_to_end(photograph.id)
        return opened

    def session(self, photograph: Photograph, one: StoredObject | None) -> Session:
        """Return the session of the open object, built from its stored steps where it is missing.

        An object that was opened again goes on from its finished mask, and one that was read from a
        file from the mask in the file.

        Args:
            photograph: The photograph.
            one: Its open object; None for a new one.
        """
        opened = self.open(photograph)
        number, steps = (None, ()) if one is None else (one.id, one.steps)
        same = opened.number == number and opened.steps[: len(steps)] == steps
        if opened.session is None or not same:
            opened.number, opened.steps, opened.session = number, steps, None
            opened.session = self._built(opened, photograph, one)
        opened.session.move_to(len(steps))
        return opened.session

    def _built(self, opened: _Opened, photograph: Photograph, one: StoredObject | None) -> Session:
        loop = self._answerer.loop
        memory = max(0, MEMORY - opened.nbytes - math.prod(opened.image.photograph.size))
        if one is None:
            return Session(loop, opened.image, memory=memory)
        files = {0: one.base, one.kept: one.mask} if one.kept else {0: one.base}
        masks = {
            n: stored_labels(content, photograph) == 1
            for n, content in files.items()
            if content is not None
        }
        try:
            for step in one.steps:
                check_place(step, opened.image.photograph.size)
        except ValueError as error:
            msg = f"{photograph.name}: {error}; delete the object"
            raise DataError(msg) from error
        steps = [as_step(step) for step in one.steps]
        return Session(loop, opened.image, steps, masks=masks, memory=memory)

    def stored(self, photograph: Photograph, number: int, step: StoredStep) -> None:
        """Record the step that was added to the session, and bound the memory.

        Args:
            photograph: The photograph.
            number: Of the object of the session.
            step: The last step of the session.
        """
        opened = self._opened[photograph.id]
        assert opened.session is not None, "a step was added to it"
        opened.number = number
        opened.steps = (*opened.steps[: len(opened.session.steps) - 1], step)
        self._bound_memory(photograph)

    def mask(self, photograph: Photograph, answer: Answer) -> npt.NDArray[np.bool_] | None:
        """Return the mask of an answer, as far as the settings leave the finished objects out.

        Returns:
            bool, shape `(H, W)`; None before the first step.
        """
        if answer.mask is None:
            return None
        mask = answer.mask.binary
        if not self.avoid_finished:
            return mask
        opened = self.open(photograph)
        if opened.finished is None:
            opened.finished = np.zeros(mask.shape, np.bool_)
            for one in self._store.objects(photograph.name):
                if one.mask is not None and not one.open:
                    opened.finished |= stored_labels(one.mask, photograph) == 1
        return mask & ~opened.finished

    def drop(self, photograph: Photograph) -> None:
        """Drop the session of the open object; the photograph stays encoded."""
        if photograph in self:
            self._opened[photograph.id].session = None

    def drop_finished(self, photograph: Photograph) -> None:
        """Drop the union of the finished objects, after they have changed."""
        if photograph in self:
            self._opened[photograph.id].finished = None

    def clear(self) -> None:
        """Drop all sessions and encodings, after the model or its settings have changed."""
        self._opened.clear()

    def _bound_memory(self, photograph: Photograph) -> None:
        """Drop other photographs until the memory budget is met."""
        total = self.nbytes
        for name in list(self._opened):
            if total <= MEMORY or name == photograph.id:
                break
            total -= self._opened.pop(name).nbytes
