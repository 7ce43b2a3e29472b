"""Where the models are: shipped with probseg, in the cache, or on a mirror."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from probseg.errors import DownloadError, UnknownNameError
from probseg.paths import cache_dir, zoo_dir
from probseg.zoo.fetching import cache_index, fetch_model, mirror_index, mirrors
from probseg.zoo.index import Entry, read_index
from probseg.zoo.store import check_files

Kind = Literal["shipped", "cached", "mirror"]


class Place(NamedTuple):
    """A model, and the zoo that has it.

    Args:
        entry: Its line in the index.
        kind: What zoo it is.
        zoo: Folder of the zoo; of a mirror perhaps its address.
    """

    entry: Entry
    kind: Kind
    zoo: str

    @property
    def folder(self) -> Path | None:
        """The model's folder; None if it is on a mirror."""
        return None if self.kind == "mirror" else Path(self.zoo) / self.entry.name


def find(name: str, root: Path | None = None) -> Place:
    """Find a model by ``architecture.tag``, or the first tag of an ``architecture``.

    Args:
        name: Of the model.
        root: Folder of the only zoo to look in. By default models that are shipped are looked at
            first, then the cache, then the mirrors in ``PROBSEG_ZOO``.

    Raises:
        FileNotFoundError: If there is no index.
        ZooError: If an index is damaged or of another schema.
        UnknownNameError: If no zoo has the model; the message lists the nearest names.
        DownloadError: If the zoos at hand do not have it, and a mirror cannot be asked.
    """
    known: set[str] = set()
    failures: list[str] = []
    zoos = _zoos(lambda error: failures.append(str(error))) if root is None else _only(root)
    for kind, zoo, entries in zoos:
        entry = _choose(name, entries)
        if entry is not None:
            return Place(entry, kind, zoo)
        known |= set(entries)
    if failures:
        msg = (
            f"{name} is neither shipped nor in the cache {_cache()}, and could not be looked for "
            f"on every mirror: {'; '.join(failures)}. Where there is a network, `probseg zoo fetch "
            f"{name}` fills a cache that may be copied here"
        )
        raise DownloadError(msg)
    raise _unknown(name, known)


def every(tell: Callable[[DownloadError], None]) -> list[Place]:
    """Return all models, each from the first zoo that has it.

    Args:
        tell: Called with the reason for each mirror that cannot be asked.

    Raises:
        FileNotFoundError: If there is no index of what is shipped.
        ZooError: If an index is damaged or of another schema.
    """
    found: dict[str, Place] = {}
    for kind, zoo, entries in _zoos(tell):
        for name, entry in entries.items():
            found.setdefault(name, Place(entry, kind, zoo))
    return list(found.values())


def verify(name: str, root: Path | None = None) -> Path:
    """Return the folder of a model after checking all its files; fetch it if need be.

    Args:
        name: As for `find`.
        root: As for `find`.

    Raises:
        FileNotFoundError: If a file is missing.
        ChecksumError: If a file is not the recorded one.
        UnknownNameError: If there is no such model; the message lists the nearest names.
        DownloadError: If it cannot be fetched.
    """
    place = find(name, root)
    if place.folder is None:
        return fetch_model(place.entry, place.zoo, _cache())
    way_out = (
        f"fetch it again with `probseg zoo fetch {place.entry.name}`"
        if place.kind == "cached"
        else "reinstall probseg, or restore the file"
    )
    check_files(place.folder, place.entry, way_out)
    return place.folder


def fetch(name: str) -> Path:
    """Return the folder of a model on this machine after checking its files, as `verify` does.

    Of a model that is in the cache, the mirrors are asked for another version, and for files that
    are damaged.

    Raises:
        FileNotFoundError: If a file that is shipped is missing.
        ChecksumError: If a file is not the recorded one.
        UnknownNameError: If there is no such model; the message lists the nearest names.
        DownloadError: If it cannot be fetched.
    """
    if _choose(name, read_index(zoo_dir())) is None:
        for mirror in mirrors():
            entry = _choose(name, mirror_index(mirror))
            if entry is not None:
                return fetch_model(entry, mirror, _cache())
    return verify(name)


def _zoos(tell: Callable[[DownloadError], None]) -> Iterator[tuple[Kind, str, dict[str, Entry]]]:
    """Yield the zoos in the order in which they are looked at; mirrors are asked only then."""
    yield from _only(zoo_dir())
    try:
        cache = _cache()
    except DownloadError:  # a user without a home has none
        pass
    else:
        kept = cache_index(cache).items()
        yield "cached", str(cache), {n: entry for n, entry in kept if (cache / n).is_dir()}
    for mirror in mirrors():
        try:
            yield "mirror", mirror, mirror_index(mirror)
        except DownloadError as error:
            tell(error)


def _only(root: Path) -> Iterator[tuple[Kind, str, dict[str, Entry]]]:
    yield "shipped", str(root), read_index(root)


def _cache() -> Path:
    try:
        return cache_dir() / "zoo"
    except RuntimeError as error:
        msg = "there is no place for fetched models; set PROBSEG_CACHE to a folder for them"
        raise DownloadError(msg) from error


def _choose(name: str, entries: Mapping[str, Entry]) -> Entry | None:
    """Return a model by its name, or the first tag of an architecture."""
    tagged = (known for known in entries if known.startswith(f"{name}."))
    chosen = name if name in entries else next(tagged, None)
    return None if chosen is None else entries[chosen]


def _unknown(name: str, known: Iterable[str]) -> UnknownNameError:
    names = set(known)
    architectures = {full.split(".")[0] for full in names}
    return UnknownNameError(kind="zoo model", name=name, known=names | architectures)
