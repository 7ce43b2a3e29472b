"""Facts of published data sets: addresses, sizes and checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from probseg.data.layout import chosen_root

MEGABYTE = 10**6

RITM = "https://github.com/saic-vul/fbrs_interactive_segmentation/releases/download/v1.0"
"""The commonly used archives of GrabCut, Berkeley, DAVIS and COCO_MVal."""

BERKELEY = "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping"
"""Archives of BSDS500 and SBD."""


class Archive(NamedTuple):
    """One file to download.

    Args:
        url: Its address; None where there is none that a program can read from.
        size: About its number of bytes.
        unpacked: About the number of bytes of the files in it.
        holds: Patterns of files or folders; the folder inside the archive that has them all
            becomes the folder of the data set.
        md5: Checksum by the publisher or a widely used library; None if there is none.
        sha256: The same; None if there is none.
    """

    url: str | None
    size: int
    unpacked: int
    holds: tuple[str, ...]
    md5: str | None = None
    sha256: str | None = None

    @property
    def file(self) -> str:
        """Name of the file."""
        return (self.url or "").rstrip("/").rpartition("/")[2]


class Full(NamedTuple):
    """Size of a complete data set or split; None if it is not certain."""

    objects: int | None = None
    photos: int | None = None


@dataclass(frozen=True)
class Source:
    """Facts by which a data set can be listed, fetched and checked.

    Args:
        licence: Licence or terms of use, as far as they are known.
        places: Usual names of its folder in `$PROBSEG_DATA` or `./data`.
        full: Size of the complete set by split; by `""` where there are no splits.
        archives: Files to download.
        photos: Pattern of its photographs; `{split}` stands for the split.
        splits: The splits that are checked by default.
        listed: File with the stems of a split's photographs, where one folder has all splits.
        inner: Folder inside its folder that may hold everything instead.
        convert: Dotted path of the function that turns the unpacked folder of an archive into one
            that the class reads.
        made: Patterns of files and folders that `convert` makes.
        options: Arguments of the class that leave no object out.
        ids: The collection of photographs whose names its files have, if any.
        way: Where to get it by hand.
    """

    licence: str
    places: tuple[str, ...]
    full: Mapping[str, Full] = field(default_factory=dict)
    archives: tuple[Archive, ...] = ()
    photos: str = ""
    splits: tuple[str, ...] = ()
    listed: str | None = None
    inner: str = ""
    convert: str | None = None
    made: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    ids: str | None = None
    way: str = ""

    def folder(self, root: Path | str | None = None) -> Path:
        """Return `root`, or by default the first of `places` that exists, else the first one."""
        return chosen_root(root, *self.places)

    def missing(self, root: Path, archive: Archive | None = None) -> list[str]:
        """List the patterns of one archive, or of all, that match nothing in a folder."""
        wanted = [*self.made]
        for part in self.archives if archive is None else (archive,):
            wanted += part.holds
        inner = root / self.inner
        return [x for x in wanted if not (any(root.glob(x)) or any(inner.glob(x)))]

    def way_out(self, name: str) -> str:
        """Explain how to get the data set `name`, for `DatasetNotFoundError`."""
        urls = [archive.url for archive in self.archives if archive.url is not None]
        fetch = f"`probseg data fetch {name}` gets it. Or download {' and '.join(urls)}"
        return (
            f"{fetch if urls else f'Download it by hand: {self.way}'}; unpack it, and pass its "
            "folder as `root` or set PROBSEG_DATA to the folder that holds it as "
            f"{self.places[0]}."
        )
