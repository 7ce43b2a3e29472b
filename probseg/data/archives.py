"""Unpacking zip and tar archives that may be damaged or malicious."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import posixpath
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from probseg.errors import DataError
from probseg.paths import BLOCK, Progress, silent

_Entry = tuple[str, Iterator[bytes] | None]

DAMAGES = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    gzip.BadGzipFile,
    lzma.LZMAError,
    EOFError,
    RecursionError,  # a thousand headers before one entry
    NotImplementedError,  # a compression of zip files that Python does not know
    ValueError,  # a number of a header that is none
)
"""What readers of damaged archives raise."""

# files and folders that operating systems leave in archives
JUNK = ("__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini")
# bytes that an entry counts besides its content: a million empty files or folders are noticed
ENTRY = 512
ENTRIES = 500_000  # maximum number of entries of an archive
# limit in bytes of headers before an entry of a tar archive; most have 512, long names more
HEADERS = 10**5
LONGEST_NAME = 255  # maximum bytes of the name of a file or folder, as most file systems have it
CHAIN = 40  # maximum number of links of a tar archive that lead from one to the next, as in Linux

COMPRESSIONS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"\x5d\0\0": lzma.open,
}
"""How to open tar archives that begin with these bytes; others are not compressed."""

PADDING = 10**6  # maximum bytes of zeros after the end of a tar archive


class _RefusedError(Exception):
    """An archive has something that no data set has."""


def unpack(archive: Path, folder: Path, limit: int, progress: Progress = silent) -> None:
    """Write the files of an archive into an empty folder, and nothing outside it.

    Links inside a tar archive become copies of what they point to; links in zip files are refused.
    What operating systems leave in archives is left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    try:
        for number, (name, content) in enumerate(_entries(archive, folder, limit)):
            if number == ENTRIES:
                raise _RefusedError(f"has more than {ENTRIES} entries")
            written += ENTRY
            parts = PurePosixPath(name).parts
            junk = any(part in JUNK or part.startswith("._") for part in parts)
            if content is not None and not junk:
                _check_inside(name, name)
                place = folder / name
                if not place.resolve().is_relative_to(folder.resolve()):
                    raise _RefusedError(f"has the entry {name}, which leads out of the folder")
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("xb") as file:
                    for block in content:
                        written += len(block)
                        if written > limit:
                            break
                        file.write(block)
            if written > limit:
                raise _too_much(limit)
            progress(f"unpacking {archive.name}", written, None)
    except (_RefusedError, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        two = f"has two entries of the name {getattr(error, 'filename', '')}"
        raise DataError(
            f"{archive}: {error if isinstance(error, _RefusedError) else two}; this is not the "
            "archive of the data set: delete it, and fetch it again from its own source"
        ) from error
    except DAMAGES as error:
        raise DataError(
            f"{archive}: cannot be unpacked, it is damaged or incomplete ({error!r}); delete it "
            "and fetch it again"
        ) from error


def _entries(archive: Path, folder: Path, limit: int) -> Iterator[_Entry]:
    """Yield name and content of the entries of an archive; folders have no content."""
    with archive.open("rb") as file:
        begin = file.read(40)
    way = next((way for mark, way in COMPRESSIONS.items() if begin.startswith(mark)), open)
    with way(archive, "rb") as file:
        headers = _Headers(file, limit)
        try:  # first: a tar file that ends in a zip file looks like both
            tar = tarfile.TarFile(fileobj=headers)  # type: ignore[arg-type]  # reads, seeks, tells
        except (*DAMAGES, OSError):
            if not zipfile.is_zipfile(archive):
                raise _RefusedError(
                    f"is neither a zip nor a tar archive, it begins with {begin!r}; another "
                    "address can be given with --source"
                ) from None
            yield from _zip_entries(archive)
        else:
            yield from _tar_entries(folder, tar, headers)


def _zip_entries(archive: Path) -> Iterator[_Entry]:
    with zipfile.ZipFile(archive) as file:
        for entry in file.infolist():
            name = entry.orig_filename  # as it was written: Python turns backslashes on Windows
            if entry.is_dir():
                yield name, None
                continue
            plain = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG)
            if not plain or entry.flag_bits & 1:
                raise _RefusedError(f"has the link or device or encrypted entry {name}")
            with file.open(entry) as stream:
                yield name, _blocks(stream)


class _Headers:
    """The content of a tar archive, of which tarfile reads the headers, and we the rest.

    tarfile reads a header as large as it says that it is, and has no limit.
    """

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self.file, self.limit = file, limit
        self.size = 0  # of the headers before an entry

    def tell(self) -> int:
        return self.file.tell()

    def seek(self, place: int) -> int:
        if place > self.limit + PADDING:
            raise _too_much(self.limit)
        return self.file.seek(place)

    def read(self, size: int) -> bytes:
        self.size += size
        if not 0 <= size <= self.size <= HEADERS:
            raise _RefusedError(f"has an entry with headers of more than {HEADERS / 1e6:.1f} MB")
        return self.file.read(size)

    def content(self, entry: tarfile.TarInfo) -> Iterator[bytes]:
        self.file.seek(entry.offset_data)
        left = entry.size
        while left > 0:
            block = self.file.read(min(left, BLOCK))
            if not block:
                raise EOFError
            left -= len(block)
            yield block


def _tar_entries(folder: Path, tar: tarfile.TarFile, headers: _Headers) -> Iterator[_Entry]:
    """Yield the files of the archive, and then its links as copies of what was written of it."""
    links: dict[str, str] = {}
    while entry := tar.next():
        tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all
        tar.pax_headers = {}
        headers.size = 0
        name = entry.name
        if entry.isdir():
            yield name, None
        elif entry.issym() or entry.islnk():
            target = entry.linkname
            if entry.issym():
                target = posixpath.join(posixpath.dirname(name), target)
            target = posixpath.normpath(target)
            _check_inside(target, f"{name} -> {entry.linkname}")
            links[posixpath.normpath(name)] = target
            yield name, None  # for now
        elif not entry.isfile() or entry.issparse():
            raise _RefusedError(f"has the device or sparse file {name}")
        else:
            yield name, headers.content(entry)
    if len(headers.file.read(PADDING + 1)) > PADDING:  # reads the checksum at the end as well
        raise _RefusedError("continues after its end")
    for name, target in links.items():
        for _ in range(CHAIN):
            target = links.get(target, target)
        if (folder / target).is_dir():
            raise _RefusedError(f"has {name}, a link to a folder")
        if not (folder / target).is_file():
            raise tarfile.ReadError(f"{name} is a link to {target}, which it does not have")
        with (folder / target).open("rb") as stream:
            yield name, _blocks(stream)


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(BLOCK):
        yield block


def _check_inside(name: str, shown: str) -> None:
    """Refuse the path of an entry that leads out of the folder, or is too long for one."""
    path = PurePosixPath(name)
    strange = any(sign in name for sign in "\\:\0")  # drives and folders on Windows
    if max((len(os.fsencode(part)) for part in path.parts), default=0) > LONGEST_NAME:
        raise _RefusedError(f"has the entry {shown[:40]}..., whose name is too long")
    if path.is_absolute() or ".." in path.parts or strange:
        raise _RefusedError(f"has the entry {shown}, which leads out of the folder")


def _too_much(limit: int) -> _RefusedError:
    return _RefusedError(f"unpacks to more than {limit / 1e6:.1f} MB")
