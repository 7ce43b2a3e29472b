"""Data sets of objects, training augmentation and data modules."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from probseg.data.base import InteractiveDataset
from probseg.data.berkeley import Berkeley
from probseg.data.bsds500 import BSDS500
from probseg.data.camvid import CamVid
from probseg.data.coco import COCO, COCOInstances
from probseg.data.coco_mval import COCOMVal
from probseg.data.coco_stuff import COCOStuff10k, COCOStuff164k
from probseg.data.cocolvis import COCOLVIS
from probseg.data.davis import DAVIS
from probseg.data.davis585 import DAVIS585
from probseg.data.folder import ImageMaskFolder
from probseg.data.grabcut import GrabCut
from probseg.data.hqseg import HQSeg44K
from probseg.data.image_pairs import ImagePairs
from probseg.data.lvis import LVIS
from probseg.data.open_images import OpenImages
from probseg.data.pascal_context import PascalContext
from probseg.data.pascal_voc import PascalVOC
from probseg.data.sample_photos import SamplePhotos
from probseg.data.sbd import SBD
from probseg.data.selection import Selected
from probseg.data.semantic import SemanticDataset
from probseg.data.voc_segmentation import VOCSegmentation

if TYPE_CHECKING:
    from probseg.data.datamodule import FolderDataModule, InteractiveDataModule, TrainBatch
    from probseg.data.semantic_module import SemanticBatch, SemanticDataModule

_LAZY = {
    "FolderDataModule": "probseg.data.datamodule",
    "InteractiveDataModule": "probseg.data.datamodule",
    "SemanticBatch": "probseg.data.semantic_module",
    "SemanticDataModule": "probseg.data.semantic_module",
    "TrainBatch": "probseg.data.datamodule",
}  # Lightning takes seconds to load, which only trainings need

DATASETS: dict[str, type[InteractiveDataset]] = {
    "BSDS500": BSDS500,
    "Berkeley": Berkeley,
    "COCO": COCO,
    "COCOInstances": COCOInstances,
    "COCOLVIS": COCOLVIS,
    "COCO_MVal": COCOMVal,
    "DAVIS": DAVIS,
    "DAVIS585": DAVIS585,
    "GrabCut": GrabCut,
    "HQSeg44K": HQSeg44K,
    "ImageMaskFolder": ImageMaskFolder,
    "ImagePairs": ImagePairs,
    "LVIS": LVIS,
    "OpenImages": OpenImages,
    "PascalVOC": PascalVOC,
    "SBD": SBD,
    "SamplePhotos": SamplePhotos,
}

EVALUATION_SETS: dict[str, type[InteractiveDataset]] = {
    "Berkeley": Berkeley,
    "COCO_MVal": COCOMVal,
    "DAVIS": DAVIS,
    "DAVIS585": DAVIS585,
    "GrabCut": GrabCut,
    "PascalVOC": PascalVOC,
    "SBD": SBD,
}
"""Data sets that the field reports; of PascalVOC and SBD it is the split `"val"`."""

SEMANTIC_DATASETS: dict[str, type[SemanticDataset]] = {
    "COCOStuff10k": COCOStuff10k,
    "COCOStuff164k": COCOStuff164k,
    "CamVid": CamVid,
    "PascalContext": PascalContext,
    "VOCSegmentation": VOCSegmentation,
}
"""Data sets with a class for each pixel."""

__all__ = [
    "BSDS500",
    "COCO",
    "COCOLVIS",
    "DATASETS",
    "DAVIS",
    "DAVIS585",
    "EVALUATION_SETS",
    "LVIS",
    "SBD",
    "SEMANTIC_DATASETS",
    "Berkeley",
    "COCOInstances",
    "COCOMVal",
    "COCOStuff10k",
    "COCOStuff164k",
    "CamVid",
    "FolderDataModule",
    "GrabCut",
    "HQSeg44K",
    "ImageMaskFolder",
    "ImagePairs",
    "InteractiveDataModule",
    "InteractiveDataset",
    "OpenImages",
    "PascalContext",
    "PascalVOC",
    "SamplePhotos",
    "Selected",
    "SemanticBatch",
    "SemanticDataModule",
    "SemanticDataset",
    "TrainBatch",
    "VOCSegmentation",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
