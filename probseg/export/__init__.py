"""Networks as graphs for other runtimes."""

from probseg.export.folder import export_model
from probseg.export.parity import Parity
from probseg.export.runner import Runner

__all__ = ["Parity", "Runner", "export_model"]
