"""Bases fitted to the pixels of a photograph, and the photograph read out from them."""

from __future__ import annotations

import torch
from matplotlib import pyplot as plt
from style import BLUE, GREEN, ORANGE, WIDTH, coffee, pixels, save, show
from torch import Tensor

from probseg.ops.em import em_attention, l2_normalise, m_step

SCALE = 30.0
COUNTS = {8: ORANGE, 32: GREEN, 128: BLUE}
SHOWN = 8
STEPS = 10


def main() -> None:
    photo = coffee(60)
    x = pixels(photo, position=0.5)
    tokens = l2_normalise(x)
    colours = torch.from_numpy(photo).reshape(-1, 3)
    middle, spread = colours.mean(0), colours.std(0)
    figure = plt.figure(figsize=(WIDTH, 3.7), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1, 1.7])
    row = upper.subplots(1, 4)
    show(row[0], photo, "photograph, $X$")
    left, right = lower.subplots(1, 2)
    for count, colour in COUNTS.items():
        generator = torch.Generator().manual_seed(0)
        start = bases = l2_normalise(torch.randn(1, 1, count, 5, generator=generator))
        evidence, errors = [], []
        for step in range(STEPS + 1):
            evidence.append(float(torch.logsumexp(SCALE * tokens @ bases.mT, -1).mean()))
            values = em_attention(tokens, start, iterations=step, scale=SCALE).values
            # Directions are read out of the bases; the lengths are the pixels' own.
            read = (values * x.norm(dim=-1, keepdim=True))[0, 0, :, :3] * spread + middle
            errors.append(float((values - tokens).square().sum(-1).mean().sqrt()))
            if count == SHOWN and step in (0, 1, 3):
                axes = row[(0, 1, 3).index(step) + 1]
                show(axes, as_picture(read, photo.shape), f"{step} M steps, K = 8")
            bases = m_step(tokens, bases, scale=SCALE)
        left.plot(evidence, "o-", color=colour, ms=3.5, label=f"K = {count}")
        right.plot(errors, "o-", color=colour, ms=3.5, label=f"K = {count}")
        print(
            f"K {count}: evidence {evidence[0]:.2f} to {evidence[3]:.2f}, {evidence[-1]:.2f}, "
            f"errors {errors[0]:.3f}, {errors[1]:.3f}, {errors[3]:.3f}, {errors[-1]:.3f}"
        )
    for axes in (left, right):
        axes.set(xlabel="M steps", xticks=range(0, STEPS + 1, 2))
    left.set_title("mean log evidence rises")
    right.set_title("RMS distance of $\\tilde{X}$ to $X$")
    right.set_ylim(bottom=0)
    left.legend(ncols=3)
    save(figure, "em")


def as_picture(read: Tensor, shape: tuple[int, ...]) -> Tensor:
    return read.reshape(shape).clamp(0.0, 1.0)


if __name__ == "__main__":
    main()
