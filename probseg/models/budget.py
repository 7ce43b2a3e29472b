"""A limit on the size of a network while it is being built."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from probseg.errors import WeightsError


class Budget(TorchFunctionMode):
    """Refuses to make tensors of more numbers than these in all, before they take memory.

    Args:
        numbers: Of all tensors that the context makes by their size, as layers make their weights.
        source: What is being built, for the message.
    """

    def __init__(self, numbers: int, source: str) -> None:
        super().__init__()
        self.numbers, self.left, self.source = numbers, numbers, source

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 (torch's signature)
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Count what the function makes, and call it.

        Raises:
            WeightsError: If there is nothing left for it.
        """
        options = kwargs or {}
        if getattr(func, "__name__", "") in ("empty", "full", "ones", "rand", "randn", "zeros"):
            size = options.get("size", args[0] if args and isinstance(args[0], Sequence) else args)
            self.left -= math.prod(number for number in size if isinstance(number, int))
        if self.left < 0:
            msg = (
                f"{self.source}: describes a network of more than {self.numbers:,} numbers, which "
                "its weights do not have; a large network needs its weights (pretrained=True)"
            )
            raise WeightsError(msg)
        return func(*args, **options)
