"""Networks of a stranger's description, built only if their size is that of their weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from probseg.backbones.sizes import OUTLINE
from probseg.models.build import Description, build
from probseg.models.network import Network

LARGEST = 100_000_000
"""Numbers that a network may hold beyond the weights that it gets: all of a fresh one."""


class _Unfilled(TorchFunctionMode):
    """Leaves out random numbers: on the device `meta`, torch imports its compiler for them."""

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 (torch's signature)
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call the function unless it fills a tensor."""
        name, given = getattr(func, "__name__", ""), dict(kwargs or {})
        if name in ("normal_", "uniform_"):
            return args[0] if args else given["tensor"]
        if name in ("rand", "randn"):
            return torch.empty(*args, **given)
        return func(*args, **given)


def outline(description: Description) -> Network:
    """Build a network on the device `meta`, whose tensors have shapes and no memory."""
    token = OUTLINE.set(True)
    try:
        with torch.device("meta"), _Unfilled():
            return build(description)
    finally:
        OUTLINE.reset(token)
