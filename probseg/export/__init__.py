"""Networks as graphs for other runtimes."""

from probseg.export.folder import export_model
from probseg.export.parity import Parity
from probseg.export.runner import ClassRunner, Runner

__all__ = ["ClassRunner", "Parity", "Runner", "export_model"]
