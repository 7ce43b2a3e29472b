"""Berkeley (McGuinness and O'Connor 2010): 100 objects on 96 photographs of BSDS."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from probseg.data.base import InteractiveDataset
from probseg.data.images import check_same_size, read_image
from probseg.data.layout import archive_files, chosen_root
from probseg.errors import DataError
from probseg.types import IGNORE, Sample

GREY_WEIGHTS = (0.299, 0.587, 0.114)


class Berkeley(InteractiveDataset):
    """The Berkeley test set: ``images/<id>.jpg`` and ``masks/<id>.png``.

    Further objects of a photograph have masks ``<id>a.png``, ``<id>b.png`` or ``<id>#2.png``; they
    use the image of their own name, or else ``<id>.jpg``. In the masks, which may be colour files,
    grey values above 128 are the object, 128 is ignored and the rest is background.

    Args:
        root: The folder with ``images`` and ``masks``; by default ``Berkeley`` or ``berkeley``
            inside ``$PROBSEG_DATA`` or ``./data``.

    Raises:
        DatasetNotFoundError: If the folders are not there.
        DataError: If images and masks do not pair up or two files have the same stem.
    """

    name = "Berkeley"

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = chosen_root(root, "Berkeley", "berkeley")
        layout = "the folders images/ and masks/"
        images = archive_files(self.name, self.root, "images", layout)
        masks = archive_files(self.name, self.root, "masks", layout)
        owners = {stem: _owner(stem, images) for stem in masks}
        orphans = sorted(stem for stem, owner in owners.items() if owner not in images)
        self._refuse("images", "image", "masks", orphans)
        self._refuse("masks", "mask", "images", sorted(set(images) - set(owners.values())))
        self.pairs = [(images[owners[stem]], masks[stem]) for stem in sorted(masks)]

    def _refuse(self, folder: str, kind: str, others: str, missing: list[str]) -> None:
        if missing:
            msg = (
                f"{self.root / folder}: no {kind} for {missing[:3]} ({len(missing)} in all); add "
                f"files of the same names or remove those in {others}/"
            )
            raise DataError(msg)

    def __len__(self) -> int:
        """Return the number of objects, 100 in the complete set."""
        return len(self.pairs)

    def __getitem__(self, index: int) -> Sample:
        """Read one object and its photograph."""
        image_path, mask_path = self.pairs[index]
        image = read_image(image_path)
        # As colours: the archive's masks have three channels, and one has a few stray values.
        grey = np.rint(read_image(mask_path) @ np.array(GREY_WEIGHTS))
        check_same_size(image.shape, grey.shape, image_path, mask_path)
        mask = (grey > 128).astype(np.uint8)
        if not mask.any():
            msg = (
                f"{mask_path}: expected an object of value 255, got values up to "
                f"{int(grey.max())}; for masks of your own use ImageMaskFolder"
            )
            raise DataError(msg)
        mask[grey == 128] = IGNORE
        return Sample(image, mask, mask_path.name.split(".")[0], self.name)


def _owner(stem: str, images: dict[str, Path]) -> str:
    """Name the image of a mask: its own stem, or that without the number of the object."""
    return stem if stem in images else re.sub(r"(#\d+|[a-z])$", "", stem)
