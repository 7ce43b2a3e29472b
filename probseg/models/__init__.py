"""Whole networks: `Network`, the base of all tasks, `Segmenter`, and presets."""

from probseg.models.build import (
    build,
    list_presets,
    override,
    preset_task,
    read_preset,
    resolved,
    task_of,
    variant,
    without_downloads,
)
from probseg.models.network import Encoded, Network
from probseg.models.segmenter import Segmenter

__all__ = [
    "Encoded",
    "Network",
    "Segmenter",
    "build",
    "list_presets",
    "override",
    "preset_task",
    "read_preset",
    "resolved",
    "task_of",
    "variant",
    "without_downloads",
]
