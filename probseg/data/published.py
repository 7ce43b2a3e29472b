"""The published data sets by name, and the facts about them: read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from probseg.data.layout import chosen_root
from probseg.errors import UnknownNameError
from probseg.kinds import Registry

if TYPE_CHECKING:
    from probseg.data.base import PublishedDataset

MEGABYTE = 10**6


class Archive(NamedTuple):
    """One file to download."""

    url: str | None  # its address; None where there is none that a program can read from
    size: int  # about its number of bytes
    unpacked: int  # about the number of bytes of the files in it
    # patterns of files or folders; the folder inside the archive that has them all becomes the
    # folder of the data set
    holds: tuple[str, ...]
    # checksum by the publisher or a widely used library; None if there is none
    md5: str | None = None
    sha256: str | None = None  # the same; None if there is none

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
    """Facts by which a data set can be listed, fetched and checked."""

    licence: str  # licence or terms of use, as far as they are known
    places: tuple[str, ...]  # usual names of its folder in `$PROBSEG_DATA` or `./data`
    # size of the complete set by split; by `""` where there are no splits
    full: Mapping[str, Full] = field(default_factory=dict)
    archives: tuple[Archive, ...] = ()  # files to download
    photos: str = ""  # pattern of its photographs; `{split}` stands for the split
    splits: tuple[str, ...] = ()  # the splits that are checked by default
    # file with the stems of a split's photographs, where one folder has all splits
    listed: str | None = None
    inner: str = ""  # folder inside its folder that may hold everything instead
    # dotted path of the function that turns the unpacked folder of an archive into one that the
    # class reads
    convert: str | None = None
    made: tuple[str, ...] = ()  # patterns of files and folders that `convert` makes
    # arguments of the class that leave no object out
    options: Mapping[str, Any] = field(default_factory=dict)
    ids: str | None = None  # the collection of photographs whose names its files have, if any
    way: str = ""  # where to get it by hand

    def folder(self, root: Path | str | None = None) -> Path:
        """Return `root`, or by default the first of `places` that exists, else the first one."""
        return chosen_root(root, *self.places)

    def missing(self, root: Path, archive: Archive | None = None) -> list[str]:
        """List the patterns of one archive, or of all, that match nothing in a folder."""
        patterns = [*self.made]
        for part in self.archives if archive is None else (archive,):
            patterns += part.holds
        inner = root / self.inner
        return [x for x in patterns if not (any(root.glob(x)) or any(inner.glob(x)))]

    def hint(self, name: str) -> str:
        """Explain how to get the data set `name`, for `DatasetNotFoundError`."""
        urls = [archive.url for archive in self.archives if archive.url is not None]
        fetch = f"`probseg data fetch {name}` gets it. Or download {' and '.join(urls)}"
        return (
            f"{fetch if urls else f'Download it by hand: {self.way}'}; unpack it, and pass its "
            "folder as `root` or set PROBSEG_DATA to the folder that holds it as "
            f"{self.places[0]}."
        )


def _source(facts: Mapping[str, Any]) -> Source:
    """Return what `published.yaml` states about a data set."""
    fields: dict[str, Any] = {
        key: tuple(x) if isinstance(x, list) else x for key, x in facts.items()
    }
    fields["full"] = {split: Full(*numbers) for split, numbers in facts["full"].items()}
    fields["archives"] = tuple(
        Archive(
            archive["url"],
            archive["size"] * MEGABYTE,
            archive["unpacked"] * MEGABYTE,
            tuple(archive["holds"]),
            archive.get("md5"),
        )
        for archive in facts["archives"]
    )
    return Source(**fields)


# Not by `read_yaml`, whose limits for files of others take more time than all the rest of a start.
_FACTS = yaml.load(
    Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)

PUBLISHED_PATHS: dict[str, str] = {name: _FACTS[name].pop("class_path") for name in _FACTS}

# sources of the published data sets, by name
SOURCES: dict[str, Source] = {name: _source(facts) for name, facts in _FACTS.items()}
# the data sets that can be listed, fetched and checked, imported when they are asked for
PUBLISHED: Mapping[str, type[PublishedDataset]] = Registry("published_dataset", PUBLISHED_PATHS)


def find_published(name: str) -> type[PublishedDataset] | None:
    """Find a data set by its name; case, `-` and `_` do not matter, so `coco-mval` is one."""
    plain = {known.casefold().replace("_", ""): known for known in PUBLISHED}
    known = plain.get(name.casefold().replace("-", "").replace("_", ""))
    return None if known is None else PUBLISHED[known]


def get_published(name: str) -> type[PublishedDataset]:
    """Find a data set by its name as `find_published` does."""
    kind = find_published(name)
    if kind is None:
        raise UnknownNameError(kind="data set", name=name, known=PUBLISHED)
    return kind
