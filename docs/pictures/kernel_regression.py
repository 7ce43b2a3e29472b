"""Kernel regression of a curve: three bandwidths, and the one that leaves out the least."""

from __future__ import annotations

import math

import torch
from matplotlib import pyplot as plt
from style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, WIDTH, save
from torch import Tensor

from probseg.family.kernels import nadaraya_watson

COUNT = 60
NOISE = 0.25


def main() -> None:
    generator = torch.Generator().manual_seed(1)
    places = torch.rand(COUNT, generator=generator).sort().values * 6.0
    values = wave(places) + NOISE * torch.randn(COUNT, generator=generator)
    keys, known = column(places), column(values)
    widths = torch.logspace(-1, math.log10(60.0), 80)
    errors = torch.stack([left_out(keys, known, w) for w in widths])
    learnt = learn(keys, known)
    grid = torch.linspace(0, 6, 400)
    curves = {0.4: GREEN, 1.0: PURPLE, float(learnt): BLUE, 30.0: ORANGE}

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(WIDTH, 2.9), width_ratios=[1.75, 1], layout="constrained"
    )
    left.plot(grid, wave(grid), color=INK, lw=1.0, ls=":", label="the function")
    left.plot(places, values, "o", color=GREY, ms=3.2, mew=0, label="what is known of it")
    for width, colour in curves.items():
        estimate = nadaraya_watson(column(grid), keys, known, bandwidth_inverse=width)
        name = f"w = {width:.1f}" + (", learnt" if width == float(learnt) else "")
        name += ", as it is" if width == 1.0 else ""
        left.plot(grid, estimate[0, 0, :, 0], color=colour, label=name, lw=1.6)
        error = left_out(keys, known, width)
        right.plot(width, error, "o", color=colour, ms=6, zorder=3)
        print(f"w {width:.2f}: error left out {error:.4f}")
    left.set(xlabel="query q", ylabel="f(q)", ylim=(-2.1, 2.6))
    left.legend(ncols=2, loc="upper right", fontsize=7.5)
    right.semilogx(widths, errors, color=GREY, lw=1.4)
    right.axhline(NOISE**2, color=INK, lw=1.0, ls=":")
    right.text(60, NOISE**2, "noise ", ha="right", va="bottom", fontsize=8)
    right.set(xlabel="inverse bandwidth w", title="error on points left out", ylim=(0, None))
    right.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
    save(figure, "kernel_regression")


def wave(x: Tensor) -> Tensor:
    return torch.sin(2.2 * x) + 0.5 * torch.sin(0.8 * x + 1.0)


def column(x: Tensor) -> Tensor:
    return x[None, None, :, None]


def left_out(keys: Tensor, values: Tensor, width: float | Tensor) -> Tensor:
    """Return the mean squared error at each key, estimated from all others."""
    others = torch.zeros(COUNT, COUNT).fill_diagonal_(-torch.inf)
    estimate = nadaraya_watson(keys, keys, values, bandwidth_inverse=width, log_mask=others)
    return (estimate - values).square().mean()


def learn(keys: Tensor, values: Tensor) -> Tensor:
    """Let the bandwidth descend that error, from w = 1."""
    log_width = torch.zeros((), requires_grad=True)
    optimiser = torch.optim.Adam([log_width], lr=0.05)
    for _ in range(150):
        optimiser.zero_grad()
        left_out(keys, values, log_width.exp()).backward()
        optimiser.step()
    return log_width.detach().exp()


if __name__ == "__main__":
    main()
