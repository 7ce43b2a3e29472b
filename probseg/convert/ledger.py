"""What a conversion finds, writes and loses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

OBJECTS, IMAGES = "objects", "images"


@dataclass
class Ledger:
    """The account of a conversion: each object and image that is found is written or lost.

    A reader calls `find` with the numbers in its files, not with what it makes of them. Whoever
    leaves out an object or image calls `lose`; a writer calls `write` for what is in its files.
    `lines` refuses an account that does not balance.
    """

    found: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
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
                msg = (
                    f"{self.found[thing]} {thing} were found, but {self.written[thing]} are "
                    f"written and {lost} counted as lost; please report this fault of probseg"
                )
                raise AssertionError(msg)

    def lines(self) -> list[str]:
        """Describe what is lost, one thing per line; none only if nothing is.

        Raises:
            AssertionError: If the account does not balance.
        """
        self.check()
        lines = [f"{count} {thing} {why}" for (thing, why), count in self.lost.items() if count]
        lines += [f"{what}: {count}" for what, count in self.changes.items() if count]
        if self.changed_outlines:
            lines.append(
                f"masks changed by their outlines: {self.changed_outlines} of {self.outlines}, "
                f"IoU of the round trip {self.sum_iou / self.outlines:.4f} in the mean, "
                f"{self.worst_iou:.4f} at worst"
            )
        return lines
