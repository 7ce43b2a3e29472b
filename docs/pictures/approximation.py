"""What a photograph's posterior does not know, and what local and EM attention lose of it."""

from __future__ import annotations

import torch
from matplotlib import pyplot as plt
from style import BLUE, ORANGE, WEIGHTS, WIDTH, coffee, pixels, save, show
from torch import Tensor

from probseg.family.hard import posterior_divergence, posterior_entropy
from probseg.family.low_rank import BasesEdges
from probseg.ops.edges import SoftmaxEdges
from probseg.ops.em import l2_normalise, m_step
from probseg.ops.priors import WindowPrior

SCALE = 15.0
RADII = (1, 2, 4, 8, 16, 32)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
STEPS = 10


@torch.no_grad()
def main() -> None:
    photo = coffee(40)
    height, width, _ = photo.shape
    tokens = l2_normalise(pixels(photo))
    exact = SoftmaxEdges(tokens, tokens, scale=SCALE)
    entropy = posterior_entropy(exact)[0, 0]
    local = [
        posterior_divergence(
            SoftmaxEdges(tokens, tokens, WindowPrior.on_map(height, width, radius), SCALE), exact
        )
        for radius in RADII
    ]
    through = [posterior_divergence(fitted(tokens, count), exact) for count in COUNTS]

    figure = plt.figure(figsize=(WIDTH, 4.4), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1, 1.15])
    left, right = upper.subplots(1, 2)
    show(left, photo, "photograph")
    show(right, entropy.reshape(height, width), "entropy of each pixel's edge", cmap=WEIGHTS)
    upper.colorbar(right.images[0], ax=right, label="nats", shrink=0.9).outline.set_visible(False)
    left, right = lower.subplots(1, 2, sharey=True)
    curve(left, RADII, local, ORANGE)
    left.set(title="local attention", xlabel="radius in pixels", ylabel="KL in nats")
    curve(right, COUNTS, through, BLUE)
    right.set(title="EM attention", xlabel="bases K")
    left.set_ylim(bottom=0)
    save(figure, "approximation")
    print(
        f"entropy {entropy.mean():.2f} ({entropy.min():.2f} to {entropy.max():.2f}) nats of "
        f"log N = {torch.tensor(float(height * width)).log():.2f}"
    )
    for name, sizes, losses in (("radius", RADII, local), ("K", COUNTS, through)):
        print(
            name,
            {size: round(float(loss.mean()), 3) for size, loss in zip(sizes, losses, strict=True)},
        )


def fitted(tokens: Tensor, count: int) -> BasesEdges:
    """Fit bases by EM, from pixels chosen at random."""
    chosen = torch.randperm(tokens.shape[-2], generator=torch.Generator().manual_seed(0))[:count]
    bases = tokens[:, :, chosen]
    for _ in range(STEPS):
        bases = m_step(tokens, bases, scale=SCALE)
    return BasesEdges(tokens, bases, scale=SCALE)


def curve(axes: plt.Axes, sizes: tuple[int, ...], losses: list[Tensor], colour: str) -> None:
    """Draw the mean over the pixels, in the band that nine of ten lie in."""
    spread = torch.stack([loss.flatten().quantile(torch.tensor([0.05, 0.95])) for loss in losses])
    axes.fill_between(sizes, *spread.T, color=colour, alpha=0.15, lw=0)
    axes.semilogx(sizes, [loss.mean() for loss in losses], "o-", color=colour, ms=4)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()


if __name__ == "__main__":
    main()
