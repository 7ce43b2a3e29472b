"""COCO (Lin et al. 2014): instances of 80 categories, and annotations of your own in its format."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Literal

from probseg.data.layout import chosen_root
from probseg.data.sets.annotated import AnnotatedObjects, Part, Wanted
from probseg.data.sets.annotation_files import Entry
from probseg.errors import DatasetNotFoundError
from probseg.paths import find_data


class COCO(AnnotatedObjects):
    """Annotations of any JSON file in the format of COCO as objects.

    The file has the lists `images` (with `id`, `file_name`, `height` and `width`),
    `annotations` (`id`, `image_id`, `segmentation`, and if there are such things `area`,
    `iscrowd` and `category_id`) and perhaps `categories` (`id` and `name`). An outline is
    a list of polygons, or run lengths, compressed or not. See `AnnotatedObjects` for the masks and
    for the index that is made of the file the first time.

    Args:
        annotations: The file; a relative path that does not exist is looked for in
            `$PROBSEG_DATA` (or `./data`).
        images: Folder that the `file_name` of an image starts from; looked for in the same way.
        min_area: Annotations with a smaller `area`, in pixels, are left out.
        max_fraction: Annotations whose `area` is a larger share of the image are left out; None
            for none.
        crowd: Whether crowds, outlines around several objects, are objects too.
        categories: Names of the categories that take part; None for all.
        part: `"train"` and `"val"` share the images of one file between them, a tenth of them
            for `"val"` and at least one.
        name: Name of the data set in tables and logs.

    Raises:
        DatasetNotFoundError: If the annotations or a folder of images are not there.
        DataError: If the annotations cannot be read, an image is missing or would lie outside of
            the folder, or nothing is left.
        UnknownNameError: If the file has no such category.
    """

    kind = "COCO"
    path_key = "file_name"

    def __init__(
        self,
        annotations: Path | str,
        images: Path | str,
        min_area: int = 16,
        max_fraction: float | None = None,
        crowd: bool = False,
        categories: list[str] | None = None,
        part: Part = "all",
        name: str = "coco_json",
    ) -> None:
        self.name = name
        wanted = Wanted(min_area, max_fraction, crowd, categories, part)
        super().__init__(find_data(annotations), find_data(images), wanted)

    @classmethod
    def place(cls, image: Entry) -> str:
        """Return the `file_name` of an image, which may have folders."""
        file: str = image["file_name"]
        return file

    def photo(self, file: str) -> str:
        """Identify a photograph by its path, as folders may have files of the same names."""
        return str(PurePosixPath(file).with_suffix(""))

    def not_found(self, missing: str) -> DatasetNotFoundError:
        """Return the error for a missing file or folder."""
        return DatasetNotFoundError(
            self.name,
            self.annotations.parent if missing == self.annotations.name else self.image_root,
            missing,
            "Check the arguments `annotations` and `images`; relative ones are also looked for in "
            "$PROBSEG_DATA or ./data.",
        )

    def way_to_images(self, folder: str) -> str:
        """Name the argument that may be wrong."""
        return "check the `images` argument, or remove these images from the annotations"


class COCOInstances(COCO):
    """Instances of COCO 2017 as objects, of 80 categories.

    Layout: `annotations/instances_<split>2017.json`, `train2017/` and `val2017/`. Crowds are
    left out. See `AnnotatedObjects` for the masks, and for the index that is made of the JSON the
    first time.

    Args:
        split: `"train"` or `"val"`.
        root: The folder; by default `COCO` or `coco` inside `$PROBSEG_DATA` or `./data`.
        min_area: Annotations with a smaller `area`, in pixels, are left out.

    Raises:
        DatasetNotFoundError: If the annotations or the folder of images are not there.
        DataError: If the annotations cannot be read, an image is missing, or nothing is left.
    """

    name = "COCO"
    licence = "annotations CC BY 4.0; photographs: terms of Flickr"

    def __init__(
        self,
        split: Literal["train", "val"] = "train",
        root: Path | str | None = None,
        min_area: int = 400,
    ) -> None:
        self.root = chosen_root(root, "COCO", "coco")
        self.folder = f"{split}2017"
        annotations = self.root / "annotations" / f"instances_{self.folder}.json"
        super().__init__(annotations, self.root / self.folder, min_area, name=self.name)

    def not_found(self, missing: str) -> DatasetNotFoundError:
        """Return the error for a missing file or folder."""
        return DatasetNotFoundError(
            self.name,
            self.root,
            f"{missing} (in all annotations/instances_<split>2017.json, train2017/ and val2017/)",
            "Download annotations_trainval2017.zip, train2017.zip and val2017.zip from "
            "https://cocodataset.org/#download, unpack them into one folder, and pass it as `root` "
            "or set PROBSEG_DATA to the folder that holds it as COCO.",
        )

    def way_to_images(self, folder: str) -> str:
        """Name the archive of the images."""
        return f"unpack {self.folder}.zip again"
