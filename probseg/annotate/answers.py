"""The model, and the sessions of open objects in memory with their masks.

A budget bounds the memory. An answer that was dropped is computed from the stored steps.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from probseg.annotate.learning import Learning, is_trusted
from probseg.annotate.photographs import (
    Photograph,
    pixel_digest,
    read_readable,
    stored_labels,
    stored_region,
)
from probseg.annotate.steps import StoredStep, as_step, check_place
from probseg.annotate.store import Store, StoredObject
from probseg.attention import Adaptation
from probseg.attention.adaptation import UPDATES
from probseg.descriptions import RECOMMENDED
from probseg.errors import DataError
from probseg.geometry import RECOMMENDED_ZOOM
from probseg.interact.loop import InteractionLoop, InteractionState
from probseg.interact.photograph import as_photograph
from probseg.interact.session import Answer, Session, build_loop, encode_image, prepare_model
from probseg.interact.steps import tidy
from probseg.paths import MEAN, is_path
from probseg.zoo import create_interactive, list_models
from probseg.zoo.trained import LAST

_logger = logging.getLogger(__name__)

KNOBS = tuple(field.name for field in fields(Adaptation))
"""Settings of `Segmenter.adapt`."""

ITERATIONS = tuple(f"{kind}_iterations" for kind in UPDATES)
"""Settings that switch an adaptation off with 0."""

MOST_ITERATIONS = 100
"""Maximum iterations of an adaptation, ten times those of the page's sliders."""


class ModelHost:
    """The current model, and the names of models that can replace it.

    Without a name, it begins with `RECOMMENDED`, or with the model of the last session, see
    `resume`. Validated runs in the folder `runs` can be chosen, too.
    """

    def __init__(
        self, name: str | None = None, runs: Path | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.first, self._runs = name, runs
        self.device = torch.device(device)
        self.zoom: str | None = RECOMMENDED_ZOOM
        self.learning: Learning | None = None  # of the folder
        self.load(name or RECOMMENDED)

    @property
    def names(self) -> list[str]:
        """Models to choose from: the first one, the zoo's, and runs that were validated."""
        runs = [] if self._runs is None else sorted(self._runs.glob("**/config.yaml"))
        trained = [
            str(run.parent)
            for run in runs
            if (run.parent / MEAN).is_file()
            or any(path.name != LAST for path in run.parent.glob("checkpoints/**/*.ckpt"))
        ]
        shipped = [name.split(".")[0] for name in list_models(pretrained=True, task="interactive")]
        names = [self.first or RECOMMENDED, *shipped, *trained, *self.learned]
        return list(dict.fromkeys(names))

    @property
    def learned(self) -> dict[str, Path]:
        """Models that were learned from the photographs of the folder, by their names."""
        return {} if self.learning is None else self.learning.models

    @property
    def loop(self) -> InteractionLoop:
        """The interaction with the model and the chosen zoom."""
        return build_loop(self.model, self.zoom)

    def load(self, name: str) -> None:
        """Load another model; if this fails, keep the current one."""
        source = str(self.learned.get(name, name))
        self.model = prepare_model(create_interactive(source, pretrained=True), self.device)
        self.name = name

    def resume(self, folder: Path, model: str, settings: Mapping[str, Any]) -> None:
        """Restore the model and the settings of an earlier session.

        Nothing changes if another model was asked for. A folder from others can only choose models
        of the zoo and the user's own runs, never a path, and no learned one that nobody chose here.
        """
        if model != (self.first or model):
            return
        path = Path(model)
        inside = path.absolute().is_relative_to(folder.absolute())
        inside |= path.resolve().is_relative_to(folder.resolve())
        brought = self.first is None and is_path(model) and inside
        brought |= model in self.learned and not is_trusted(self.learned[model])
        if brought or model not in self.names:
            _logger.warning("%s: was last used with %r: give --model to use it", folder, model)
            return
        self.first = model
        if model != self.name:
            self.load(model)
        off = {name: 0 for name in ITERATIONS if settings.get(name) == 0}
        try:
            self.change({**settings, **dict.fromkeys(off, 1)})  # no prior without iterations
            self.change(off)
        except ValueError as error:
            _logger.warning("%s: its last settings are not used: %.300s", folder, error)

    def begin(self, image: npt.NDArray[np.uint8]) -> InteractionState:
        """Return the state of an image before any prompt, see `encode_image`."""
        return encode_image(self.model, as_photograph(image, self.device))

    def settings(self) -> dict[str, Any]:
        """Return the settings of inference; None for those that the network lacks."""
        return {**asdict(self.model.adaptation()), "zoom": self.zoom}

    def change(self, settings: Mapping[str, Any]) -> None:
        """Change settings of inference."""
        rest = dict(settings)
        zoom = rest.pop("zoom", self.zoom)
        if zoom is not None and zoom != RECOMMENDED_ZOOM:
            raise ValueError(f"`zoom` must be one of {[RECOMMENDED_ZOOM, None]}, got {zoom!r:.200}")
        unknown = sorted(set(rest) - set(KNOBS))
        if unknown:
            known = [*KNOBS, "zoom", "avoid_finished", "tidy"]
            raise ValueError(f"unknown settings {unknown}; known are {known}")
        for name, value in rest.items():
            most, kinds = (MOST_ITERATIONS, (int,)) if name in ITERATIONS else (1e6, (int, float))
            if value is not None and not (type(value) in kinds and 0 <= value <= most):
                raise ValueError(
                    f"`{name}` must be a number from 0 to {most:g}, got {value!r:.200}"
                )
        if any(value is not None for value in rest.values()):
            self.model.adapt(Adaptation(**rest))
        self.zoom = zoom


MEMORY = 1 << 30
"""Bytes of photographs, encodings and answers that are kept in memory."""


@dataclass
class _Opened:
    """A photograph in memory."""

    image: InteractionState  # without prompts
    # All finished objects, bool, shape `(H, W)`; None if not known
    finished: npt.NDArray[np.bool_] | None = None
    number: int | None = None  # of the object of the session; None for one that is not stored
    steps: tuple[StoredStep, ...] = ()  # of the session, those that were undone included
    session: Session | None = None  # steps of the open object; None if not known

    @property
    def pixels(self) -> str:
        """Digest of the photograph, whose time grows with its size."""
        return pixel_digest(self.image.image.permute(1, 2, 0).cpu().numpy())

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        finished = 0 if self.finished is None else self.finished.nbytes
        answers = Answer(self.image) if self.session is None else self.session  # with the image's
        return self.image.photograph.nbytes + finished + answers.nbytes


class Answers:
    """Answers to the steps of the open object of each photograph.

    All methods are called under one lock. With `avoid_finished`, masks leave out the finished
    objects of a photograph; with `tidy`, what the model answers has no crumbs and no tiny holes.
    """

    def __init__(
        self, model_host: ModelHost, store: Store, avoid_finished: bool, tidy: bool
    ) -> None:
        self.avoid_finished, self.tidy = avoid_finished, tidy
        self._model_host, self._store = model_host, store
        self._opened: OrderedDict[str, _Opened] = OrderedDict()

    def __contains__(self, photograph: Photograph) -> bool:
        return photograph.id in self._opened

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(opened.nbytes for opened in self._opened.values())

    def open(self, photograph: Photograph, image: npt.NDArray[np.uint8] | None = None) -> _Opened:
        """Return a photograph in memory, encoded where that does not depend on prompts."""
        opened = self._opened.get(photograph.id)
        if opened is None:
            image = read_readable(photograph) if image is None else image
            state = self._model_host.begin(image)
            opened = _Opened(state)
            self._opened[photograph.id] = opened
            self._bound_memory(photograph)
        self._opened.move_to_end(photograph.id)
        return opened

    def session(self, photograph: Photograph, current: StoredObject | None) -> Session:
        """Return the session of the open object, None for a new one.

        It is built from the stored steps where it is not in memory. An object that was opened again
        continues from its finished mask, one that was read from a file from the mask in the file.
        """
        opened = self.open(photograph)
        number, steps = (None, ()) if current is None else (current.id, current.steps)
        same = opened.number == number and opened.steps[: len(steps)] == steps
        if opened.session is None or not same:
            opened.number, opened.steps, opened.session = number, steps, None
            size = opened.image.photograph.size
            memory = max(0, MEMORY - opened.image.photograph.nbytes - math.prod(size))
            # By the number of steps that they answer; the finished mask may answer none.
            pngs = {} if current is None else {current.kept: current.mask, 0: current.base}
            masks = {n: stored_labels(p, photograph) == 1 for n, p in pngs.items() if p is not None}
            try:
                for step in steps:
                    check_place(step, size)
            except ValueError as error:
                raise DataError(f"{photograph.name}: {error}; delete the object") from error
            opened.session = Session(
                self._model_host.loop,
                opened.image,
                [as_step(step) for step in steps],
                masks=masks,
                memory=memory,
            )
        opened.session.move_to(len(steps))
        return opened.session

    def record_step(self, photograph: Photograph, number: int, step: StoredStep) -> None:
        """Record the step that was added to the session, and bound the memory."""
        opened = self._opened[photograph.id]
        assert opened.session is not None, "a step was added to it"
        opened.number = number
        opened.steps = (*opened.steps[: len(opened.session.steps) - 1], step)
        self._bound_memory(photograph)

    def mask(self, photograph: Photograph, answer: Answer) -> npt.NDArray[np.bool_] | None:
        """Return the mask of an answer as the settings say: tidy, without finished objects."""
        if answer.mask is None:
            return None
        mask = answer.mask.binary
        if self.tidy and answer.predicted:
            mask = answer.drawn_over(tidy(mask, answer.state.clicks))
        if not self.avoid_finished:
            return mask
        opened = self.open(photograph)
        if opened.finished is None:
            opened.finished = np.zeros(mask.shape, np.bool_)
            for stored in self._store.listed(photograph.name):
                region = stored_region(stored.counts, photograph)
                opened.finished[region.window] |= region.inside
        mask = mask & ~opened.finished
        if self.tidy and answer.predicted:  # what sticks out behind others
            mask = answer.drawn_over(tidy(mask, answer.state.clicks, holes=False)) & mask
        return mask

    def without_adapting(
        self, photograph: Photograph, current: StoredObject | None
    ) -> npt.NDArray[np.bool_] | None:
        """Return the mask of an object as it would be if the network did not adapt.

        Settings and answers in memory are the same before and after.
        """
        settings = self._model_host.settings()
        on = {name: settings[name] for name in ITERATIONS if settings[name] is not None}
        opened = self._opened.pop(photograph.id, None)
        self._model_host.change(dict.fromkeys(on, 0))
        try:
            return self.mask(photograph, self.session(photograph, current).answer)
        finally:
            self._model_host.change(on)
            self.forget(photograph)
            if opened is not None:
                self._opened[photograph.id] = opened

    def drop(self, photograph: Photograph) -> None:
        """Drop the session of the open object; the photograph stays encoded."""
        if photograph in self:
            self._opened[photograph.id].session = None

    def drop_finished(self, photograph: Photograph) -> None:
        """Drop the union of the finished objects, after they have changed."""
        if photograph in self:
            self._opened[photograph.id].finished = None

    def forget(self, photograph: Photograph) -> None:
        """Drop a photograph, after its file has changed."""
        self._opened.pop(photograph.id, None)

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
