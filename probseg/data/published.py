"""The published data sets by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from probseg.errors import UnknownNameError
from probseg.kinds import Offers

if TYPE_CHECKING:
    from probseg.data.base import PublishedDataset

PUBLISHED_PATHS = {
    "BSDS500": "probseg.data.sets.bsds500.BSDS500",
    "Berkeley": "probseg.data.sets.berkeley.Berkeley",
    "COCO_MVal": "probseg.data.sets.coco_mval.COCOMVal",
    "DAVIS": "probseg.data.sets.davis.DAVIS",
    "DAVIS585": "probseg.data.sets.davis585.DAVIS585",
    "GrabCut": "probseg.data.sets.grabcut.GrabCut",
    "LVIS": "probseg.data.sets.lvis.LVIS",
    "PascalVOC": "probseg.data.sets.pascal_voc.PascalVOC",
    "SBD": "probseg.data.sets.sbd.SBD",
}

PUBLISHED: Mapping[str, type[PublishedDataset]] = Offers("published_dataset", PUBLISHED_PATHS)
"""The data sets that can be listed, fetched and checked, imported when they are asked for."""


def find_published(name: str) -> type[PublishedDataset] | None:
    """Find a data set by its name; case, `-` and `_` do not matter, so `coco-mval` is one."""
    known = next((known for known in PUBLISHED if _plain(known) == _plain(name)), None)
    return None if known is None else PUBLISHED[known]


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
