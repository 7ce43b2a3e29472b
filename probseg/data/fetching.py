"""Fetching a data set: download, check, unpack, and put in place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from probseg.data.archives import find_layout, move_into, unpack
from probseg.data.base import PublishedDataset
from probseg.data.downloads import download, require_space
from probseg.data.source import MEGABYTE, Archive, Source
from probseg.errors import ChecksumError, UsageError
from probseg.kinds import find
from probseg.paths import write_text
from probseg.transfer import Progress, digest, silent

SLACK = 4
"""An archive that unpacks to this many times its known size is refused."""


def fetch(
    dataset: type[PublishedDataset],
    root: Path | None = None,
    *,
    address: str | None = None,
    sha256: str | None = None,
    force: bool = False,
    progress: Progress = silent,
    say: Callable[[str], None] = print,
) -> Path:
    """Fetch the archives of a data set and unpack them.

    An archive and its checksum `<archive>.sha256` are kept next to the folder of the data set.
    Its files appear in the folder after the whole archive was unpacked: an interrupted command can
    be repeated, and resumes where it stopped.
    """
    source = dataset.source
    folder = source.folder(root).resolve()
    archives = _chosen(dataset, address, sha256)
    if not force and not source.missing(folder):
        say(f"{dataset.name} is in {folder} already; to fetch it again, add --force")
        return folder
    for archive, place in archives:
        if not force and not source.missing(folder, archive):
            say(f"{archive.file}: its files are in {folder} already")
            continue
        file = _obtain(archive, place, folder.parent, force, progress, say)
        _install(source, archive, file, folder, force, progress)
        kept = "" if _is_local(place) else f"; {file} is no longer needed"
        say(f"{dataset.name}: unpacked {file.name} into {folder}{kept}")
    return folder


def _chosen(
    dataset: type[PublishedDataset], address: str | None, sha256: str | None
) -> list[tuple[Archive, str]]:
    """Return the archives, each with its address or file."""
    source = dataset.source
    several = len(source.archives) > 1
    if sha256 is not None and several:
        msg = f"--sha256: {dataset.name} has {len(source.archives)} archives, and this is one sum"
        raise UsageError(msg)
    chosen = []
    for archive in source.archives:
        place = archive.url if address is None else _elsewhere(archive, address, several)
        if place is None:
            msg = (
                f"{dataset.name} cannot be fetched: {source.way}. Download it with a browser, and "
                f"repeat this command with --source and the file, or unpack it into "
                f"{source.folder()}"
            )
            raise UsageError(msg)
        if not (_is_local(place) or place.startswith(("http://", "https://"))):
            msg = f"--source {place}: is neither an http(s) address nor a file that exists" + (
                f"; {dataset.name} needs a file for each of its archives" if several else ""
            )
            raise UsageError(msg)
        chosen.append((archive._replace(sha256=(sha256 or archive.sha256)), place))
    return chosen


def _elsewhere(archive: Archive, address: str, several: bool) -> str:
    """Return the address of an archive, given this address or that of its folder."""
    if not (address.endswith("/") or Path(address).is_dir()):
        if several:
            msg = (
                f"--source {address}: the data set has several archives; give the address of the "
                "folder that has them all, with / at its end"
            )
            raise UsageError(msg)
        return address
    if archive.url is None:
        msg = f"--source {address}: is a folder; give the archive itself"
        raise UsageError(msg)
    return f"{address.rstrip('/')}/{archive.file}"


def _is_local(place: str) -> bool:
    return Path(place).is_file()


def _obtain(
    archive: Archive,
    place: str,
    folder: Path,
    force: bool,
    progress: Progress,
    say: Callable[[str], None],
) -> Path:
    """Return the file of an archive, downloaded unless it is there, and checked."""
    file = Path(place) if _is_local(place) else folder / place.rpartition("/")[2].partition("?")[0]
    record = folder / f"{file.name}.sha256"

    def check(path: Path) -> None:
        say(_verify(path, archive, record, place))

    there = _is_local(place) or (file.is_file() and not force)
    needed = archive.unpacked + (0 if there else archive.size)
    require_space(folder, needed, f"{file.name}, unpacked,")
    if there:
        check(file)
    else:
        download(place, file, check, progress=progress)
    return file


def _verify(path: Path, archive: Archive, record: Path, place: str) -> str:
    """Compare the checksums of an archive with those that are known."""
    name = record.name.removesuffix(".sha256")
    found = {"sha256": digest(path)}
    known = {"sha256": archive.sha256, "md5": archive.md5}
    summary = f"{name}: sha256 {found['sha256']}"
    if archive.md5 is not None and archive.sha256 is None:
        found["md5"] = digest(path, "md5")
    for algorithm, value in found.items():
        wanted = known[algorithm]
        if wanted is not None and value != wanted.lower():
            msg = (
                f"{place}: {algorithm} is {value}, expected {wanted}; the file is damaged, or "
                "another one than it was: delete it if it is yours, and fetch it again or give "
                "another address with --source"
            )
            raise ChecksumError(msg)
    if archive.sha256 is not None or archive.md5 is not None:
        summary += ", as expected"
    elif record.is_file():
        before = record.read_text(encoding="utf-8").partition(" ")[0]
        if before != found["sha256"]:
            msg = (
                f"{place}: sha256 is {found['sha256']}, but {record} has {before} of an earlier "
                f"download: the file is damaged or was replaced. If that is right, delete {record} "
                "and repeat the command"
            )
            raise ChecksumError(msg)
        summary += ", as in an earlier download; the publisher states no sum to compare it with"
    else:
        summary += (
            f"; not verified, as the publisher states no sum: it is noted in {record} for the next "
            "download"
        )
    write_text(record, f"{found['sha256']}  {name}\n")
    return summary


def _install(
    source: Source, archive: Archive, file: Path, folder: Path, force: bool, progress: Progress
) -> None:
    """Unpack an archive next to the folder of a data set, and move its files there."""
    draft = folder.with_name(f".{folder.name}.unpacking")
    shutil.rmtree(draft, ignore_errors=True)  # what an interrupted command left
    try:
        if file.suffix == ".txt":
            draft.mkdir(parents=True)
            shutil.copyfile(file, draft / archive.holds[0])
        else:
            unpack(file, draft, SLACK * archive.unpacked + MEGABYTE, progress)
        content = find_layout(draft, archive.holds, file)
        if source.convert is not None:
            find(source.convert)(content)
        move_into(content, folder, force)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
