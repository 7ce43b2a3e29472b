"""Protocols: all settings of an evaluation with simulated clicks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from probseg.clicks import CLICK_RULES, HUMAN, Mistakes
from probseg.clicks.annotators import jitter_box
from probseg.errors import DataError, check_name, require
from probseg.geometry import (
    CROP_PADDING,
    MIN_PADDING,
    RECOMMENDED_ZOOM,
    ZOOMS,
    Box,
    mask_box,
    padded_crop,
)
from probseg.types import Sample

Beginning = Literal["click", "box", "scribbles", "initial_mask"]
"""What a run begins with."""


class _Begins(NamedTuple):
    """Consequences of a beginning: what there is before the first corrective click."""

    answers: bool  # of the model
    has_result: bool
    clicks: str  # name of the clicks that follow, for reports


BEGINNINGS: dict[Beginning, _Begins] = {
    "click": _Begins(False, False, "clicks"),
    "box": _Begins(True, True, "corrective clicks after the box"),
    "scribbles": _Begins(True, True, "corrective clicks after the strokes"),
    "initial_mask": _Begins(False, True, "clicks on the given mask"),
}
"""All beginnings of a run, and what follows from them."""


def beginning(options: Mapping[str, Any]) -> Beginning:
    """Return what runs begin with under a protocol with `box`, `scribbles` and `initial_mask`."""
    if options["box"]:
        return "box"
    if options["scribbles"]:
        return "scribbles"
    return "initial_mask" if options["initial_mask"] else "click"


@dataclass(frozen=True)
class Protocol:
    """Settings of the simulated annotator and the scores; `dataclasses.replace` changes a field.

    Args:
        name: Name of the protocol.
        version: Goes up whenever the same name starts to give other numbers.
        description: One sentence for reports.
        max_clicks: Corrective clicks per object; 0 asks for one mask by box or scribbles alone.
        box: Whether the annotator draws a box first. The model then sees only the crop around it,
            at native size, and predicts before the first corrective click; without a box it
            sees the whole image and the first click starts the prediction.
        click_rule: Name in `probseg.clicks.CLICK_RULES`.
        threshold: A pixel is predicted as object where its probability is *above* this.
        trials: Runs per object. They differ by the noise of the box and of the clicks.
        corner_noise: Largest move of a corner coordinate, as a fraction of the box's side.
        crop_padding: Margin around the drawn box, as a fraction of its longer side.
        min_padding: Smallest margin in pixels.
        mistakes: Errors of the annotator; None for a perfect annotator.
        scribbles: Whether the strokes of the sample come before the first corrective click, as
            clicks along them.
        initial_mask: Whether the annotator corrects the sample's initial mask: the first click is
            on its errors.
        previous_mask: Whether the model gets its last answer with the prompts; a `Segmenter` that
            was built for it is in any case.
        zoom: Name in `probseg.geometry.ZOOMS`: the model then gets a window from the second
            click on; None for no zoom.
        flip: Whether to average the logits with the logits of the mirrored image.
        keep_clicks: Whether clicked pixels get the label of their click in every answer, as in the
            Predictor.
        target_iou: A run ends as soon as its IoU reaches this; None gives every run all clicks.

    Raises:
        ValueError: If a field is out of range, or the noise could push the object out of the crop.
        UnknownNameError: If there is no such click rule or zoom.
    """

    name: str
    version: int
    description: str
    max_clicks: int
    box: bool
    click_rule: str
    threshold: float
    trials: int = 1
    corner_noise: float = 0.0
    crop_padding: float = 0.0
    min_padding: int = 0
    mistakes: Mistakes | None = None
    scribbles: bool = False
    initial_mask: bool = False
    previous_mask: bool = False
    zoom: str | None = None
    flip: bool = False
    keep_clicks: bool = False
    target_iou: float | None = None

    def __post_init__(self) -> None:
        check_name("click rule", self.click_rule, CLICK_RULES)
        if self.zoom is not None:
            check_name("zoom", self.zoom, ZOOMS)
        least = 1 - 2 * self.corner_noise  # the part of the side that is left in the worst case
        target = 1.0 if self.target_iou is None else self.target_iou
        needed = 0 if self.answers_at_once else 1
        checks = {
            "max_clicks": (
                self.max_clicks >= needed,
                f"at least {needed}" + (" without box and scribbles" if needed else ""),
            ),
            "trials": (
                self.trials == 1 or (self.trials > 1 and self.is_random),
                "at least 1, and 1 without noise of the box, random clicks or mistakes, where all "
                "would be equal",
            ),
            "threshold": (0 < self.threshold < 1, "a probability in (0, 1)"),
            "target_iou": (0 < target <= 1, "a fraction in (0, 1], or None"),
            "corner_noise": (0 <= self.corner_noise < 0.5, "a fraction in [0, 0.5)"),
            "min_padding": (self.min_padding >= 0, "pixels, at least 0"),
            "crop_padding": (
                self.crop_padding * least >= self.corner_noise,
                f"at least corner_noise / (1 - 2 corner_noise) = {self.corner_noise} / {least}, "
                "so that the object stays inside the crop",
            ),
            "zoom": (self.zoom is None or not self.box, "None with a box, which has its own crop"),
            "box": (
                self.box or not (self.corner_noise or self.crop_padding or self.min_padding),
                "True with `corner_noise`, `crop_padding` or `min_padding`",
            ),
        }
        for field, (fine, expected) in checks.items():
            require(fine, field, expected, getattr(self, field))

    @property
    def begins_with(self) -> Beginning:
        """What a run begins with."""
        return beginning(vars(self))

    @property
    def answers_at_once(self) -> bool:
        """Whether the model answers before the first corrective click."""
        return BEGINNINGS[self.begins_with].answers

    @property
    def first_result(self) -> int:
        """Number of corrective clicks of the first result: 0, or 1 where a click has to start."""
        return 0 if BEGINNINGS[self.begins_with].has_result else 1

    @property
    def is_random(self) -> bool:
        """Whether two trials can differ."""
        return self.corner_noise > 0 or self.click_rule == "random" or self.mistakes is not None


_RITM = Protocol(
    name="ritm",
    version=1,
    description="Whole image, no box, clicks at the centre of the largest error circle "
    "(Sofiiuk et al., 2021).",
    max_clicks=20,
    box=False,
    click_rule="largest_radius",
    threshold=0.49,
)
_GABBUR = Protocol(
    name="gabbur2021",
    version=1,
    description="Crop around a noisy box, then clicks at the centre of the largest error area "
    "(Gabbur et al., 2021, appendix C.3).",
    max_clicks=10,
    box=True,
    click_rule="largest_area",
    threshold=0.5,
    trials=5,
    corner_noise=0.1,
    crop_padding=CROP_PADDING,
    min_padding=MIN_PADDING,
)

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        _RITM,
        replace(
            _RITM,
            name="ritm_zoom",
            description="As ritm, with zoom-in from the second click on and flip averaging, as the "
            "published figures of RITM were made (Sofiiuk et al., 2021).",
            zoom="ritm",
            flip=True,
        ),
        replace(
            _RITM,
            name="probseg",
            version=5,
            description="As ritm, with the zoom of the Predictor: the first click is answered at "
            "three scales, then from around the answer that expects the largest IoU, and from the "
            "second click on the surroundings of the object are enlarged and those of the click "
            "looked at once more. Clicked pixels keep the label of their click.",
            zoom=RECOMMENDED_ZOOM,
            keep_clicks=True,
        ),
        replace(
            _RITM,
            name="human",
            description="As ritm, by a hand that trembles, misses the centre, clicks before it has "
            "looked and sometimes takes the wrong button.",
            mistakes=HUMAN,
            trials=5,
        ),
        replace(
            _RITM,
            name="scribbles",
            description="Strokes on object and background first, then clicks as in ritm.",
            max_clicks=10,
            scribbles=True,
        ),
        replace(
            _RITM,
            name="correction",
            description="As ritm, beginning with a given mask that has errors, which the model is "
            "shown (Chen et al., 2022). For models that take a previous mask.",
            initial_mask=True,
            previous_mask=True,
        ),
        _GABBUR,
        replace(
            _GABBUR,
            name="box",
            description="The crop around a noisy box, and no click.",
            max_clicks=0,
        ),
    )
}
"""Protocols by name."""


def all_options(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a protocol as a result records them, and those that are newer.

    The default of a new option is what was done before it.
    """
    defaults = {field.name: field.default for field in fields(Protocol)}
    later = {name: default for name, default in defaults.items() if default is not MISSING}
    return {**later, **recorded}


def get_protocol(name: str) -> Protocol:
    """Return a protocol by name.

    Raises:
        UnknownNameError: If no protocol has this name.
    """
    check_name("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


class DrawnCrop(NamedTuple):
    """Crop and box of one run.

    Args:
        crop: Part of the image that the model may see, half-open, in whole-image pixels.
        box: The drawn box, half-open, in whole-image pixels; None where none was drawn.
    """

    crop: Box
    box: Box | None


def trial_generator(
    seed: int, dataset: str, name: str, trial: int, *purpose: str | int
) -> np.random.Generator:
    """Return the random numbers of one run, independent of other runs and of the process.

    They have a purpose if a run draws for more than its box.
    """
    key = json.dumps([seed, dataset, name, trial, *purpose]).encode()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(key).digest()))


def draw_crop(sample: Sample, protocol: Protocol, *, trial: int = 0, seed: int = 0) -> DrawnCrop:
    """Draw the box of one run and the crop around it, or return the whole image without a box.

    The box is that of the mask with noise on its corners; the object is inside the crop always.

    Args:
        sample: The object.
        protocol: Says whether there is a box, how noisy it is and how wide the crop.
        trial: Number of the run; each has its own noise.
        seed: Seed of the evaluation.

    Raises:
        DataError: If the mask has no object pixel.
    """
    size = sample.mask.shape[0], sample.mask.shape[1]
    try:
        tight = mask_box(sample.mask)
    except ValueError as error:
        raise DataError(f"{sample.dataset}/{sample.name}: {error}; leave the object out") from error
    if not protocol.box:
        return DrawnCrop(crop=(0, 0, size[1], size[0]), box=None)
    generator = trial_generator(seed, sample.dataset, sample.name, trial)
    box = jitter_box(tight, protocol.corner_noise, size, generator)
    crop = padded_crop(box, size, padding=protocol.crop_padding, min_padding=protocol.min_padding)
    return DrawnCrop(crop=crop, box=box)
