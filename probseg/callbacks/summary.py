"""The table of a network's parts before a training."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import ModelSummary
from rich import box
from rich.table import Table

from probseg.terminal import console

UNKNOWN = "FLOPs"
"""Column that Lightning fills with zeros: nothing runs through the network before a training."""


class NetworkSummary(ModelSummary):
    """Prints the parts of a network with their parameters."""

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]],
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        *_: Any,  # noqa: ANN401
        **__: Any,  # noqa: ANN401
    ) -> None:
        """Print the table; see Lightning."""
        columns = {title: values for title, values in summary_data if title != UNKNOWN}
        table = Table(box=box.SIMPLE)
        for title in columns:
            table.add_column(title, justify="right" if title == "Params" else "left")
        for row in zip(*columns.values(), strict=True):
            table.add_row(*row)
        terminal = console()
        terminal.print(table)
        terminal.print(
            f"{total_parameters:,} parameters, {trainable_parameters:,} of them trained, "
            f"{model_size:.1f} MB",
            highlight=False,
        )
