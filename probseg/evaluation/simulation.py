"""Runs with a simulated annotator: many at once, scored after each click."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

from probseg.clicks.annotators import CLICK_RULES, BoolMap, human_click, scribble_clicks
from probseg.errors import DataError
from probseg.evaluation.protocols import Protocol, draw_crop, trial_generator
from probseg.evaluation.records import (
    PICTURE_CLICKS,
    ClickRecord,
    Frame,
    ObjectRecord,
    Picture,
    checksum,
)
from probseg.evaluation.scores import SCORES, MaskScorer
from probseg.geometry import ZOOMS
from probseg.interact import InteractionLoop, Model
from probseg.interact.loop import InteractionState, begin
from probseg.interact.photograph import image_tensor
from probseg.models import Segmenter
from probseg.types import Click, Sample

T = TypeVar("T")

SCRIBBLE_SPACING = 8.0
"""Maximum pixels between a stroke and the next of its clicks: the radius of their disks."""


def run_objects(
    model: Model | Segmenter,
    samples: Sequence[Sample],
    protocol: Protocol,
    *,
    trials: Sequence[int] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int = 8,
    keep_pictures: bool = False,
) -> list[ObjectRecord]:
    """Segment objects with simulated clicks, all of them and all trials at once.

    A run gets all clicks of the protocol, so that the mean IoU after `k` clicks is over all
    objects, unless no error is left to click on or the target IoU is reached: it then leaves the
    batch, and its last scores are repeated. Every run has its own random numbers: its result does
    not depend on the others in its batch, up to the rounding of the model's batched kernels.

    Args:
        model: See `Model`; in evaluation mode.
        samples: The objects. All of them are held in memory with `len(trials)` states each.
        protocol: Protocol of the simulation.
        trials: Numbers of the runs of each object; None is all of the protocol.
        seed: Seed of the evaluation.
        device: Device of the model.
        batch_size: Maximum number of images in one call of the model.
        keep_pictures: Whether to keep some predictions of each object's first run for drawing.

    Returns:
        One record per object and trial, objects first.

    Raises:
        DataError: If a mask has no object pixel, or lacks what the protocol begins with.
        ValueError: If the model's answer cannot be used; the message names the object.
    """
    loop = InteractionLoop(
        model,
        batch_size=batch_size,
        zoom=None if protocol.zoom is None else ZOOMS[protocol.zoom],
        flip=protocol.flip,
        previous_mask=protocol.previous_mask or getattr(model, "previous_mask", False),
        keep_clicks=protocol.keep_clicks,
    )
    runs = []
    for sample in samples:
        image, pixels = image_tensor(sample.image, device), checksum(sample)
        for trial in range(protocol.trials) if trials is None else trials:
            keeps = keep_pictures and trial == 0
            runs.append(
                _Run(sample, image, protocol, trial=trial, seed=seed, pixels=pixels, pictured=keeps)
            )
    # The work between two answers is OpenCV's and NumPy's, which release the interpreter's lock.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:

        def score_all(active: Sequence[_Run], states: Sequence[InteractionState]) -> None:
            list(pool.map(_Run.score, active, states))  # raises what a thread has raised

        active = runs
        states = [run.state for run in runs]
        score_all(active, loop.answer(states) if protocol.answers_at_once else states)
        while active := [run for run in active if run.click is not None]:
            clicks = [run.click for run in active if run.click is not None]
            score_all(active, loop.step([run.state for run in active], clicks))
    return [run.record() for run in runs]


def run_object(
    model: Model | Segmenter,
    sample: Sample,
    protocol: Protocol,
    *,
    trial: int = 0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    keep_picture: bool = False,
) -> ObjectRecord:
    """Segment one object once; see `run_objects`."""
    (record,) = run_objects(
        model,
        [sample],
        protocol,
        trials=[trial],
        seed=seed,
        device=device,
        batch_size=1,
        keep_pictures=keep_picture,
    )
    return record


class _Run:
    """One object, one trial: its state and its record so far.

    Attributes:
        state: The interaction.
        click: The annotator's next click; None when the run is over.
    """

    def __init__(
        self,
        sample: Sample,
        image: torch.Tensor,
        protocol: Protocol,
        *,
        trial: int,
        seed: int,
        pixels: str,
        pictured: bool,
    ) -> None:
        strokes: tuple[Click, ...] = ()
        initial: BoolMap | None = None
        if protocol.scribbles:
            known = _needed(sample, sample.scribbles, "scribbles", "GrabCut(scribbles='set1')")
            strokes = scribble_clicks(known, SCRIBBLE_SPACING)
        if protocol.initial_mask:
            initial = _needed(sample, sample.initial, "an initial mask", "DAVIS585(initial='stm')")
        drawn = draw_crop(sample, protocol, trial=trial, seed=seed)
        self._sample, self._protocol, self._trial, self._seed = sample, protocol, trial, seed
        self._pixels = pixels
        self._scorer = MaskScorer(sample.mask, drawn.crop)
        self._prediction: BoolMap | None = None
        self._steps: list[ClickRecord] = []
        self._kept: dict[int, BoolMap] | None = {} if pictured else None
        self.click: Click | None = None
        self.state = begin(
            image,
            crop=drawn.crop,
            box=drawn.box,
            clicks=strokes,
            initial=None if initial is None else np.asarray(initial, dtype=np.bool_),
        )

    def score(self, state: InteractionState) -> None:
        """Score the state, and decide on the next click."""
        self.state = state
        probability = state.probability
        before, self._prediction = self._prediction, probability > self._protocol.threshold
        k = len(self._steps)
        answer = None if state.seconds is None else probability
        try:
            scored = self._scorer(self._prediction, answer, state.clicks, before)
            scores = {name: score.measure(scored) for name, score in SCORES.items()}
        except ValueError as error:
            run = f"{self._sample.dataset}/{self._sample.name}, trial {self._trial}"
            raise ValueError(f"{run}, after {k} clicks: {error}") from error
        step = ClickRecord(k, None, None, None, scores, state.seconds)
        if self.click is not None:
            x, y, positive = self.click
            step = step._replace(x=int(x), y=int(y), positive=positive)
        self._steps.append(step)
        if self._kept is not None:
            self._kept = {n: kept for n, kept in self._kept.items() if n in PICTURE_CLICKS}
            self._kept[k] = self._prediction
        self.click = self._next_click(self._prediction, before)
        if self.click is None:
            # Frees the memory of the encoding for other runs.
            self.state = state._replace(view=None, encoded=None, look=None)

    def record(self) -> ObjectRecord:
        """Return the run, with its last scores repeated up to the protocol's last click."""
        end = self._steps[-1]
        of_clicks = {name: None for name, score in SCORES.items() if score.of_click}
        last = ClickRecord(end.k, None, None, None, {**end.scores, **of_clicks}, None)
        held = [last._replace(k=k) for k in range(len(self._steps), self._protocol.max_clicks + 1)]
        sample = self._sample
        return ObjectRecord(
            dataset=sample.dataset,
            name=sample.name,
            trial=self._trial,
            steps=(*self._steps, *held),
            photo=sample.name if sample.photo is None else sample.photo,
            pixels=self._pixels,
            picture=None if self._kept is None else self._picture(self._kept),
        )

    def _next_click(self, prediction: BoolMap, before: BoolMap | None) -> Click | None:
        """Return the annotator's answer to a prediction, or None where the run is over."""
        rules, k = self._protocol, len(self._steps)
        reached = rules.target_iou is not None and self._steps[-1].iou >= rules.target_iou
        if k > rules.max_clicks or reached:
            return None
        sample, clicks = self._sample, self.state.clicks
        rule = CLICK_RULES[rules.click_rule]
        generator = trial_generator(
            self._seed, sample.dataset, sample.name, self._trial, "click", k
        )
        if rules.mistakes is None:
            return rule(prediction, sample.mask, clicks, generator)
        return human_click(rule, rules.mistakes, prediction, before, sample.mask, clicks, generator)

    def _picture(self, kept: dict[int, BoolMap]) -> Picture:
        (x0, y0, x1, y1), box = self.state.crop, self.state.box
        sample, rows, columns = self._sample, slice(y0, y1), slice(x0, x1)
        corrective = sum(step.x is not None for step in self._steps)  # after strokes
        clicks = self.state.clicks[len(self.state.clicks) - corrective :]
        return Picture(
            image=sample.image[rows, columns].copy(),
            mask=sample.mask[rows, columns].copy(),
            box=box and (box[0] - x0, box[1] - y0, box[2] - x0, box[3] - y0),
            clicks=tuple(click._replace(x=click.x - x0, y=click.y - y0) for click in clicks),
            frames=tuple(
                Frame(k, prediction[rows, columns].copy(), self._steps[k].iou)
                for k, prediction in kept.items()
            ),
        )


def _needed(sample: Sample, part: T | None, words: str, some: str) -> T:
    """Return the part of a sample that a protocol begins with; `some` data sets have it."""
    if part is None:
        raise DataError(
            f"{sample.dataset}/{sample.name}: expected {words}, which the protocol begins with; "
            f"choose a data set that has some, for instance {some}"
        )
    return part
