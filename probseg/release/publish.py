"""From a trained network to a zoo model with its card."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probseg.errors import UsageError
from probseg.kinds import TaskName
from probseg.models import Network, list_presets, override, task_of, without_downloads
from probseg.models.build import Description
from probseg.release.card import render_card
from probseg.release.evaluations import (
    EVALUATIONS,
    Evaluation,
    Tolerance,
    all_figures,
    write_evaluations,
)
from probseg.release.facts import TRAINING, Facts, confirmed, own_recipe
from probseg.release.presets import as_variant
from probseg.zoo.index import (
    CARD,
    CHECKSUMS,
    CONFIG,
    INDEX,
    MODEL_NAME,
    WEIGHTS,
    Entry,
    read_index,
    write_index,
)
from probseg.zoo.store import build_to_fit, checksum_lines, file_of, load_into, save
from probseg.zoo.trained import Trained

Measure = Callable[[Network, Evaluation], Mapping[str, float]]
"""Measures the figures of an evaluation with a network, by name."""

PARITY = Tolerance(share=0.002, clicks=0.1)
"""Largest change of a figure by half precision: 0.2 points, 0.1 clicks."""

INPUT: dict[TaskName, tuple[str, ...]] = {
    "interactive": ("working_size", "prompts_enter", "previous_mask"),
    "semantic": ("num_classes",),
}
"""Attributes of the networks of each task that the index has as `input`."""


def publish(
    trained: Trained,
    name: str,
    root: Path,
    facts: Facts,
    evaluations: Sequence[Evaluation] = (),
    *,
    untrained: Sequence[Evaluation] = (),
    changes: Mapping[str, Any] | None = None,
    preset: str | None = None,
    measure: Measure | None = None,
) -> Entry:
    """Write a model folder and its line in the index; an older model of the name is replaced.

    Args:
        trained: The network.
        name: `architecture.tag`.
        root: Folder of the zoo.
        facts: For the card.
        evaluations: Tests of these weights; they go into the card, in this order, and their figures
            into the index.
        untrained: The same tests of the network before training, for comparison in the card.
        changes: Arguments of the network to change, as in `probseg.create_model`; for instance the
            working size chosen after training.
        preset: What the network is a variant of; by default the architecture in its name if that is
            a preset, else the preset that its training named.
        measure: Repeats an evaluation with the weights in half precision, which may move no figure
            by more than `PARITY`; None leaves that unchecked, and the card says so. Not called
            where the tested weights were in half precision, as those of a published model.

    Returns:
        The line in the index.

    Raises:
        UsageError: If the name has no tag, facts are missing or contradict the run, the network is
            no variant of a preset, or a figure moves too far.
        WeightsError: If the weights do not fit the network, or half precision.
        DataError: If two evaluations are the same.
    """
    if MODEL_NAME.fullmatch(name) is None:
        msg = (
            f"`name` must be architecture.tag, for instance 'lite0_unet_prop.objects', got {name!r}"
        )
        raise UsageError(msg)
    description = without_downloads(override(trained.description, changes or {}))
    preset = preset or _preset_of(name, trained, description)
    arguments = as_variant(description, preset)
    recipe = facts.recipe or own_recipe(trained)
    seed = confirmed("seed", facts.seed, trained.seed)
    commit = confirmed("commit", facts.commit, trained.commit)
    model = build_to_fit(description, trained.weights, str(trained.source), Network)
    draft = root / f".{name}.part"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        save(model, description, draft)
        if facts.recipe is None and trained.config is not None:
            (draft / TRAINING).write_text(trained.config, encoding="utf-8")
        load_into(model, draft / WEIGHTS)  # as it will be used
        as_tested = not changes and _same(model.state_dict(), trained.weights)
        evaluations = [
            replace(evaluation, parity=dict.fromkeys(evaluation.figures, 0.0))
            if as_tested
            else _checked(model, evaluation, measure)
            for evaluation in evaluations
        ]
        if evaluations:
            write_evaluations(evaluations, draft)
        entry = Entry(
            name=name,
            task=task_of(description),
            description=facts.description,
            preset=preset,
            arguments=arguments,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            files={file: file_of(draft / file) for file in _files(draft)},
            input={name: getattr(model, name) for name in INPUT[model.task]},
            license=facts.license,
            data=facts.data,
            recipe=recipe,
            seed=seed,
            commit=commit,
            hardware=facts.hardware,
            hours=facts.hours,
            limits=facts.limits,
            metrics=all_figures(evaluations),
        )
        (draft / CHECKSUMS).write_text(checksum_lines(entry.files), encoding="utf-8")
        card = render_card(entry, evaluations, untrained)
        (draft / CARD).write_text(card, encoding="utf-8")
        _replace(root / name, draft)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    entries = read_index(root) if (root / INDEX).is_file() else {}
    write_index({**entries, name: entry}, root)
    return entry


def check_same_weights(trained: Trained, digest: object, source: Path) -> None:
    """Raise a UsageError unless results are of these weights.

    Args:
        trained: The weights.
        digest: `weights_sha256` of the results.
        source: File of the results.
    """
    if digest not in trained.digests:
        msg = (
            f"{source}: was made with other weights than {trained.source} (`weights_sha256` is "
            f"{digest}); publish the weights that were tested, or test these"
        )
        raise UsageError(msg)


def _preset_of(name: str, trained: Trained, description: Description) -> str:
    """Return the preset of a network."""
    architecture = name.split(".")[0]
    if architecture in list_presets(task_of(description)) or trained.preset is None:
        return architecture
    return trained.preset


def _same(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """Return whether all weights are equal."""
    return all(torch.equal(value, others[name].to(value.dtype)) for name, value in weights.items())


def _checked(model: Network, evaluation: Evaluation, measure: Measure | None) -> Evaluation:
    """Return an evaluation with the effect of half precision.

    Raises:
        UsageError: If a figure moves too far.
    """
    if measure is None:
        return replace(evaluation, parity=None)
    moves = evaluation.moves(measure(model, evaluation))
    if far := PARITY.exceeded(moves):
        changes = ", ".join(
            f"{name} from {evaluation.figures[name].value:.4f} to "
            f"{evaluation.figures[name].value + move:.4f}"
            for name, move in far.items()
        )
        msg = (
            f"{evaluation.key}: the float16 weights do not keep the figures ({changes}; allowed "
            f"are {100 * PARITY.share:g} points and {PARITY.clicks:g} clicks). Was the test made "
            "with these data, in full precision? Weights far from 1 lose most in float16: train "
            "with weight decay, or publish another checkpoint"
        )
        raise UsageError(msg)
    return replace(evaluation, parity={name: round(move, 6) for name, move in moves.items()})


def _files(folder: Path) -> list[str]:
    names = (WEIGHTS, CONFIG, EVALUATIONS, TRAINING)
    return [name for name in names if (folder / name).is_file()]


def _replace(folder: Path, draft: Path) -> None:
    """Give a folder's place to another one."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    draft.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
