"""What readers hand to writers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Generic, NamedTuple, TypeVar

from probseg.convert.ledger import Ledger
from probseg.errors import DataError
from probseg.formats import polygons
from probseg.formats.mask_names import refuse_name
from probseg.formats.regions import Region, overlap

Written = TypeVar("Written")

NO_NAME = "object"
"""Class of objects of formats without names."""

UNUSED = "names of classes without objects"


class LabelledRegion(NamedTuple):
    """One object.

    Args:
        region: Its pixels.
        label: Name of its class.
        score: Of a prediction, higher is surer; None where there is none.
    """

    region: Region
    label: str = NO_NAME
    score: float | None = None


class AnnotatedImage(NamedTuple):
    """One image with its objects.

    Args:
        file: Path of the photograph inside the folder of images, with `/`.
        size: `(H, W)`.
        objects: In the order of the file, drawn one at a time.
    """

    file: str
    size: tuple[int, int]
    objects: Iterable[LabelledRegion]


class Request(NamedTuple):
    """Options of a conversion.

    Args:
        images: Folder of the photographs, for formats that have neither their names nor sizes.
        tolerance: Of outlines, in pixels; see `probseg.formats.polygons.trace`.
        storage: Folder of the photographs inside the document root of Label Studio.
        ids_of: COCO file whose ids of images and categories results take.
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
            msg = f"{image.file}: another image is called {stem}, too; rename one of them"
            raise DataError(msg)
        seen.add(stem)
        yield image, stem


class Outlined(NamedTuple, Generic[Written]):
    """Outlines of an object, and how a format writes them."""

    parts: list[polygons.Polygon]
    written: Written


def outlined(
    one: LabelledRegion,
    request: Request,
    ledger: Ledger,
    write: Callable[[list[polygons.Polygon]], Written],
    draw: Callable[[Written], Region],
) -> Outlined[Written] | None:
    """Return the outlines of an object; None, counted as lost, if they enclose no pixel."""
    for tolerance in dict.fromkeys((request.tolerance, 0.0)):  # of which thin objects need none
        parts = polygons.trace(one.region, tolerance)
        if not parts:
            continue
        written = write(parts)
        drawn = draw(written)
        if drawn.area:
            ledger.outline(overlap(drawn, one.region))
            return Outlined(parts, written)
    ledger.lose("whose outline encloses no pixel", objects=1)
    return None
