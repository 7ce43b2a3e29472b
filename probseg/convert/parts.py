"""What readers hand to writers, and the account of what a conversion finds, writes and loses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Generic, NamedTuple, TypeVar
from xml.etree import ElementTree

import ijson

from probseg.data.layout import leads_outside, picture_files
from probseg.errors import DataError
from probseg.formats import polygons
from probseg.formats.mask_names import refuse_name
from probseg.formats.regions import Region, overlap
from probseg.picture_formats import unread_files
from probseg.texts import count as number_of

OBJECTS, IMAGES = "objects", "images"


@contextmanager
def reading(path: Path, what: str, hint: str = "export it again") -> Iterator[None]:
    """Name the file in errors about its content."""
    try:
        yield
    except (
        *(KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError),
        *(StopIteration, ElementTree.ParseError, ijson.JSONError),
    ) as error:
        if isinstance(error, DataError) and str(path) in str(error):
            raise
        raise DataError(f"{path}: cannot be read as {what} ({error!r:.200}); {hint}") from error


def inside(name: str, field: str = "file name") -> str:
    """Return the path of an image, which must be in the folder of the images."""
    if leads_outside(name):
        raise ValueError(
            f"{field!r} must be the path of a file, and {name!r} leads to no file inside the "
            "folder of the images"
        )
    return name


@dataclass
class Ledger:
    """The account of a conversion: each object and image that is found is written or lost.

    A reader calls `find` with the numbers in its files, not with what it makes of them. Whoever
    leaves out an object or image calls `lose`; a writer calls `write` for what is in its files.
    `lines` refuses an account that does not balance.
    """

    found: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    classes: dict[str, None] = field(default_factory=dict)  # names that the source lists, in order
    used: set[str] = field(default_factory=set)  # names of classes of objects
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    outlines: int = 0
    changed_outlines: int = 0
    sum_iou: float = 0.0
    worst_iou: float = 1.0

    def find(self, *, images: int = 0, objects: int = 0) -> None:
        """Enter images and objects of the source."""
        self.found[IMAGES] += images
        self.found[OBJECTS] += objects

    def write(self, *, images: int = 0, objects: int = 0) -> None:
        """Enter images and objects of the target."""
        self.written[IMAGES] += images
        self.written[OBJECTS] += objects

    def lose(self, why: str, *, images: int = 0, objects: int = 0) -> None:
        """Enter images and objects that are left out, and words that say which, after "objects"."""
        self.lost[IMAGES, why] += images
        self.lost[OBJECTS, why] += objects

    def change(self, what: str, count: int = 1) -> None:
        """Enter what images and objects lose that are written, such as names."""
        self.changes[what] += count

    def outline(self, iou: float) -> None:
        """Enter the IoU of an object with what a reader draws from the outline written."""
        self.outlines += 1
        self.changed_outlines += iou < 1
        self.sum_iou += iou
        self.worst_iou = min(self.worst_iou, iou)

    def check(self) -> None:
        """Raise an `AssertionError` unless found is written and lost: a fault of probseg."""
        for thing in (OBJECTS, IMAGES):
            lost = sum(count for (what, _), count in self.lost.items() if what == thing)
            if self.found[thing] != self.written[thing] + lost:
                raise AssertionError(
                    f"{self.found[thing]} {thing} were found, but {self.written[thing]} are "
                    f"written and {lost} counted as lost; please report this fault of probseg"
                )

    def lines(self) -> list[str]:
        """Describe what is lost, one thing per line; none only if nothing is.

        Raises:
            AssertionError: If the account does not balance.
        """
        self.check()
        lines = [
            f"{number_of(count, thing[:-1])} {why}"
            for (thing, why), count in self.lost.items()
            if count
        ]
        lines += [f"{what}: {count}" for what, count in self.changes.items() if count]
        if self.changed_outlines:
            lines.append(
                f"masks changed by their outlines: {self.changed_outlines} of {self.outlines}, "
                f"IoU of the round trip {self.sum_iou / self.outlines:.4f} in the mean, "
                f"{self.worst_iou:.4f} at worst"
            )
        return lines


Written = TypeVar("Written")

NO_NAME = "object"  # class of objects of formats without names

UNUSED = "names of classes without objects"


class LabelledRegion(NamedTuple):
    """One object."""

    region: Region  # its pixels
    label: str = NO_NAME  # name of its class
    score: float | None = None  # of a prediction, higher is surer; None where there is none


class AnnotatedImage(NamedTuple):
    """One image with its objects."""

    file: str  # path of the photograph inside the folder of images, with `/`
    size: tuple[int, int]  # `(H, W)`
    objects: Iterable[LabelledRegion]  # in the order of the file, drawn one at a time


class Request(NamedTuple):
    """Options of a conversion.

    Args:
        images: Folder of the photographs, for formats that have neither their names nor sizes.
        tolerance: Of outlines, in pixels; see `probseg.formats.polygons.trace`.
        storage: Folder of the photographs inside the document root of Label Studio.
        ids_of: COCO file whose ids of images and categories other ones take.
    """

    images: Path | None = None
    tolerance: float = 1.0
    storage: PurePosixPath | None = None
    ids_of: Path | None = None


Reader = Callable[[Path, Request, Ledger], Iterator[AnnotatedImage]]
Writer = Callable[[Path, Iterable[AnnotatedImage], Request, Ledger], None]


def stems(images: Iterable[AnnotatedImage]) -> Iterator[tuple[AnnotatedImage, PurePosixPath]]:
    """Yield images with their paths without suffix."""
    seen: set[PurePosixPath] = set()
    for image in images:
        refuse_name(image.file)
        stem = PurePosixPath(image.file).with_suffix("")
        if stem in seen:
            raise DataError(
                f"{image.file}: another image is called {stem}, too; rename one of them"
            )
        seen.add(stem)
        yield image, stem


class Outlined(NamedTuple, Generic[Written]):
    """Outlines of an object, and how a format writes them."""

    parts: list[polygons.Polygon]
    written: Written


def outlined(
    item: LabelledRegion,
    request: Request,
    ledger: Ledger,
    write: Callable[[list[polygons.Polygon]], Written],
    draw: Callable[[Written], Region],
) -> Outlined[Written] | None:
    """Return the outlines of an object; None, counted as lost, if they enclose no pixel."""
    for tolerance in dict.fromkeys((request.tolerance, 0.0)):  # of which thin objects need none
        parts = polygons.trace(item.region, tolerance)
        if not parts:
            continue
        written = write(parts)
        region = draw(written)
        if region.area:
            ledger.outline(overlap(region, item.region))
            return Outlined(parts, written)
    ledger.lose("whose outline encloses no pixel", objects=1)
    return None


class PairedFolder(NamedTuple):
    """A folder of masks or texts, and the photographs in the folder of the same name."""

    inside: str  # its path inside the whole folder, with `/` at the end; empty for the whole folder
    files: dict[str, Path]  # the masks or texts by their stems
    photos: dict[str, Path]  # the photographs by their stems
    images: Path  # the folder of the photographs


def folders(
    place: Path,
    request: Request,
    ledger: Ledger,
    name: str,
    listed: Callable[[Path], dict[str, Path]],
    known: Collection[Path] = (),
) -> list[PairedFolder]:
    """List a folder and the folders in it, in the order of their names.

    Hidden files and folders are left out; other files of another kind, except those that are
    `known`, are counted as lost.
    """
    images = request.images
    listing = []
    for folder in [place, *sorted(path for path in place.rglob("*") if path.is_dir())]:
        inside = folder.relative_to(place)
        if images is None or any(part.startswith(".") for part in inside.parts):
            continue
        files, photos = listed(folder), picture_files(images / inside)
        unread = len(unread_files(images / inside))
        ledger.find(images=unread)
        ledger.lose("in formats of photographs that are not read", images=unread)
        others = set(folder.glob("[!.]*")) - {*files.values(), *photos.values(), *known}
        ledger.change("files that are not read", sum(path.is_file() for path in others))
        prefix = "" if folder == place else f"{inside.as_posix()}/"
        listing.append(PairedFolder(prefix, files, photos, images / inside))
    if not any(folder.photos for folder in listing):
        raise DataError(
            f"`images` must be the folder of the photographs, got {images}: the format {name} has "
            "neither their names nor their sizes"
        )
    if not any(folder.files for folder in listing):
        raise DataError(f"{place}: has no file of the format {name}; check the folder")
    return listing
