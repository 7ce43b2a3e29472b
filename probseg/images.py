"""Reading of images and masks, with errors that describe faults."""

from __future__ import annotations

import io
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import (
    BITSPERSAMPLE,
    COMPRESSION,
    IMAGELENGTH,
    IMAGEWIDTH,
    PHOTOMETRIC_INTERPRETATION,
    PLANAR_CONFIGURATION,
    SAMPLEFORMAT,
    TILELENGTH,
    TILEWIDTH,
    TiffImageFile,
)

from probseg.errors import DataError
from probseg.picture_formats import decoders, foreign_content, not_supported

_logger = logging.getLogger(__name__)

# environment variable that raises `MAX_PIXELS`, in millions, before probseg is imported
MEGAPIXELS = "PROBSEG_MEGAPIXELS"
# maximum pixels of an image or mask, above which Pillow warns: a small file can hold gigabytes
MAX_PIXELS = max(89_478_485, 10**6 * int(os.environ.get(MEGAPIXELS) or 0))

if os.environ.get(MEGAPIXELS):
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS

# bytes that the pixels of a file of a megabyte may take; a larger file may take more in ratio
SMALL = max(500_000_000, 16 * 10**6 * int(os.environ.get(MEGAPIXELS) or 0))
# maximum bytes of a pixel while it is read; in other formats 5 of a grey one, 8 of a colour
DECODING = {"JPEG": 12, "MPO": 12, "WEBP": 16, "HEIF": 16}
DARK = 1 << 15  # values of 16 bits below which an image that ends there is dark, and noticeably so

_said: list[str] = []  # names of images that were said to be stretched

# pixels that are converted at a time: whole copies of a large image would take gigabytes
STRIP = 1 << 20
GREY_WEIGHTS = (0.299, 0.587, 0.114)  # shares of red, green and blue in a grey value (ITU-R BT.601)
EXIF_TURNS = (5, 6, 7, 8)  # values of the EXIF orientation with which rows become columns

STORED: dict[int, Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]]] = {
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: np.rot90,
    7: lambda upright: upright[::-1, ::-1].swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}
"""Views of upright pixels as a file of the EXIF orientation has them."""


@contextmanager
def opened(file: Path | str | BinaryIO, name: Path | str) -> Iterator[Image.Image]:
    """Open an image file, named in errors, without decoding it, unless it is too large for that.

    A missing, foreign or broken file raises a `DataError`, as do all errors inside the block:
    decoders raise a dozen kinds for broken files.
    """
    if isinstance(file, str):
        file = Path(file)
    if isinstance(file, Path) and not file.is_file():
        absence = "no such file; check the folder and the spelling of the name"
        if file.is_dir():
            absence = "is a folder, expected an image file; rename or remove it"
        elif file.is_symlink():
            absence = f"is a link to {file.readlink()}, where no file is; mend or remove the link"
        raise DataError(f"{name}: {absence}")
    try:
        if reason := not_supported(name):
            raise DataError(f"`{name}`: {reason}")
        size = file.stat().st_size if isinstance(file, Path) else file.seek(0, io.SEEK_END)
        with Image.open(file, formats=decoders()) as picture:
            _refuse_bomb(picture, size, name)
            _refuse_misread(picture, name)
            yield picture
    except (DataError, MemoryError):  # the second says nothing about the file
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name) from error
    except Exception as error:
        reason = None
        if isinstance(error, UnidentifiedImageError):
            with file.open("rb") if isinstance(file, Path) else nullcontext(file) as stream:
                stream.seek(0)
                reason = foreign_content(stream.read(12))
        unreadable = f"cannot be read as an image ({error}); replace or remove the file"
        raise DataError(f"{name}: {reason or unreadable}") from error


def _refuse_bomb(picture: Image.Image, size: int, name: Path | str) -> None:
    """Raise a `DataError` for too many pixels, or more than a file of this size can hold."""
    pixels = math.prod(picture.size)
    if isinstance(picture, TiffImageFile):  # a tile is decoded whole
        pixels = max(
            pixels, math.prod(picture.tag_v2.get(tag, 0) for tag in (TILEWIDTH, TILELENGTH))
        )
    if pixels > MAX_PIXELS:  # Pillow itself refuses twice as many
        raise _too_large(name)
    taken = DECODING.get(picture.format or "", 5 if picture.mode in ("1", "L", "P") else 8)
    if pixels * taken > max(SMALL, SMALL // 10**6 * size):
        raise DataError(
            f"{name}: has {pixels / 1e6:.0f} million pixels in {size / 1e6:.1f} MB, as files that "
            "fill the memory have, and is not decoded; scale it down, or cut it into several images"
        )


def _refuse_misread(picture: Image.Image, name: Path | str) -> None:
    """Raise a `DataError` for a TIFF file of which Pillow makes other pixels without an error."""
    if not isinstance(picture, TiffImageFile):
        return
    tags = picture.tag_v2
    bits = max(tags.get(BITSPERSAMPLE, (1,)))
    planes = (tags.get(PLANAR_CONFIGURATION), tags.get(COMPRESSION, 1)) == (2, 1)
    misread = {
        # the values stay below 4096, and the picture is nearly black
        "with 12 bits per channel": bits == 12,
        # a negative
        f"with {bits} bits and the interpretation WhiteIsZero": (
            bits > 8 and tags.get(PHOTOMETRIC_INTERPRETATION) == 0
        ),
        # whose bytes are taken for pixels
        f"with a plane of {bits} bits for each channel": bits > 8 and planes,
        # -1 becomes 255
        "with signed numbers of 8 bits": bits == 8 and 2 in tags.get(SAMPLEFORMAT, ()),
    }
    for layout, applies in misread.items():
        if applies:
            raise DataError(f"{name}: is a TIFF file {layout}, which is not read; save it as a PNG")


def _too_large(name: Path | str) -> DataError:
    return DataError(
        f"{name}: has more than {MAX_PIXELS / 1e6:.0f} million pixels, and is not decoded as it "
        f"could fill the memory; scale it down, cut it into several images, or add --megapixels N "
        f"for N million pixels (in Python, set {MEGAPIXELS}=N before the import of probseg)"
    )


def image_size(path: Path | str) -> tuple[int, int]:
    """Return `(H, W)` of an image, after its EXIF rotation, without decoding it.

    It is the size of what `read_image`, `read_labels` and the other readers return.
    """
    with opened(path, path) as picture:
        turned = picture.getexif().get(ExifTags.Base.Orientation, 1) in EXIF_TURNS
        width, height = picture.size
        if isinstance(picture, TiffImageFile):  # its size is the turned one in some versions
            width, height = (picture.tag_v2[tag] for tag in (IMAGEWIDTH, IMAGELENGTH))
        return (width, height) if turned else (height, width)


def tell_stretched(high: int, name: str) -> None:
    """Say once in a process that dark 16-bit images are stretched."""
    if not _said:
        _said.append(name)
        text = (
            "%s: has 16 bits and values up to %s: it is read so that the largest is white, as are "
            "others like it; save images that belong together with 8 bits to keep their contrast"
        )
        _logger.warning(text, name, high)


def read_image(
    path: Path | str, tell: Callable[[int, str], None] = tell_stretched, coarse: int = 1
) -> npt.NDArray[np.uint8]:
    """Read an image file of any mode as 8-bit RGB: uint8, shape `(H, W, 3)`.

    Grey images are repeated over the channels, transparency is laid over white unless all pixels
    are clear, and a rotation noted in the EXIF data is carried out. Of several pages or frames the
    first one is read. The largest value of a 16-bit image becomes white if it is below `DARK`, as
    of cameras and microscopes that use 10 to 14 of the bits; otherwise 65535. `tell` is called with
    that value and the name where it is above 255.

    A JPEG file whose sides are multiples of `coarse`, a power of two, is decoded at `1 / coarse`
    of them, 1 / 8 at least, which takes less than half the time.
    """
    with opened(path, path) as picture:
        if coarse > 1 and not any(side % coarse for side in picture.size):
            picture.draft(None, (picture.width // coarse, picture.height // coarse))
        return rgb_pixels(picture, str(path), tell)


def decode_image(content: bytes, name: str = "image") -> npt.NDArray[np.uint8]:
    """Decode the bytes of an image file, named in errors, as `read_image` does."""
    with opened(io.BytesIO(content), name) as picture:
        return rgb_pixels(picture, name)


def rgb_pixels(
    picture: Image.Image, name: str = "image", tell: Callable[[int, str], None] = tell_stretched
) -> npt.NDArray[np.uint8]:
    """Return the pixels of an opened image of any mode as `read_image` does."""
    _refuse_misread(picture, name)
    if picture.mode == "F":
        raise DataError(
            f"{name}: holds floating point numbers of unknown range; save it with 8 or 16 bits"
        )
    colours = _load_dark_colours(picture)
    if picture.mode.startswith("I"):
        return _deep_grey(picture, name, tell)
    if colours is not None:  # upright; what is transparent is not white
        high, orientation = int(colours.max()), ExifTags.Base.Orientation
        if high > 255:
            tell(high, name)
        levels = (np.arange(high + 1) * 255 // max(255, high)).astype(np.uint8)
        read = Image.fromarray(levels[colours])  # no copy that is wider than 8 bits
        read.getexif()[orientation] = picture.getexif().get(orientation, 1)
        return by_strips(read, np.asarray)
    alpha = picture.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in picture.info
    # Of many BMP files, all pixels are clear: the channel is not in use.
    if alpha:
        channels = (_rgba(strip).getchannel("A") for _, strip in strips(picture))
        alpha = any(channel.getextrema() != (0, 0) for channel in channels)

    def rgb(strip: Image.Image) -> Image.Image:
        if alpha:
            white = Image.new("RGBA", strip.size, (255, 255, 255, 255))
            strip = Image.alpha_composite(white, _rgba(strip))
        return strip.convert("RGB")

    return by_strips(picture, rgb)


def _deep_grey(
    picture: Image.Image, name: str, tell: Callable[[int, str], None]
) -> npt.NDArray[np.uint8]:
    """Return the pixels of a picture of up to 32 bits as 8-bit RGB."""
    parts = (np.asarray(strip) for _, strip in strips(picture))
    lows, highs = zip(*((part.min(), part.max()) for part in parts), strict=True)
    low, high = min(lows), max(highs)
    if low < 0 or high > 65535:
        raise DataError(
            f"{name}: holds numbers from {low} to {high}, expected 0 to 65535; "
            "save it with 8 or 16 bits"
        )
    white = 65535 if high >= DARK else max(255, high)  # mode "I" also holds plain 8-bit values
    if 255 < high < DARK:
        tell(high, name)

    def rgb(strip: Image.Image) -> npt.NDArray[Any]:
        return np.stack(3 * [np.asarray(strip).astype(np.uint32) * 255 // white], axis=2)

    return by_strips(picture, rgb)


def is_deep_colour(picture: Image.Image) -> bool:
    """Return whether a file has colours of 16 bits, of which Pillow reads the upper 8."""
    return picture.mode in ("RGB", "RGBA") and any(
        ";16" in str(tile[3]) for tile in getattr(picture, "tile", ())
    )


def _load_dark_colours(picture: Image.Image) -> npt.NDArray[np.uint16] | None:
    """Decode an image, and return its pixels if they are dark colours of 16 bits, `(H, W, 3)`."""
    file, content = getattr(picture, "fp", None), b""  # an image in memory has no file
    if file is not None and is_deep_colour(picture):
        place = file.tell()
        file.seek(0)
        content = file.read()
        file.seek(place)
    _load(picture)
    if not content or np.asarray(picture)[..., :3].max() >= DARK >> 8:
        return None
    import cv2

    decoded = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if decoded is None or decoded.dtype != np.uint16 or decoded.ndim != 3:
        return None
    return np.ascontiguousarray(decoded[..., 2::-1])


def by_strips(
    picture: Image.Image, convert: Callable[[Image.Image], Image.Image | npt.NDArray[Any]]
) -> npt.NDArray[np.uint8]:
    """Return the pixels of a decoded image, upright, of which Pillow would make copies on the way.

    `convert` returns those of a strip, numbers of 0 to 255.
    """
    orientation = picture.getexif().get(ExifTags.Base.Orientation, 1)
    size = picture.size if orientation in EXIF_TURNS else picture.size[::-1]
    pixels = as_stored = np.empty(0, np.uint8)
    for top, strip in strips(picture):
        part = np.asarray(convert(strip))
        if not top:
            pixels = np.empty((*size, *part.shape[2:]), np.uint8)
            as_stored = STORED.get(orientation, np.asarray)(pixels)
        as_stored[top : top + strip.height] = part
    return pixels


def strips(picture: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Cut a picture into strips of at most `STRIP` pixels or one row, each with its first row."""
    rows = max(1, STRIP // picture.width)
    for top in range(0, picture.height, rows):
        yield top, picture.crop((0, top, picture.width, min(top + rows, picture.height)))


def _rgba(picture: Image.Image) -> Image.Image:
    # "La" has grey values that are multiplied by their opacity.
    return (picture.convert("LA") if picture.mode == "La" else picture).convert("RGBA")


def _load(picture: Image.Image) -> None:
    """Decode an image."""
    if isinstance(picture, JpegImageFile) and picture.fp is not None and picture.tile:
        picture.fp.seek(0)  # as Pillow does before it decodes
        content = picture.fp.read()
        # Each scan takes its time; programs write few. Films that phones append have the marker of
        # one by chance, once in 65,536 bytes.
        if (scans := content.count(b"\xff\xda")) > 100 + len(content) // 20_000:
            raise OSError(f"its pixels are drawn again and again, in {scans} scans")
    if not isinstance(picture, TiffImageFile):
        picture.load()
        return
    # Pillow turns these itself. It maps those that it opened by name into memory, in the size of
    # the turned image, which mixes the rows of some modes up.
    name, picture.filename = picture.filename, ""
    picture.load()
    picture.filename = name


def upright(picture: Image.Image) -> Image.Image:
    """Return an image, decoded, with the rotation that is noted in its EXIF data carried out."""
    _load(picture)
    if picture.getexif().get(ExifTags.Base.Orientation, 1) == 1:
        return picture
    return ImageOps.exif_transpose(picture)


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
    raise DataError(
        f"{mask_path}: the mask is {mw} x {mh} pixels but its image {image_path} is "
        f"{iw} x {ih}{hint}; masks must have the image's size"
    )
