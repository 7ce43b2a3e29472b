"""Repeated tests of published models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from probseg.attention import Adaptation, restored
from probseg.data import FolderDataModule, InteractiveDataModule
from probseg.descriptions import build_described, class_name
from probseg.errors import DataError, UnknownNameError
from probseg.evaluation.simulation import run_objects
from probseg.evaluation.summary import summarise_records
from probseg.models import Network, Segmenter
from probseg.release.evaluations import Evaluation, Tolerance
from probseg.release.recorded import SEMANTIC_FIGURES, SETS, figures_of, protocol_of
from probseg.semantic import SemanticDataModule, SemanticSegmenter
from probseg.semantic.confusion import Confusion
from probseg.semantic.multiscale import predict_classes
from probseg.semantic.scores import semantic_scores

REPRODUCED = Tolerance(share=0.005, clicks=0.15)
"""Largest difference of a repeated test from the recorded one: 0.5 points, 0.15 clicks.

The same weights, images and random numbers give the same figures but for rounding, which depends on
processor, number of threads and versions, and of which clicks can make more. The standard errors
over objects say how other images would change a figure, and are far larger.
"""

_MODULES = {
    module.__name__: module
    for module in (FolderDataModule, InteractiveDataModule, SemanticDataModule)
}

_Module = FolderDataModule | InteractiveDataModule | SemanticDataModule


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
        DataError: If the results do not describe data that can be built again, or the data at hand
            are others.
        ValueError: If the network is of the other kind.
    """
    module = _module_of(evaluation)
    if isinstance(model, SemanticSegmenter):
        figures, count = _of_classes(model, module.test_dataloader(), evaluation, device)
    else:
        assert isinstance(model, Segmenter), "there are two tasks"
        figures, count = _of_clicks(model, module.test_dataloader(), evaluation, device)
    if count != evaluation.count:
        msg = (
            f"{evaluation.key}: the data here are others than those of the test, {count} instead "
            f"of {evaluation.count}; compare `probseg data check {evaluation.dataset}`"
        )
        raise DataError(msg)
    return figures


def _of_clicks(
    model: Segmenter, loaders: list[DataLoader[Any]], evaluation: Evaluation, device: str
) -> tuple[dict[str, float], dict[str, int]]:
    protocol = protocol_of(evaluation.protocol or {})
    model.to(memory_format=torch.channels_last)  # as tests have it
    with _adapted(model, evaluation.options["adaptation"] or {}):
        records = [
            record
            for loader in loaders
            for samples in loader
            for record in run_objects(
                model, samples, protocol, seed=evaluation.options["seed"], device=device
            )
        ]
    (summary,) = summarise_records(records, protocol).values()
    found = figures_of(summary.as_json(), protocol.first_answer)
    figures = {name: figure.value for name, figure in found.items()}
    return figures, {"objects": summary.n_objects, "trials": summary.n_trials}


def _of_classes(
    model: SemanticSegmenter, loaders: list[DataLoader[Any]], evaluation: Evaluation, device: str
) -> tuple[dict[str, float], dict[str, int]]:
    confusion = Confusion(model.num_classes, device)
    with _as_asked(model, evaluation.options), torch.inference_mode():
        for loader in loaders:
            for sample in (sample for samples in loader for sample in samples):
                pixels = torch.tensor(sample.image, device=device).permute(2, 0, 1)
                prediction = predict_classes(
                    model,
                    pixels.unsqueeze(0).float() / 255,
                    evaluation.options["scales"],
                    evaluation.options["flip"],
                )
                confusion.add(sample, prediction[0])
    scores = semantic_scores(confusion.matrix())
    figures = {name: float(getattr(scores, name)) for name in SEMANTIC_FIGURES}
    return figures, {"photographs": confusion.photographs}


@contextmanager
def _adapted(model: Segmenter, adaptation: Mapping[str, Any]) -> Iterator[None]:
    """Set the adaptation of a test on the network, until the end of the context."""
    with restored(model):
        if adaptation:
            model.adapt(Adaptation(**adaptation))
        yield


@contextmanager
def _as_asked(model: SemanticSegmenter, options: Mapping[str, Any]) -> Iterator[None]:
    """Set iterations and output stride of a test on the network, until the end of the context."""
    with model.output_stride(options["output_stride"]):
        if options["iterations"] is None:
            yield
        else:
            with model.iterations(options["iterations"]):
                yield


def _module_of(evaluation: Evaluation) -> _Module:
    """Return the data of an evaluation."""
    if evaluation.data is None or class_name(evaluation.data) not in _MODULES:
        msg = (
            f"{evaluation.key}: its results do not describe data that can be found again; test "
            "with a data set of probseg, described in a configuration"
        )
        raise DataError(msg)
    try:  # what came with a model names no code
        module: _Module = build_described(evaluation.data, {**SETS, **_MODULES}, "data set")
    except UnknownNameError as error:
        msg = f"{evaluation.key}: {error}"
        raise DataError(msg) from error
    return module
