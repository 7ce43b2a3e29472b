"""Held-out clicks against what a network has seen in its training.

`python docs/pictures/progress.py` draws `benchmarks/results/progress_lite0_unet_prop.csv`.
"""

from __future__ import annotations

import csv

from matplotlib import pyplot as plt
from style import BLUE, INK, ORANGE, WIDTH, save

from probseg.paths import zoo_dir

MEASURED = zoo_dir().parent / "benchmarks" / "results" / "progress_lite0_unet_prop.csv"


def main() -> None:
    with MEASURED.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    hours = [float(row["hours"]) for row in rows]
    figure, axes = plt.subplots(figsize=(WIDTH * 0.7, 3.0), layout="constrained")
    for target, colour in (("80", BLUE), ("85", ORANGE), ("90", INK)):
        clicks = [float(row[f"noc@{target}"]) for row in rows]
        errors = [float(row[f"error@{target}"]) for row in rows]
        axes.errorbar(hours, clicks, errors, fmt="o-", color=colour, ms=4, label=f"NoC@{target}")
    axes.set(xlabel="hours of training", ylabel="clicks, held-out objects", ylim=(0, None))
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    save(figure, "../progress")


if __name__ == "__main__":
    main()
