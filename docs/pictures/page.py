"""The moving picture of the README: the annotation page at work.

`python docs/pictures/page.py` writes `docs/images/page.webp`. As in `annotate.py` a simulated
annotator clicks through two photographs that come with scikit-image; the others have their true
masks, and at the end all are reviewed in the grid. It needs chromium and Playwright.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from annotate import CHROMIUM, next_clicks, opened, photographs, served, settle, show
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page, sync_playwright

from probseg.types import Sample

FILM = Path(__file__).resolve().parents[1] / "images" / "page.webp"
SIZE = (960, 600)
STEPS, STEP = 3, 70
"""Pictures of the pointer on its way to a click, and milliseconds of each."""

SHORT, LONG, END = 450, 800, 2600
"""Milliseconds of a key, of an answer, and of the last picture."""

POINTER = ((0, 0), (0, 17), (4, 13), (7, 20), (10, 19), (7, 12), (12, 12))


class Film:
    """Pictures of the page with the pointer, and what is pressed.

    Args:
        page: The page.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.pictures: list[Image.Image] = []
        self.times: list[int] = []
        self.pointer = (420.0, 420.0)

    def take(self, milliseconds: int, caption: str = "") -> None:
        """Add what the page shows, with a caption under the photograph."""
        shot = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        draw = ImageDraw.Draw(shot)
        x, y = self.pointer
        draw.polygon([(x + dx, y + dy) for dx, dy in POINTER], fill="black", outline="white")
        if caption:
            font = ImageFont.load_default(26)
            half = font.getlength(caption) / 2 + 18
            middle = shot.width * 0.45
            area = [middle - half, 660, middle + half, 706]
            draw.rounded_rectangle(area, radius=9, fill=(20, 23, 28))
            draw.text((middle, 683), caption, (255, 255, 255), font, anchor="mm")
        self.pictures.append(shot.resize(SIZE, Image.Resampling.LANCZOS))
        self.times.append(milliseconds)

    def click(self, x: float, y: float, positive: bool) -> None:
        """Move the pointer to a place, click, and show the answer."""
        before = self.pointer
        self.page.mouse.move(x, y)
        settle(self.page)
        for step in range(1, STEPS + 1):
            share = step / STEPS
            self.pointer = (
                before[0] + share * (x - before[0]),
                before[1] + share * (y - before[1]),
            )
            self.take(STEP)
        self.page.mouse.click(x, y, button="left" if positive else "right")
        settle(self.page)
        self.take(LONG, "left click: object" if positive else "right click: background")

    def press(self, key: str, caption: str, milliseconds: int = SHORT) -> None:
        """Press a key and show what it does."""
        self.page.keyboard.press(key)
        settle(self.page)
        self.page.wait_for_timeout(600)
        self.take(milliseconds, f"{key.upper() if len(key) == 1 else key}: {caption}")

    def save(self, path: Path) -> None:
        """Write the pictures as WebP."""
        self.times[-1] = END
        options = {"save_all": True, "loop": 0, "quality": 70, "method": 6}
        first, *rest = self.pictures
        first.save(path, append_images=rest, duration=self.times, **options)
        print(f"wrote {path.name}, {len(self.times)} pictures, {path.stat().st_size // 1000} kB")


ANNOTATED = ("cat", "coffee")


@contextmanager
def begun(samples: Mapping[str, Sample]) -> Iterator[Film]:
    """Serve the photographs, those that are not annotated with masks; yields an empty film."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        masks = Path(place) / "photos" / "masks"
        masks.mkdir(parents=True)
        for number, sample in enumerate(samples.values()):
            if sample.photo not in ANNOTATED:
                Image.fromarray(sample.mask).save(masks / f"{sample.photo}_{number}.png")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with served(Path(place), samples) as address:
            page = opened(browser, address)
            page.evaluate("probsegPage.clicker.readout.style.visibility = 'hidden'")
            yield Film(page)
        browser.close()


def annotate_cat(film: Film, samples: Mapping[str, Sample]) -> None:
    """Annotate the first photograph, and go to the next one."""
    show(film.page, "cat")
    film.page.wait_for_timeout(3000)
    film.take(LONG)
    for click in next_clicks(film.page, samples["cat"], 2):
        film.click(*click)
    film.press("1", "label")
    film.press("d", "done, next photograph", LONG)


def annotate_coffee(film: Film, samples: Mapping[str, Sample]) -> None:
    """Annotate three objects of the second photograph."""
    film.page.wait_for_timeout(3000)
    for key, name, clicks in (("4", "spoon", 2), ("2", "cup", 3), ("3", "saucer", 5)):
        for click in next_clicks(film.page, samples[f"coffee/{name}"], clicks):
            film.click(*click)
        film.press(key, "label")
        film.press("Enter", "finish the object", LONG)
    film.press("d", "done", LONG)


def review(film: Film) -> None:
    """Look at all masks in the grid."""
    film.press("o", "overview of all masks", LONG)
    film.press("ArrowLeft", "the photograph before", SHORT)
    film.press("a", "accept", LONG)
    film.press("a", "accept", LONG)
    film.press("r", "send back", END)


def main() -> None:
    samples = photographs()
    with begun(samples) as film:
        annotate_cat(film, samples)
        annotate_coffee(film, samples)
        review(film)
    film.save(FILM)


if __name__ == "__main__":
    main()
