"""Data sets of objects, training augmentation and data modules."""

from probseg.data.base import InteractiveDataset
from probseg.data.bsds500 import BSDS500
from probseg.data.datamodule import FolderDataModule, InteractiveDataModule, TrainBatch
from probseg.data.folder import ImageMaskFolder
from probseg.data.grabcut import GrabCut
from probseg.data.sample_photos import SamplePhotos

DATASETS: dict[str, type[InteractiveDataset]] = {
    "BSDS500": BSDS500,
    "GrabCut": GrabCut,
    "ImageMaskFolder": ImageMaskFolder,
    "SamplePhotos": SamplePhotos,
}

__all__ = [
    "BSDS500",
    "DATASETS",
    "FolderDataModule",
    "GrabCut",
    "ImageMaskFolder",
    "InteractiveDataModule",
    "InteractiveDataset",
    "SamplePhotos",
    "TrainBatch",
]
