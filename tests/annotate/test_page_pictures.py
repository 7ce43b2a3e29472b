"""The pictures of the annotation page in the documentation."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.pages import needs_browser

pytestmark = pytest.mark.process

SCRIPTS = Path(__file__).parents[2] / "docs" / "pictures"


def outdated(now, before):
    """Return the share of the blocks of 8 x 8 pixels whose colours differ, and show."""
    assert now.size == before.size
    grid = tuple(side // 8 for side in now.size)
    small = [picture.convert("RGB").resize(grid, Image.Resampling.BOX) for picture in (now, before)]
    first, second = (np.asarray(picture, np.float64) for picture in small)
    return (np.abs(first - second).max(axis=2) > 8).mean()


def test_the_picture_is_of_the_page_as_it_is(tmp_path):
    needs_browser()
    script = SCRIPTS / "annotate.py"
    subprocess.run([sys.executable, script, "--out", tmp_path / "now.png"], check=True)
    share = outdated(Image.open(tmp_path / "now.png"), Image.open(script.with_suffix(".png")))
    # A busy machine paints at other moments: up to 0.01 of the blocks differ then.
    assert share < 0.04, f"another page: run `python docs/pictures/{script.name}`"


MOMENTS = {"the page": 0, "a click": 4, "the next photograph": 10}
"""Pictures of the film in which nothing moves, neither the pointer nor a preview under it."""


def test_the_film_is_of_the_page_as_it_is(monkeypatch):
    needs_browser()
    monkeypatch.syspath_prepend(SCRIPTS)
    import page

    samples = page.photographs()
    with page.begun(samples) as now:
        page.annotate_cat(now, samples)
    shares = {}
    with Image.open(page.FILM) as film:
        for name, place in MOMENTS.items():
            film.seek(place)
            shares[name] = outdated(now.pictures[place], film)
    # A busy machine turns previews off, and the page says so: up to 0.01 differ then.
    assert max(shares.values()) < 0.03, f"{shares}: run `python docs/pictures/page.py`"
