"""Edges drawn from the posterior of a photograph's pixels, against their expectation."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib import pyplot as plt
from style import BLUE, GREY, INK, ORANGE, WIDTH, coffee, pixels, save, show
from torch import Tensor

from probseg.family.hard import most_probable_edges, posterior_entropy, sample_edges, take_values
from probseg.ops.edges import gaussian_edges

PRECISION = 3.0
COUNTS = [1, 2, 4, 8, 16, 32, 64, 128, 256]


@torch.no_grad()
def main() -> None:
    generator = torch.Generator().manual_seed(0)
    photo = coffee(24)
    tokens = pixels(photo)
    colours = torch.from_numpy(photo).reshape(1, 1, -1, 3)
    # Queries are noisy, so that the most probable pixel is not always the pixel itself.
    queries = tokens + 0.5 * torch.randn(tokens.shape, generator=generator)
    edges = gaussian_edges(queries, tokens, query_precision=PRECISION, log_prior="uniform")
    expected = edges.expect(colours)
    drawn = [sample_edges(edges, generator) for _ in range(2 * max(COUNTS))]
    samples = torch.stack([take_values(colours, one.indices) for one in drawn])
    errors = [error_of_means(samples, count, expected) for count in COUNTS]
    likely = take_values(colours, most_probable_edges(edges).indices)

    figure = plt.figure(figsize=(WIDTH, 3.9), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1, 1.75])
    pictures = {
        "one sample": samples[0],
        "mean of 16 samples": samples[:16].mean(0),
        "expectation (soft)": expected,
        "most probable edge": likely,
    }
    for axes, (name, picture) in zip(upper.subplots(1, 4), pictures.items(), strict=True):
        show(axes, picture.reshape(photo.shape), name)
    left, right = lower.subplots(1, 2)
    slope = errors[0] / np.sqrt(COUNTS)
    left.loglog(COUNTS, slope, color=GREY, lw=1.2, ls="--", label="$\\propto 1/\\sqrt{n}$")
    left.loglog(COUNTS, errors, "o", color=BLUE, ms=5, label="measured")
    left.set(xlabel="samples averaged, n", ylabel="RMS error of the colours")
    left.set_title("samples approach the expectation")
    left.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    left.set_yticks([0.005, 0.01, 0.02, 0.05], ["0.005", "0.01", "0.02", "0.05"])
    left.minorticks_off()
    left.legend()
    entropy = posterior_entropy(edges)[0, 0]
    lost = -torch.stack([one.log_probability[0, 0] for one in drawn]).mean(0)
    right.plot([0, 7], [0, 7], color=GREY, lw=1.2, ls="--")
    right.plot(entropy, lost, ".", color=ORANGE, ms=2.5, alpha=0.5, mew=0)
    top = float(entropy.max()) * 1.05
    right.set(xlim=(0, top), ylim=(0, top), xlabel="entropy of a pixel's edge, nats")
    right.set_ylabel("mean of -log p(drawn)", color=INK)
    right.set_title("a sample loses the entropy on average")
    save(figure, "hard")
    print(f"error of one sample {errors[0]:.3f}, of {COUNTS[-1]} {errors[-1]:.4f}")
    print(f"entropy {entropy.mean():.3f} nats, lost {lost.mean():.3f}, of {len(entropy)} pixels")


def error_of_means(samples: Tensor, count: int, expected: Tensor) -> float:
    groups = samples[: len(samples) // count * count].unflatten(0, (-1, count)).mean(1)
    return float((groups - expected).square().mean().sqrt())


if __name__ == "__main__":
    main()
