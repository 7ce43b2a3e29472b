"""Checkpoint files of other people: read without running their code, and written as folders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probseg.errors import USER_ERRORS, ModelNotFoundError, WeightsError
from probseg.models import Segmenter
from probseg.models.build import Description
from probseg.models.schema import checked
from probseg.paths import digest, write_text
from probseg.types import Prompts
from probseg.weight_files import read_pickled, read_safetensors
from probseg.zoo.index import CARD, WEIGHTS
from probseg.zoo.store import build_to_fit, load_into, save

# mean and standard deviation of the RGB channels
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Origin(NamedTuple):
    """Where weights come from; for their card."""

    kind: str  # for `probseg zoo import`
    name: str  # of the method
    paper: str  # authors, year and title with a link, in Markdown


class Converted(NamedTuple):
    """A network of other people in terms of probseg, and two clauses for its card."""

    description: Description
    weights: Mapping[str, Tensor]
    architecture: str  # name and arguments of the network in the file
    changed: str  # by the conversion


class Inert:
    """Stands for a class or function of a file's own code; it does nothing."""

    def __init__(self, *args: object) -> None: ...


def read_foreign(path: Path, name: str, own: Iterable[str] = ()) -> Any:  # noqa: ANN401
    """Read tensors, numbers, texts and collections of them, without running code.

    An `Inert` takes the place of classes and functions of the method's own code, by full names.
    """
    if not path.is_file():
        raise ModelNotFoundError(f"{path}: no such file; give the path of a checkpoint of {name}")
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

    Returns tensors by name, and `class`, the network's class among `classes`, without its module,
    with the arguments that it was built with: those of `defaults`, which a file may leave out.
    """
    content = read_foreign(path, name, own)
    try:
        state, config = content["state_dict"], content["config"]
        params = {argument: param["value"] for argument, param in config["params"].items()}
        fits = is_state(state) and isinstance(config["class"], str)
    except (AttributeError, KeyError, TypeError, IndexError):
        fits = False
    if not fits:
        raise WeightsError(
            f"{path}: must hold `state_dict`, tensors by name, and `config`, a class and its "
            f"params, as {name}'s files do, got {kinds(content)}"
        )
    kind = config["class"].rpartition(".")[2]
    params = {name: value for name, value in params.items() if name in defaults}
    large = [argument for argument, value in params.items() if not _is_small(value)]
    if kind not in classes or large:
        fault = f"params must be numbers, names and short lists, {large[0]} is not" if large else ""
        other = f"class must be {' or '.join(classes)}, got {config['class']!r}"
        raise WeightsError(f"{path}: config.{fault or other}")
    return state, {**defaults, **params, "class": kind}


def check_arguments(
    config: Mapping[str, Any], needed: Mapping[str, Any], source: Path, others: str
) -> None:
    """Raise unless a network normalises images as probseg's, and has the arguments it `needed`.

    `others` is a clause on the networks that have other values.
    """
    statistics = tuple(tuple(values) for values in config["norm_mean_std"])
    config, needed = {**config, "norm_mean_std": statistics}, {"norm_mean_std": IMAGENET, **needed}
    for name, value in needed.items():
        if config[name] != value:
            raise WeightsError(
                f"{source}: {name} must be {value}, got {short(config[name])}; {others}"
            )


def rename_tensors(
    state: Mapping[str, Tensor], names: Mapping[str, str | None], source: Path, network: str
) -> dict[str, Tensor]:
    """Return the tensors of a file by their names in probseg's network.

    `names` are beginnings of the names in the file and in the network, of which the first that fits
    counts; None for tensors that the network does not need.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in state.items():
        theirs = next((beginning for beginning in names if name.startswith(beginning)), None)
        if theirs is None:
            raise WeightsError(f"{source}: no tensor of {network} is called {name!r}")
        if (ours := names[theirs]) is not None:
            weights[ours + name.removeprefix(theirs)] = tensor
    return weights


@contextmanager
def needed_tensors(source: Path, of: str) -> Iterator[None]:
    """Say of which part a file lacks tensors."""
    try:
        yield
    except KeyError as error:
        raise WeightsError(f"{source}: lacks tensors of {of}, for {error.args[0]}") from error


def with_box(weights: Tensor) -> Tensor:
    """Return weights for the click maps of probseg from those of RITM and SimpleClick.

    Theirs are for the previous mask, if there is one, positive and negative clicks; ours for the
    box, positive and negative clicks, and the previous mask. The box gets weights of 0:
    `(C, 2 or 3, h, w)` become `(C, 3 or 4, h, w)`.
    """
    previous, clicks = weights[:, :-2], weights[:, -2:]
    return torch.cat([torch.zeros_like(clicks[:, :1]), clicks, previous], dim=1)


def import_checkpoint(
    path: Path, folder: Path, origin: Origin, convert: Callable[[Path], Converted]
) -> Segmenter:
    """Convert a checkpoint to a model folder in float32, and check that it loads and answers.

    No code in the file is run. The network is as it is loaded from the folder, in evaluation mode.
    """
    if folder.exists():
        raise FileExistsError(f"{folder}: exists already; choose another folder, or remove it")
    try:
        converted = convert(path)
    except USER_ERRORS:
        raise
    except Exception as error:  # whatever Python raises for settings of any other type
        raise WeightsError(
            f"{path}: has settings of other types than files of {origin.name} have: {error!r}"
        ) from error
    description = checked(converted.description, str(path))
    model = build_to_fit(description, converted.weights, str(path), Segmenter)
    image = torch.linspace(0, 1, 3 * 50 * 70).view(1, 3, 50, 70)
    click = Prompts(
        points=torch.tensor([[[30.0, 20.0]]]),
        labels=torch.tensor([[1]]),
        boxes=torch.full((1, 4), torch.nan),
    )
    with torch.no_grad():
        logits = model(image, click)
    if not logits.isfinite().all():
        raise WeightsError(f"{path}: the network answers a click with logits that are not finite")
    save(model, description, folder, half=False)
    load_into(model, folder / WEIGHTS)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    place = folder if folder.is_absolute() else f"./{folder}"
    card = f"""# {folder.name}

Weights of {origin.name}, converted from `{path.name}` by `probseg zoo import {origin.kind}`.

- Source: {origin.paper}. For training data and licence see the authors' page; probseg neither
  trained nor published these weights.
- File: `{path.name}`, sha256 `{digest(path)}`.
- Network: {converted.architecture}; {parameters / 1e6:.2f} M parameters, float32.
- Changed: {converted.changed}.

```python
import probseg

predictor = probseg.Predictor.from_pretrained("{place}/")
```
"""
    write_text(folder / CARD, card)
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


def _is_small(value: object, levels: int = 2) -> bool:
    """Say whether a value is not a list, or a short one of such values, in at most two levels."""
    if not isinstance(value, dict | list | tuple):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and len(value) <= 64 and all(_is_small(item, levels - 1) for item in inner)
