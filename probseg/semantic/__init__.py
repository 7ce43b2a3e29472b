"""EMANet for semantic segmentation: network, data, task, callbacks and scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from probseg.kinds import Registry, lazy_getattr

if TYPE_CHECKING:
    from probseg.semantic.datamodule import SemanticBatch, SemanticDataModule
    from probseg.semantic.dataset import SemanticDataset
    from probseg.semantic.evaluation import SemanticEvaluation
    from probseg.semantic.heads import EMAU, DeepLabV3Head, EMAHead, FCNHead, SemanticHead
    from probseg.semantic.network import SemanticSegmenter, semantic_variant
    from probseg.semantic.pictures import SemanticVisualLog
    from probseg.semantic.sets import (
        CamVid,
        COCOObjects,
        COCOStuff10k,
        COCOStuff164k,
        PascalContext,
        VOCSegmentation,
    )
    from probseg.semantic.task import SemanticSegmentation

SEMANTIC_DATASETS: Mapping[str, type[SemanticDataset]] = Registry("semantic_dataset")
"""Data sets with a class for each pixel."""

_MODULES = {
    "COCOObjects": "sets",
    "COCOStuff10k": "sets",
    "COCOStuff164k": "sets",
    "CamVid": "sets",
    "DeepLabV3Head": "heads",
    "EMAHead": "heads",
    "EMAU": "heads",
    "FCNHead": "heads",
    "PascalContext": "sets",
    "SemanticBatch": "datamodule",
    "SemanticDataModule": "datamodule",
    "SemanticDataset": "dataset",
    "SemanticEvaluation": "evaluation",
    "SemanticHead": "heads",
    "SemanticSegmentation": "task",
    "SemanticSegmenter": "network",
    "SemanticVisualLog": "pictures",
    "VOCSegmentation": "sets",
    "semantic_variant": "network",
}

__all__ = [
    "EMAU",
    "SEMANTIC_DATASETS",
    "COCOObjects",
    "COCOStuff10k",
    "COCOStuff164k",
    "CamVid",
    "DeepLabV3Head",
    "EMAHead",
    "FCNHead",
    "PascalContext",
    "SemanticBatch",
    "SemanticDataModule",
    "SemanticDataset",
    "SemanticEvaluation",
    "SemanticHead",
    "SemanticSegmentation",
    "SemanticSegmenter",
    "SemanticVisualLog",
    "VOCSegmentation",
    "semantic_variant",
]

__getattr__ = lazy_getattr(
    __name__, {name: f"{__name__}.{module}.{name}" for name, module in _MODULES.items()}
)
