"""What the training of every network has in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
import torch
from torch import nn

from probseg.zoo.store import check_fit


class NetworkTask(L.LightningModule):
    """Base of the tasks that train a network.

    Validation and test steps do nothing: the callbacks that evaluate take the samples themselves.

    Args:
        model: The network; convolutions on CPU and on tensor cores are fastest with the layout
            ``channels_last``, which it gets.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.to(memory_format=torch.channels_last)

    def validation_step(
        self, batch: Sequence[Any], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Leave the samples to the callback that evaluates."""

    def test_step(self, batch: Sequence[Any], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Leave the samples to the callback that evaluates."""

    def setup(self, stage: str) -> None:
        """Train all of the network: models from the zoo come in evaluation mode."""
        if stage == "fit":
            self.model.train()

    def on_train_start(self) -> None:
        """Let each process draw numbers of its own."""
        torch.manual_seed(torch.initial_seed() + 1_000_000 * self.global_rank)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep built objects out of the checkpoint.

        The command line hands over descriptions of the network and the data; Python code hands over
        the modules and data sets themselves, whose place is not in a file meant to be read safely.
        """
        for part in ("hyper_parameters", "datamodule_hyper_parameters"):
            given = checkpoint.get(part, {})
            checkpoint[part] = {name: value for name, value in given.items() if _is_plain(value)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the checkpoint of another network in words, before torch does in keys.

        A training that goes on draws numbers and orders of its own: those of its beginning would
        repeat what it has seen. Loaders with workers draw their first order before training starts.
        """
        check_fit(self.state_dict(), checkpoint["state_dict"], "checkpoint")
        torch.manual_seed(torch.initial_seed() + checkpoint["global_step"])


def _is_plain(value: Any) -> bool:  # noqa: ANN401
    """Say whether a value consists of numbers, strings, lists and dictionaries only."""
    if isinstance(value, Mapping):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, str | int | float | bool)
