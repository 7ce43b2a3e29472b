"""Pictures of semantic segmentation: truth and prediction in class colours, and maps of bases.

Nothing here touches matplotlib's global state, so it works without a display and in threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from probseg.callbacks.visual import CropLog
from probseg.formats.colours import distinct_colours
from probseg.reports.figures import draw_picture
from probseg.semantic.datamodule import SemanticBatch
from probseg.types import IGNORE

Pixels = npt.NDArray[np.uint8]

TILE = 2.2  # width of a picture in inches
TITLE = 0.25  # height of the line above a row of pictures in inches
LINE = 0.19  # height of a line of the legend in inches
OF_IGNORED = (255, 255, 255)
HEAT = colormaps["inferno"]


class SemanticPicture(NamedTuple):
    """A photograph with ground truth and prediction."""

    name: str  # within its data set
    image: Pixels  # RGB, (H, W, 3)
    labels: Pixels  # class numbers and 255 for ignored pixels, (H, W)
    prediction: Pixels  # class numbers, (H, W)
    maps: npt.NDArray[np.float32]  # responsibilities of some bases, (n, H, W); n may be 0


def class_colours(classes: Sequence[str]) -> Pixels:
    """Return the colours of classes, uint8 of shape `(C, 3)`.

    They depend on the numbers of the classes alone, but for one named `background`: it is black.
    """
    colours = distinct_colours(len(classes))
    colours[[name == "background" for name in classes]] = 0
    return colours


def coloured(labels: Pixels, colours: Pixels) -> Pixels:
    """Return labels `(H, W)` as an RGB picture `(H, W, 3)`; ignored pixels are white."""
    table = np.zeros((256, 3), np.uint8)
    table[: len(colours)] = colours
    table[IGNORE] = OF_IGNORED
    return table[labels]


def draw_sheet(
    path: Path,
    pictures: Sequence[SemanticPicture],
    classes: Sequence[str],
    bases: Sequence[int] = (),
) -> None:
    """Draw photographs, one per row: the truth, the prediction, and the maps of some bases.

    Maps lie as heat over the photograph, each from its least to its greatest value, as in Li et
    al. (2019, Fig. 5). Below is a legend of the classes that occur.
    """
    colours = class_colours(classes)
    maps = [values for picture in pictures for values in (picture.labels, picture.prediction)]
    seen = {number for values in maps for number in np.unique(values).tolist()}
    legend = [
        Patch(fc=colours[number] / 255, label=classes[number]) for number in sorted(seen - {IGNORE})
    ]
    if IGNORE in seen:
        legend.append(Patch(fc="white", ec="grey", lw=0.5, label="ignored"))
    shapes = [picture.labels.shape for picture in pictures]
    heights = [min(1.6, max(0.4, height / width)) for height, width in shapes]  # by width of a tile
    columns = 3 + len(bases)
    lines = -(-len(legend) // columns)
    size = (TILE * columns, TILE * sum(heights) + TITLE * len(pictures) + LINE * lines + 0.1)
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    grid = figure.subplots(len(pictures), columns, squeeze=False, height_ratios=heights)
    for row, picture in zip(grid, pictures, strict=True):
        draw_picture(row[0], picture.image, picture.name)
        draw_picture(row[1], coloured(picture.labels, colours), "truth")
        draw_picture(row[2], coloured(picture.prediction, colours), "prediction")
        for axes, base, heat in zip(row[3:], bases, picture.maps, strict=True):
            least, most = float(heat.min()), float(heat.max())
            level = (heat - least) / (most - least) if most > least else np.zeros_like(heat)
            grey = cv2.cvtColor(picture.image, cv2.COLOR_RGB2GRAY)[..., None] / 255
            mixed = np.round(255 * (0.35 * grey + 0.65 * HEAT(level)[..., :3])).astype(np.uint8)
            draw_picture(axes, mixed, f"basis {base}, {least:.2f} to {most:.2f}")
    figure.legend(
        handles=legend, loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )
    FigureCanvasAgg(figure).print_png(path)


class SemanticVisualLog(CropLog):
    """Shows training crops with the classes of their pixels: crop, truth and prediction.

    Args:
        every_n_epochs: How often.
        max_images: Number of crops on a sheet.
    """

    def row(
        self, outputs: Mapping[str, Any], batch: SemanticBatch, number: int
    ) -> npt.NDArray[np.uint8]:
        """Draw one crop of a batch."""
        classes = outputs["classes"]
        assert isinstance(classes, Tensor), "training_step returns the predicted classes"
        image = batch.images[number].permute(1, 2, 0).cpu().numpy()
        colours = class_colours([""] * IGNORE)
        truth = coloured(batch.labels[number].cpu().numpy(), colours)
        predicted = coloured(classes[number].cpu().numpy(), colours)
        return np.concatenate([image, truth, predicted], axis=1)
