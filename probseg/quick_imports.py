"""timm and torchvision without the slow modules that they import for hardly anything.

torchvision imports PyTorch's compiler (`torch._dynamo`, with sympy) for one function, timm imports
it for a decorator, and wandb for a script: two thirds of the time to a first mask. All of them work
as ever: what is left out is imported when somebody uses it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch._compile import _disable_dynamo


def import_timm() -> ModuleType:
    """Import timm, and return it."""
    if "timm" not in sys.modules:
        disable, collects = torch.compiler.disable, gc.isenabled()
        torch.compiler.disable = _disable
        gc.disable()  # imports leave no rubbish, and a collection looks at all that torch has made
        try:
            with _defer(_DeferredCompiler("torch._dynamo.utils")):  # for torchvision.ops.roi_align
                import_module("torchvision")
            with _defer(_Deferred("wandb")):  # timm.utils.summary: reports of timm's own trainings
                return import_module("timm")
        finally:
            torch.compiler.disable = disable
            if collects:
                gc.enable()
    return import_module("timm")


class _Deferred(ModuleType):
    """Stands for a module, which it imports for the first attribute that is asked for."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (any object of the module)
        if name.startswith("__"):  # which the import itself and tools ask of all modules
            raise AttributeError(name)
        _forget(self)
        return getattr(import_module(self.__name__), name)


class _DeferredCompiler(_Deferred):
    """Stands for `torch._dynamo.utils`."""

    def is_compile_supported(self, device_type: str) -> bool:
        """Return what the function of this name in `torch._dynamo.utils` does."""
        supported: bool = import_module(self.__name__).is_compile_supported(device_type)
        return supported


@contextmanager
def _defer(stand_in: _Deferred) -> Iterator[None]:
    """Let imports of a module find its stand-in, unless it is imported already."""
    if stand_in.__name__ not in sys.modules:
        sys.modules[stand_in.__name__] = stand_in
    try:
        yield
    finally:
        _forget(stand_in)


def _forget(stand_in: _Deferred) -> None:
    """Let later imports find the module itself."""
    if sys.modules.get(stand_in.__name__) is stand_in:
        del sys.modules[stand_in.__name__]


def _disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:  # noqa: ANN401
    """Decorate as `torch.compiler.disable`, importing the compiler at the first call instead."""
    return _disable_dynamo(fn, recursive)
