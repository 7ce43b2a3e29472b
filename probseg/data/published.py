"""The published data sets by name."""

from __future__ import annotations

from probseg.data import DATASETS
from probseg.data.base import PublishedDataset
from probseg.errors import UnknownNameError

PUBLISHED: dict[str, type[PublishedDataset]] = {
    name: kind for name, kind in DATASETS.items() if issubclass(kind, PublishedDataset)
}
"""The data sets that can be listed, fetched and checked."""


def find_published(name: str) -> type[PublishedDataset] | None:
    """Find a data set by its name; case, `-` and `_` do not matter, so `coco-mval` is one."""
    return {_plain(known): kind for known, kind in PUBLISHED.items()}.get(_plain(name))


def get_published(name: str) -> type[PublishedDataset]:
    """Find a data set by its name as `find_published` does.

    Raises:
        UnknownNameError: If there is none; the message lists the nearest names.
    """
    kind = find_published(name)
    if kind is None:
        raise UnknownNameError(kind="data set", name=name, known=PUBLISHED)
    return kind


def _plain(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "")
