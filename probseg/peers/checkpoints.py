"""Checkpoint files of other people: read without running their code, and written as folders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probseg.errors import USER_ERRORS, ModelNotFoundError, WeightsError
from probseg.models import Segmenter
from probseg.models.build import Description
from probseg.models.schema import checked
from probseg.paths import write_text
from probseg.transfer import digest
from probseg.types import Prompts
from probseg.weight_files import read_pickled, read_safetensors
from probseg.zoo.index import CARD, WEIGHTS
from probseg.zoo.store import build_to_fit, load_into, save

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of the RGB channels."""


class Origin(NamedTuple):
    """Where weights come from; for their card.

    Args:
        kind: Name of the origin for `probseg zoo import`.
        name: Name of the method.
        paper: Authors, year and title with a link, in Markdown.
    """

    kind: str
    name: str
    paper: str


class Converted(NamedTuple):
    """A network of other people in terms of probseg.

    Args:
        description: The network.
        weights: Tensors by their names in it.
        architecture: Name and arguments of the network in the file, for the card.
        changed: What the conversion changes, for the card: a clause.
    """

    description: Description
    weights: Mapping[str, Tensor]
    architecture: str
    changed: str


class Inert:
    """Stands for a class or function of a file's own code; it does nothing."""

    def __init__(self, *args: object) -> None: ...


def read_checkpoint(path: Path, name: str, own: Iterable[str] = ()) -> Any:  # noqa: ANN401
    """Read a checkpoint without running code.

    Args:
        path: The file.
        name: Of the method, for messages.
        own: Full names of the classes and functions of the method's code that files refer to; an
            `Inert` takes their place.

    Returns:
        What was saved: tensors, numbers, texts and collections of them.

    Raises:
        ModelNotFoundError: If there is no such file.
        WeightsError: If it is damaged, or refers to other code.
    """
    if not path.is_file():
        msg = f"{path}: no such file; give the path of a checkpoint of {name}"
        raise ModelNotFoundError(msg)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    stand_ins = [(type(f"Inert{n}", (Inert,), {}), full) for n, full in enumerate(own)]
    return read_pickled(path, f"a checkpoint of {name}", stand_ins, legacy=True)


def read_with_config(
    path: Path,
    name: str,
    classes: Collection[str],
    defaults: Mapping[str, Any],
    own: Iterable[str] = (),
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint in the format that the codes of RITM and SimpleClick share.

    Args:
        path: The file.
        name: As for `read_checkpoint`.
        classes: Networks that are known, without their module.
        defaults: Arguments that are read, with the values of those that the file leaves out.
        own: As for `read_checkpoint`.

    Returns:
        Tensors by their names in the file, and `class`, the name of the network's class without
        its module, with the arguments that it was built with, none left out.

    Raises:
        ModelNotFoundError: If there is no such file.
        WeightsError: If it is damaged, or holds something else.
    """
    content = read_checkpoint(path, name, own)
    state, config = _parts(content)
    if state is None or config is None:
        msg = (
            f"{path}: must hold `state_dict`, tensors by name, and `config`, a class and its "
            f"params, as {name}'s files do, got {kinds(content)}"
        )
        raise WeightsError(msg)
    kind = str(config["class"]).rpartition(".")[2]
    if kind not in classes:
        msg = f"{path}: config.class must be {' or '.join(classes)}, got {config['class']!r}"
        raise WeightsError(msg)
    params = {
        name: config["params"][name]["value"] for name in defaults if name in config["params"]
    }
    if large := [argument for argument, value in params.items() if not _is_small(value)]:
        msg = f"{path}: config.params must be numbers, names and short lists, {large[0]} is not"
        raise WeightsError(msg)
    return state, {**defaults, **params, "class": kind}


def check_arguments(
    config: Mapping[str, Any], needed: Mapping[str, Any], source: Path, others: str
) -> None:
    """Raise a WeightsError unless a network was built with arguments that probseg's has, too.

    Args:
        config: Arguments by name; images are normalised with `norm_mean_std`.
        needed: Arguments of which the network of probseg has one value only.
        source: Named in the error.
        others: Which networks have other values: a clause.
    """
    mean, std = (tuple(values) for values in config["norm_mean_std"])
    if (mean, std) != IMAGENET:
        msg = f"{source}: norm_mean_std must be that of ImageNet, got {short((mean, std))}"
        raise WeightsError(msg)
    for name, wanted in needed.items():
        if config[name] != wanted:
            msg = f"{source}: {name} must be {wanted}, got {short(config[name])}; {others}"
            raise WeightsError(msg)


def renamed(
    state: Mapping[str, Tensor], names: Mapping[str, str | None], source: Path, network: str
) -> dict[str, Tensor]:
    """Return the tensors of a file by their names in probseg's network.

    Args:
        state: Tensors by name.
        names: Beginnings of the names in the file and in the network, None for tensors that the
            network does not need; the first one that fits counts.
        source: Named in the error.
        network: The method and its network, for the error.

    Raises:
        WeightsError: If a tensor's name begins with none of them.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in state.items():
        theirs = next((beginning for beginning in names if name.startswith(beginning)), None)
        if theirs is None:
            msg = f"{source}: no tensor of {network} is called {name!r}"
            raise WeightsError(msg)
        if (ours := names[theirs]) is not None:
            weights[ours + name.removeprefix(theirs)] = tensor
    return weights


def with_box(weights: Tensor) -> Tensor:
    """Return weights for the click maps of probseg from those of RITM and SimpleClick.

    Theirs are for the previous mask, if there is one, positive and negative clicks; ours for the
    box, positive and negative clicks, and the previous mask. The box gets weights of 0.

    Args:
        weights: Of a convolution, shape `(C, 2 or 3, h, w)`.
    """
    previous, clicks = weights[:, :-2], weights[:, -2:]
    return torch.cat([torch.zeros_like(clicks[:, :1]), clicks, previous], dim=1)


def import_checkpoint(
    path: Path, folder: Path, origin: Origin, convert: Callable[[Path], Converted]
) -> Segmenter:
    """Convert a checkpoint to a model folder, and check that it loads and answers.

    Weights stay in float32.

    Args:
        path: The checkpoint; no code in it is run.
        folder: Where to; must not exist.
        origin: For the card.
        convert: Reads the checkpoint.

    Returns:
        The network as it is loaded from the folder, in evaluation mode.

    Raises:
        ModelNotFoundError: If there is no such file.
        FileExistsError: If the folder exists.
        UsageError: If the network needs a package that is not installed.
        WeightsError: If the file is damaged, holds something else, or a network that probseg has
            not; the message says what differs.
    """
    if folder.exists():
        msg = f"{folder}: exists already; choose another folder, or remove it"
        raise FileExistsError(msg)
    try:
        converted = convert(path)
    except USER_ERRORS:
        raise
    except Exception as error:  # whatever Python raises for settings of any other type
        msg = f"{path}: has settings of other types than files of {origin.name} have: {error!r}"
        raise WeightsError(msg) from error
    description = checked(converted.description, str(path))
    model = build_to_fit(description, converted.weights, str(path), Segmenter)
    _answer(model, path)
    save(model, description, folder, half=False)
    load_into(model, folder / WEIGHTS)
    write_text(folder / CARD, _card(converted, path, model, folder, origin))
    return model


def kinds(content: object) -> str:
    """Describe what a file holds, in short."""
    if not isinstance(content, dict):
        return f"a {type(content).__name__}"
    values = [f"{name!r}: {type(value).__name__}" for name, value in list(content.items())[:4]]
    return f"{{{', '.join(values)}}}"


def is_state(content: object) -> bool:
    """Return whether an object holds tensors by name, and nothing else."""
    return isinstance(content, dict) and all(isinstance(t, Tensor) for t in content.values())


def _parts(content: object) -> tuple[dict[str, Tensor] | None, dict[str, Any] | None]:
    """Return `state_dict` and `config` of a file; None for one of another form."""
    if not isinstance(content, dict):
        return None, None
    state, config = content.get("state_dict"), content.get("config")
    if (
        not isinstance(config, dict)
        or not isinstance(config.get("class"), str)
        or not isinstance(config.get("params"), dict)
        or not all(isinstance(p, dict) and "value" in p for p in config["params"].values())
    ):
        config = None
    return state if is_state(state) else None, config


def _is_small(value: object, levels: int = 2) -> bool:
    """Return whether a value is no list, or a short one of such values, in at most two levels."""
    if not isinstance(value, dict | list | tuple):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and len(value) <= 64 and all(_is_small(item, levels - 1) for item in inner)


def _answer(model: Segmenter, source: Path) -> None:
    """Raise a WeightsError unless the network answers a click with finite logits."""
    image = torch.linspace(0, 1, 3 * 50 * 70).view(1, 3, 50, 70)
    clicked = Prompts(
        points=torch.tensor([[[30.0, 20.0]]]),
        labels=torch.tensor([[1]]),
        boxes=torch.full((1, 4), torch.nan),
    )
    with torch.no_grad():
        logits = model(image, clicked)
    if not logits.isfinite().all():
        msg = f"{source}: the network answers a click with logits that are not finite"
        raise WeightsError(msg)


def _card(
    converted: Converted, source: Path, model: Segmenter, folder: Path, origin: Origin
) -> str:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    place = folder if folder.is_absolute() else f"./{folder}"
    return f"""# {folder.name}

Weights of {origin.name}, converted from `{source.name}` by `probseg zoo import {origin.kind}`.

- Source: {origin.paper}. For training data and licence see the authors' page; probseg neither
  trained nor published these weights.
- File: `{source.name}`, sha256 `{digest(source)}`.
- Network: {converted.architecture}; {parameters / 1e6:.2f} M parameters, float32.
- Changed: {converted.changed}.

```python
import probseg

predictor = probseg.Predictor.from_pretrained("{place}/")
```
"""
