"""EMANet for semantic segmentation: network, data, task, callbacks and scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from probseg.kinds import Offers, imported_when_asked

if TYPE_CHECKING:
    from probseg.semantic.camvid import CamVid
    from probseg.semantic.coco_stuff import COCOObjects, COCOStuff10k, COCOStuff164k
    from probseg.semantic.datamodule import SemanticBatch, SemanticDataModule
    from probseg.semantic.dataset import SemanticDataset
    from probseg.semantic.emau import EMAU
    from probseg.semantic.evaluation import SemanticEvaluation
    from probseg.semantic.heads import DeepLabV3Head, EMAHead, FCNHead, SemanticHead
    from probseg.semantic.network import SemanticSegmenter
    from probseg.semantic.pascal_context import PascalContext
    from probseg.semantic.presets import semantic_variant
    from probseg.semantic.task import SemanticSegmentation
    from probseg.semantic.visual import SemanticVisualLog
    from probseg.semantic.voc import VOCSegmentation

SEMANTIC_DATASETS: Mapping[str, type[SemanticDataset]] = Offers("semantic_dataset")
"""Data sets with a class for each pixel."""

_MODULES = {
    "COCOObjects": "coco_stuff",
    "COCOStuff10k": "coco_stuff",
    "COCOStuff164k": "coco_stuff",
    "CamVid": "camvid",
    "DeepLabV3Head": "heads",
    "EMAHead": "heads",
    "EMAU": "emau",
    "FCNHead": "heads",
    "PascalContext": "pascal_context",
    "SemanticBatch": "datamodule",
    "SemanticDataModule": "datamodule",
    "SemanticDataset": "dataset",
    "SemanticEvaluation": "evaluation",
    "SemanticHead": "heads",
    "SemanticSegmentation": "task",
    "SemanticSegmenter": "network",
    "SemanticVisualLog": "visual",
    "VOCSegmentation": "voc",
    "semantic_variant": "presets",
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

__getattr__ = imported_when_asked(
    __name__, {name: f"{__name__}.{module}.{name}" for name, module in _MODULES.items()}
)
