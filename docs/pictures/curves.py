"""Mean IoU against clicks, of all models for clicks in the zoo, from its index.

`python docs/pictures/curves.py`.
"""

from __future__ import annotations

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from style import GREY, INK, WIDTH, save

from probseg.descriptions import RECOMMENDED
from probseg.paths import zoo_dir
from probseg.zoo.index import Entry, read_index

PROTOCOLS = {
    "gabbur2021": "after a box (gabbur2021)",
    "ritm": "clicks alone (ritm)",
}
CLICKS = (0, 1, 2, 3, 5, 10, 20)
MARKED = RECOMMENDED
"""Architecture whose line is drawn on top, with its standard error."""


def main() -> None:
    entries = [entry for entry in read_index(zoo_dir()).values() if entry.task == "interactive"]
    figure, both = plt.subplots(1, 2, figsize=(WIDTH, 3.4), sharey=True, layout="constrained")
    for axes, (protocol, title) in zip(both, PROTOCOLS.items(), strict=True):
        for number, entry in enumerate(entries):
            _draw(axes, entry, protocol, f"C{number}")
        axes.set(title=f"GrabCut, {title}", xlabel="clicks")
        axes.grid(axis="y", alpha=0.3)
    both[0].set_ylabel("mean IoU in %")
    lines, labels = both[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=2)
    save(figure, "../curves")


def _draw(axes: Axes, entry: Entry, protocol: str, colour: str) -> None:
    """Draw a model's line: all that was measured of it, in percent."""
    found = {k: entry.metrics.get(f"GrabCut/{protocol}/miou@{k}") for k in CLICKS}
    points = {k: metric for k, metric in found.items() if metric is not None}
    means = [100 * metric.value for metric in points.values()]
    errors = [100 * (metric.error or 0.0) for metric in points.values()]
    name = entry.name.split(".")[0]
    if name == MARKED:
        low = [mean - error for mean, error in zip(means, errors, strict=True)]
        high = [mean + error for mean, error in zip(means, errors, strict=True)]
        axes.fill_between(list(points), low, high, color=GREY, alpha=0.3, linewidth=0)
        axes.plot(list(points), means, "o-", color=INK, ms=4, label=name, zorder=3)
    else:
        axes.plot(list(points), means, "o-", color=colour, ms=3, lw=1.2, label=name)


if __name__ == "__main__":
    main()
