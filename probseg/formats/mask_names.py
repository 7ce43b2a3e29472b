"""Names of mask files: which photograph a mask belongs to, for all readers and writers."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import count, islice
from pathlib import Path, PurePosixPath
from unicodedata import normalize

from probseg.errors import DataError
from probseg.picture_formats import IMAGE_SUFFIXES, UNREAD_SUFFIXES, list_pictures

# limit in bytes of a photograph's name: those of its masks, and of their drafts, are longer, and
# file systems take 255
LONGEST_NAME = 235

_NUMBERED = re.compile(r"(.+)_[0-9]+", re.DOTALL)


class MaskNames:
    """The rule for the names of the masks of some photographs.

    `cat.png` is a mask of the photograph `cat.jpg`. So is `cat_1.png`, unless there is a photograph
    `cat_1.jpg`: then it is a mask of that. Composed and decomposed letters (NFC, NFD) are the same,
    unless there is a photograph of each form. `photographs` are names without suffix, with `/` in
    sub-folders, of all that the masks could belong to, the unreadable ones too.
    """

    def __init__(self, photographs: Iterable[str]) -> None:
        self._composed: dict[str, list[str]] = defaultdict(list)
        self._folded: dict[str, list[str]] = defaultdict(list)
        for name in sorted(set(photographs)):
            self._composed[normalize("NFC", name)].append(name)
            self._folded[_fold(name)].append(name)

    def owner(self, mask: str) -> str | None:
        """Return the photograph that a mask belongs to, both without suffix; None without one."""
        numbered = _NUMBERED.fullmatch(mask)
        for name in (mask, numbered[1]) if numbered else (mask,):
            same = self._composed.get(normalize("NFC", name), [])
            if name in same:
                return name
            if same:
                return same[0] if len(same) == 1 else None
        return None

    def numbered(self, photograph: str) -> Iterator[str]:
        """Yield names for the masks of a photograph, without suffix: `cat_1`, `cat_2`, ...

        Each belongs to the photograph. Numbers that would give the name of another photograph are
        left out, and photographs whose names differ in case or Unicode form only share the numbers
        out, so that no two masks are one file, on a file system that ignores case either.
        """
        twins = self._folded[_fold(photograph)]
        for number in count(1 + twins.index(photograph), len(twins)):
            name = f"{photograph}_{number}"
            if _fold(name) not in self._folded:
                yield name

    def first(self, photograph: str, objects: int) -> tuple[str, ...]:
        """Return the names of the masks of a photograph's objects; see `numbered`."""
        return tuple(islice(self.numbered(photograph), objects))


def mask_names(folder: Path | None, others: Collection[str] = ()) -> MaskNames:
    """Return the rule for the photographs of a folder, the unreadable ones too, and others."""
    files = [] if folder is None else photograph_files(folder, others)
    return MaskNames([*others, *map(stem_of, files)])


def photograph_files(folder: Path, others: Collection[str] = ()) -> list[str]:
    """List the photographs of a folder, the unreadable ones too, as paths inside it with `/`."""
    places = {PurePosixPath(".")} | {PurePosixPath(name).parent for name in others}
    return sorted(
        (place / path.name).as_posix()
        for place in places
        for path in list_pictures(folder / place, IMAGE_SUFFIXES + UNREAD_SUFFIXES)
    )


def stem_of(file: str) -> str:
    """Return the path of a photograph, with `/`, without its suffix."""
    return PurePosixPath(file).with_suffix("").as_posix()


def refuse_name(file: str) -> None:
    """Raise for a photograph whose masks could not be written, or would be listed by no reader."""
    path = PurePosixPath(file)
    if any(part.startswith(".") for part in path.parts):
        raise DataError(
            f"{file}: names that begin with a dot are hidden files, which are not read; rename it"
        )
    if (reason := too_long(path.name)) is not None:
        raise DataError(f"{file}: {reason}")


def too_long(name: str) -> str | None:
    """Return why the name of a photograph is too long for those of its masks; None if it is not."""
    size = len(os.fsencode(name))
    if size <= LONGEST_NAME:
        return None
    return (
        f"the name has {size} bytes, more than {LONGEST_NAME} leave no room for those of masks; "
        "rename it"
    )


def _fold(name: str) -> str:
    """Return what names have in common that are one file where case and form are ignored."""
    return normalize("NFC", normalize("NFD", name).casefold())
