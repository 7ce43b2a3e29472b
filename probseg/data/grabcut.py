"""GrabCut (Rother, Kolmogorov and Blake 2004): 50 photographs with one object each."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from probseg.data.base import InteractiveDataset
from probseg.data.images import check_same_size, read_image, read_labels
from probseg.data.layout import archive_files, chosen_root
from probseg.errors import DataError
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
        self.root = chosen_root(root, "GrabCut", "grabcut")
        layout = "the folders data_GT/ (images) and boundary_GT/ (masks)"
        images = archive_files(self.name, self.root, "data_GT", layout)
        masks = archive_files(self.name, self.root, "boundary_GT", layout)
        missing = sorted(set(images) - set(masks))
        if missing:
            msg = (
                f"{self.root / 'boundary_GT'}: no mask for {missing[:3]} ({len(missing)} in all); "
                "add masks of the same names or remove the images"
            )
            raise DataError(msg)
        self.pairs = [(images[key], masks[key]) for key in sorted(images)]

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
