"""What posteriors through a few features, bins or latents lose of a photograph's posterior."""

from __future__ import annotations

import torch
from matplotlib import pyplot as plt
from style import BLUE, GREEN, GREY, ORANGE, WIDTH, coffee, pixels, save
from torch import Tensor

from probseg.family.hard import posterior_divergence
from probseg.family.low_rank import (
    latent_edges,
    pooling_log_projection,
    projected_edges,
    random_feature_edges,
    random_features,
)
from probseg.ops.edges import EdgePosterior, SoftmaxEdges
from probseg.ops.em import l2_normalise

SCALES = (1.0, 4.0, 15.0)
SIDES = (1, 2, 3, 4, 6, 12)
"""Ranks are their squares. All divide both sides of the photograph, so that no bins overlap."""

DRAWS = 8
"""Of random features, whose mean is shown."""


@torch.no_grad()
def main() -> None:
    photo = coffee(24)
    height, width, _ = photo.shape
    tokens = l2_normalise(pixels(photo))
    figure, axes = plt.subplots(1, 3, figsize=(WIDTH, 2.4), layout="constrained", sharey=True)
    ranks = [side**2 for side in SIDES]
    for axis, scale in zip(axes, SCALES, strict=True):
        exact = SoftmaxEdges(tokens, tokens, scale=scale)
        many = tokens.expand(1, DRAWS, -1, -1)
        drawn = SoftmaxEdges(many, many, scale=scale)
        for name, colour, edges in (
            ("random features", ORANGE, features),
            ("bins", BLUE, bins),
            ("latents", GREEN, latents),
        ):
            losses = []
            for side in SIDES:
                cheap = edges(tokens, (height, width), side, scale)
                wanted = exact if cheap.shape == exact.shape else drawn
                losses.append(posterior_divergence(cheap, wanted).mean())
            axis.plot(ranks, losses, "o-", color=colour, label=name, ms=4)
            print(
                f"scale {scale:g}, {name}:",
                {rank: round(float(loss), 4) for rank, loss in zip(ranks, losses, strict=True)},
            )
        nothing = posterior_divergence(SoftmaxEdges(tokens, tokens, scale=0.0), exact).mean()
        print(f"scale {scale:g}, uniform: {nothing:.4f}")
        axis.axhline(float(nothing), color=GREY, lw=0.8, label="uniform")
        axis.set(title=f"s = {scale:g}", xlabel="rank", xscale="log", yscale="log")
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, 1, 20, 256, 32, generator=generator)
    report_features("as in a new layer", queries, keys, 32**-0.5)
    report_features("of unit length", l2_normalise(queries), l2_normalise(keys), 1.0)
    axes[0].set_ylabel("KL in nats")
    axes[0].legend()
    save(figure, "low_rank")


def features(tokens: Tensor, size: tuple[int, int], side: int, scale: float) -> EdgePosterior:
    del size
    generator = torch.Generator().manual_seed(0)
    drawn = random_features(side**2, tokens.shape[-1], DRAWS, generator)
    many = tokens.expand(1, DRAWS, -1, -1)
    return random_feature_edges(many, many, drawn, scale=scale)


def report_features(name: str, queries: Tensor, keys: Tensor, scale: float) -> None:
    """Print the mean loss by random features, with other ones for each head."""
    exact = SoftmaxEdges(queries, keys, scale=scale)
    heads, channels = queries.shape[1], queries.shape[-1]
    cheap: dict[str, EdgePosterior] = {"uniform": SoftmaxEdges(queries, keys, scale=0.0)}
    for count in (64, 256, 1024):
        generator = torch.Generator().manual_seed(count)
        drawn = random_features(count, channels, heads, generator)
        cheap[str(count)] = random_feature_edges(queries, keys, drawn, scale=scale)
    losses = {key: posterior_divergence(q, exact).mean().item() for key, q in cheap.items()}
    print(f"features, {name}:", {key: round(loss, 4) for key, loss in losses.items()})


def bins(tokens: Tensor, size: tuple[int, int], side: int, scale: float) -> EdgePosterior:
    projection = pooling_log_projection(*size, (side, side))
    return projected_edges(tokens, tokens, projection, scale=scale)


def latents(tokens: Tensor, size: tuple[int, int], side: int, scale: float) -> EdgePosterior:
    del size
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(tokens.shape[-2], generator=generator)[: side**2]
    return latent_edges(tokens, tokens, tokens[:, :, chosen], iterations=2, scale=scale)


if __name__ == "__main__":
    main()
