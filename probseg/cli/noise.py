"""Notices of other packages that no user of the commands can do anything about."""

from __future__ import annotations

import logging
import warnings

ABOUT_DESIGN = (
    # Raised inside Lightning, about torch.
    (r"`isinstance\(treespec, LeafSpec\)`", FutureWarning),
    # The arguments come both ways on purpose: processes that Lightning starts read sys.argv.
    ("LightningCLI's args parameter", UserWarning),
    # Reading an object takes a few per cent of clicking through it.
    (r"The '(val|test|predict)_dataloader' does not have many workers", UserWarning),
)
"""Patterns and categories of warnings about what is as it should be."""

ABOUT_CHECKPOINTS = (
    r"Checkpoint directory .* exists and is not empty",  # of the run that goes on
    r"The dirpath has changed from",  # an evaluation has a folder of its own
)
"""Warnings that are of use only where a new training begins."""


def without_notices() -> None:
    """Silence advertisements of Lightning, and warnings about what is as it should be."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_not_a_tip)
    for pattern, category in ABOUT_DESIGN:
        warnings.filterwarnings("ignore", pattern, category)


def without_notices_about_checkpoints() -> None:
    """Silence warnings about the checkpoints of a run that goes on or is evaluated."""
    for pattern in ABOUT_CHECKPOINTS:
        warnings.filterwarnings("ignore", pattern, UserWarning)


def _not_a_tip(record: logging.LogRecord) -> bool:
    return "Tip:" not in record.getMessage()
