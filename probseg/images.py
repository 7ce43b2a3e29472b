"""Reading of images and masks, with errors that describe faults."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps

from probseg.errors import DataError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")
LOSSLESS_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".gif")
UNREAD_SUFFIXES = (
    *(".heic", ".heif", ".avif", ".jxl"),
    *(".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".raf", ".rw2"),
)
"""Formats of phones and cameras that are not read; of raw files Pillow would give the preview."""

FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP", "GIF", "PPM")
"""Formats that are decoded under any suffix; for some others Pillow runs other programs."""

MAX_PIXELS = 89_478_485
"""Most pixels of an image or mask, above which Pillow warns: a small file can hold gigabytes."""


GREY_WEIGHTS = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in a grey value (ITU-R BT.601)."""


@contextmanager
def decoding(name: Path | str) -> Iterator[None]:
    """Raise the errors of a decoder as a `DataError` that names the file."""
    try:
        yield
    except (DataError, MemoryError):  # the second says nothing about the file
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name) from error
    except Exception as error:  # the decoders of broken files raise a dozen different kinds
        msg = f"{name}: cannot be read as an image ({error}); replace or remove the file"
        raise DataError(msg) from error


def not_supported(name: Path | str) -> str | None:
    """Return why a photograph of this name is not read and what to do, None for other formats."""
    suffix = Path(name).suffix
    if suffix.lower() not in UNREAD_SUFFIXES:
        return None
    return f"{suffix[1:].upper()} is not supported; convert it to JPEG or PNG"


def unread_files(folder: Path) -> list[Path]:
    """Return the photographs in a folder that are of a format of `UNREAD_SUFFIXES`, by name."""
    return sorted(path for path in folder.glob("[!.]*") if not_supported(path))


def refuse_only_unread(folder: Path) -> None:
    """Raise for a folder without pictures if the reason is the format of its photographs.

    Args:
        folder: A folder without pictures that can be read; it may be missing.

    Raises:
        DataError: If it has files of `UNREAD_SUFFIXES`.
    """
    unread = unread_files(folder)
    if unread:
        reason = f"`{unread[0].name}`: {not_supported(unread[0])}"
        msg = f"`{folder}`: has no picture that can be read; {reason}"
        raise DataError(msg)


def opened(file: Path | BinaryIO, name: Path | str) -> Image.Image:
    """Open an image file without decoding it, unless it is too large to be decoded.

    Args:
        file: The file, or its content.
        name: Named in the errors.

    Raises:
        DataError: If the file is missing, of a format that is not read, or too large.
    """
    if isinstance(file, Path) and not file.is_file():
        msg = f"{file}: no such file; check the folder and the spelling of the name"
        raise DataError(msg)
    if reason := not_supported(name):
        msg = f"`{name}`: {reason}"
        raise DataError(msg)
    picture = Image.open(file, formats=FORMATS)
    width, height = picture.size
    if width * height > MAX_PIXELS:  # Pillow itself refuses twice as many
        raise _too_large(name)
    # Pillow maps plain files into memory by name, and misreads those that lie on their side.
    picture.filename = ""
    return picture


def _too_large(name: Path | str) -> DataError:
    return DataError(
        f"{name}: has more than {MAX_PIXELS / 1e6:.0f} million pixels, and is not decoded as it "
        "could fill the memory; scale it down, or cut it into several images"
    )


def _open(path: Path) -> Image.Image:
    """Open and decode an image file; errors give the reason."""
    with decoding(path):
        picture = opened(path, path)
        picture.load()
    return picture


def image_size(path: Path) -> tuple[int, int]:
    """Return `(H, W)` of an image, after its EXIF rotation, without decoding it.

    Args:
        path: The file.

    Raises:
        DataError: If the file is missing, is not an image, or has more than `MAX_PIXELS`.
    """
    with decoding(path), opened(path, path) as picture:
        width, height = picture.size
        turned = picture.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    return (width, height) if turned else (height, width)


def read_image(path: Path) -> npt.NDArray[np.uint8]:
    """Read an image file of any mode as 8-bit RGB.

    Grey images are repeated over the channels, transparency is laid over white, 16-bit values are
    divided by 257, and a rotation noted in the EXIF data is carried out.

    Args:
        path: The file.

    Returns:
        uint8, shape `(H, W, 3)`.

    Raises:
        DataError: If the file is missing, cannot be decoded, has more than `MAX_PIXELS`, or holds
            floating point numbers.
    """
    return rgb_pixels(_open(path), str(path))


def decode_image(content: bytes, name: str = "image") -> npt.NDArray[np.uint8]:
    """Decode the bytes of an image file as 8-bit RGB, as `read_image` does.

    Args:
        content: Of an image file of any of `FORMATS`.
        name: Named in the error.

    Returns:
        uint8, shape `(H, W, 3)`.

    Raises:
        DataError: As `read_image`.
    """
    with decoding(name):
        picture = opened(io.BytesIO(content), name)
        picture.load()
    return rgb_pixels(picture, name)


def rgb_pixels(picture: Image.Image, name: str = "image") -> npt.NDArray[np.uint8]:
    """Return the pixels of an opened image of any mode as 8-bit RGB, as `read_image` does.

    Args:
        picture: The image.
        name: Named in the error.

    Raises:
        DataError: If it holds floating point numbers.
    """
    if picture.mode == "F":
        msg = f"{name}: holds floating point numbers of unknown range; save it with 8 or 16 bits"
        raise DataError(msg)
    if picture.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode in ("I;16", "I;16L", "I;16B", "I"):
        grey = np.asarray(picture).astype(np.int64)
        if grey.max(initial=0) > 255:  # mode "I" also holds plain 8-bit values
            grey = grey // 257
        return np.repeat(np.clip(grey, 0, 255).astype(np.uint8)[..., None], 3, axis=2)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(white, layer)
    return np.array(picture if picture.mode == "RGB" else picture.convert("RGB"))


def check_same_size(
    image: tuple[int, ...], mask: tuple[int, ...], image_path: Path, mask_path: Path
) -> None:
    """Raise a `DataError` that names both files unless two shapes begin with the same size."""
    (ih, iw), (mh, mw) = image[:2], mask[:2]
    if (ih, iw) == (mh, mw):
        return
    hint = ""
    if (ih, iw) == (mw, mh):
        hint = " (the image may carry an EXIF rotation that the mask was drawn without)"
    msg = (
        f"{mask_path}: the mask is {mw} x {mh} pixels but its image {image_path} is "
        f"{iw} x {ih}{hint}; masks must have the image's size"
    )
    raise DataError(msg)
