"""Base class of all trainings: seeds of batches, hyper-parameters, checkpoints."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from types import FrameType
from typing import Any, Literal, Self, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

import probseg
from probseg.data.loading import TrainingData
from probseg.descriptions import is_description
from probseg.errors import UsageError, require
from probseg.lightning_internals import made_by_command_line
from probseg.seeds import BATCH, mix_seeds
from probseg.zoo.store import check_fit
from probseg.zoo.trained import without_files

_logger = logging.getLogger(__name__)

VERSION = "probseg_version"  # key of a checkpoint with the version of probseg that wrote it


class NetworkTask(L.LightningModule):
    """Base of the tasks that train a network.

    Validation and test steps do nothing: the callbacks that evaluate take the samples themselves.

    Args:
        model: The network; convolutions on CPU and on tensor cores are fastest with the layout
            `channels_last`, which it gets.
        optimizer: Makes the optimiser.
        lr_scheduler: Makes the schedule.

    Attributes:
        batch_seed: Of the present training batch, the same in all processes, in [0, 2**63).
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        lr_scheduler: Callable[..., Any],
    ) -> None:
        super().__init__()
        self.model = model.to(memory_format=torch.channels_last)
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.batch_seed = 0

    def save_hyperparameters(
        self,
        *args: Any,  # noqa: ANN401 (Lightning's signature)
        ignore: Sequence[str] | str | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Keep the arguments of the constructor; of modules and functions only their descriptions.

        The command line gives descriptions. If a task is built in Python, modules and functions are
        left out: modules would be copied, and functions cannot be stored.
        """
        frame = frame or cast("FrameType", inspect.currentframe()).f_back
        assert frame is not None, "a constructor calls it"
        left_out = [ignore] if isinstance(ignore, str) else list(ignore or ())
        if not made_by_command_line():
            values = frame.f_locals.items()
            left_out += [name for name, value in values if callable(value)]
        super().save_hyperparameters(*args, ignore=left_out, frame=frame, logger=logger)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the network, for instance for averaging, and share the factories.

        The factories that a command line makes refer to the whole command line, with its trainer,
        data and processes, which are large and cannot all be copied.
        """
        memo |= {id(factory): factory for factory in (self.optimizer, self.lr_scheduler)}
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(deepcopy(self.__getstate__(), memo))  # type: ignore[no-untyped-call]
        return copied

    def validation_step(
        self, batch: Sequence[Any], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Leave the samples to the callback that evaluates."""

    def test_step(self, batch: Sequence[Any], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Leave the samples to the callback that evaluates."""

    def setup(self, stage: str) -> None:
        """Train all of the network: models from the zoo come in evaluation mode.

        Callbacks that try a few steps, as `BatchSizeFinder` does, need the seed before the fit.
        """
        if stage == "fit":
            self.model.train()
            self.seed = torch.initial_seed()

    def on_fit_start(self) -> None:
        """Take the seed of the run, which the data module may have from a checkpoint.

        Checkpoints describe the network itself, not the file from which it was loaded.
        """
        data = getattr(self.trainer, "datamodule", None)  # absent where loaders were passed
        self.seed = data.seed if isinstance(data, TrainingData) else torch.initial_seed()
        callbacks = getattr(self.trainer, "callbacks", ())  # an attribute without a declared type
        averages = (c for c in callbacks if isinstance(c, StochasticWeightAveraging))
        norms = (m for m in self.model.modules() if isinstance(m, _BatchNorm) and not m.training)
        if any(averages) and any(norms):
            raise UsageError(
                "`StochasticWeightAveraging` must not be used with `fixed_statistics` or `frozen` "
                "normalisations, whose averages it sets to 0 for good; use EMAWeightAveraging"
            )
        if is_description(network := self.hparams.get("model")):
            self.hparams["model"] = without_files(network)

    def with_schedule(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: LRScheduler | ReduceLROnPlateau,
        interval: Literal["epoch", "step"],
    ) -> OptimizerLRScheduler:
        """Return an optimiser and its schedule as Lightning steps them."""
        stepped: Any = {"scheduler": schedule, "interval": interval}
        if isinstance(schedule, ReduceLROnPlateau):
            monitor: str | None = getattr(schedule, "monitor", None)  # Lightning's own has one
            if monitor is None:
                raise UsageError(
                    "ReduceLROnPlateau of torch does not say which number it waits for; give "
                    "--model.lr_scheduler lightning.pytorch.cli.ReduceLROnPlateau "
                    "--model.lr_scheduler.monitor train/loss"
                )
            epochs = self.trainer.check_val_every_n_epoch if monitor.startswith("val/") else 1
            stepped |= {"monitor": monitor, "frequency": epochs or 1}
        return {"optimizer": optimizer, "lr_scheduler": stepped}

    def on_train_start(self) -> None:
        """Refuse a schedule that ends before the training; warn of one that ends after it.

        A run that resumes in mid-epoch also needs the accumulation of its epoch, which Lightning
        sets at the beginning of an epoch alone.
        """
        for callback in getattr(self.trainer, "callbacks", ()):
            if isinstance(callback, GradientAccumulationScheduler):
                batches = callback.get_accumulate_grad_batches(self.trainer.current_epoch)
                self.trainer.accumulate_grad_batches = batches
        for stepped in self.trainer.lr_scheduler_configs:
            by_step = stepped.interval == "step"
            total = self.trainer.estimated_stepping_batches if by_step else self.trainer.max_epochs
            total = math.inf if total in (None, -1) else total
            schedule: Any = stepped.scheduler
            planned = getattr(schedule, "total_steps", getattr(schedule, "T_max", total))
            steps = "1 step" if planned == 1 else f"{planned} steps"
            text = (
                f"{type(schedule).__name__} has {steps}, and the training takes {total}, one each "
                f"{'batch' if by_step else 'epoch'}; set the schedule's `total_steps` or `T_max` "
                "to this number, or --model.lr_interval (step or epoch)"
            )
            if planned < total and hasattr(schedule, "total_steps"):
                raise UsageError(text)
            if planned > total:
                _logger.warning(text)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ANN401
        """Make all random numbers depend on the batch alone.

        This includes dropout and all else that uses torch's own generator: to resume, a training
        needs no generator state.
        """
        self.batch_seed = mix_seeds(BATCH, self.seed, self.current_epoch, batch_idx)
        torch.manual_seed(mix_seeds(self.batch_seed, self.global_rank))

    def on_validation_epoch_start(self) -> None:
        """Make all processes evaluate the saved network, that of the first process.

        The averages of normalisation layers are those of each process's own images until the next
        training step takes those of the first.
        """
        if self.trainer.world_size > 1:
            for buffer in self.buffers():
                shared = buffer.contiguous()
                torch.distributed.broadcast(shared, src=0)
                buffer.copy_(shared)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the version of probseg, and exclude built objects.

        The command line hands over descriptions of the network and the data; Python code hands over
        the modules and data sets themselves, which do not belong in a file that is read safely.
        """
        checkpoint[VERSION] = probseg.__version__
        for part in ("hyper_parameters", "datamodule_hyper_parameters"):
            arguments = checkpoint.get(part, {})
            checkpoint[part] = {key: value for key, value in arguments.items() if _is_plain(value)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the checkpoint of another network in a sentence, before torch lists its keys."""
        check_fit(self.state_dict(), checkpoint["state_dict"], "checkpoint")


def trial_optimizer(optimizer: Callable[..., torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Build the optimiser for one number: wrong settings fail before a run writes anything."""
    try:
        return optimizer([nn.Parameter(torch.zeros(()))])
    except ValueError as error:  # of torch, which knows nothing of options
        raise UsageError(f"model.optimizer: {error}") from error


def _is_plain(value: Any) -> bool:  # noqa: ANN401
    """Return whether a value consists of numbers, strings, lists and dictionaries only."""
    if isinstance(value, Mapping):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, str | int | float | bool)


class PolynomialThenConstant(LambdaLR):
    """Polynomial decay to a floor that is then kept (Gabbur et al. 2021, C.2).

    As published, the rate falls from 1e-4 to 1e-5 in 70 epochs with power 0.9.

    Args:
        optimizer: Its learning rates are the starting values.
        decay_epochs: Epochs until the floor is reached.
        power: Exponent of the decay.
        final_factor: The floor, relative to the starting value.
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

        self.decay_epochs = decay_epochs  # `Budget` may set it

        def factor(epoch: int) -> float:
            left = _polynomial(epoch, self.decay_epochs, power)
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
