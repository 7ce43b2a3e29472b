"""Repeats a stored training step and looks where numbers stop being finite."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from jsonargparse import ArgumentError
from lightning.pytorch.cli import LightningArgumentParser
from torch import Tensor, nn

from probseg.callbacks.replay_file import Batch, Replay, with_tensors
from probseg.cli.checkpoints import without_pretrained_backbones
from probseg.errors import UsageError, user_error
from probseg.tasks.base import NetworkTask, seed_torch
from probseg.zoo.store import check_fit


@dataclass(frozen=True)
class Suspect:
    """The first module, in the order of execution, whose output is not finite.

    Args:
        name: Of the module in the task.
        kind: Its class.
        inputs: Shapes of the tensors that it was given.
        outputs: Shapes of those that it returned.
        largest_input: Greatest magnitude among the finite numbers that it was given; 0 without any.
        inputs_finite: Whether all that it was given was finite.
    """

    name: str
    kind: str
    inputs: list[list[int]]
    outputs: list[list[int]]
    largest_input: float
    inputs_finite: bool


@dataclass(frozen=True)
class Step:
    """What a training step came to.

    Args:
        loss: The loss.
        parts: What the task logged in the step, by name.
        suspect: The first module with an output that is not finite, if there is one.
        gradient: The first parameter, in the order of the backward pass, with a gradient that is
            not finite, if there is one; not looked for without a backward pass.
    """

    loss: float
    parts: dict[str, float]
    suspect: Suspect | None
    gradient: str | None


def task_of(config: Path) -> NetworkTask:
    """Make the task that a run's configuration describes, without data and trainer.

    Args:
        config: Its ``config.yaml``. Classes that it names are imported.

    Returns:
        The task with weights of no meaning; pretrained backbones are not fetched.

    Raises:
        UsageError: If the file is missing or cannot be used.
    """
    try:
        described = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        msg = f"the run's configuration cannot be read; give it as --config: {error}"
        raise UsageError(msg) from error
    if not isinstance(described, dict) or "model" not in described:
        msg = f"{config}: has no section `model`; expected the config.yaml of a run"
        raise UsageError(msg)
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(NetworkTask, "model", subclass_mode=True)
    try:
        parsed = parser.parse_object({"model": described["model"]})
        without_pretrained_backbones(parsed.model)
        with warnings.catch_warnings():
            # Of hyperparameters for a checkpoint, which nobody will write.
            warnings.filterwarnings("ignore", "Attribute '.*' is an instance of `nn.Module`")
            task = parser.instantiate_classes(parsed).model
    except (ArgumentError, ValueError, OSError) as error:
        msg = f"{config}: {user_error(error) or error}"
        raise UsageError(msg) from error
    assert isinstance(task, NetworkTask), "the parser checks the type"
    return task


class Repetition:
    """A task set up to repeat a stored step as often as is asked.

    Args:
        replay: The step.
        task: The task of its run.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Raises:
        WeightsError: If the weights are those of another task.
    """

    def __init__(self, replay: Replay, task: NetworkTask, device: str) -> None:
        check_fit(task.state_dict(), replay.weights, "replay file")
        self.replay = replay
        self.trainer = _trainer(device, replay.precision)
        # Tasks ask for the epoch, on which the tasks of a curriculum depend.
        self.trainer.fit_loop.epoch_progress.current.completed = replay.epoch
        self._precision = self.trainer.precision_plugin
        self.device = self.trainer.strategy.root_device
        self._precision.convert_module(task)  # in place
        self.task = task.to(self.device).train()
        self.task.trainer = self.trainer

    def run(self, batch: Batch, backward: bool = False) -> Step:
        """Repeat the step with its random numbers and its precision.

        Args:
            batch: The step's own, or another of its shape.
            backward: Whether to look at gradients too.
        """
        task, replay = self.task, self.replay
        task.load_state_dict(replay.weights)  # the last run has moved averages
        task.zero_grad()
        task.batch_seed = replay.batch_seed
        seed_torch(replay.batch_seed, replay.rank)
        there = task.transfer_batch_to_device(self._precision.convert_input(batch), self.device, 0)
        logged, watched, precision = _logged(task), _watched(task), self._precision
        with logged as parts, watched as suspects, precision.train_step_context():
            output = task.training_step(there, replay.batch_idx)
        assert isinstance(output, Mapping), "the tasks return their loss by name"
        loss = output["loss"]
        gradients: list[str] = []
        if backward:
            with _watched_gradients(task) as gradients:
                loss.backward()
        return Step(
            loss=float(loss.detach()),
            parts={name: float(value) for name, value in parts.items()},
            suspect=suspects[0] if suspects else None,
            gradient=gradients[0] if gradients else None,
        )

    def alone(self, number: int) -> Step:
        """Repeat the step with copies of one image in place of the whole batch.

        So layers that look at all of the batch, as batch normalisation does, see that image only.

        Args:
            number: Of the image in the batch.
        """

        def copied(tensor: Tensor) -> Tensor:
            return tensor[number : number + 1].expand_as(tensor).contiguous()

        return self.run(with_tensors(self.replay.batch, copied))


def not_finite(tensors: Mapping[str, Any]) -> list[str]:
    """Return the names of the tensors that hold an infinite number or NaN."""
    return [name for name, tensor in tensors.items() if not _finite(tensor)]


def _trainer(device: str, precision: str) -> L.Trainer:
    """Make a trainer for its precision and its device, without what it tells of itself."""
    kind, _, index = device.partition(":")
    told = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    told.addFilter(_nothing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of another precision, which the report tells
            return L.Trainer(
                accelerator="gpu" if kind == "cuda" else "cpu",
                devices=[int(index or 0)] if kind == "cuda" else 1,
                precision=precision,  # type: ignore[arg-type]
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
    finally:
        told.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


@contextmanager
def _logged(task: NetworkTask) -> Iterator[dict[str, Tensor]]:
    """Keep what the task logs, which is not running inside a training loop."""
    parts: dict[str, Tensor] = {}

    def keep(name: str, value: Tensor, **options: object) -> None:
        parts[name] = value.detach()

    task.log = keep  # type: ignore[method-assign, assignment]
    try:
        yield parts
    finally:
        del task.log


@contextmanager
def _watched(task: NetworkTask) -> Iterator[list[Suspect]]:
    """Note the first module whose output is not finite; inner modules end before outer ones."""
    found: list[Suspect] = []

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def look(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:  # noqa: ANN401
            if not found and not _finite(output):
                found.append(_suspect(name, module, (args, kwargs), output))

        return module.register_forward_hook(look, with_kwargs=True)

    handles = [watch(name, module) for name, module in task.named_modules() if name]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _suspect(name: str, module: nn.Module, inputs: Any, output: Any) -> Suspect:  # noqa: ANN401
    given = list(_tensors(inputs))
    numbers = [tensor[tensor.isfinite()] for tensor in given if tensor.is_floating_point()]
    return Suspect(
        name=name,
        kind=type(module).__name__,
        inputs=[list(tensor.shape) for tensor in given],
        outputs=[list(tensor.shape) for tensor in _tensors(output)],
        largest_input=max((float(n.abs().max()) for n in numbers if n.numel()), default=0.0),
        inputs_finite=_finite(inputs),
    )


@contextmanager
def _watched_gradients(task: NetworkTask) -> Iterator[list[str]]:
    """Note the parameters whose gradients are not finite, in the order of the backward pass."""
    found: list[str] = []

    def watch(name: str, parameter: nn.Parameter) -> torch.utils.hooks.RemovableHandle:
        def look(_: Tensor) -> None:
            if not _finite(parameter.grad):
                found.append(name)

        handle: torch.utils.hooks.RemovableHandle
        handle = parameter.register_post_accumulate_grad_hook(look)  # type: ignore[no-untyped-call]
        return handle

    handles = [watch(name, p) for name, p in task.named_parameters() if p.requires_grad]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _finite(value: Any) -> bool:  # noqa: ANN401
    return all(bool(tensor.isfinite().all()) for tensor in _tensors(value))


def _tensors(value: Any) -> Iterator[Tensor]:  # noqa: ANN401
    """Go through the tensors in what a module takes or returns."""
    if isinstance(value, Tensor):
        yield value.detach()
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value):
        yield from _tensors([getattr(value, field.name) for field in dataclasses.fields(value)])
