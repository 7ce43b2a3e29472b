"""Models by name."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

from probseg.errors import UnknownNameError, UsageError
from probseg.models import Segmenter, build, build_semantic, list_presets, override, read_preset
from probseg.models.build import Description, Task
from probseg.paths import is_path
from probseg.semantic import SemanticSegmenter
from probseg.zoo.hub import PREFIX, hub_folder
from probseg.zoo.index import WEIGHTS, description_of
from probseg.zoo.lookup import all_models, find_model, verify
from probseg.zoo.presets import task_of
from probseg.zoo.store import check_fit, check_folder, load_into, read_config

Network = Segmenter | SemanticSegmenter

TASKS: tuple[Task, ...] = ("interactive", "semantic")

FOR_TESTS = "micro_"
"""Beginning of the names of small presets, for tests and for trying things out."""


def list_models(
    pattern: str = "*", pretrained: bool = False, task: Task | None = None
) -> list[str]:
    """List the names that `create_model` knows.

    Args:
        pattern: Shell pattern, for instance `"*csa*"`. Presets for tests, `micro_*`, are listed
            only if the pattern begins with `micro_`.
        pretrained: List only those with weights, as `architecture.tag`: shipped, or in a zoo of
            `PROBSEG_ZOO`.
        task: List those for this task only.

    Returns:
        Names in alphabetical order.
    """
    tasks = TASKS if task is None else (task,)
    if pretrained:
        names = [model.entry.name for model in all_models() if model.entry.task in tasks]
    else:
        presets = [name for known in tasks for name in list_presets(known)]
        tests = pattern.startswith(FOR_TESTS)
        names = [name for name in presets if tests or not name.startswith(FOR_TESTS)]
    return sorted(fnmatch.filter(names, pattern))


def create_model(name: str, pretrained: bool = False, **changes: Any) -> Network:  # noqa: ANN401
    """Create a network for interactive or for semantic segmentation.

    Args:
        name: A preset (`"resnet18_conv"`); a zoo model (`"resnet16_csa.objects"`, or
            `"resnet16_csa"` for its first tag); the path of a local model folder, which must
            contain a slash; the folder of a run (`"runs/probseg/version_7"`, of which the best
            checkpoint is taken) or a checkpoint file; or a model of the Hugging Face hub,
            `"hf-hub:owner/name"` or `"hf-hub:owner/name@revision"`.
        pretrained: Load the weights of the zoo, the folder or the hub, after checking their sha256.
        **changes: Arguments of the network to change, as dictionaries:
            `head={"attention": "standard"}`.

    Returns:
        A `Segmenter` or a `SemanticSegmenter` on the CPU: in evaluation mode if pretrained, else in
        training mode.

    Raises:
        UnknownNameError: If there is no such model; the message lists the nearest names.
        ModelNotFoundError: If a file of the model is missing.
        ChecksumError: If a file is not the recorded one.
        DownloadError: If the model cannot be fetched from the hub.
        UsageError: If a run has no checkpoint, or there is no such checkpoint.
        WeightsError: If the weights do not fit the network, which changes may cause, or a
            checkpoint is damaged or no training wrote it.
        ZooError: If an index or the model's description is damaged.
    """
    if is_run(Path(name)):
        from probseg.zoo.trained import read_trained  # which imports this module

        trained = read_trained(Path(name))
        model = built(override(trained.description, changes))
        if not pretrained:
            return model
        check_fit(model.state_dict(), trained.weights, str(trained.source))
        model.load_state_dict(trained.weights)
        return model.eval()
    folder, description = describe(name, pretrained)
    model = built(override(description, changes))
    if folder is None:
        return model
    load_into(model, folder / WEIGHTS)
    return model.eval()


def built(description: Description) -> Network:
    """Build the network of a description, for either task, in training mode."""
    semantic = task_of(description) == "semantic"
    return build_semantic(description) if semantic else build(description)


def is_run(path: Path) -> bool:
    """Return whether this is a checkpoint, or the folder of a run with checkpoints."""
    return path.suffix == ".ckpt" or (
        (path / "config.yaml").is_file() and (path / "checkpoints").is_dir()
    )


def create_interactive(name: str, pretrained: bool = False, **changes: Any) -> Segmenter:  # noqa: ANN401
    """Create a network for interactive segmentation, as `create_model` does; for configurations.

    Args:
        name: As for `create_model`.
        pretrained: As for `create_model`.
        **changes: As for `create_model`.

    Raises:
        UsageError: If it is one for semantic segmentation.
    """
    model = create_model(name, pretrained, **changes)
    if not isinstance(model, Segmenter):
        msg = (
            f"{name!r} is a model for semantic segmentation, and one for interactive segmentation "
            f"is wanted; probseg.create_model({name!r}) gives it, and "
            'probseg.list_models(task="interactive") lists others'
        )
        raise UsageError(msg)
    return model


def describe(name: str, pretrained: bool) -> tuple[Path | None, Description]:
    """Find the description of a network, and the folder of its weights if it is to have them.

    Args:
        name: As for `create_model`.
        pretrained: Whether weights will be loaded; the files are then fetched if they are on the
            hub, and checked.

    Raises:
        UnknownNameError: If there is no such model; the message lists the nearest names.
        ChecksumError: If a file is not the recorded one.
    """
    if name.startswith(PREFIX):
        folder = hub_folder(name, weights=pretrained)
    elif is_path(name):
        folder = Path(name)
    elif pretrained:
        folder = verify(name).folder  # by the checksums of the index
        return folder, read_config(folder)
    else:
        return None, description_of(find_model(name).entry) if "." in name else _preset(name)
    description = read_config(folder)
    if not pretrained:
        return None, description
    check_folder(folder)
    return folder, description


def _preset(name: str) -> Description:
    for task in TASKS:
        if name in list_presets(task):
            return read_preset(name, task)
    known = [name for task in TASKS for name in list_presets(task)]
    raise UnknownNameError(kind="model", name=name, known=known)
