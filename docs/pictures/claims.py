"""All tested differences of the reproduction report, with their intervals.

`python docs/pictures/claims.py` draws `benchmarks/results/paper_frozen_claims.csv`.
"""

from __future__ import annotations

import csv

from matplotlib import pyplot as plt
from style import BLUE, GREY, INK, WIDTH, save

from probseg.paths import zoo_dir

MEASURED = zoo_dir().parent / "benchmarks" / "results" / "paper_frozen_claims.csv"


def main() -> None:
    with MEASURED.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure, axes = plt.subplots(figsize=(WIDTH, 0.19 * len(rows) + 0.6), layout="constrained")
    places = range(len(rows), 0, -1)
    for place, row in zip(places, rows, strict=True):
        colour = GREY if row["verdict"] == "not shown" else BLUE
        low, high = float(row["low"]), float(row["high"])
        axes.plot([low, high], [place, place], color=colour, lw=1.6, solid_capstyle="butt")
        axes.plot(float(row["difference"]), place, "o", color=colour, ms=4)
    axes.axvline(0, color=INK, lw=0.8)
    axes.set(
        yticks=places,
        yticklabels=[f"{row['better']} - {row['than']}, {row['clicks']} clicks" for row in rows],
        ylim=(0.3, len(rows) + 0.7),
        xlabel="difference of mean IoU, points, with its 95 % interval",
    )
    axes.tick_params(axis="y", length=0, labelsize=7)
    axes.grid(axis="x", alpha=0.3)
    save(figure, "../claims")


if __name__ == "__main__":
    main()
