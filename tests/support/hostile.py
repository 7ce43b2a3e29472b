"""A folder of photographs and masks as people have them: odd, broken, and in the wrong place.

`write_hostile` draws it and returns what each file is to all verbs.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from probseg.picture_formats import HEIC_IS_READ

Pixels = npt.NDArray[np.uint8]

USED = "used"
REFUSED = "refused by name"
BARE = "photograph without a mask: left out of trainings, with its name"
STRANDED = "could be used, but for its photograph or mask, which is refused"
EMPTY = "mask without an object"
NESTED = "folder with pictures, which only conversions read"
NO_PICTURE = "no picture, or hidden"

HEIGHT, WIDTH = 24, 32
ORIENTATION = 0x0112
HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


ONLY_SIZES = ("images/cut.jpg", "images/float.tif")
"""Refused photographs whose size can be read, which is all that conversions read."""


class Verdict(NamedTuple):
    """What a file is to all verbs.

    Args:
        kind: One of the constants above.
        objects: In a mask that is used.
    """

    kind: str
    objects: int = 0


class Hostile(NamedTuple):
    """The folder.

    Args:
        root: It has `images/` and `masks/`.
        verdicts: By the paths of all files and folders in the two, relative to `root`.
    """

    root: Path
    verdicts: dict[str, Verdict]

    def of(self, kind: str, folder: str = "") -> list[str]:
        """List the files of a kind in a folder."""
        return [
            file
            for file, verdict in self.verdicts.items()
            if verdict.kind == kind and file.startswith(folder)
        ]


def write_hostile(root: Path) -> Hostile:
    """Draw the folder, of more than 100 files."""
    drawer = _Drawer(root)
    for draw in (_photographs, _names, _masks, _broken, _beside):
        draw(drawer)
    return Hostile(root, drawer.verdicts)


def scene(seed: int, height: int = HEIGHT, width: int = WIDTH) -> Image.Image:
    """A photograph that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def squares(*numbers: int, height: int = HEIGHT, width: int = WIDTH) -> Pixels:
    """A mask with a square of 12 x 12 pixels, or two, of these numbers."""
    labels = np.zeros((height, width), np.uint8)
    for place, number in enumerate(numbers or (255,)):
        labels[6:18, 2 + 14 * place : 14 + 14 * place] = number
    return labels


def smoothed() -> Image.Image:
    """A black-and-white mask with shades of grey on its contour."""
    return Image.fromarray(squares()).resize((WIDTH // 2, HEIGHT // 2)).resize((WIDTH, HEIGHT))


class _Drawer:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.verdicts: dict[str, Verdict] = {}
        for folder in ("images", "masks"):
            (root / folder).mkdir(parents=True)

    def place(self, file: str, kind: str, objects: int = 0) -> Path:
        """Enter a file, and return where it goes."""
        assert file not in self.verdicts, file
        self.verdicts[file] = Verdict(kind, objects)
        return self.root / file

    def photo(
        self, name: str, kind: str = USED, picture: Image.Image | None = None, **save
    ) -> None:
        path = self.place(f"images/{name}", kind)
        (picture or scene(1000 + len(self.verdicts))).save(path, **save)

    def mask(
        self, name: str, kind: str = USED, picture: Image.Image | Pixels | None = None, **save
    ) -> None:
        """Draw a mask, by default black and white; the number of its objects follows."""
        drawn = squares() if picture is None else picture
        path = self.place(f"masks/{name}", kind, 1 if kind == USED else 0)
        (drawn if isinstance(drawn, Image.Image) else Image.fromarray(drawn)).save(path, **save)

    def pair(self, name: str, picture: Image.Image | None = None, **save) -> None:
        """Draw a photograph and its mask."""
        self.photo(name, picture=picture, **save)
        self.mask(f"{Path(name).stem}.png")

    def wrong(self, name: str, picture: Image.Image | Pixels | None = None, **save) -> None:
        """Draw a mask that is refused, and its photograph."""
        self.photo(f"{Path(name).stem}.jpg", STRANDED)
        self.mask(name, REFUSED, picture, **save)

    def content(self, file: str, kind: str, content: bytes) -> None:
        self.place(file, kind).write_bytes(content)


def _rotated(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def _photographs(draw: _Drawer) -> None:
    """Photographs of all formats, modes and orientations."""
    for orientation in range(1, 9):
        size = (WIDTH, HEIGHT) if orientation >= 5 else (HEIGHT, WIDTH)
        for suffix in ("jpg", "tif"):
            picture = scene(orientation + 100 * (suffix == "tif"), *size)
            draw.pair(f"turned{orientation}{suffix}.{suffix}", picture, exif=_rotated(orientation))
    for suffix in ("bmp", "gif", "png", "ppm", "webp", "jpeg", "tiff", "JPG"):
        draw.pair(f"format{suffix}.{suffix}")
    for mode in ("1", "L", "LA", "P", "RGBA"):
        draw.pair(f"mode{mode}.png", scene(200 + len(mode) + ord(mode[0])).convert(mode))
    draw.pair("modeCMYK.jpg", scene(300).convert("CMYK"))
    draw.pair("deep.png", Image.fromarray(np.arange(768, dtype=np.uint16).reshape(24, 32) * 80))
    draw.pair("pages.tif", scene(301), save_all=True, append_images=[scene(302)])
    for name, size in (("row", (1, 300)), ("column", (300, 1))):
        draw.photo(f"{name}.png", picture=scene(303, *size))
        mask = np.zeros(300, np.uint8)
        mask[50:200] = 255
        draw.mask(f"{name}.png", picture=mask.reshape(size))
    draw.photo("bare.jpg", BARE)
    draw.photo("bare too.gif", BARE)


def _names(draw: _Drawer) -> None:
    """Names with signs, accents and numbers, which masks have too."""
    stems = ("a b", "a#b", "a.b", "100%", "-v", "[x]", "it's", "\u65e5\u672c", "end ", "cat_01")
    for stem in stems:
        draw.pair(f"{stem}.png")
    draw.photo(f"{COMPOSED}.jpg")
    draw.mask(f"{DECOMPOSED}_1.png")
    for stem in ("cat", "cat_1", "cat_1_1"):
        draw.photo(f"{stem}.jpg")
    for mask in ("cat", "cat_1", "cat_1_1"):
        draw.mask(f"{mask}.png")
    for mask in ("cat_2", "cat_1_2"):  # further objects of `cat` and `cat_1`
        draw.mask(f"{mask}.png", picture=squares(0, 255))


def _masks(draw: _Drawer) -> None:
    """Masks of all formats and meanings, and some that have none."""
    for number, suffix in enumerate(("PNG", "bmp", "tif", "gif", "pgm"), start=1):
        draw.photo(f"drawn{number}.png")
        draw.mask(f"drawn{number}.{suffix}")
    palette = Image.fromarray(squares(1, 2))
    palette.putpalette([0, 0, 0, 200, 0, 0, 0, 200, 0])
    numbers = Image.fromarray(squares(1, 2).astype(np.uint16))
    for stem, two in (("palette", palette), ("numbers", squares(3, 9)), ("wide", numbers)):
        draw.photo(f"{stem}.jpg")
        draw.mask(f"{stem}.png", picture=two)
        draw.verdicts[f"masks/{stem}.png"] = Verdict(USED, 2)
    grey = Image.fromarray(squares())
    clear = Image.fromarray(np.full((HEIGHT, WIDTH, 4), 255, np.uint8))
    clear.putalpha(grey)
    good = {
        "bit": grey.convert("1"),
        "rgb": grey.convert("RGB"),
        "opaque": grey.convert("RGBA"),
        "adaptive": grey.convert("RGB").quantize(2),
    }
    bad = {
        "alpha": clear,
        "smooth": smoothed(),
        "colours": scene(400),
        "trimap": squares(128, 255),
        "deeper": Image.fromarray(squares().astype(np.uint16) * 200),
        "larger": squares(height=HEIGHT + 1),
    }
    for stem, picture in good.items():
        draw.photo(f"{stem}.jpg")
        draw.mask(f"{stem}.png", picture=picture)
    for stem, picture in bad.items():
        draw.wrong(f"{stem}.png", picture)
    draw.photo("rotated.png")
    draw.mask("rotated.tif", picture=squares(height=WIDTH, width=HEIGHT), exif=_rotated(6))
    draw.wrong("lossy.jpg")
    draw.wrong("web.webp")
    draw.wrong("renamed.png", format="JPEG")
    draw.wrong("frames.tif", save_all=True, append_images=[Image.fromarray(squares(1))])
    draw.photo("nothing.jpg", BARE)
    draw.mask("nothing.png", EMPTY, squares(0))
    draw.pair("some.jpg")
    draw.mask("some_2.png", EMPTY, squares(0))
    draw.photo("twice.png")
    draw.mask("twice.bmp")
    draw.mask("twice.png", REFUSED)
    draw.mask("orphan_1.png", REFUSED)


def _broken(draw: _Drawer) -> None:
    """Photographs and masks that cannot be read."""
    whole = {"JPEG": io.BytesIO(), "PNG": io.BytesIO()}
    for kind, buffer in whole.items():
        scene(500).save(buffer, kind)
    contents = {
        "cut.jpg": whole["JPEG"].getvalue()[:900],
        "short.png": whole["PNG"].getvalue()[:600],
        "empty.jpg": b"",
        "text.jpg": b"<html>404 Not Found</html>",
        "renamed_phone.jpg": HEIC,
    }
    for name, content in contents.items():
        draw.content(f"images/{name}", REFUSED, content)
        draw.mask(f"{Path(name).stem}.png", STRANDED)
        mask = f"{Path(name).stem}_mask.png"
        draw.photo(mask, STRANDED)
        draw.content(f"masks/{mask}", REFUSED, content)
    draw.photo("float.tif", REFUSED, Image.fromarray(np.ones((HEIGHT, WIDTH), np.float32)))
    if not HEIC_IS_READ:
        draw.content("images/phone.heic", REFUSED, HEIC)
        draw.mask("phone.png", REFUSED)  # its photograph is not there for any reader
    draw.content("images/raw.CR2", REFUSED, b"II*\0")
    draw.photo("phone_mask.jpg", STRANDED)
    draw.content("masks/phone_mask.heic", REFUSED, HEIC)
    draw.pair("twin.jpg")
    draw.photo("twin.png", REFUSED)
    for folder, stem in (("images", "folder"), ("masks", "folder_mask")):
        draw.place(f"{folder}/{stem}.png", REFUSED).mkdir()
    draw.photo("folder_mask.jpg", STRANDED)
    draw.place("images/gone.png", REFUSED).symlink_to("not there.png")
    draw.photo("gone_mask.png", STRANDED)
    draw.place("masks/gone_mask.png", REFUSED).symlink_to("not there.png")
    if hasattr(os, "geteuid") and os.geteuid() != 0:  # root may read everything
        draw.photo("locked.png", REFUSED)
        (draw.root / "images" / "locked.png").chmod(0)


def _beside(draw: _Drawer) -> None:
    """Links that hold, and files and folders that are no pictures."""
    kept = draw.root / "kept"
    kept.mkdir()
    scene(600).save(kept / "photo.png")
    Image.fromarray(squares()).save(kept / "mask.png")
    draw.place("images/linked.png", USED).symlink_to("../kept/photo.png")
    draw.place("masks/linked.png", USED, 1).symlink_to("../kept/mask.png")
    for folder in ("images", "masks"):
        nested = draw.place(f"{folder}/nested", NESTED)
        nested.mkdir()
        (scene(601) if folder == "images" else Image.fromarray(squares())).save(nested / "a.png")
        for name in ("Thumbs.db", ".DS_Store", "._cat.png", "desktop.ini", "notes.txt"):
            draw.content(f"{folder}/{name}", NO_PICTURE, b"\0\5\x16\7")


def files_in(root: Path) -> Iterator[str]:
    """Yield what the folders of photographs and masks hold, relative to `root`."""
    for folder in ("images", "masks"):
        for path in sorted((root / folder).iterdir()):
            yield f"{folder}/{path.name}"
