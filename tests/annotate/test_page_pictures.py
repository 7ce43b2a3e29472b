"""The picture of the annotation page in the documentation."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from support.pages import needs_browser

SCRIPT = Path(__file__).parents[2] / "docs" / "pictures" / "annotate.py"


def blocks(path):
    """Return the mean colours of blocks of 8 x 8 pixels."""
    picture = Image.open(path).convert("RGB")
    assert picture.size == (1280, 800)
    return np.asarray(picture.resize((160, 100), Image.Resampling.BOX), np.float64)


def test_it_is_of_the_page_as_it_is(tmp_path):
    needs_browser()
    subprocess.run([sys.executable, SCRIPT, "--out", tmp_path / "now.png"], check=True)
    difference = np.abs(blocks(tmp_path / "now.png") - blocks(SCRIPT.with_suffix(".png")))
    # A busy machine paints at other moments: up to 0.01 of the blocks differ then.
    outdated = (difference.max(axis=2) > 8).mean()
    assert outdated < 0.04, f"another page: run `python docs/pictures/{SCRIPT.name}`"
