"""Mask files: what their pixels mean, numbers of objects or white, for all data sets and verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

from probseg.errors import DataError
from probseg.images import GREY_WEIGHTS, by_strips, opened, strips, upright
from probseg.picture_formats import LOSSY
from probseg.types import IGNORE

# version of the meaning of mask files: with another one, what is kept of them is read again
RULES = 4
# what pixels of masks are said to mean: they number objects, or what is bright is the object
Meaning = Literal["numbers", "black_and_white"]
COLOUR_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")  # modes of masks that are read as colours
# modes of masks that are read as numbers
NUMBER_MODES = (*COLOUR_MODES, "I;16", "I;16L", "I;16B", "I", "F")
# compressions of TIFF, as Pillow names them, that change pixels
LOSSY_COMPRESSIONS = ("jpeg", "tiff_jpeg", "webp")
# value of the tag PhotometricInterpretation of TIFF files whose numbers are turned round
WHITE_IS_ZERO = 0


class Objects(NamedTuple):
    """The objects of a mask file."""

    # uint8, shape `(H, W)`: the number of the object of each pixel, 0 for none, 255 where ignored;
    # in a black-and-white mask 255 on its object
    labels: npt.NDArray[np.uint8]
    # numbers of the objects in ascending order; `[255]` for a black-and-white mask. Empty if
    # nothing is drawn
    numbers: list[int]

    def mask(self, number: int) -> npt.NDArray[np.uint8]:
        """Return the mask of one object, see `object_mask`."""
        return object_mask(self.labels, number)


class _Decoded(NamedTuple):
    picture: Image.Image
    packing: str  # of the pixels in the file, as Pillow names it: "L;4" for 4 bits
    scale: str  # why numbers may differ from the grey values that are read; mostly empty


def read_objects(path: Path, meaning: Meaning | None = None) -> Objects:
    """Read a mask file of the user, and decide what its pixels mean unless that is said.

    A mask is black and white, white on its object, or it numbers objects from 1 to 254, with 0 for
    the background and 255 where ignored. A palette file is black and white if its colours are, in
    whichever order; otherwise its indices are numbers. A file in which that is in doubt is refused.

    A palette or transparency that contradicts the numbers, and numbers that objects cannot have,
    raise a `DataError`.
    """
    labels, certain = _interpret(path, meaning)
    if meaning == "numbers":
        numbers = np.flatnonzero(count_values(labels)).tolist()
        return Objects(labels, [number for number in numbers if number not in (0, IGNORE)])
    return Objects(labels, object_ids(labels, path, certain=certain))


def read_own_labels(path: Path, meaning: Meaning | None = None) -> npt.NDArray[np.uint8]:
    """Read the `labels` of a file in which `read_objects` found objects, without new doubts."""
    return _interpret(path, meaning)[0]


def object_mask(labels: npt.NDArray[np.uint8], number: int) -> npt.NDArray[np.uint8]:
    """Mask of one object: 1 on it, 255 where ignored, 0 elsewhere, other objects included."""
    mask: npt.NDArray[np.uint8] = (labels == number).astype(np.uint8)
    if number != IGNORE:
        mask[labels == IGNORE] = IGNORE
    return mask


def read_labels(path: Path) -> npt.NDArray[np.uint8]:
    """Read a file of a data set that has a whole number 0..255 per pixel: uint8, `(H, W)`.

    Palette files give their indices, 1-bit files 0 and 1, colour files their channel if all three
    are equal; a rotation noted in the EXIF data is carried out.
    """
    return _numbers(_open_mask(path), path)


def read_colours(path: Path) -> npt.NDArray[np.uint8]:
    """Read a mask file as RGB, uint8, shape `(H, W, 3)`; palettes give their colours.

    Grey values are repeated over the channels. Transparency is dropped where it hides nothing, or
    everything alike.
    """
    picture = _open_mask(path).picture
    if picture.mode not in COLOUR_MODES:
        raise DataError(
            f"{path}: expected a mask with 8 bits per channel, got the mode {picture.mode!r}; "
            "save it as an 8-bit PNG"
        )
    colours = by_strips(picture, lambda strip: strip.convert("RGB"))
    _refuse_object_in_alpha(picture, colours, path)
    return colours


def read_grey(path: Path) -> npt.NDArray[np.uint8]:
    """Read a black-and-white mask file, which may be in colour and have a few stray values.

    Returns grey values, uint8, shape `(H, W)`; those above 128 are the object, and there are some.
    """
    colours = read_colours(path)
    grey = np.empty(colours.shape[:2], np.uint8)
    for row, values in zip(grey, colours, strict=True):
        row[:] = np.rint(values @ np.array(GREY_WEIGHTS, np.float32))
    if grey.max() <= 128:
        raise DataError(
            f"{path}: expected an object of value 255, got values up to {int(grey.max())}; for "
            "masks of your own use ImageMaskFolder"
        )
    return grey


def _open_mask(path: Path) -> _Decoded:
    """Open and decode a mask file that holds one picture without losses."""
    with opened(path, path) as picture:
        fault = ""
        if picture.format in (*LOSSY, "MPO") or (
            picture.info.get("compression") in LOSSY_COMPRESSIONS
        ):
            fault = (
                f"is a {picture.format} file, whose compression changes the object numbers near "
                "contours; masks must be lossless, e.g. PNG (redrawn or thresholded: renaming is "
                "not enough)"
            )
        elif getattr(picture, "is_animated", False):  # `n_frames` reads all of them
            fault = (
                "holds several pages or frames, of which one would be read; save each as a mask "
                "of its own, or number the objects of one page"
            )
        tags = getattr(picture, "tag_v2", {})  # of TIFF alone
        white_is_zero = tags.get(ExifTags.Base.PhotometricInterpretation) == WHITE_IS_ZERO
        program = str(tags.get(ExifTags.Base.Software, ""))
        if picture.mode == "1" and white_is_zero and program.startswith("tifffile"):
            fault = (
                "is a TIFF file of an array of truth values, of which tifffile and imageio write "
                "True in black; save it as 8-bit numbers, for instance as "
                "`255 * mask.astype(np.uint8)`"
            )
        if fault:
            raise DataError(f"{path}: {fault}")
        tiles = getattr(picture, "tile", ())
        layout = tiles[0][3] if tiles else ""
        options = layout if isinstance(layout, tuple) and layout else (layout,)
        packing = str(options[0])
        largest, scale = options[-1], ""
        if packing.startswith(("L;2", "L;4")):
            scale = f"{packing[2]} bits per pixel"
        elif white_is_zero:
            scale = "the interpretation WhiteIsZero"
        elif picture.format == "PPM" and isinstance(largest, int) and largest not in (255, 65535):
            scale = f"the largest value {largest}"
        decoded = upright(picture)
        decoded.load()  # as the file is closed
    return _Decoded(decoded, packing, scale)


def _numbers(decoded: _Decoded, path: Path) -> npt.NDArray[np.uint8]:
    """Return the number of each pixel."""
    picture, packing, scale = decoded
    if picture.mode not in NUMBER_MODES or (len(picture.getbands()) > 1 and ";16" in packing):
        kind = f"the mode {picture.mode!r}{' of 16 bits' if ';16' in packing else ''}"
        raise DataError(
            f"{path}: a mask must have one channel with object numbers, got {kind}; save it as a "
            "palette or grey PNG with 8 bits"
        )

    def numbers(strip: Image.Image) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = np.asarray(strip)
        if values.ndim == 3:
            colours = values[..., :3] if picture.mode in ("RGB", "RGBA") else values[..., :1]
            if (colours != colours[..., :1]).any():
                raise DataError(
                    f"{path}: a mask must have one channel with object numbers, but this file "
                    "holds colours; save it as a palette or grey PNG"
                )
            return colours[..., 0]
        small = values.dtype in (np.uint8, bool)
        if not small and not ((values >= 0) & (values <= 255) & (values == np.floor(values))).all():
            raise DataError(
                f"{path}: mask values must be whole numbers in 0..255, got {values.dtype} from "
                f"{values.min()} to {values.max()}; save a black-and-white mask with 8 bits, or "
                "number the objects 1..254"
            )
        return values

    labels = by_strips(picture, numbers)
    # Pillow reads black and white as shown
    if scale and not (
        picture.mode == "1" or (picture.mode == "L" and np.isin(labels, (0, 255)).all())
    ):
        raise DataError(
            f"{path}: is a grey file with {scale}, whose numbers differ from its grey values; save "
            "it as a PNG with 8 bits"
        )
    if picture.mode not in ("P", "PA"):  # the transparency of a palette says nothing of its indices
        _refuse_object_in_alpha(picture, labels, path)
    return labels


def _interpret(path: Path, meaning: Meaning | None) -> tuple[npt.NDArray[np.uint8], bool]:
    """Return the labels of a mask file of the user, and whether they are numbers for certain."""
    if meaning == "black_and_white":
        return np.where(read_colours(path).min(axis=2) > 128, IGNORE, 0).astype(np.uint8), False
    decoded = _open_mask(path)
    labels = _numbers(decoded, path)
    certain = False
    if meaning is None and decoded.picture.mode in ("P", "PA"):
        palette = np.array(decoded.picture.getpalette("RGB") or [], np.int16).reshape(-1, 3)
        labels, certain = _by_palette(labels, palette, path)
        _refuse_object_in_alpha(decoded.picture, labels, path)
    return labels, certain


def _by_palette(
    indices: npt.NDArray[np.uint8], palette: npt.NDArray[np.int16], path: Path
) -> tuple[npt.NDArray[np.uint8], bool]:
    """Decide between the indices of a palette file and its colours.

    Returns labels, uint8, shape `(H, W)`, and whether they are numbers for certain, as those of a
    coloured palette are. Some files use indices beyond their palette, shape `(C, 3)`.
    """
    used = np.flatnonzero(count_values(indices))
    if len(palette) == 0 or used[-1] >= len(palette):
        return indices, False
    colours = palette[used]
    grey = (colours == colours[:, :1]).all(axis=1)
    if (colours == used[:, None]).all():
        return indices, False
    dark, bright = colours.max(axis=1) <= DARK, colours.min(axis=1) >= BRIGHT
    # A picture that is white all over has no black pixel, but a palette without colours.
    extreme = (palette.max(axis=1) <= DARK) | (palette.min(axis=1) >= BRIGHT)
    partner = dark.any() or extreme.all()
    if bright.sum() == 1 and dark.sum() == len(used) - 1 < 2 and partner:
        table = np.zeros(256, np.uint8)
        table[used[bright]] = IGNORE
        return table[indices], False
    first = palette[0].tolist()
    is_dark, is_bright = max(first) <= DARK, min(first) >= BRIGHT
    if grey.all() and (len(used) > 2 or colours[0, 0] > colours[-1, 0]):
        raise DataError(
            f"{path}: is a palette file with grey colours that differ from its numbers (number "
            f"{used[-1]} is grey {colours[-1, 0]}), which leaves open what is meant; save it as a "
            "grey PNG, or give the numbers a coloured palette"
        )
    # Where the first colour is that of no background, black or else white may be that.
    plain = {"black": dark} if is_bright else {"black": dark, "white": bright}
    for name, where in plain.items():
        numbers = used[where & (used != 0) & (used != IGNORE)]
        if len(numbers) and not is_dark:
            raise DataError(
                f"{path}: is a palette file in which the background, number 0, has the colour "
                f"{first}, and {name} is number {numbers[0]}: the program that saved it may have "
                "renumbered the colours; save the mask as a grey PNG, or with black as the first "
                "colour"
            )
    return indices, True


def _refuse_object_in_alpha(
    picture: Image.Image, pixels: npt.NDArray[np.uint8], path: Path
) -> None:
    """Raise if transparency says something else than labels `(H, W)` or colours `(H, W, C)`."""
    if picture.mode not in COLOUR_MODES or not picture.has_transparency_data:
        return
    hidden = clear = 0
    values: set[int] = set()
    for top, strip in strips(picture):
        alpha = np.asarray(strip.convert("RGBA").getchannel("A"))
        shown = pixels[top : top + strip.height].reshape(*alpha.shape, -1).any(axis=2)
        values.update(np.flatnonzero(np.bincount(alpha.ravel())).tolist())
        hidden += int((shown & (alpha < 255)).sum())
        clear += int((alpha < 255).sum())
    if len(values) == 1 or (pixels.any() and not hidden):
        return
    channels = "the channel A (alpha)" if picture.mode in ("LA", "PA", "RGBA") else "the chunk tRNS"
    raise DataError(
        f"{path}: has transparency in {channels} that differs from what its other channels show: "
        f"{hidden} of {clear} transparent pixels are not black "
        "there; save the object as white on black, or as numbers, without transparency"
    )


Labels = npt.NDArray[np.uint8]
Where = npt.NDArray[np.bool_]

# more different values than this in one mask are taken for a grey picture, not object ids
MAX_IDS = 200
# the same for a mask whose numbers change every few pixels, as no outlines of objects do
MAX_IDS_IF_RESTLESS = 16
# more different values than this, with fewer pixels than white, are taken for blurred edges
MAX_SMEARED = 6
# greys that stand for an unknown band in trimaps, as 128 does in GrabCut's
UNKNOWN = range(120, 137)

NEARLY_WHITE = 240

DARK, BRIGHT = 32, 224
"""Values up to the first are taken for black, and from the second on for white, where a file shows
nothing else."""

STRETCHED = 16
"""Least difference of neighbouring grey values for which even ones are taken for numbers that a
program has stretched to 255, so that people see them."""

# pixels from the next number within which 255 is taken for an ignored band along its contour
BAND = 6
DWARFED = 8  # times the pixels of all numbers that white may have at most away from such bands
# share of the middle values with a neighbour above and one below that makes them a slope
BETWEEN = 0.6


class DoubtError(DataError):
    """The values of a mask may be numbers of objects or shades."""

    def __init__(self, path: Path, doubt: str) -> None:
        ways = "say what masks of the folder mean by --data.masks numbers or black_and_white"
        super().__init__(f"{path}: {doubt}; or {ways}")


COUNTED = 1 << 22  # pixels that are counted at once

HINT = (
    "threshold it to 0 and 255 if white is the object; if the numbers are meant, save it as a PNG "
    "with a palette of colours"
)


def count_values(labels: Labels) -> npt.NDArray[np.int64]:
    """Count the pixels of each value: labels uint8 of any shape, result of shape `(256,)`."""
    values, counts = labels.ravel(), np.zeros(256, dtype=np.int64)
    for start in range(0, len(values), COUNTED):  # `bincount` makes eight bytes of each
        counts += np.bincount(values[start : start + COUNTED], minlength=256)
    return counts


def object_ids(labels: Labels, path: Path, *, certain: bool = False) -> list[int]:
    """List the numbers of the objects in labels, uint8, shape `(H, W)`, in ascending order.

    Numbers 1 to 254 are objects and 255 is ignored. A mask that holds 0 and 255 only is a plain
    black-and-white mask: 255 is its object.
    """
    areas = count_values(labels)
    ids = [value for value in np.flatnonzero(areas).tolist() if value != 0]
    if ids in ([], [IGNORE]):
        return ids
    changes = (labels[:, 1:] != labels[:, :-1]).sum() / labels.size
    many = len(ids) > MAX_IDS and not certain  # a palette of colours is taken at its word
    if many or (len(ids) > MAX_IDS_IF_RESTLESS and changes > 0.25):
        doubt: str | None = (
            f"{len(ids)} different values: this looks like a grey picture or a mask saved as JPEG, "
            "not like object numbers 1..254 (255 = ignored); save masks as PNG"
        )
    else:
        doubt = None if certain else _doubt(labels, areas, ids)
    if doubt is not None:
        raise DoubtError(path, doubt)
    return [value for value in ids if value != IGNORE]


def _doubt(labels: Labels, areas: npt.NDArray[np.int64], ids: list[int]) -> str | None:
    """Say why values look like shades of a black-and-white mask, whose object is white."""
    if len(ids) == 2 and ids[0] in UNKNOWN and ids[1] == IGNORE:
        return (
            f"holds 0, {ids[0]} and 255, which is GrabCut's convention ({ids[0]} = unknown) and "
            "not that of a plain folder; write 1 for the object and 255 for ignored pixels"
        )
    objects = [value for value in ids if value != IGNORE]
    if not areas[0] and len(ids) == 2 and ids[0] <= DARK and ids[1] >= BRIGHT:
        return (
            f"holds {ids[0]} and {ids[1]} alone and no 0: this looks like a black-and-white mask "
            f"whose black is {ids[0]}; {HINT}"
        )
    white, rest = areas[NEARLY_WHITE:].sum(), areas[1:NEARLY_WHITE].sum()
    blurred = len(ids) > MAX_SMEARED and objects[0] < 64 and objects[-1] >= 192 and white > rest
    if blurred or _slopes(labels, ids):
        return (
            f"{len(ids)} different values, those between black and white on its contours: this "
            "looks like a black-and-white mask with blurred edges, from JPEG or from a smooth "
            f"change of size; {HINT}"
        )
    gaps = np.diff([0, *ids])
    if IGNORE in ids and len(ids) > 2 and STRETCHED <= gaps.min() >= gaps.max() - 1:
        return (
            f"255 would be ignored, but the values {_shown(ids)} are evenly spaced: this looks "
            f"like the numbers of {len(ids)} objects, stretched so that they can be seen; save the "
            f"numbers 1 to {len(ids)}, or threshold it to 0 and 255 if white is the object"
        )
    if IGNORE in ids and (objects[0] >= NEARLY_WHITE or _led_by_white(labels, areas)):
        return (
            f"255 would be ignored, but has {areas[IGNORE]} pixels, and the numbers "
            f"{_shown(objects)} have {areas[1:IGNORE].sum()}: this looks like a black-and-white "
            f"mask with a few other values; {HINT}"
        )
    return None


def _slopes(labels: Labels, ids: list[int]) -> bool:
    """Whether most pixels between the extreme values lie on a slope, as after smoothing.

    Contours of objects that touch are slopes too, but objects have more than contours. A single
    small number may be a class of contours.
    """
    lowest = int(labels.min())
    middle = [value for value in ids[:-1] if value != lowest]
    if len(middle) == 0 or (len(middle) == 1 and not 16 <= middle[0] < NEARLY_WHITE):
        return False
    inside = labels[1:-1, 1:-1]  # a slope may end at the border of the picture
    between = (inside > lowest) & (inside < ids[-1])
    shifted = (labels[2:, 1:-1], labels[:-2, 1:-1], labels[1:-1, 2:], labels[1:-1, :-2])
    above = np.logical_or.reduce([neighbour > inside for neighbour in shifted])
    below = np.logical_or.reduce([neighbour < inside for neighbour in shifted])
    slope = int((between & above & below).sum())
    return slope > 0 and slope >= BETWEEN * int(between.sum())


def _led_by_white(labels: Labels, areas: npt.NDArray[np.int64]) -> bool:
    """Whether white dwarfs the numbers, or the numbers are a rim that parts it from the rest."""
    white, numbered = labels == IGNORE, (labels > 0) & (labels < IGNORE)
    count = int(areas[1:IGNORE].sum())
    if areas[IGNORE] > DWARFED * count:
        square = np.ones((2 * BAND + 1, 2 * BAND + 1), np.uint8)
        far = white & (cv2.dilate(numbered.astype(np.uint8), square) == 0)
        if far.sum() > DWARFED * count:
            return True
    if areas[IGNORE] <= count:
        return False
    background = labels == 0
    bare = _contacts(white, background)
    parted = _contacts(numbered, background) > 0 or not numbered[1:-1, 1:-1].any()
    return parted and bare <= 0.05 * _contacts(white, numbered)


def _contacts(one: Where, other: Where) -> int:
    """Count the pairs of neighbours of which one pixel is in each of two regions."""
    across = (one[:, 1:] & other[:, :-1]).sum() + (one[:, :-1] & other[:, 1:]).sum()
    along = (one[1:] & other[:-1]).sum() + (one[:-1] & other[1:]).sum()
    return int(across + along)


def _shown(values: list[int]) -> str:
    return ", ".join(map(str, values[:6])) + (", ..." if values[6:] else "")
