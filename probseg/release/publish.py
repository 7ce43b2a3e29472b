"""From a trained network to a zoo model with its card."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from probseg.errors import UsageError
from probseg.kinds import TaskName
from probseg.models import Network, list_presets, override, read_preset, task_of, without_downloads
from probseg.models.build import Description
from probseg.paths import replacing
from probseg.release.card import render_card
from probseg.release.evaluations import (
    EVALUATIONS,
    Evaluation,
    Tolerance,
    all_figures,
    write_evaluations,
)
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

# file of a model folder with all settings of its training, where the author gives no recipe
TRAINING = "training.yaml"

_Fact = TypeVar("_Fact", int, str)

# measures the figures of an evaluation with a network, by name
Measure = Callable[[Network, Evaluation], Mapping[str, float]]

# largest change of a figure by half precision: 0.2 points, 0.1 clicks
PARITY = Tolerance(share=0.002, clicks=0.1)

# attributes of the networks of each task that the index has as `input`
INPUT: dict[TaskName, tuple[str, ...]] = {
    "interactive": ("working_size", "prompts_enter", "previous_mask"),
    "semantic": ("num_classes",),
}


@dataclass(frozen=True, config=ConfigDict(strict=True))
class Facts:
    """Facts for the card that are in no file of the run; None stands for what the run recorded.

    Without a recipe, the settings of the run are published as `training.yaml`.
    """

    description: str  # one sentence
    data: list[str]  # with its licence, a line per data set
    license: str  # of the weights, as the hub names it: `apache-2.0`, `other`
    hardware: str
    hours: int | float
    limits: list[str]  # weaknesses, one line each
    recipe: str | None = None  # command that trains the model
    seed: int | None = None
    commit: str | None = None  # of probseg
    comparison: bool = False  # trained to be compared with others, not to be used


def facts_of(entry: Entry) -> Facts:
    """Return the facts of a published model, for publishing it again."""
    return Facts(**{field.name: getattr(entry, field.name) for field in fields(Facts)})


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

    Evaluations of these weights go into the card, in this order, and their figures into the index;
    those of the untrained network are for comparison. `changes` are as in `probseg.create_model`,
    for instance the working size chosen after training. The network is a variant of `preset`: by
    default the architecture in its name if that is a preset, else the preset of its training.

    `measure` repeats an evaluation with the weights in half precision, which may move no figure by
    more than `PARITY`; None leaves that unchecked, and the card says so. It is not called where the
    tested weights were in half precision, as those of a published model.
    """
    if MODEL_NAME.fullmatch(name) is None:
        raise UsageError(
            f"`name` must be architecture.tag, for instance 'lite0_unet_prop.objects', got {name!r}"
        )
    description = without_downloads(override(trained.description, changes or {}))
    if not preset:
        architecture = name.split(".")[0]
        by_name = architecture in list_presets(task_of(description))
        preset = architecture if by_name or trained.preset is None else trained.preset
    arguments = as_variant(description, preset)
    recipe = facts.recipe
    if recipe is None:  # a configuration that works elsewhere
        recipe = f"probseg fit --config {TRAINING}"
        settings = _texts(yaml.safe_load(trained.config or ""))
        local = [f"{where} is {value}" for where, value in settings if Path(value).is_absolute()]
        if trained.config is None or local:
            fault = f"{local[0]}, a place of one machine" if local else "it has no config.yaml"
            raise UsageError(
                f"`recipe`: {trained.source} does not say how it was trained: {fault}; give the "
                "command that trains the model among the facts"
            )
    seed = _confirmed("seed", facts.seed, trained.seed)
    commit = _confirmed("commit", facts.commit, trained.commit)
    model = build_to_fit(description, trained.weights, str(trained.source), Network)
    with replacing(root / name) as draft:
        save(model, description, draft)
        if facts.recipe is None and trained.config is not None:
            (draft / TRAINING).write_text(trained.config, encoding="utf-8")
        load_into(model, draft / WEIGHTS)  # as it will be used
        as_tested = not changes and all(
            torch.equal(value, trained.weights[name].to(value.dtype))
            for name, value in model.state_dict().items()
        )
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
            files={
                file: file_of(draft / file)
                for file in (WEIGHTS, CONFIG, EVALUATIONS, TRAINING)
                if (draft / file).is_file()
            },
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
            comparison=facts.comparison,
        )
        (draft / CHECKSUMS).write_text(checksum_lines(entry.files), encoding="utf-8")
        card = render_card(entry, evaluations, untrained)
        (draft / CARD).write_text(card, encoding="utf-8")
    entries = read_index(root) if (root / INDEX).is_file() else {}
    write_index({**entries, name: entry}, root)
    return entry


def check_same_weights(trained: Trained, digest: object, source: Path) -> None:
    """Raise unless the `weights_sha256` in a file of results is of these weights."""
    if digest not in trained.digests:
        raise UsageError(
            f"{source}: was made with other weights than {trained.source} (`weights_sha256` is "
            f"{digest}); publish the weights that were tested, or test these"
        )


def _checked(model: Network, evaluation: Evaluation, measure: Measure | None) -> Evaluation:
    """Return an evaluation with the effect of half precision, if that is small."""
    if measure is None:
        return replace(evaluation, parity=None)
    moves = evaluation.moves(measure(model, evaluation))
    if far := PARITY.exceeded(moves):
        changes = ", ".join(
            f"{name} from {evaluation.figures[name].value:.4f} to "
            f"{evaluation.figures[name].value + move:.4f}"
            for name, move in far.items()
        )
        raise UsageError(
            f"{evaluation.key}: the float16 weights do not keep the figures ({changes}; allowed "
            f"are {100 * PARITY.share:g} points and {PARITY.clicks:g} clicks). Was the test made "
            "with these data, in full precision? Weights far from 1 lose most in float16: train "
            "with weight decay, or publish another checkpoint"
        )
    return replace(evaluation, parity={name: round(move, 6) for name, move in moves.items()})


def _texts(settings: Any, where: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yield the texts in nested settings with their names."""
    if isinstance(settings, dict | list):
        pairs = settings.items() if isinstance(settings, dict) else enumerate(settings)
        for key, value in pairs:
            yield from _texts(value, f"{where}.{key}".lstrip("."))
    elif isinstance(settings, str):
        yield where, settings


def _confirmed(name: str, stated: _Fact | None, recorded: _Fact | None) -> _Fact:
    """Return a fact; the author may abbreviate a text that the run recorded, not contradict it."""
    fact = stated if recorded is None else recorded
    same = stated in (None, fact) or (isinstance(stated, str) and str(fact).startswith(stated))
    if fact is None or not same:
        expected = "given, as the run does not record it" if same else f"{fact!r} or left out"
        raise UsageError(f"`{name}` among the facts must be {expected}, got {stated!r}")
    return fact


def as_variant(description: Description, preset: str) -> dict[str, Any]:
    """Return the changes by which `probseg.models.override` makes a network of a preset."""
    task = task_of(description)
    if preset in list_presets(task):
        base = read_preset(preset, task)
        changes = _changes(base["init_args"], description["init_args"])
        if changes is not None and override(base, changes) == description:
            return changes
    raise UsageError(
        f"`preset` {preset!r}: no preset of this name for {task} segmentation has the network as "
        "a variant; name the model after the preset that it is a variant of, or give its name"
    )


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the changes from old to new arguments; None if one would have to be removed."""
    if not old.keys() <= new.keys():
        return None
    changes = {}
    for key, value in new.items():
        before = old.get(key)
        if key in old and before == value:
            continue
        changes[key] = value
        if isinstance(before, dict) and isinstance(value, dict):
            if "class_path" not in before:  # their entries are merged
                if not before.keys() <= value.keys():
                    return None
                changes[key] = {k: v for k, v in value.items() if before.get(k) != v}
            elif before["class_path"] == value.get("class_path"):
                inner = _changes(before.get("init_args") or {}, value.get("init_args") or {})
                changes[key] = value if inner is None else inner
    return changes
