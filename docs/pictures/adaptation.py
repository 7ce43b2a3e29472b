"""What one step of key adaptation does to keys and logits, against the first-order formula.

`python docs/pictures/adaptation.py`, on random features and projections in float64.
"""

from __future__ import annotations

import torch
from matplotlib import pyplot as plt
from style import BLUE, GREY, ORANGE, WIDTH, save
from torch import Tensor

from probseg.ops import KeyAdaptation, probabilistic_attention

TOKENS, CHANNELS, DRAWS = 400, 16, 20
SPREADS = torch.logspace(-1.5, 0.7, 16, dtype=torch.float64)
"""Standard deviations of the logits."""

TRAINED = 1.44
"""That of a network of the reproduction with two projections (seed 0)."""


def main() -> None:
    rows: dict[str, list[Tensor]] = {"explained": [], "kept": [], "one": [], "two": []}
    for spread in SPREADS.tolist():
        drawn = torch.stack([torch.stack(measure(spread, seed)) for seed in range(DRAWS)]).mean(0)
        for name, value in zip(rows, drawn, strict=True):
            rows[name].append(value)
        print(f"logits of {spread:.2f}: {dict(zip(rows, drawn.tolist(), strict=True))}")
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.5), layout="constrained")
    left.plot(SPREADS, rows["explained"], color=BLUE, label="variance that the formula explains")
    left.plot(SPREADS, rows["kept"], color=ORANGE, label="size of the logits, after / before")
    right.plot(SPREADS, rows["one"], color=BLUE, label="one projection for keys and queries")
    right.plot(SPREADS, rows["two"], color=ORANGE, label="two projections")
    left.set_title("One step: adapted keys and formula")
    right.set_title("Correlation of the logits before and after")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="standard deviation of the logits", ylim=(-0.05, 1.1))
        axes.axvline(TRAINED, color=GREY, lw=0.8, ls=":")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 0.25))
    save(figure, "adaptation")


def measure(spread: float, seed: int) -> tuple[Tensor, ...]:
    """Return the four figures of a drawing; the first two are of two projections."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    features, first, second = draw(TOKENS, CHANNELS), *draw(2, CHANNELS, CHANNELS)
    two = step(features @ first.T, features @ second.T, spread)
    one = step(features @ first.T, features @ first.T, spread)
    return two[0], two[1], one[2], two[2]


def step(queries: Tensor, keys: Tensor, spread: float) -> tuple[Tensor, Tensor, Tensor]:
    """Adapt keys `(M, D)`, after queries and keys were scaled until the logits spread so."""
    alpha = CHANNELS**-0.5
    size = (spread / content(queries, keys).std()).sqrt()
    queries, keys = size * queries, size * keys
    adapted = probabilistic_attention(
        queries[None, None],
        keys[None, None],
        keys[None, None],
        key_adaptation=KeyAdaptation(1, 0.0),
    ).keys[0, 0]
    formula = alpha * (keys - keys.mean(0)) @ queries.T.cov(correction=0)
    moved = adapted - queries.mean(0)
    explained = 1 - (moved - formula).square().sum() / moved.square().sum()
    before, after = content(queries, keys), content(queries, adapted)
    correlation = torch.stack([before.flatten(), after.flatten()]).corrcoef()[0, 1]
    return explained, after.std() / before.std(), correlation


def content(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the logits `(N, M)` less what all units of a query share."""
    return queries @ (keys - keys.mean(0)).T * CHANNELS**-0.5


if __name__ == "__main__":
    main()
