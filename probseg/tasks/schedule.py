"""Learning-rate schedules."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


class PolynomialThenConstant(LambdaLR):
    """Polynomial decay to a floor that is then kept (Gabbur et al. 2021, C.2).

    As published, the rate falls from 1e-4 to 1e-5 in 70 epochs with power 0.9.

    Args:
        optimizer: Its learning rates are the starting values.
        decay_epochs: Epochs until the floor is reached.
        power: Exponent of the decay.
        final_factor: The floor, relative to the starting value.

    Raises:
        ValueError: If ``decay_epochs`` is not positive or ``final_factor`` not in [0, 1].
    """

    def __init__(
        self,
        optimizer: Optimizer,
        decay_epochs: int = 70,
        power: float = 0.9,
        final_factor: float = 0.1,
    ) -> None:
        if decay_epochs < 1 or not 0 <= final_factor <= 1:
            msg = (
                "expected decay_epochs >= 1 and 0 <= final_factor <= 1, got "
                f"{decay_epochs} and {final_factor}"
            )
            raise ValueError(msg)

        def factor(epoch: int) -> float:
            left: float = max(0.0, 1 - epoch / decay_epochs) ** power
            return final_factor + (1 - final_factor) * left

        super().__init__(optimizer, factor)
