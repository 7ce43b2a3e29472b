"""Models by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from probseg.descriptions import Changes
from probseg.errors import UsageError, WeightsError, check_name
from probseg.kinds import TASKS, TaskName
from probseg.models import Network, Segmenter, build, list_presets, override, read_preset
from probseg.paths import is_path
from probseg.weight_files import read_safetensors
from probseg.zoo.index import WEIGHTS
from probseg.zoo.lookup import all_models, find_description, find_run
from probseg.zoo.store import build_to_fit, check_fit
from probseg.zoo.trained import read_trained

FOR_TESTS = "micro_"  # beginning of the names of small presets, for tests and for trying things out


def list_models(
    pattern: str | Sequence[str] = "*",
    pretrained: bool = False,
    task: TaskName | None = None,
    exclude_filters: str | Sequence[str] = (),
) -> list[str]:
    """List the names that `create_model` knows.

    Args:
        pattern: Shell pattern, for instance `"*csa*"`, or several. Presets for tests, `micro_*`,
            are listed only if a pattern begins with `micro`.
        pretrained: List only those with weights, as `architecture.tag`: shipped, or in a zoo of
            `PROBSEG_ZOO`.
        task: List those for this task only.
        exclude_filters: Shell pattern of names to leave out, or several.

    Returns:
        Names in alphabetical order.
    """
    if task is not None:
        check_name("task", task, TASKS)
    tasks = list(TASKS) if task is None else [task]
    patterns, excluded = (
        [given] if isinstance(given, str) else list(given) for given in (pattern, exclude_filters)
    )
    if pretrained:
        names = [model.entry.name for model in all_models() if model.entry.task in tasks]
    else:
        presets = [name for known in tasks for name in list_presets(known)]
        tests = any(one.startswith(FOR_TESTS.rstrip("_")) for one in patterns)
        names = [name for name in presets if tests or not name.startswith(FOR_TESTS)]
    found = {name for one in patterns for name in fnmatch.filter(names, one)}
    return sorted(found - {name for one in excluded for name in fnmatch.filter(found, one)})


def create_model(
    name: str | Path,
    pretrained: bool = False,
    **changes: Any,  # noqa: ANN401
) -> Network:
    """Create a network of any task.

    Args:
        name: A preset (`"resnet18_conv"`); a zoo model (`"lite2_unet_prop.objects"`, or
            `"lite2_unet_prop"` for its first tag); the path of a local model folder, which must
            contain a slash; the folder of a run (`"runs/probseg/version_7"`, of which the best
            checkpoint is taken; `"runs/probseg/"` if it holds one run) or a checkpoint file; or a
            model of the Hugging Face hub, `"hf-hub:owner/name"` or `"hf-hub:owner/name@revision"`.
            A `Path` is that of a folder or file.
        pretrained: Load the weights of the zoo, the folder or the hub, after checking their sha256.
        **changes: Arguments of the network to change, as dictionaries:
            `head={"attention": "standard"}`.

    Returns:
        The network on the CPU, in evaluation mode if pretrained, else in training mode; a
        `Segmenter` where its `task` is interactive segmentation.

    Raises:
        UnknownNameError: If there is no such model; the message lists the nearest names.
        ModelNotFoundError: If a file of the model is missing.
        ChecksumError: If a file is not the recorded one.
        DownloadError: If the model cannot be fetched from the hub.
        UsageError: If a run has no checkpoint, there is no such checkpoint, or the name is that of
            a backbone of timm; the message has the line that uses it.
        WeightsError: If the weights do not fit the network, which changes may cause, or a
            checkpoint is damaged or no training wrote it; or if a network without weights is larger
            than a stranger's file may ask for.
        ZooError: If an index or the model's description is damaged.
    """
    name = str(name.absolute()) if isinstance(name, Path) else name
    if (run := find_run(name)) is not None:
        trained = read_trained(run)
        network = override(trained.description, changes)
        weights = trained.weights if pretrained else None
        return build_to_fit(network, weights, str(trained.source), Network)
    folder, description = find_description(name, pretrained)
    network = override(description, changes)
    if folder is not None:
        path = folder / WEIGHTS
        return build_to_fit(network, read_safetensors(path), str(path), Network)
    if any(name in list_presets(task) for task in TASKS):
        return build(network)
    return build_to_fit(network, None, name, Network)


def create_interactive(name: str, pretrained: bool = False, **changes: Any) -> Segmenter:  # noqa: ANN401
    """Create a network for interactive segmentation, as `create_model` does; for configurations.

    Args:
        name: As for `create_model`.
        pretrained: As for `create_model`.
        **changes: As for `create_model`.

    Raises:
        UsageError: If it is one for another task.
    """
    model = create_model(name, pretrained, **changes)
    if not isinstance(model, Segmenter):
        raise UsageError(
            f"{name!r} is a model for {model.task} segmentation, expected one for interactive "
            f"segmentation; probseg.create_model({name!r}) loads it, and "
            'probseg.list_models(task="interactive") lists others'
        )
    return model


def warm_start(
    of: str, weights: str, fresh: Sequence[str] = (), changes: Changes | None = None
) -> Segmenter:
    """Build a preset with the weights of another network; for configurations.

    Every weight is either copied or named as a fresh one: nothing is left out because its name or
    shape happens to differ.

    Args:
        of: Name of the preset.
        weights: Where the weights come from: a zoo model, or the path of a run of `probseg fit`
            (its best checkpoint), of a checkpoint or of a model folder; a path needs a slash.
        fresh: Shell patterns of the weights that are not copied, for instance `"head.*"`. What
            the source has beyond the others must match one of them, too.
        changes: Arguments of the preset to change, as in `probseg.create_model`.

    Returns:
        The network, in training mode.

    Raises:
        UsageError: If there is no such file.
        WeightsError: If other weights than the fresh ones differ in name or shape, or a pattern
            matches none.
    """
    model = build(override(read_preset(of), changes or {}), Segmenter)
    own = model.state_dict()
    source: Mapping[str, Tensor] = (
        read_trained(Path(weights)).weights
        if is_path(weights) or weights.endswith(".ckpt")
        else create_interactive(weights, pretrained=True).state_dict()
    )
    for pattern in fresh:
        if not fnmatch.filter([*own, *source], pattern):
            raise WeightsError(
                f"`fresh`: {pattern!r} matches no weight of {of} or {weights}; see its state_dict()"
            )
    copied = _without(source, fresh)
    check_fit(_without(own, fresh), copied, f"{weights}, for {of} with fresh={list(fresh)}")
    own.update(copied)
    model.load_state_dict(own)
    return model


def _without(weights: Mapping[str, Tensor], patterns: Sequence[str]) -> dict[str, Tensor]:
    """Return the weights that no pattern matches."""
    return {
        name: tensor
        for name, tensor in weights.items()
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    }
