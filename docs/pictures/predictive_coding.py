"""Causes that predict points, with prediction errors shared out evenly or by the posterior."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib import pyplot as plt
from style import BLUE, GREY, ORANGE, PALE, WIDTH, save
from torch import Tensor

from probseg.family.predictive_coding import free_energy_descent, normalised_errors

CENTRES = [(-2.0, -0.8), (1.6, -1.5), (0.5, 1.9)]
PRECISION = 4.0
PRIOR = 0.01
STEPS = 60


def main() -> None:
    generator = torch.Generator().manual_seed(3)
    points = torch.cat(
        [torch.tensor(c) + 0.4 * torch.randn(40, 2, generator=generator) for c in CENTRES]
    )[None, None]  # (1, 1, 120, 2)
    start = 0.5 * torch.randn(1, 1, 3, 2, generator=generator)
    paths = {"plain": descend(points, start, even), "normalised": descend(points, start, shared)}
    figure, axes_row = plt.subplots(1, 3, figsize=(WIDTH, 2.6), layout="constrained")
    for axes, (name, (path, energies)) in zip(axes_row, paths.items(), strict=False):
        colour = ORANGE if name == "plain" else BLUE
        axes.plot(*points[0, 0].T, ".", color=GREY, ms=3.5, mew=0, alpha=0.7)
        for k in range(3):
            axes.plot(*path[:, k].T, color=colour, lw=1.4)
            axes.plot(*path[0, k], "o", mfc="white", mec=colour, ms=5)
            axes.plot(*path[-1, k], "o", color=colour, ms=7, mec="white", mew=1)
        axes.set(xticks=[], yticks=[], xlim=(-3.3, 3.0), ylim=(-2.9, 3.1), aspect="equal")
        for spine in axes.spines.values():
            spine.set(visible=True, color=PALE)
        axes.set_title(f"{name} errors")
        axes_row[2].plot(energies, color=colour, label=name)
        print(f"{name}: F from {energies[0]:.1f} to {energies[-1]:.1f}")
    axes_row[2].set(xlabel="step", title="marginalised free energy F", xlim=(0, STEPS))
    axes_row[2].set_ylim(bottom=0)
    axes_row[2].legend()
    save(figure, "predictive_coding")


def descend(
    points: Tensor, start: Tensor, direction_of: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, list[float]]:
    """Follow errors with identity weights; the step is the same for both."""
    states, path, energies = start, [start[0, 0]], []
    identity = torch.eye(2)[None]
    for step in range(STEPS + 1):
        descent = free_energy_descent(
            points, [states], [identity], precisions=[PRECISION], prior_precision=PRIOR
        )
        energies.append(float(descent.free_energy))
        if step < STEPS:
            states = states + 0.001 * (direction_of(points, states) - PRIOR * states)
            path.append(states[0, 0])
    return torch.stack(path), energies


def even(points: Tensor, states: Tensor) -> Tensor:
    """Each cause has a third of each error: classical predictive coding of three causes."""
    return PRECISION * (points.mean(-2, keepdim=True) - states) * points.shape[-2] / 3


def shared(points: Tensor, states: Tensor) -> Tensor:
    """Each error goes to the cause that is likely to have caused the point."""
    return normalised_errors(points, states, precision=PRECISION).bottom_up


if __name__ == "__main__":
    main()
