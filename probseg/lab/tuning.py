"""Selection of the adaptation of a trained network (Gabbur et al., 2021, appendix C.4).

The paper searches the precision of the value prior among 0.1, 1, 10 and 100 by the mean number of
clicks to an IoU of 90 %, on objects held out of both training and test. Here keys come first, at
all their iterations and priors, and values after them, with the keys' best setting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import yaml

from probseg.attention import UPDATES, Adaptation, restored
from probseg.errors import UsageError
from probseg.evaluation.arrays import scores_of
from probseg.evaluation.protocols import Protocol
from probseg.evaluation.records import ObjectRecord
from probseg.evaluation.simulation import run_objects
from probseg.metrics import Interval, clustered_bootstrap, noc, standard_error
from probseg.models import Segmenter
from probseg.types import Sample

TARGET = 0.9
"""IoU of the number of clicks (NoC) that is minimised."""

OBJECTS_AT_ONCE = 16

DRAWS = 20_000
"""Resamples for the bounds far out in the tails that many comparisons need."""


@dataclass(frozen=True)
class Grid:
    """Settings that a search tries.

    Args:
        key_iterations: EM iterations of the keys; 0 is always tried too.
        key_priors: Precisions of the prior of the keys.
        value_iterations: EM iterations in which clicks propagate; 0 is always tried too.
        value_priors: Precisions of the prior of the value means.
        click_iterations: EM iterations of the classifier; 0 is always tried too.
        click_priors: Precisions of the prior of its weights.
    """

    key_iterations: Sequence[int] = (1, 2)
    key_priors: Sequence[float] = (0.0, 0.001, 0.01, 0.1, 1.0)
    value_iterations: Sequence[int] = (1, 5)
    value_priors: Sequence[float] = (0.1, 1.0, 10.0, 100.0)
    click_iterations: Sequence[int] = (3,)
    click_priors: Sequence[float] = (1.0, 3.0, 10.0, 30.0)

    def of(self, kind: str) -> list[Adaptation]:
        """Return all settings of a kind of update, a key of `UPDATES`."""
        iterations, prior = f"{kind}_iterations", f"{kind}_prior"
        numbers, priors = filter(None, getattr(self, iterations)), getattr(self, f"{prior}s")
        return [
            Adaptation(**{iterations: 0}),
            *(
                Adaptation(**{iterations: number, prior: precision})
                for number, precision in itertools.product(numbers, priors)
            ),
        ]


@dataclass(frozen=True)
class Trial:
    """One setting and its results.

    Args:
        adaptation: The setting; all None is the network as it was trained.
        clicks: Mean number of clicks to an IoU of 90 %, a failure counting as the last click.
        clicks_se: Its standard error over objects.
        difference: Interval of the difference to the network as it was trained, by a bootstrap
            over photographs; None of that network itself. With 95 % all settings' intervals hold
            at once (Bonferroni), so that choosing the best does not make it look better.
    """

    adaptation: Adaptation
    clicks: float
    clicks_se: float
    difference: Interval | None


@dataclass(frozen=True)
class Tuning:
    """A search.

    Args:
        trials: All settings in the order they were tried, the network as it was trained first.
        best: The one with the fewest clicks; of equals, the first.
    """

    trials: tuple[Trial, ...]
    best: Trial

    def as_yaml(self, comment: str) -> str:
        """Return the best setting as a file for `--evaluation.adaptation`.

        Args:
            comment: Lines about its origin.
        """
        lines = "".join(f"# {line}\n" for line in comment.splitlines())
        return lines + yaml.safe_dump(asdict(self.best.adaptation), sort_keys=False)


def settings_of(model: Segmenter, grid: Grid) -> list[list[Adaptation]]:
    """Return the settings to try of each kind of update that a network has, in order.

    Raises:
        UsageError: If the network has no layer that adapts.
    """
    stages = [settings for kind in UPDATES if _can(model, (settings := grid.of(kind))[0])]
    if not stages:
        message = (
            "`model` must have probabilistic attention, whose keys adapt or whose values "
            "propagate, or a classifier that adapts to clicks; this one has nothing to tune"
        )
        raise UsageError(message)
    return stages


def tune(
    model: Segmenter,
    samples: Sequence[Sample],
    protocol: Protocol,
    grid: Grid,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int = 8,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> Tuning:
    """Search the settings with the fewest clicks.

    Args:
        model: In evaluation mode, on the device; its own settings stay.
        samples: Objects that are in no test set, and best in no training set.
        protocol: How clicks are simulated. All settings see the same boxes and random numbers.
        grid: The settings to try.
        seed: Seed of the simulated annotator.
        device: Device of the model.
        batch_size: Most images in one call of the model.
        tell: Called after each setting.

    Raises:
        UsageError: If the network has no layer that adapts.
    """
    stages = settings_of(model, grid)
    search = _Search(
        partial(
            run_objects, model, protocol=protocol, seed=seed, device=device, batch_size=batch_size
        ),
        samples,
        protocol,
        comparisons=sum(map(len, stages)),
    )
    trials = []
    best = None
    for settings in ([Adaptation()], *stages):
        start = Adaptation() if best is None else best.adaptation
        for setting in settings:
            given = {key: value for key, value in asdict(setting).items() if value is not None}
            adaptation = replace(start, **given)
            with restored(model):
                model.adapt(adaptation)
                trial = search.trial(adaptation)
            trials.append(trial)
            tell(trial)
            best = trial if best is None or trial.clicks < best.clicks else best
    assert best is not None, "the network as it was trained is always tried"
    return Tuning(tuple(trials), best)


class _Search:
    """Counts clicks, and compares the counts with those for the first setting."""

    def __init__(
        self,
        run: Callable[[Sequence[Sample]], list[ObjectRecord]],
        samples: Sequence[Sample],
        protocol: Protocol,
        comparisons: int,
    ) -> None:
        self._run, self._samples, self._protocol = run, samples, protocol
        self._level = 1 - 0.05 / comparisons
        self._first: npt.NDArray[np.float64] | None = None

    def trial(self, adaptation: Adaptation) -> Trial:
        """Click through all objects with the network's present settings."""
        blocks = range(0, len(self._samples), OBJECTS_AT_ONCE)
        records = [
            record
            for first in blocks
            for record in self._run(self._samples[first : first + OBJECTS_AT_ONCE])
        ]
        (scores,) = scores_of(records, self._protocol).values()
        clicks = noc(scores.ious, TARGET).mean(axis=1)  # (objects,)
        error = float(standard_error(clicks))
        if self._first is None:
            self._first = clicks
            return Trial(adaptation, float(clicks.mean()), error, None)
        bounds = clustered_bootstrap(
            clicks - self._first, scores.photos, draws=DRAWS, level=self._level
        )
        difference = Interval(float(bounds.low), float(bounds.high))
        return Trial(adaptation, float(clicks.mean()), error, difference)


def _can(model: Segmenter, adaptation: Adaptation) -> bool:
    """Whether the network has layers with this setting."""
    with restored(model):
        try:
            model.adapt(adaptation)
        except ValueError:
            return False
    return True
