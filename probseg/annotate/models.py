"""The model of the annotation server, and its settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from probseg.attention import Adaptation
from probseg.attention.adaptation import UPDATES
from probseg.descriptions import RECOMMENDED
from probseg.interact.loop import InteractionLoop
from probseg.interact.photograph import as_photograph
from probseg.interact.session import build_loop, encode_image, prepared
from probseg.interact.states import InteractionState
from probseg.interact.zoom import RECOMMENDED_ZOOM
from probseg.paths import is_path
from probseg.zoo import create_interactive, list_models

_logger = logging.getLogger(__name__)

KNOBS = tuple(field.name for field in fields(Adaptation))
"""Settings of `Segmenter.adapt`."""

ITERATIONS = tuple(f"{kind}_iterations" for kind in UPDATES)
"""Those of them that switch an adaptation off with 0."""

MOST_ITERATIONS = 100
"""Most iterations of an adaptation, ten times those of the page's sliders."""

ZOOM_NAMES = (RECOMMENDED_ZOOM,)
"""Ways to zoom that the page offers."""


class Answerer:
    """The current model, and the names of models that can replace it.

    Args:
        name: A model of the zoo, a model folder, or the folder or checkpoint of a run. None is that
            of the earlier session, see `resume`, at first `RECOMMENDED`.
        runs: Folder of trainings; finished runs below it can be chosen, too. None for none.
        device: Where to compute.

    Raises:
        UsageError: If it is a network for semantic segmentation, or there is none.
    """

    def __init__(
        self, name: str | None = None, runs: Path | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.wanted, self._runs = name, runs
        self.device = torch.device(device)
        self.zoom: str | None = RECOMMENDED_ZOOM
        self.load(name or RECOMMENDED)

    @property
    def names(self) -> list[str]:
        """Models to choose from: the first one, the zoo's, and runs that were validated."""
        runs = [] if self._runs is None else sorted(self._runs.glob("**/config.yaml"))
        trained = [
            str(run.parent)
            for run in runs
            if any(path.stem != "last" for path in run.parent.glob("checkpoints/*.ckpt"))
        ]
        shipped = [name.split(".")[0] for name in list_models(pretrained=True, task="interactive")]
        return list(dict.fromkeys([self.wanted or RECOMMENDED, *shipped, *trained]))

    @property
    def loop(self) -> InteractionLoop:
        """The interaction with the model and the chosen zoom."""
        return build_loop(self.model, self.zoom)

    def load(self, name: str) -> None:
        """Load another model; if this fails, keep the current one."""
        self.model = prepared(create_interactive(name, pretrained=True), self.device)
        self.name = name

    def resume(self, folder: Path, model: str, settings: Mapping[str, Any]) -> None:
        """Restore the model and the settings of an earlier session.

        Nothing is changed if another model was asked for. What a folder of others says is followed
        only to the models of the zoo and of the user's own runs, never to a path.

        Args:
            folder: That they were kept in.
            model: Name of the model.
            settings: As `settings` returned them.
        """
        if model != (self.wanted or model):
            return
        path = Path(model)
        inside = path.absolute().is_relative_to(folder.absolute())
        inside |= path.resolve().is_relative_to(folder.resolve())
        brought = self.wanted is None and is_path(model) and inside
        if brought or model not in self.names:
            _logger.warning("%s: was last used with %r: give --model to use it", folder, model)
            return
        self.wanted = model
        if model != self.name:
            self.load(model)
        off = {name: 0 for name in ITERATIONS if settings.get(name) == 0}
        try:
            self.change({**settings, **dict.fromkeys(off, 1)})  # no prior without iterations
            self.change(off)
        except ValueError as error:
            _logger.warning("%s: its last settings are not used: %.300s", folder, error)

    def begin(self, image: npt.NDArray[np.uint8]) -> InteractionState:
        """Return an image without prompts, encoded if that does not depend on prompts."""
        return encode_image(self.model, as_photograph(image, self.device))

    def settings(self) -> dict[str, Any]:
        """Return the settings of inference; None for those that the network has not."""
        return {**asdict(self.model.adaptation()), "zoom": self.zoom}

    def change(self, wanted: Mapping[str, Any]) -> None:
        """Change settings of inference.

        Raises:
            ValueError: If one is unknown or out of range, or the network has no layer to change.
        """
        rest = dict(wanted)
        zoom = rest.pop("zoom", self.zoom)
        if zoom is not None and zoom not in ZOOM_NAMES:
            msg = f"`zoom` must be one of {[*ZOOM_NAMES, None]}, got {zoom!r:.200}"
            raise ValueError(msg)
        unknown = sorted(set(rest) - set(KNOBS))
        if unknown:
            msg = f"unknown settings {unknown}; known are {[*KNOBS, 'zoom', 'avoid_finished']}"
            raise ValueError(msg)
        for name, value in rest.items():
            most, kinds = (MOST_ITERATIONS, (int,)) if name in ITERATIONS else (1e6, (int, float))
            if value is not None and not (type(value) in kinds and 0 <= value <= most):
                msg = f"`{name}` must be a number from 0 to {most:g}, got {value!r:.200}"
                raise ValueError(msg)
        if any(value is not None for value in rest.values()):
            self.model.adapt(Adaptation(**rest))
        self.zoom = zoom
