"""Callbacks: evaluation, pictures, and the record of a run."""

from probseg.callbacks.config import SaveConfig
from probseg.callbacks.evaluation import InteractiveEvaluation
from probseg.callbacks.last_checkpoint import LastCheckpoint
from probseg.callbacks.run_folder import run_folder
from probseg.callbacks.semantic import SemanticEvaluation
from probseg.callbacks.visual import SemanticVisualLog, VisualLog

__all__ = [
    "InteractiveEvaluation",
    "LastCheckpoint",
    "SaveConfig",
    "SemanticEvaluation",
    "SemanticVisualLog",
    "VisualLog",
    "run_folder",
]
