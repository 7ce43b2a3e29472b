"""Repeated tests of published models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from probseg.attention import Adaptation, restored
from probseg.descriptions import build_described, class_name, is_description
from probseg.errors import DataError, UnknownNameError
from probseg.evaluation.simulation import run_objects
from probseg.evaluation.summary import summarise_records
from probseg.interact.session import prepared
from probseg.kinds import Offers
from probseg.models import Network, Segmenter
from probseg.release.evaluations import Evaluation, Tolerance
from probseg.release.recorded import MODULES, SETS, figures_of, protocol_of

Measured = tuple[dict[str, float], dict[str, int]]
"""Figures by name, and numbers of what was tested: `objects` and `trials`, or `photographs`."""

REPRODUCED = Tolerance(share=0.005, clicks=0.15)
"""Largest difference of a repeated test from the recorded one: 0.5 points, 0.15 clicks.

The same weights, images and random numbers give the same figures but for rounding, which depends on
processor, number of threads and versions, and of which clicks can make more. The standard errors
over objects say how other images would change a figure, and are far larger.
"""


def reevaluate(model: Network, evaluation: Evaluation, device: str = "cpu") -> dict[str, float]:
    """Measure the figures of an evaluation again.

    Args:
        model: The network, in evaluation mode, on the device.
        evaluation: The recorded test.
        device: Of the network.

    Returns:
        Figures by name, those of the evaluation among them.

    Raises:
        DatasetNotFoundError: If the data are not there.
        DataError: If the results do not describe data that can be built again, or the test set
            changed.
    """
    loaders = _module_of(evaluation).test_dataloader()
    settings = {**evaluation.options, "protocol": evaluation.protocol}
    figures, count = MEASURES[model.task](model, loaders, settings, device)
    if count != evaluation.count:
        msg = (
            f"{evaluation.key}: the test set changed: it has {count} instead of "
            f"{evaluation.count}; compare `probseg data check {evaluation.dataset}`"
        )
        raise DataError(msg)
    return figures


def _by_clicks(
    model: Segmenter, loaders: list[DataLoader[Any]], settings: Mapping[str, Any], device: str
) -> Measured:
    protocol = protocol_of(settings["protocol"])
    with _adapted(model, settings["adaptation"] or {}):
        tested = prepared(model, device)  # as tests have it
        records = [
            record
            for loader in loaders
            for samples in loader
            for record in run_objects(
                tested, samples, protocol, seed=settings["seed"], device=device
            )
        ]
    (summary,) = summarise_records(records, protocol).values()
    figures = figures_of(summary.as_json(), protocol.first_answer)
    values = {name: figure.value for name, figure in figures.items()}
    return values, {"objects": summary.n_objects, "trials": summary.n_trials}


MEASURES: Mapping[str, Callable[..., Measured]] = Offers(
    "reevaluation", {"interactive": _by_clicks}
)
"""Functions of the network, loaders of its test sets, settings and device, by task."""


@contextmanager
def _adapted(model: Segmenter, adaptation: Mapping[str, Any]) -> Iterator[None]:
    """Set the adaptation of a test on the network, until the end of the context."""
    with restored(model):
        if adaptation:
            model.adapt(Adaptation(**adaptation))
        yield


def _module_of(evaluation: Evaluation) -> Any:  # noqa: ANN401 (one of `MODULES`)
    """Return the data of an evaluation."""
    if evaluation.data is None or class_name(evaluation.data) not in MODULES:
        msg = (
            f"{evaluation.key}: its results do not describe data that can be found again; test "
            "with a data set of probseg, described in a configuration"
        )
        raise DataError(msg)
    try:  # what came with a model names no code
        arguments = {
            name: build_described(value, SETS, "data set") if is_description(value) else value
            for name, value in (evaluation.data.get("init_args") or {}).items()
        }
    except UnknownNameError as error:
        msg = f"{evaluation.key}: {error}"
        raise DataError(msg) from error
    return MODULES[class_name(evaluation.data)](**arguments)
