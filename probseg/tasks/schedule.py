"""Learning-rate schedules."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from probseg.errors import require


class PolynomialThenConstant(LambdaLR):
    """Polynomial decay to a floor that is then kept (Gabbur et al. 2021, C.2).

    As published, the rate falls from 1e-4 to 1e-5 in 70 epochs with power 0.9.

    Args:
        optimizer: Its learning rates are the starting values.
        decay_epochs: Epochs until the floor is reached.
        power: Exponent of the decay.
        final_factor: The floor, relative to the starting value.

    Raises:
        ValueError: If `decay_epochs` is not positive or `final_factor` not in [0, 1].
    """

    def __init__(
        self,
        optimizer: Optimizer,
        decay_epochs: int = 70,
        power: float = 0.9,
        final_factor: float = 0.1,
    ) -> None:
        require(decay_epochs >= 1, "decay_epochs", "at least 1", decay_epochs)
        require(0 <= final_factor <= 1, "final_factor", "in [0, 1]", final_factor)

        def factor(epoch: int) -> float:
            left = _polynomial(epoch, decay_epochs, power)
            return final_factor + (1 - final_factor) * left

        super().__init__(optimizer, factor)


class PolynomialDecay(LambdaLR):
    """Polynomial decay to zero, stepped every iteration: `(1 - iteration / total) ** power`.

    The "poly" policy of semantic segmentation, with power 0.9 as in Li et al. (2019, Sec. 6.1).
    The rate depends on the iteration alone, so that a resumed training has the same schedule.

    Args:
        optimizer: Its learning rates are the starting values.
        total_steps: Iterations of the whole training.
        power: Exponent of the decay.
        every: Iterations between two changes of the rate; 10 in the code of EMANet.

    Raises:
        ValueError: If `total_steps`, `power` or `every` is not positive.
    """

    def __init__(
        self, optimizer: Optimizer, total_steps: int, power: float = 0.9, every: int = 1
    ) -> None:
        for name, number in (("total_steps", total_steps), ("every", every)):
            require(number >= 1, name, "at least 1", number)
        require(power > 0, "power", "above 0", power)
        super().__init__(
            optimizer, lambda step: _polynomial(step - step % every, total_steps, power)
        )


def _polynomial(step: int, total: int, power: float) -> float:
    left: float = max(0.0, 1 - step / total) ** power
    return left
