"""Networks from plain data: presets, and descriptions that name only parts of probseg."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypeVar

import yaml
from torch import nn

from probseg.backbones import BACKBONES
from probseg.clicks.maps import ClickMaps
from probseg.clicks.propagated import PropagatedClicks
from probseg.descriptions import build_described, class_name, is_description
from probseg.errors import UnknownNameError, UsageError
from probseg.heads import DECODERS, FUSIONS, HEADS, GraphCut, PromptPropagation
from probseg.models.segmenter import Segmenter
from probseg.paths import configs_dir
from probseg.semantic.heads import SEMANTIC_HEADS
from probseg.semantic.network import SemanticSegmenter

Description = dict[str, Any]

_Plain = bool | int | float | str | list[Any] | dict[str, Any] | None
Changes = dict[str, dict[str, _Plain] | _Plain]
"""Changes to a description as the command line reads them; where it sees `Any` instead, it builds
the parts that they describe, and leaves numbers of dotted options as text."""

Task = Literal["interactive", "semantic"]
"""Task of a network: one object that an annotator means, or the classes of all pixels."""

_FOLDERS: dict[Task, str] = {"interactive": "model", "semantic": "semantic"}

_LATE: dict[str, type[nn.Module]] = {
    **DECODERS,
    **HEADS,
    **SEMANTIC_HEADS,
    **FUSIONS,
    "PromptPropagation": PromptPropagation,
}
"""Parts that need the features of the part before them."""

FROM_BEFORE = ("inputs", "value_channels", "prompt_channels")
"""Their arguments that come from the part before them, and from no description."""

_NETWORKS: dict[str, type[nn.Module]] = {
    "Segmenter": Segmenter,
    "SemanticSegmenter": SemanticSegmenter,
}

_Network = TypeVar("_Network", Segmenter, SemanticSegmenter)

_PARTS: dict[str, type[nn.Module]] = {
    "ClickMaps": ClickMaps,
    "GraphCut": GraphCut,
    "PropagatedClicks": PropagatedClicks,
    **_NETWORKS,
    **BACKBONES,
    **_LATE,
}


def list_presets(task: Task = "interactive") -> list[str]:
    """Names of the networks described in `configs/model`, or in `configs/semantic`.

    Args:
        task: What the networks are for.
    """
    return sorted(path.stem for path in (configs_dir() / _FOLDERS[task]).glob("*.yaml"))


def read_preset(name: str, task: Task = "interactive") -> Description:
    """Return the description of a preset.

    Args:
        name: Stem of a file in `configs/model`, or in `configs/semantic`.
        task: What the network is for.

    Raises:
        UnknownNameError: If there is no such preset.
        UsageError: If it is a preset for the other task.
    """
    if name not in list_presets(task):
        _refuse_other_task(name, task)
        raise UnknownNameError(kind="model", name=name, known=list_presets(task))
    text = (configs_dir() / _FOLDERS[task] / f"{name}.yaml").read_text(encoding="utf-8")
    return resolved(yaml.safe_load(text))


def variant(of: str, changes: Changes | None = None) -> Segmenter:
    """Build a preset with some arguments changed; for configurations.

    Args:
        of: Name of the preset.
        changes: Arguments to change, as in `override`:
            `{"backbone": {"attention": "probabilistic"}}`.

    Raises:
        UnknownNameError: If there is no such preset.
        UsageError: If it is a preset for semantic segmentation.
        ValueError: If a part is to be changed by something else than a dictionary.
    """
    return build(override(read_preset(of), changes or {}))


def semantic_variant(of: str, changes: Changes | None = None) -> SemanticSegmenter:
    """Build a preset for semantic segmentation with some arguments changed.

    Args:
        of: Name of the preset, one of `list_presets("semantic")`.
        changes: Arguments to change, as in `override`: `{"head": {"num_classes": 12}}`.

    Raises:
        UnknownNameError: If there is no such preset.
        UsageError: If it is a preset for interactive segmentation.
        ValueError: If a part is to be changed by something else than a dictionary.
    """
    return build_semantic(override(read_preset(of, "semantic"), changes or {}))


def resolved(description: Description) -> Description:
    """Return the full description of a variant of another network.

    Args:
        description: A network, or a call of `variant` or `semantic_variant`.
    """
    tasks: dict[str, Task] = {
        variant.__name__: "interactive",
        semantic_variant.__name__: "semantic",
    }
    task = tasks.get(class_name(description))
    if task is None:
        return description
    arguments = description["init_args"]
    return override(read_preset(arguments["of"], task), arguments.get("changes") or {})


def override(description: Description, changes: Mapping[str, Any]) -> Description:
    """Return a description with some arguments changed, at any depth.

    Args:
        description: A part, `{"class_path": ..., "init_args": {...}}`.
        changes: New arguments; the value for an argument that is itself a part is a dictionary of
            changes to that part, or None to leave the part out; other dictionaries, such as
            `options`, get these entries in addition to their own. The text `"None"` is read as
            None.

    Raises:
        ValueError: If a part is to be changed by something else than a dictionary.
    """
    arguments = dict(description.get("init_args") or {})
    for key, value in _with_nulls(changes).items():
        old = arguments.get(key)
        if is_description(old) and value is not None:
            if not isinstance(value, Mapping):
                msg = (
                    f"`{key}` must be a dictionary of arguments to change, e.g. "
                    f"{key}={{'channels': 64}}, got {value!r}"
                )
                raise ValueError(msg)
            arguments[key] = dict(value) if is_description(value) else override(old, value)
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            arguments[key] = {**old, **value}
        else:
            arguments[key] = value
    return {**description, "init_args": arguments}


def without_downloads(description: Description) -> Description:
    """Return a description whose backbone starts without pretrained weights.

    It names no weight file either, which another machine would lack.
    """
    backbone = description["init_args"]["backbone"]
    if "init_args" not in backbone:
        return description
    arguments = {key: value for key, value in backbone["init_args"].items() if key != "weights"}
    if "pretrained" in arguments:
        arguments["pretrained"] = False
    return override(description, {"backbone": {**backbone, "init_args": arguments}})


def build(description: Description) -> Segmenter:
    """Build the network of a description.

    Args:
        description: The whole network, `{"class_path": "probseg.models.Segmenter", ...}`.

    Returns:
        The network with fresh weights, in training mode.

    Raises:
        UnknownNameError: If a class is not one of the project's parts.
        TypeError: If a part has no such argument; the message lists the nearest ones.
        ValueError: If an argument is wrong.
    """
    return _network(description, Segmenter)


def build_semantic(description: Description) -> SemanticSegmenter:
    """Build the network of a description, as `build` does.

    Args:
        description: The whole network, `{"class_path": "probseg.semantic.SemanticSegmenter", ...}`.
    """
    return _network(description, SemanticSegmenter)


def _network(description: Description, kind: type[_Network]) -> _Network:
    model = build_described(resolved(description), _PARTS, "part of a network", _made)
    if not isinstance(model, kind):
        msg = (
            f"`class_path` must be that of a {kind.__name__}, got {description['class_path']!r}; "
            "build makes a Segmenter, build_semantic a SemanticSegmenter"
        )
        raise ValueError(msg)
    return model


def _refuse_other_task(name: str, task: Task) -> None:
    """Raise a UsageError if it is a preset for the other task."""
    makers: dict[Task, str] = {"interactive": "variant", "semantic": "semantic_variant"}
    for other, maker in makers.items():
        if other != task and name in list_presets(other):
            msg = (
                f"{name!r} is a preset for {other} segmentation, and one for {task} segmentation "
                f"is wanted; use probseg.models.{maker}({name!r}), or "
                f"read_preset({name!r}, {other!r})"
            )
            raise UsageError(msg)


def _with_nulls(value: Any) -> Any:  # noqa: ANN401 (any plain value)
    """Return a value with null for the text `None`, which the command line makes of null.

    jsonargparse does so inside of dictionaries; no argument of a part is this text.
    """
    if isinstance(value, Mapping):
        return {key: _with_nulls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_nulls(inner) for inner in value]
    return None if value == "None" else value


def _made(name: str, arguments: Description) -> Any:  # noqa: ANN401 (a module, or its factory)
    """Make a part, or a factory of it where it waits for another part's features.

    Raises:
        TypeError: If the part has no such argument.
        ValueError: If a whole network gets something else where it needs a part.
    """
    part = _PARTS[name]
    parameters = inspect.signature(part).parameters
    known = [key for key in parameters if name not in _LATE or key not in FROM_BEFORE]
    for key, value in arguments.items():
        if key not in known:
            raise TypeError(str(UnknownNameError(f"argument of {name}", key, known)))
        if name not in _NETWORKS:
            continue
        if value is None and parameters[key].default is not None:
            msg = f"`{key}` must be a part of the network, got None; no network is without one"
            raise ValueError(msg)
        if isinstance(value, Mapping):  # a described part is built by now
            msg = (
                f"`{key}` must be a part of the network, got {dict(value)}; give it as "
                "{'class_path': ..., 'init_args': {...}}"
            )
            raise ValueError(msg)
    return partial(part, **arguments) if name in _LATE else part(**arguments)
