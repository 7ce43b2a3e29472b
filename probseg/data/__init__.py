"""Data sets of objects, training augmentation and data modules."""

from probseg.data.base import InteractiveDataset
from probseg.data.berkeley import Berkeley
from probseg.data.bsds500 import BSDS500
from probseg.data.coco_mval import COCOMVal
from probseg.data.datamodule import FolderDataModule, InteractiveDataModule, TrainBatch
from probseg.data.davis import DAVIS
from probseg.data.davis585 import DAVIS585
from probseg.data.folder import ImageMaskFolder
from probseg.data.grabcut import GrabCut
from probseg.data.lvis import LVIS
from probseg.data.pascal_voc import PascalVOC
from probseg.data.sample_photos import SamplePhotos
from probseg.data.sbd import SBD

DATASETS: dict[str, type[InteractiveDataset]] = {
    "BSDS500": BSDS500,
    "Berkeley": Berkeley,
    "COCO_MVal": COCOMVal,
    "DAVIS": DAVIS,
    "DAVIS585": DAVIS585,
    "GrabCut": GrabCut,
    "ImageMaskFolder": ImageMaskFolder,
    "LVIS": LVIS,
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
"""Data sets that the field reports; of PascalVOC and SBD it is the split ``"val"``."""

__all__ = [
    "BSDS500",
    "DATASETS",
    "DAVIS",
    "DAVIS585",
    "EVALUATION_SETS",
    "LVIS",
    "SBD",
    "Berkeley",
    "COCOMVal",
    "FolderDataModule",
    "GrabCut",
    "ImageMaskFolder",
    "InteractiveDataModule",
    "InteractiveDataset",
    "PascalVOC",
    "SamplePhotos",
    "TrainBatch",
]
