"""GrabCut (Rother, Kolmogorov and Blake 2004): 50 photographs with one object each."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from probseg.data.base import InteractiveDataset
from probseg.data.images import IMAGE_SUFFIXES, check_same_size, read_image, read_labels
from probseg.errors import DataError, DatasetNotFoundError
from probseg.paths import data_dir
from probseg.types import IGNORE, Sample


class GrabCut(InteractiveDataset):
    """The GrabCut test set: ``data_GT/<id>.jpg|bmp|png`` and ``boundary_GT/<id>.bmp|png``.

    In its masks 255 is the object, 0 the background and 128 a thin band along the contour that is
    ignored; eight masks have no band.

    Args:
        root: The folder with ``data_GT`` and ``boundary_GT``; by default ``GrabCut`` or
            ``grabcut`` inside ``$PROBSEG_DATA`` or ``./data``.

    Raises:
        DatasetNotFoundError: If the folders are not there.
        DataError: If an image has no mask or two files have the same stem.
    """

    name = "GrabCut"

    def __init__(self, root: Path | str | None = None) -> None:
        if root is None:
            choices = [data_dir() / "GrabCut", data_dir() / "grabcut"]
            root = next((place for place in choices if place.is_dir()), choices[0])
        self.root = Path(root)
        images = self._files("data_GT")
        masks = self._files("boundary_GT")
        missing = sorted(set(images) - set(masks))
        if missing:
            msg = (
                f"{self.root / 'boundary_GT'}: no mask for {missing[:3]} ({len(missing)} in all); "
                "add masks of the same names or remove the images"
            )
            raise DataError(msg)
        self.pairs = [(images[key], masks[key]) for key in sorted(images)]

    def _files(self, folder: str) -> dict[str, Path]:
        place = self.root / folder
        files = sorted(place.iterdir()) if place.is_dir() else []
        found: dict[str, Path] = {}
        for path in files:
            # The archive's suffixes are .jpg, .JPG and .bmp.
            if path.name.startswith(".") or path.suffix.lower() not in IMAGE_SUFFIXES:
                continue
            stem = path.name.split(".")[0]
            if stem in found:
                msg = f"{path}: has the same stem as {found[stem]}; remove one of them"
                raise DataError(msg)
            found[stem] = path
        if not found:
            raise DatasetNotFoundError(
                self.name,
                self.root,
                "the folders data_GT/ (images) and boundary_GT/ (masks)",
                "Download GrabCut.zip from the releases page of the repository "
                "SamsungLabs/ritm_interactive_segmentation, unpack it, and pass its folder as "
                "`root` or set PROBSEG_DATA to the folder that holds it.",
            )
        return found

    def __len__(self) -> int:
        """Return the number of objects, 50 in the complete set."""
        return len(self.pairs)

    def __getitem__(self, index: int) -> Sample:
        """Read one photograph and its object."""
        image_path, mask_path = self.pairs[index]
        image = read_image(image_path)
        labels = read_labels(mask_path)
        check_same_size(image.shape, labels.shape, image_path, mask_path)
        values = set(np.unique(labels).tolist())
        if not values <= {0, 128, 255} or 255 not in values:
            msg = (
                f"{mask_path}: expected the values 0 (background), 128 (ignored) and 255 (object), "
                f"with an object, got {sorted(values)[:5]}{', ...' if len(values) > 5 else ''}; "
                "for masks of your own use ImageMaskFolder"
            )
            raise DataError(msg)
        mask = (labels == 255).astype(np.uint8)
        mask[labels == 128] = IGNORE
        return Sample(image, mask, image_path.name.split(".")[0], self.name)
