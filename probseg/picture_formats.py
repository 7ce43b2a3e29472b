"""The formats of picture files: which are read, which are not and why."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from PIL.TiffImagePlugin import ImageFileDirectory_v2

from probseg.errors import DataError

# whether the decoder of the photographs of phones, an optional package, is installed
HEIC_IS_READ = find_spec("pillow_heif") is not None

LOSSLESS = {
    "PNG": (".png",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "GIF": (".gif",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
"""Formats, as Pillow names them, that masks may have too, with the suffixes of their files."""

HEIC_SUFFIXES = (".heic", ".heif", ".hif")

LOSSY = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    "WEBP": (".webp",),
    **({"HEIF": HEIC_SUFFIXES} if HEIC_IS_READ else {}),
}
"""Formats of photographs alone, likewise."""

# suffixes of masks, in small letters; those of files may have capitals
LOSSLESS_SUFFIXES = tuple(suffix for suffixes in LOSSLESS.values() for suffix in suffixes)

IMAGE_SUFFIXES = (
    *LOSSLESS_SUFFIXES,
    *(suffix for suffixes in LOSSY.values() for suffix in suffixes),
)
"""Suffixes of photographs, likewise: the one list for data sets, predictions and annotation."""

UNREAD_SUFFIXES = (
    *(() if HEIC_IS_READ else HEIC_SUFFIXES),
    *(".avif", ".jxl", ".jp2", ".j2k", ".tga", ".psd", ".xcf"),
    *(".cr2", ".cr3", ".nef", ".nrw", ".arw", ".dng", ".orf", ".pef", ".raf", ".rw2", ".srw"),
)
"""Formats of phones, cameras and editors that are not read; of raw files Pillow would give the
preview."""

# first letters of what follows `ftyp` in files of the ISO base media format
_BRANDS = {b"avi": "AVIF", b"hei": "HEIC", b"hev": "HEIC", b"mif": "HEIC", b"msf": "HEIC"}


_load_directory = ImageFileDirectory_v2.load


def _load_bounded(self: ImageFileDirectory_v2, fp: IO[bytes]) -> None:
    """Read a directory of TIFF or EXIF, unless many of its entries claim the same bytes.

    Pillow copies the bytes for each entry, before version 13 gigabytes of a small file.
    """
    place = fp.tell()
    whole = fp.seek(0, io.SEEK_END)
    fp.seek(place)
    count, layout = (8, "HHQ8x") if self._bigtiff else (2, "HHL4x")
    entry = struct.Struct(self._endian + layout)
    number = int.from_bytes(fp.read(count), "little" if self._endian == "<" else "big")
    entries = fp.read(entry.size * min(number, whole // entry.size))
    claimed = 0
    for _, kind, length in entry.iter_unpack(entries[: len(entries) // entry.size * entry.size]):
        unit, _ = self._load_dispatch.get(kind, (0, None))
        claimed += min(unit * length, whole)  # a single wrong length is found in honest files
    if claimed > 10 * whole:
        raise OSError(f"its directory of {number} entries claims the same bytes again and again")
    fp.seek(place)
    _load_directory(self, fp)


@cache
def decoders() -> tuple[str, ...]:
    """Return the formats that are decoded under any suffix: for others Pillow may run programs.

    From the first call on, Pillow reads directories in files of all formats in bounds.
    """
    ImageFileDirectory_v2.load = _load_bounded  # type: ignore[method-assign]
    if HEIC_IS_READ:
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return (*LOSSLESS, *LOSSY)


def not_supported(name: Path | str) -> str | None:
    """Return why a photograph of this name is not read and what to do, None for other formats."""
    unread = str(name).lower().endswith(UNREAD_SUFFIXES)
    return _remedy(Path(name).suffix[1:].upper()) if unread else None


def foreign_content(head: bytes) -> str | None:
    """Return why a file that begins with these 12 bytes or more is not read, as `not_supported`.

    Photographs of phones are often sent under the name of a JPEG file.
    """
    kind = _BRANDS.get(head[8:11]) if head[4:8] == b"ftyp" else None
    if kind is None or (kind == "HEIC" and HEIC_IS_READ):
        return None
    return f"is a picture of the format {kind} under another name; {_remedy(kind)}"


def _remedy(kind: str) -> str:
    if f".{kind.lower()}" in HEIC_SUFFIXES:
        return (
            f"{kind} is read with the package pillow-heif, which is not installed; run "
            "`pip install pillow-heif`, or convert it to JPEG or PNG"
        )
    return f"{kind} is not supported; convert it to JPEG or PNG"


def list_pictures(place: Path, suffixes: Collection[str] = IMAGE_SUFFIXES) -> list[Path]:
    """Return the files of a folder with one of these suffixes, by name."""
    names: list[str] = []
    missing = (FileNotFoundError, NotADirectoryError, PermissionError)
    with suppress(*missing), os.scandir(place) as entries:
        names = [entry.name for entry in entries if entry.name[0] != "."]
    ends = tuple(suffixes)
    return [place / name for name in sorted(names) if name.lower().endswith(ends)]


def of_one_stem(paths: Iterable[Path]) -> dict[Path, Path]:
    """Map each file with the stem of an earlier one to that: their masks would have one name."""
    first: dict[str, Path] = {}
    others = ((path, first.setdefault(str(path).removesuffix(path.suffix), path)) for path in paths)
    return {path: other for path, other in others if path is not other}


def second_of_a_stem(first: Path) -> str:
    """Return why a file is not used that has the stem of an earlier one, and what to do."""
    return f"has the same stem as {first.name}; rename one of them"


def unread_files(folder: Path) -> list[Path]:
    """Return the photographs in a folder that are of a format of `UNREAD_SUFFIXES`, by name."""
    return list_pictures(folder, UNREAD_SUFFIXES)


def refuse_only_unread(folder: Path) -> None:
    """Raise for a folder without pictures if the reason is the format of its photographs."""
    unread = unread_files(folder)
    if unread:
        reason = f"`{unread[0].name}`: {not_supported(unread[0])}"
        raise DataError(f"`{folder}`: has no picture that can be read; {reason}")
