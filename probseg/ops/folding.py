"""Networks for inference, whose batch normalisations are part of their convolutions."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.overrides import TorchFunctionMode

Net = TypeVar("Net", bound=nn.Module)


def fold_batch_norms(network: Net, run: Callable[[Net], object]) -> Net:
    """Return a copy of a network for inference, with batch normalisations in its convolutions.

    In evaluation mode a normalisation is a factor and a summand for each channel: of the weights of
    the convolution in front of it just as well as of its map, which is then read and written once
    less. Answers are equal up to rounding. The copy is not for training or publication. A network
    without batch normalisation, or with compiled parts, which no copy would have, is returned
    itself.

    `run` calls the network with a small input, which shows where the map of each convolution goes.
    One that goes anywhere else too, or is the result, keeps its normalisation, and so does a
    convolution or normalisation that is called twice, or has a hook.
    """
    modules = dict(network.named_modules())
    compiled = any(module._compiled_call_impl is not None for module in modules.values())
    if compiled or not any(isinstance(module, nn.BatchNorm2d) for module in modules.values()):
        return network
    flow = _Flow()
    with torch.no_grad(), flow:
        flow.uses.update(_ids(run(network)))
    convolutions = {
        id(module.weight): name
        for name, module in modules.items()
        if isinstance(module, nn.Conv2d) and not _hooked(module)
    }
    copied = copy.deepcopy(network)
    for name, norm in modules.items():
        if not isinstance(norm, nn.BatchNorm2d) or norm.training or _hooked(norm):
            continue
        weight = flow.weight_before(norm)
        if weight is None or weight not in convolutions:
            continue
        before = convolutions[weight]
        convolution, norm_copy = copied.get_submodule(before), copied.get_submodule(name)
        assert isinstance(convolution, nn.Conv2d), "a copy of one"
        assert isinstance(norm_copy, nn.BatchNorm2d), "a copy of one"
        copied.set_submodule(before, fuse_conv_bn_eval(convolution, norm_copy))
        # timm's normalisations have these two behind them.
        rest = [getattr(norm_copy, part) for part in ("drop", "act") if hasattr(norm_copy, part)]
        copied.set_submodule(name, nn.Sequential(*rest))
    return copied


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _ids(value: object) -> list[int]:
    return [id(item) for item in (value if isinstance(value, tuple | list) else [value])]


class _Flow(TorchFunctionMode):
    """Notes from which convolution each batch normalisation gets its map."""

    def __init__(self) -> None:
        super().__init__()
        self._weight_of: dict[int, int] = {}  # ids of weights by those of the maps made with them
        self._map_of: dict[int, int] = {}  # ids of normalised maps by those of the running means
        self.uses: Counter[int] = Counter()  # of each tensor, by its id
        self._alive: list[object] = []  # so that ids stay unique

    def weight_before(self, norm: nn.BatchNorm2d) -> int | None:
        """Return the id of the weights in front of a normalisation; None where it cannot fold."""
        mean = id(norm.running_mean)
        normalised = self._map_of.get(mean, 0)
        weight = self._weight_of.get(normalised)
        used = {self.uses[number] for number in (mean, normalised, weight or 0)}
        return weight if used == {1} else None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call a function of PyTorch."""
        result = func(*args, **(kwargs or {}))
        self._alive.append((args, kwargs, result))
        results = result if isinstance(result, tuple | list) else [result]
        if result is None or any(isinstance(item, Tensor) for item in results):  # not a size
            for argument in (*args, *(kwargs or {}).values()):
                self.uses.update(_ids(argument))
        if func is F.conv2d and len(args) > 1:
            self._weight_of[id(result)] = id(args[1])
        if func is F.batch_norm and len(args) > 1:
            self._map_of[id(args[1])] = id(args[0])
        return result
