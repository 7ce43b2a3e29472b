"""Data sets of objects, training augmentation and data modules."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from probseg.data.base import InteractiveDataset
from probseg.data.berkeley import Berkeley
from probseg.data.bsds500 import BSDS500
from probseg.data.coco import COCO, COCOInstances
from probseg.data.coco_mval import COCOMVal
from probseg.data.cocolvis import COCOLVIS
from probseg.data.davis import DAVIS
from probseg.data.davis585 import DAVIS585
from probseg.data.folder import ImageMaskFolder
from probseg.data.grabcut import GrabCut
from probseg.data.hqseg import HQSeg44K
from probseg.data.image_pairs import ImagePairs
from probseg.data.lvis import LVIS
from probseg.data.open_images import OpenImages
from probseg.data.pascal_voc import PascalVOC
from probseg.data.sample_photos import SamplePhotos
from probseg.data.sbd import SBD
from probseg.data.selection import Selected

if TYPE_CHECKING:
    from probseg.data.datamodule import FolderDataModule, InteractiveDataModule, TrainBatch

_LAZY = {
    "FolderDataModule": "probseg.data.datamodule",
    "InteractiveDataModule": "probseg.data.datamodule",
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
    "Berkeley",
    "COCOInstances",
    "COCOMVal",
    "FolderDataModule",
    "GrabCut",
    "HQSeg44K",
    "ImageMaskFolder",
    "ImagePairs",
    "InteractiveDataModule",
    "InteractiveDataset",
    "OpenImages",
    "PascalVOC",
    "SamplePhotos",
    "Selected",
    "TrainBatch",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
