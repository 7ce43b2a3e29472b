"""Data sets of objects, training augmentation and data modules."""

from probseg.data.base import InteractiveDataset
from probseg.data.berkeley import Berkeley
from probseg.data.bsds500 import BSDS500
from probseg.data.datamodule import FolderDataModule, InteractiveDataModule, TrainBatch
from probseg.data.folder import ImageMaskFolder
from probseg.data.grabcut import GrabCut
from probseg.data.lvis import LVIS
from probseg.data.sample_photos import SamplePhotos
from probseg.data.sbd import SBD

DATASETS: dict[str, type[InteractiveDataset]] = {
    "BSDS500": BSDS500,
    "Berkeley": Berkeley,
    "GrabCut": GrabCut,
    "ImageMaskFolder": ImageMaskFolder,
    "LVIS": LVIS,
    "SBD": SBD,
    "SamplePhotos": SamplePhotos,
}

__all__ = [
    "BSDS500",
    "DATASETS",
    "LVIS",
    "SBD",
    "Berkeley",
    "FolderDataModule",
    "GrabCut",
    "ImageMaskFolder",
    "InteractiveDataModule",
    "InteractiveDataset",
    "SamplePhotos",
    "TrainBatch",
]
