"""The photographs of a folder, and their versions for browsers."""

from __future__ import annotations

import hashlib
import io
import math
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import cv2
import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

from probseg.annotate.store import Fingerprint
from probseg.errors import DataError
from probseg.formats import png, run_lengths
from probseg.formats.mask_names import too_long
from probseg.formats.regions import Region
from probseg.images import image_size, is_deep_colour, opened, read_image, tell_stretched
from probseg.paths import FOLLOW, digest, follows, leads_out, walk
from probseg.picture_formats import (
    IMAGE_SUFFIXES,
    UNREAD_SUFFIXES,
    list_pictures,
    not_supported,
    of_one_stem,
    refuse_only_unread,
    second_of_a_stem,
)
from probseg.texts import one_line

THUMBNAIL = 320
"""Longer side of a thumbnail in pixels."""

DIGEST = "blake2s"
"""Hash function of files."""

REASONS = 5
"""Maximum number of reasons why files are not read that are printed."""

CHANGED = (
    "the file has changed since objects were drawn on it: they are kept, but left out of all "
    "files; put the earlier file back, or rename this one to begin anew"
)

RESIZED = f"it has another size than its objects; {CHANGED}"

_SHOWN = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}

_DECODING = threading.Lock()  # a page asks for many pictures at once, each of which may be large


@dataclass(frozen=True)
class Photograph:
    """A file of the folder."""

    id: str  # opaque name for clients, hexadecimal
    path: Path
    size: tuple[int, int] | None  # `(H, W)` after the EXIF rotation; None if it cannot be read
    error: str | None = None  # why it cannot be read; None if it can
    stamp: tuple[int, int] = (0, 0)  # bytes, and nanoseconds of the last change
    inside: str = ""  # folder in that of all photographs, with `/` at the end

    @cached_property
    def name(self) -> str:
        """Path inside the folder, with `/`; bytes that are not UTF-8 are question marks."""
        return (self.inside + self.path.name).encode("utf-8", "replace").decode()

    @property
    def changed(self) -> bool:
        """Whether it is another picture than that on which its objects were drawn."""
        return self.error in (CHANGED, RESIZED)

    @property
    def stem(self) -> str:
        """The name without suffix, with which the names of its masks begin."""
        return self.inside + self.path.stem


def readable_size(photograph: Photograph) -> tuple[int, int]:
    """Return `(H, W)` of a photograph that can be read."""
    if photograph.size is None:
        raise DataError(photograph.error)
    return photograph.size


def place_of(folder: Path) -> Path:
    """Return where the photographs of a folder are: in its `images/` if it has one."""
    return folder / "images" if (folder / "images").is_dir() else folder


def stamp_of(path: Path) -> tuple[int, int]:
    """Return the bytes of a file and the nanoseconds of its last change; zeros if it is gone."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def fingerprint(photograph: Photograph, pixels: str | None = None) -> Fingerprint:
    """Return what tells the file of a readable photograph from others."""
    assert photograph.size is not None, "it can be read"
    content = digest(photograph.path, DIGEST)
    pixels = pixel_digest(read_readable(photograph)) if pixels is None else pixels
    return Fingerprint(*photograph.size, *photograph.stamp, content, pixels)


def pixel_digest(image: npt.NDArray[np.uint8]) -> str:
    """Return a digest of a photograph's pixels, uint8, `(H, W, 3)`."""
    return hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).hexdigest()


Read = dict[tuple[str, tuple[int, int]], tuple[tuple[int, int] | None, str | None]]
"""Size of each file that was looked at and why it cannot be read, by its name and stamp."""


def photograph_folders(folder: Path) -> tuple[list[Path], dict[Path, str]]:
    """Return the folders with the photographs of a folder, and why others are not read.

    They are the folder, or its `images/`, and those in it, without masks and exports.
    """
    place = place_of(folder)
    folders, links = walk(place, folder)
    read, refused = [], dict.fromkeys(links, FOLLOW)
    for path in folders:
        parts = path.relative_to(place).parts
        if not any(part == "masks" or part.startswith("annotations-") for part in parts):
            read.append(path)
        elif parts[-1] == "masks" and path != folder / "masks" and list_pictures(path):
            home = PurePosixPath("masks", *parts[:-1])
            refused[path] = f"has masks of a sub-folder; move them to {home}, or open {parts[-2]}"
    return read, refused


def picture_files(folder: Path) -> dict[Path, list[Path]]:
    """Return the files that should be photographs, by their folders; without any, raise."""
    homes, _ = photograph_folders(folder)
    files = {home: list_pictures(home, IMAGE_SUFFIXES + UNREAD_SUFFIXES) for home in homes}
    if all(not_supported(path) for of_home in files.values() for path in of_home):
        place = place_of(folder)
        refuse_only_unread(place)
        raise DataError(
            f"{place}: holds no photograph; expected files with one of the suffixes "
            f"{', '.join(IMAGE_SUFFIXES)}"
        )
    return files


def list_photographs(folder: Path, read: Read | None = None) -> list[Photograph]:
    """Return the photographs of a folder, or of its `images/` if it has one, by name.

    Those in sub-folders are, too. Unreadable files, links that leave the folder and are not
    trusted, second files of one stem, and names that are not UTF-8 or too long are listed with an
    error. Files in `read` are not looked at again.
    """
    place, read = place_of(folder), {} if read is None else read
    files = picture_files(folder)
    twins = of_one_stem(p for paths in files.values() for p in paths if not not_supported(p))
    photographs: list[Photograph] = []
    for home, paths in files.items():
        inside = (home / "_").relative_to(place).as_posix()[:-1]
        linked = home.resolve() != folder.resolve() / home.relative_to(folder)
        for path in paths:
            name, stamp = inside + path.name, stamp_of(path)
            size, error = None, None
            if (linked or path.is_symlink()) and leads_out(path, folder) and not follows(path):
                error = FOLLOW
            elif any("\ud800" <= c <= "\udfff" for c in name):  # bytes that are not UTF-8
                error = "the name has bytes that are not text; rename the file"
            elif reason := too_long(path.name):
                error = reason
            elif path in twins:
                error = second_of_a_stem(twins[path])
            elif reason := not_supported(path):
                error = reason
            else:
                if (name, stamp) not in read:
                    try:
                        read[name, stamp] = image_size(path), None
                    except DataError as unreadable:
                        read[name, stamp] = None, str(unreadable).replace(f"{path}: ", "")
                size, error = read[name, stamp]
            number = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
            photographs.append(Photograph(number, path, size, error, stamp, inside))
    return sorted(photographs, key=lambda photograph: photograph.path.parts)


def refusals(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """Return why files are not read, the most frequent reason first."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, reason in reasons:
        names[reason].append(name)
    ranked = sorted(names.items(), key=lambda reason: -len(reason[1]))
    lines = [
        f"refused: {', '.join(files[:3])}{' ...' if files[3:] else ''} ({len(files)}): {reason}"
        for reason, files in ranked[:REASONS]
    ]
    rest = sum(len(files) for _, files in ranked[REASONS:])
    return [*map(one_line, lines), *([f"refused: {rest} more"] if rest else [])]


def shown(photograph: Photograph) -> tuple[bytes, str, str]:
    """Return a photograph as browsers show it, pixel for pixel, its media type, and a notice.

    The file itself where browsers show the pixels that `read_image` gives; else a PNG of them. The
    notice is what a person must know of the pixels, empty where that is nothing.
    """
    if photograph.error is not None:
        raise DataError(photograph.error)
    with opened(photograph.path, photograph.path) as picture:
        plain = (
            picture.format in _SHOWN
            and picture.mode in ("RGB", "L")
            and not is_deep_colour(picture)
            and "transparency" not in picture.info
            and picture.getexif().get(ExifTags.Base.Orientation, 1) == 1
            and getattr(picture, "n_frames", 1) == 1
        )
        if plain:
            return photograph.path.read_bytes(), _SHOWN[str(picture.format)], ""
    said: list[str] = []
    what = "16-bit values end at {}: the photograph is brightened until the largest is white"
    with _DECODING:
        pixels = read_readable(photograph, lambda high, _: said.append(what.format(high)))
        return _encoded(pixels, "PNG"), "image/png", "".join(said)


def thumbnail(photograph: Photograph) -> bytes:
    """Return a small JPEG, its longer side at most `THUMBNAIL` pixels."""
    with _DECODING:
        picture = Image.fromarray(read_readable(photograph))
        picture.thumbnail((THUMBNAIL, THUMBNAIL), reducing_gap=2)
    return _encoded(np.asarray(picture), "JPEG")


def sized(size: tuple[int, ...] | None) -> str:
    """Say how large a photograph of `(H, W)` is, the width first."""
    return "no size" if size is None else f"{size[1]} x {size[0]} pixels"


def stored_labels(mask: bytes, photograph: Photograph) -> npt.NDArray[np.uint8]:
    """Decode a mask of the database, as `probseg.formats.png.decode` does."""
    size = mask_size(mask)
    if size != photograph.size:
        raise DataError(
            f"a stored mask of {photograph.name}: has {sized(size)}, the photograph "
            f"{sized(photograph.size)}; delete the object"
        )
    return png.decode(mask)


def stored_region(counts: str, photograph: Photograph) -> Region:
    """Draw run lengths of the database in the box of their object."""
    try:
        return run_lengths.region_of(
            run_lengths.parse_runs(counts.encode("ascii", "replace")), readable_size(photograph)
        )
    except ValueError as error:
        raise DataError(
            f"a stored mask of {photograph.name}: {error}; delete the object"
        ) from error


def mask_size(mask: bytes) -> tuple[int, int]:
    """Return `(H, W)` of a mask of the database."""
    with opened(io.BytesIO(mask), "a stored mask") as picture:
        return picture.height, picture.width


def small_map(masks: Sequence[str], photograph: Photograph) -> npt.NDArray[np.uint8]:
    """Draw at most 255 masks, as run lengths, over one another at the size of the thumbnail.

    A pixel `(h, w)` has the place of its mask from 1 on, 0 outside of all.
    """
    height, width = readable_size(photograph)
    scale = max(1.0, max(height, width) / THUMBNAIL)  # pixels of the photograph for one
    places = np.zeros((max(1, round(height / scale)), max(1, round(width / scale))), np.uint8)
    for place, counts in enumerate(masks, start=1):
        region = stored_region(counts, photograph)
        if not region.inside.size:
            continue
        height, width = region.inside.shape
        top, left = (
            min(int(begin / scale), most - 1)
            for begin, most in zip((region.y, region.x), places.shape, strict=True)
        )
        y, x = region.y - int(top * scale), region.x - int(left * scale)
        part = places[
            top : math.ceil((region.y + height) / scale),
            left : math.ceil((region.x + width) / scale),
        ]
        rows, columns = (round(length * scale) for length in part.shape)
        whole = np.zeros((max(y + height, rows), max(x + width, columns)), np.uint8)
        whole[y : y + height, x : x + width] = 255 * region.inside
        part[cv2.resize(whole, part.shape[::-1], interpolation=cv2.INTER_AREA) > 127] = place
    return places


def read_readable(
    photograph: Photograph, tell: Callable[[int, str], None] = tell_stretched
) -> npt.NDArray[np.uint8]:
    """Read a photograph as RGB, uint8, shape `(H, W, 3)`; see `probseg.images.read_image`."""
    if photograph.error is not None:
        raise DataError(photograph.error)
    image = read_image(photograph.path, tell)
    if image.shape[:2] != photograph.size:
        raise DataError("the file has changed; open the photograph again")
    return image


def _encoded(pixels: npt.NDArray[np.uint8], kind: str) -> bytes:
    buffer = io.BytesIO()
    options = {"compress_level": 1} if kind == "PNG" else {"quality": 80}
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()
