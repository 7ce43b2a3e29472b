"""Reading of images and masks, with errors that describe faults."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import IMAGELENGTH, IMAGEWIDTH, TiffImageFile

from probseg.errors import DataError
from probseg.picture_formats import decoders, foreign_content, not_supported
from probseg.types import IGNORE

MAX_PIXELS = 89_478_485
"""Most pixels of an image or mask, above which Pillow warns: a small file can hold gigabytes."""

GREY_WEIGHTS = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in a grey value (ITU-R BT.601)."""

MAX_IDS = 200
"""More different values than this in one mask are taken for a grey picture, not object ids."""

MAX_IDS_IF_RESTLESS = 16
"""The same for a mask whose numbers change every few pixels, as no outlines of objects do."""

MAX_SMEARED = 6
"""More different values than this, with fewer pixels than white, are taken for blurred edges."""

TURNED = (5, 6, 7, 8)
"""Values of the EXIF orientation with which rows become columns."""


@contextmanager
def opened(file: Path | BinaryIO, name: Path | str) -> Iterator[Image.Image]:
    """Open an image file without decoding it, unless it is too large to be decoded.

    Args:
        file: The file, in any format of `probseg.picture_formats`.
        name: Named in the error.

    Raises:
        DataError: If the file is missing, is not an image, or has more than `MAX_PIXELS`; and in
            place of all errors inside the block, as decoders raise a dozen kinds for broken files.
    """
    if isinstance(file, Path) and not file.is_file():
        msg = f"{name}: {_absence(file)}"
        raise DataError(msg)
    try:
        if reason := not_supported(name):
            msg = f"`{name}`: {reason}"
            raise DataError(msg)
        with Image.open(file, formats=decoders()) as picture:
            if math.prod(picture.size) > MAX_PIXELS:  # Pillow itself refuses twice as many
                raise _too_large(name)
            yield picture
    except (DataError, MemoryError):  # the second says nothing about the file
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name) from error
    except UnidentifiedImageError as error:
        if reason := foreign_content(_head(file)):
            msg = f"{name}: {reason}"
            raise DataError(msg) from error
        raise _unreadable(name, error) from error
    except Exception as error:
        raise _unreadable(name, error) from error


def _absence(path: Path) -> str:
    """Return why there is no file of this name."""
    if path.is_dir():
        return "is a folder, expected an image file; rename or remove it"
    if path.is_symlink():
        return f"is a link to {path.readlink()}, where no file is; mend or remove the link"
    return "no such file; check the folder and the spelling of the name"


def _head(file: Path | BinaryIO) -> bytes:
    """Return the first bytes of a file, which say what it is."""
    if isinstance(file, Path):
        with file.open("rb") as stream:
            return stream.read(12)
    file.seek(0)
    return file.read(12)


def _unreadable(name: Path | str, error: Exception) -> DataError:
    return DataError(f"{name}: cannot be read as an image ({error}); replace or remove the file")


def _too_large(name: Path | str) -> DataError:
    return DataError(
        f"{name}: has more than {MAX_PIXELS / 1e6:.0f} million pixels, and is not decoded as it "
        "could fill the memory; scale it down, or cut it into several images"
    )


def image_size(path: Path) -> tuple[int, int]:
    """Return `(H, W)` of an image, after its EXIF rotation, without decoding it.

    It is the size of what `read_image`, `read_labels` and the other readers return.

    Args:
        path: The file.

    Raises:
        DataError: If the file is missing, is not an image, or has more than `MAX_PIXELS`.
    """
    with opened(path, path) as picture:
        turned = picture.getexif().get(ExifTags.Base.Orientation, 1) in TURNED
        width, height = picture.size
        if isinstance(picture, TiffImageFile):  # its size is the turned one in some versions
            width, height = (picture.tag_v2[tag] for tag in (IMAGEWIDTH, IMAGELENGTH))
    return (width, height) if turned else (height, width)


def read_image(path: Path) -> npt.NDArray[np.uint8]:
    """Read an image file of any mode as 8-bit RGB.

    Grey images are repeated over the channels, transparency is laid over white, 16-bit values are
    divided by 257, and a rotation noted in the EXIF data is carried out. Of several pages or frames
    the first one is read.

    Args:
        path: The file.

    Returns:
        uint8, shape `(H, W, 3)`.

    Raises:
        DataError: If the file is missing, cannot be decoded, has more than `MAX_PIXELS`, or holds
            numbers of more than 16 bits.
    """
    with opened(path, path) as picture:
        return rgb_pixels(picture, str(path))


def decode_image(content: bytes, name: str = "image") -> npt.NDArray[np.uint8]:
    """Decode the bytes of an image file as 8-bit RGB, as `read_image` does.

    Args:
        content: Of an image file of any format that is read.
        name: Named in the error.

    Returns:
        uint8, shape `(H, W, 3)`.

    Raises:
        DataError: As `read_image`.
    """
    with opened(io.BytesIO(content), name) as picture:
        return rgb_pixels(picture, name)


def rgb_pixels(picture: Image.Image, name: str = "image") -> npt.NDArray[np.uint8]:
    """Return the pixels of an opened image of any mode as 8-bit RGB, as `read_image` does.

    Args:
        picture: The image.
        name: Named in the error.

    Raises:
        DataError: If it holds numbers of more than 16 bits.
    """
    if picture.mode == "F":
        msg = f"{name}: holds floating point numbers of unknown range; save it with 8 or 16 bits"
        raise DataError(msg)
    picture = upright(picture)
    if picture.mode.startswith("I"):
        grey = np.asarray(picture).astype(np.int64)
        if grey.min(initial=0) < 0 or grey.max(initial=0) > 65535:
            msg = (
                f"{name}: holds numbers from {grey.min()} to {grey.max()}, expected 0 to 65535; "
                "save it with 8 or 16 bits"
            )
            raise DataError(msg)
        if grey.max(initial=0) > 255:  # mode "I" also holds plain 8-bit values
            grey = grey // 257
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
    if picture.mode == "La":  # grey values multiplied by their opacity
        picture = picture.convert("LA")
    if picture.mode in ("RGBA", "RGBa", "LA", "PA") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(white, layer)
    return np.array(picture if picture.mode == "RGB" else picture.convert("RGB"))


def upright(picture: Image.Image) -> Image.Image:
    """Return an image, decoded, with the rotation that is noted in its EXIF data carried out."""
    if isinstance(picture, TiffImageFile):
        # Pillow turns these itself. It maps those that it opened by name into memory, in the size
        # of the turned image, which mixes the rows of some modes up.
        name, picture.filename = picture.filename, ""
        picture.load()
        picture.filename = name
    if picture.getexif().get(ExifTags.Base.Orientation, 1) == 1:
        return picture
    return ImageOps.exif_transpose(picture)


def _open_mask(path: Path) -> Image.Image:
    """Open and decode a mask file, which must not have gone through JPEG."""
    with opened(path, path) as file:
        picture = upright(file).copy()  # which needs the file no longer, whatever its format
    if file.format in ("JPEG", "MPO"):  # the second has several pictures
        msg = (
            f"{path}: is a JPEG file, whose compression changes the object numbers near contours; "
            "masks must be lossless, e.g. PNG (redrawn or thresholded: renaming is not enough)"
        )
        raise DataError(msg)
    return picture


def read_labels(path: Path) -> npt.NDArray[np.uint8]:
    """Read a mask file as one number per pixel.

    Palette files give their indices, 1-bit files 0 and 1, colour files their channel if all three
    are equal. JPEG is refused under any suffix, as it changes numbers near contours.

    Args:
        path: The file.

    Returns:
        uint8, shape `(H, W)`.

    Raises:
        DataError: If the file is missing, cannot be decoded, has more than `MAX_PIXELS`, or is not
            a mask.
    """
    picture = _open_mask(path)
    values = np.asarray(picture)
    if values.ndim == 3:
        colours = values[..., :3] if picture.mode in ("RGB", "RGBA") else values[..., :1]
        if (colours != colours[..., :1]).any():
            msg = (
                f"{path}: a mask must have one channel with object numbers, but this file holds "
                "colours; save it as a palette or grey PNG"
            )
            raise DataError(msg)
        values = colours[..., 0]
    if values.dtype == np.uint8:
        return values.copy()
    if values.dtype != bool and not (values == values.astype(np.uint8)).all():
        msg = (
            f"{path}: mask values must be whole numbers in 0..255, got {values.dtype} from "
            f"{values.min()} to {values.max()}; number the objects 1..254"
        )
        raise DataError(msg)
    return np.ascontiguousarray(values.astype(np.uint8))


def read_colours(path: Path) -> npt.NDArray[np.uint8]:
    """Read a mask file as colours; palette files give the colours of their palette.

    Transparency is dropped, and grey values are repeated over the channels.

    Args:
        path: The file.

    Returns:
        RGB, uint8, shape `(H, W, 3)`.

    Raises:
        DataError: If the file is missing, cannot be decoded, has more than `MAX_PIXELS`, is JPEG,
            or has more than 8 bits.
    """
    picture = _open_mask(path)
    if picture.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
        msg = (
            f"{path}: expected a mask with 8 bits per channel, got the mode {picture.mode!r}; "
            "save it as an 8-bit PNG"
        )
        raise DataError(msg)
    return np.asarray(picture.convert("RGB")).copy()


def read_grey(path: Path) -> npt.NDArray[np.uint8]:
    """Read a black-and-white mask file, which may be a colour file and have a few stray values.

    Args:
        path: The file.

    Returns:
        Grey values, uint8, shape `(H, W)`; those above 128 are the object, and there are some.

    Raises:
        DataError: As `read_colours`, and if no value is above 128.
    """
    values = np.rint(read_colours(path) @ np.array(GREY_WEIGHTS, np.float32))
    grey: npt.NDArray[np.uint8] = values.astype(np.uint8)
    if grey.max() <= 128:
        msg = (
            f"{path}: expected an object of value 255, got values up to {int(grey.max())}; for "
            "masks of your own use ImageMaskFolder"
        )
        raise DataError(msg)
    return grey


def object_ids(labels: npt.NDArray[np.uint8], path: Path) -> list[int]:
    """List the numbers of the objects in a mask.

    Numbers 1 to 254 are objects and 255 is ignored. A mask that holds 0 and 255 only is a plain
    black-and-white mask: 255 is its object.

    Args:
        labels: uint8, shape `(H, W)`.
        path: Named in the errors.

    Returns:
        Object numbers in ascending order, at least one.

    Raises:
        DataError: If the mask is empty or its values cannot be object numbers.
    """
    found = np.flatnonzero(np.bincount(labels.ravel(), minlength=256)).tolist()
    ids = [value for value in found if value != 0]
    if not ids:
        msg = f"{path}: the mask is empty (all pixels are 0); draw the object or remove the file"
        raise DataError(msg)
    if ids == [IGNORE]:
        return [IGNORE]
    if set(ids) == {128, IGNORE}:
        msg = (
            f"{path}: holds 0, 128 and 255, which is GrabCut's convention (128 = unknown) and not "
            "that of a plain folder; write 1 for the object and 255 for ignored pixels"
        )
        raise DataError(msg)
    changes = (labels[:, 1:] != labels[:, :-1]).sum() / labels.size
    if len(ids) > MAX_IDS or (len(ids) > MAX_IDS_IF_RESTLESS and changes > 0.25):
        msg = (
            f"{path}: {len(ids)} different values: this looks like a grey picture or a mask saved "
            "as JPEG, not like object numbers 1..254 (255 = ignored); save masks as PNG"
        )
        raise DataError(msg)
    objects = [value for value in ids if value != IGNORE]
    white, grey = (labels >= 240).sum(), ((labels > 0) & (labels < 240)).sum()
    if len(ids) > MAX_SMEARED and objects[0] < 64 and objects[-1] >= 192 and white > grey:
        msg = (
            f"{path}: {len(ids)} different values, most pixels nearly black or nearly white: this "
            "looks like a black-and-white mask with blurred edges, from JPEG or from a smooth "
            "change of size; threshold it to 0 and 255"
        )
        raise DataError(msg)
    return objects


def object_mask(labels: npt.NDArray[np.uint8], number: int) -> npt.NDArray[np.uint8]:
    """Mask of one object: 1 on it, 255 where ignored, 0 elsewhere, other objects included."""
    mask: npt.NDArray[np.uint8] = (labels == number).astype(np.uint8)
    if number != IGNORE:
        mask[labels == IGNORE] = IGNORE
    return mask


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
