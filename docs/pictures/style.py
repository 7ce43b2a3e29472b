"""What the pictures of docs/family share: photographs, colours, fonts, and where files go.

Each script draws one of them: `python docs/pictures/edges.py`.
"""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from PIL import Image
from skimage import data
from torch import Tensor

IMAGES = Path(__file__).resolve().parents[1] / "images" / "family"

INK, GREY, PALE = "#2b2f36", "#8b929c", "#dfe3e8"
BLUE, ORANGE, GREEN, PURPLE = "#2f6db3", "#e07b2e", "#3b9270", "#8a5fb0"
WEIGHTS = LinearSegmentedColormap.from_list(
    "weights", ["#ffffff", "#c9ddf2", "#74a9d8", "#2f6db3", "#12305c"]
)
"""White for nothing, dark blue for all of it."""

WIDTH = 7.0
"""Inches; at 150 pixels per inch, one and a half times the width of the page."""

mpl.use("agg")
plt.rcParams.update(
    {
        "axes.edgecolor": GREY,
        "axes.labelcolor": INK,
        "axes.linewidth": 0.8,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": INK,
        "axes.titlesize": 9.5,
        "figure.constrained_layout.h_pad": 0.06,
        "figure.dpi": 150,
        "figure.facecolor": "white",
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "legend.fontsize": 8.5,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "text.color": INK,
        "xtick.color": GREY,
        "xtick.labelcolor": INK,
        "ytick.color": GREY,
        "ytick.labelcolor": INK,
    }
)


def coffee(height: int = 40) -> np.ndarray:
    """Return a photograph of a cup of this height, 3:2, `(H, W, 3)` in [0, 1]."""
    photo = Image.fromarray(data.coffee())
    small = photo.resize((3 * height // 2, height), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32) / 255.0


def pixels(photo: np.ndarray, position: float = 1.0) -> Tensor:
    """Return colour and position of each pixel as tokens `(1, 1, H W, 5)`.

    Channels have zero mean and unit variance, positions times `position`.
    """
    height, width, _ = photo.shape
    colours = standardised(torch.from_numpy(photo).reshape(-1, 3))
    places = torch.cartesian_prod(torch.arange(height), torch.arange(width)).float()
    places = standardised(places) * position
    return torch.cat([colours, places], dim=-1)[None, None]


def standardised(channels: Tensor) -> Tensor:
    """Give channels `(N, D)` zero mean and unit variance."""
    return (channels - channels.mean(0)) / channels.std(0)


def show(axes: Axes, picture: np.ndarray | Tensor, title: str = "", **options: object) -> None:
    """Show a map or a photograph without ticks, in a thin frame."""
    axes.imshow(np.asarray(picture), interpolation="nearest", **options)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title)
    for spine in axes.spines.values():
        spine.set(visible=True, color=PALE)


def save(figure: Figure, name: str) -> None:
    """Write a picture, in 256 colours where that is enough to keep it small."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    figure.savefig(buffer)
    plt.close(figure)
    picture = Image.open(buffer).convert("RGB")
    path = IMAGES / f"{name}.png"
    picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"wrote {path.relative_to(IMAGES.parents[2])}, {path.stat().st_size // 1000} kB")
