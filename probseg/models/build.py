"""Networks from plain data: presets, and descriptions that name only parts of probseg."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import partial
from reprlib import repr as short
from typing import Any, TypeVar, cast, overload

import torch
import yaml
from torch import nn

from probseg.backbones import BACKBONES
from probseg.clicks.maps import ClickMaps
from probseg.clicks.propagated import PropagatedClicks
from probseg.descriptions import Changes, build_described, class_name, is_description
from probseg.errors import UnknownNameError, UsageError, require
from probseg.heads import DECODERS, FUSIONS, HEADS
from probseg.kinds import TASKS, Registry, TaskName
from probseg.models.network import Network
from probseg.models.segmenter import Segmenter
from probseg.paths import configs_dir
from probseg.quick_imports import import_timm

Description = dict[str, Any]

# arguments of parts that come from the part before them, and from no description
DEFERRED_ARGUMENTS = ("inputs", "value_channels", "prompt_channels")

# presets that take other backbones: with maps of several strides, and with maps of one
HOST_PRESETS = ("sam2t_unet_prop", "vits_unet_prop")

PARTS: Registry[type[nn.Module]] = Registry(
    "part",
    {
        "ClickMaps": ClickMaps,
        "GraphCut": "probseg.heads.graph_cut.GraphCut",
        "MaskQuality": "probseg.heads.conv.MaskQuality",
        "PromptPropagation": "probseg.heads.propagation.PromptPropagation",
        "PropagatedClicks": PropagatedClicks,
        "Segmenter": Segmenter,
    },
    BACKBONES,
    DECODERS,
    FUSIONS,
    HEADS,
)

_Network = TypeVar("_Network", bound=Network)


def list_presets(task: TaskName = "interactive") -> list[str]:
    """Names of the networks for a task, in `configs/model` or in `configs/semantic`."""
    return sorted(path.stem for path in (configs_dir() / TASKS[task].presets).glob("*.yaml"))


def preset_task(name: str) -> TaskName:
    """Return what the network of a preset is for."""
    tasks = {preset: task for task in TASKS for preset in list_presets(task)}
    if name not in tasks:
        raise unknown_model(kind="model", name=name, known=tasks)
    return tasks[name]


def read_preset(name: str, task: TaskName = "interactive") -> Description:
    """Return the description of a preset for a task, by the stem of its file."""
    other = preset_task(name)
    if other != task:
        raise UsageError(
            f"{name!r} is a preset for {other} segmentation, expected one for {task} segmentation; "
            f"use {TASKS[other].variant}({name!r}), or read_preset({name!r}, {other!r})"
        )
    text = (configs_dir() / TASKS[task].presets / f"{name}.yaml").read_text(encoding="utf-8")
    return resolved(yaml.safe_load(text))


def unknown_model(kind: str, name: str, known: Iterable[str]) -> UnknownNameError | UsageError:
    """Return the error about a name that no model has: the way out, or the nearest names.

    If timm has a network of this name, the way out is a model with it as a backbone.
    """
    timm = import_timm()
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        return UnknownNameError(kind, name, known)
    config = timm.get_pretrained_cfg(name) or timm.get_pretrained_cfg(architecture)
    tag = tag or getattr(config, "tag", "")
    changes: dict[str, Any] = {"name": f"{architecture}.{tag}" if tag else architecture}
    reasons: list[str] = []
    for preset in HOST_PRESETS:
        description = override(read_preset(preset), {"backbone": changes})
        try:
            with torch.device("meta"):  # neither memory nor time for weights
                build(description)
        except (TypeError, ValueError) as error:  # the former of options that it does not have
            reasons.append(str(error))
            continue
        if changes["name"] in timm.list_pretrained():
            changes["pretrained"] = True
        return UsageError(
            f"{name!r} is a backbone of timm, which makes features and no masks; a model with it, "
            f"still to be trained, is probseg.create_model({preset!r}, backbone={changes})"
        )
    return UsageError(f"{name!r} is a backbone of timm that no preset takes: {reasons[0]}")


def task_of(description: Mapping[str, Any]) -> TaskName:
    """Return the task of a description, of a network or of a call of a task's `variant`.

    It is "interactive" unless another one is known.
    """
    for task, facts in TASKS.items():
        if class_name(description) in (_last(facts.network), _last(facts.variant)):
            return task
    return "interactive"


def variant(of: str, changes: Changes | None = None) -> Segmenter:
    """Build a preset with some arguments changed; for configurations.

    Args:
        of: Name of the preset.
        changes: Arguments to change, as in `override`:
            `{"backbone": {"attention": "probabilistic"}}`.
    """
    return build(override(read_preset(of), changes or {}), Segmenter)


def resolved(description: Description) -> Description:
    """Return the full description of a network, or of that which a task's `variant` makes."""
    task = task_of(description)
    if class_name(description) != _last(TASKS[task].variant):
        return description
    arguments = description["init_args"]
    return override(read_preset(arguments["of"], task), arguments.get("changes") or {})


def override(description: Description, changes: Mapping[str, Any]) -> Description:
    """Return the description of a part with some arguments changed, at any depth.

    The value for an argument that is itself a part is a dictionary of changes to that part, or None
    to leave the part out; other dictionaries, such as `options`, get these entries in addition to
    their own.
    """
    arguments = dict(description.get("init_args") or {})
    for key, value in changes.items():
        old = arguments.get(key)
        if is_description(old) and value is not None:
            example = f"a dictionary of arguments to change, e.g. {key}={{'channels': 64}}"
            require(isinstance(value, Mapping), key, example, short(value))
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


@overload
def build(description: Description) -> Network: ...
@overload
def build(description: Description, kind: type[_Network]) -> _Network: ...
def build(description: Description, kind: type[Network] = Network) -> Network:
    """Build the network of a description, of a class, with fresh weights and in training mode."""
    model = build_described(resolved(description), PARTS, "part of a network", _instantiate)
    names = [_last(facts.network) for facts in TASKS.values()]
    expected = f"that of a {' or '.join(names if kind is Network else [kind.__name__])}"
    require(isinstance(model, kind), "class_path", expected, repr(description["class_path"]))
    return cast("Network", model)


def _last(path: str) -> str:
    """Return the name of an object without its module."""
    return path.rpartition(".")[2]


def _instantiate(name: str, arguments: Description) -> Any:  # noqa: ANN401 (a module, or its factory)
    """Make a part, or a factory of it where it waits for another part's features."""
    part = PARTS[name]
    parameters = inspect.signature(part).parameters
    known = [key for key in parameters if key not in DEFERRED_ARGUMENTS]
    for key, value in arguments.items():
        if key not in known:
            raise TypeError(str(UnknownNameError(f"argument of {name}", key, known)))
        if not issubclass(part, Network):
            continue
        # A described part is built by now, and no network is without a decoder, say.
        missing = value is None and parameters[key].default is not None
        is_part = not missing and not isinstance(value, Mapping)
        hint = "give it as {'class_path': ..., 'init_args': {...}}"
        require(is_part, key, "a part of the network", value, hint)
    waits = len(known) < len(parameters)
    return partial(part, **arguments) if waits else part(**arguments)
