"""Unpacking zip and tar archives that may be damaged or malicious."""

from __future__ import annotations

import filecmp
import gzip
import lzma
import posixpath
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from probseg.errors import DataError
from probseg.transfer import BLOCK, Progress, silent

JUNK = ("__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini")
"""Files and folders that operating systems leave in archives."""

ENTRY = 512
"""Bytes that an entry counts besides its content, so that a million empty files are noticed."""

PADDING = 10**6
"""Most bytes of zeros after the end of a tar archive."""


def unpack(archive: Path, folder: Path, limit: int, progress: Progress = silent) -> None:
    """Write the files of an archive into an empty folder, and nothing outside it.

    Links inside a tar archive become copies of what they point to; links in zip files are refused.
    What operating systems leave in archives is left out.

    Args:
        archive: A zip file, or a tar file of any compression.
        folder: Where to; made if need be.
        limit: Most bytes that the files may have in all.
        progress: Called with the bytes written so far.

    Raises:
        DataError: If the file is damaged or no archive, has entries that would be written outside
            the folder (a name with a backslash or a colon might be, on Windows), devices, links in
            a zip file or to the outside, two entries of one name, or more than `limit` bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    try:
        for name, stream in _entries(archive):
            with stream:
                place = folder / _inside(archive, name, name)
                if not place.resolve().is_relative_to(folder.resolve()):
                    raise _refusal(archive, f"has the entry {name}, which leads out of the folder")
                if _is_junk(name):
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("xb") as file:
                    written += ENTRY
                    for block in _blocks(stream):
                        written += len(block)
                        if written > limit:
                            reason = f"unpacks to more than {limit / 1e6:.1f} MB"
                            raise _refusal(archive, reason)
                        file.write(block)
            progress(f"unpacking {archive.name}", written, None)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise _refusal(archive, f"has two entries of the name {error.filename}") from error
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        zlib.error,
        gzip.BadGzipFile,
        lzma.LZMAError,
        EOFError,
        KeyError,  # a link to a file that is not in the archive
        RecursionError,  # a link to itself
        NotImplementedError,  # a compression of zip files that Python does not know
    ) as error:
        msg = (
            f"{archive}: cannot be unpacked, it is damaged or incomplete ({error!r}); delete it "
            "and fetch it again"
        )
        raise DataError(msg) from error


def find_layout(folder: Path, holds: Sequence[str], archive: Path) -> Path:
    """Find the topmost folder that contains the wanted files.

    Args:
        folder: Where an archive was unpacked.
        holds: Patterns that must all match something in the folder.
        archive: Named in the error.

    Raises:
        DataError: If there is no such folder.
    """
    below = sorted(path for path in folder.rglob("*") if path.is_dir())
    for place in sorted([folder, *below], key=lambda path: len(path.parts)):
        if all(any(place.glob(pattern)) for pattern in holds):
            return place
    found = sorted(path.name for path in folder.iterdir())[:5]
    msg = (
        f"{archive}: expected an archive with {', '.join(holds)}, got one with "
        f"{', '.join(found) or 'nothing'}; give the archive of this data set with --source"
    )
    raise DataError(msg)


def move_into(source: Path, root: Path, force: bool = False) -> None:
    """Move all files of a folder into another one on the same disk.

    Args:
        source: The folder with the new files.
        root: The folder to be; a missing one appears with all of them at once.
        force: Replace files of another content.

    Raises:
        DataError: If files of another content are there and `force` is not given; then nothing
            was moved.
    """
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        source.replace(root)
        return
    names = sorted(p.relative_to(source) for p in source.rglob("*") if p.is_file())
    there = [name for name in names if (root / name).exists()]
    other = [
        name
        for name in there
        if not ((root / name).is_file() and filecmp.cmp(source / name, root / name, shallow=False))
    ]
    if other and not force:
        msg = (
            f"{root}: {len(other)} files that are there differ from the files of the archive, e.g. "
            f"{other[0]}; nothing was changed: move them away, or replace them with --force"
        )
        raise DataError(msg)
    for name in names:
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            shutil.rmtree(place)
        (source / name).replace(place)


def _entries(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield name and content of the files of an archive."""
    if tarfile.is_tarfile(archive):  # first: a tar file that ends in a zip file looks like both
        return _tar_entries(archive)
    if zipfile.is_zipfile(archive):
        return _zip_entries(archive)
    with archive.open("rb") as file:
        begin = file.read(40)
    msg = (
        f"{archive}: is neither a zip nor a tar archive, it begins with {begin!r}; delete it and "
        "fetch it again, or give another address with --source"
    )
    raise DataError(msg)


def _zip_entries(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as file:
        for entry in file.infolist():
            name = entry.orig_filename  # as it was written: Python turns backslashes on Windows
            if entry.is_dir():
                continue
            if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
                raise _refusal(archive, f"has the link or device {name}")
            if entry.flag_bits & 1:
                raise _refusal(archive, f"has the encrypted entry {name}")
            yield name, file.open(entry)


def _tar_entries(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(archive) as file:
        for entry in file:
            name = entry.name
            if entry.isdir():
                continue
            if entry.issym():
                target = posixpath.join(posixpath.dirname(name), entry.linkname)
                _inside(archive, posixpath.normpath(target), f"{name} -> {entry.linkname}")
            elif entry.islnk():
                _inside(archive, entry.linkname, f"{name} -> {entry.linkname}")
            elif not entry.isfile():
                raise _refusal(archive, f"has the device {name}")
            stream = file.extractfile(entry)  # of the archive only: links are not followed on disk
            if stream is None:
                raise _refusal(archive, f"has {name}, a link to a folder")
            yield name, stream
        assert file.fileobj is not None, "an open archive has its file"
        if len(file.fileobj.read(PADDING + 1)) > PADDING:  # reads the checksum at the end as well
            raise _refusal(archive, "goes on after its end")


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the content, and an empty block at its end, so that an empty file has one too."""
    while block := stream.read(BLOCK):
        yield block
    yield b""


def _inside(archive: Path, name: str, shown: str) -> PurePosixPath:
    """Return the path of an entry, which must not lead out of the folder."""
    path = PurePosixPath(name)
    strange = any(sign in name for sign in "\\:\0")  # drives and folders on Windows
    if path.is_absolute() or ".." in path.parts or strange:
        raise _refusal(archive, f"has the entry {shown}, which leads out of the folder")
    return path


def _is_junk(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return any(part in JUNK or part.startswith("._") for part in parts)


def _refusal(archive: Path, reason: str) -> DataError:
    return DataError(
        f"{archive}: {reason}; this is not the archive of the data set: delete it, and fetch it "
        "from its own source"
    )
