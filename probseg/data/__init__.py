"""Data sets of objects, training augmentation and data modules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from probseg.data.published import PUBLISHED_PATHS
from probseg.kinds import Registry, lazy_getattr

if TYPE_CHECKING:
    from probseg.data.base import InteractiveDataset
    from probseg.data.datamodule import FolderDataModule, InteractiveDataModule, TrainBatch
    from probseg.data.folder import ImageMaskFolder, ImagePairs
    from probseg.data.sample_photos import SamplePhotos
    from probseg.data.selection import Selected
    from probseg.data.sets.bsds500 import BSDS500
    from probseg.data.sets.clicks import DAVIS, DAVIS585, Berkeley, COCOMVal, GrabCut
    from probseg.data.sets.coco import COCO, LVIS, COCOInstances
    from probseg.data.sets.cocolvis import COCOLVIS
    from probseg.data.sets.hqseg import HQSeg44K
    from probseg.data.sets.open_images import OpenImages
    from probseg.data.sets.voc import SBD, PascalVOC

# Without this, albumentations asks a server for its latest version when modules here import it.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

_PATHS = {
    **PUBLISHED_PATHS,
    "COCO": "probseg.data.sets.coco.COCO",
    "COCOInstances": "probseg.data.sets.coco.COCOInstances",
    "COCOLVIS": "probseg.data.sets.cocolvis.COCOLVIS",
    "HQSeg44K": "probseg.data.sets.hqseg.HQSeg44K",
    "ImageMaskFolder": "probseg.data.folder.ImageMaskFolder",
    "ImagePairs": "probseg.data.folder.ImagePairs",
    "OpenImages": "probseg.data.sets.open_images.OpenImages",
    "SamplePhotos": "probseg.data.sample_photos.SamplePhotos",
}

DATASETS: Mapping[str, type[InteractiveDataset]] = Registry("dataset", _PATHS)
"""The data sets by name, imported when they are asked for."""

EVALUATION_SETS = ("Berkeley", "COCO_MVal", "DAVIS", "DAVIS585", "GrabCut", "PascalVOC", "SBD")
"""Names of the data sets that the field reports; of PascalVOC and SBD the split `"val"`."""

CLASS_PATHS = {path.rpartition(".")[2]: path for path in _PATHS.values()} | {
    "Selected": "probseg.data.selection.Selected"
}
"""Paths of the data sets by the names of their classes, as configurations have them."""

_LAZY = CLASS_PATHS | {
    "FolderDataModule": "probseg.data.datamodule.FolderDataModule",
    "InteractiveDataModule": "probseg.data.datamodule.InteractiveDataModule",
    "InteractiveDataset": "probseg.data.base.InteractiveDataset",
    "TrainBatch": "probseg.data.datamodule.TrainBatch",
}
"""Paths of the public classes: a training on a folder needs no reader of a published data set."""

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

__getattr__ = lazy_getattr(__name__, _LAZY)
