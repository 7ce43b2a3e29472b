"""Where two pixels of a photograph look, under three priors over edges."""

from __future__ import annotations

import torch
from matplotlib import pyplot as plt
from style import ORANGE, WEIGHTS, WIDTH, coffee, pixels, save, show

from probseg.ops.edges import gaussian_edges
from probseg.ops.priors import DistancePrior, WindowPrior

PRECISION = 8.0
RADIUS = 7
LENGTH = 3.0
QUERIES = {"the rim": (11, 17), "the saucer": (20, 46)}


def main() -> None:
    photo = coffee(40)
    height, width, _ = photo.shape
    colours = pixels(photo)[..., :3]
    priors = {
        "uniform prior": None,
        f"window, radius {RADIUS}": WindowPrior.on_map(height, width, RADIUS),
        f"distance, length {LENGTH:g}": DistancePrior.on_map(height, width, LENGTH),
    }
    figure, grid = plt.subplots(2, 4, figsize=(WIDTH, 2.85), layout="constrained")
    for axes_row, (what, (row, column)) in zip(grid, QUERIES.items(), strict=True):
        show(axes_row[0], photo, "query and photograph" if what == "the rim" else "")
        mark(axes_row[0], row, column)
        axes_row[0].set_ylabel(what)
        index = row * width + column
        for axes, (name, prior) in zip(axes_row[1:], priors.items(), strict=True):
            edges = gaussian_edges(
                colours, colours, query_precision=PRECISION, log_prior="uniform", log_mask=prior
            )
            log_p = edges.log_probability(slice(index, index + 1))[0, 0, 0]  # (H W,)
            entropy = -(log_p.exp() * log_p.where(log_p > -torch.inf, 0.0)).sum()
            print(f"{what}, {name}: as many as {entropy.exp():.0f} equal pixels")
            p = log_p.exp().reshape(height, width)
            show(axes, (p / p.max()).sqrt(), name if what == "the rim" else "", cmap=WEIGHTS)
            mark(axes, row, column)
            axes.set_xlabel(f"as {entropy.exp():.0f} pixels", fontsize=8)
    save(figure, "edges")


def mark(axes: plt.Axes, row: int, column: int) -> None:
    axes.plot(column, row, "o", ms=6, mfc="none", mec="white", mew=2.4)
    axes.plot(column, row, "o", ms=6, mfc="none", mec=ORANGE, mew=1.4)


if __name__ == "__main__":
    main()
