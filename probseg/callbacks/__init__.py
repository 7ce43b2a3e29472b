"""Callbacks: evaluation, pictures, and the record of a run."""

from probseg.callbacks.evaluation import InteractiveEvaluation
from probseg.callbacks.gain import Budget, Gain
from probseg.callbacks.last_checkpoint import LastCheckpoint
from probseg.callbacks.run_folder import SaveConfig, run_folder
from probseg.callbacks.visual import VisualLog

__all__ = [
    "Budget",
    "Gain",
    "InteractiveEvaluation",
    "LastCheckpoint",
    "SaveConfig",
    "VisualLog",
    "run_folder",
]
