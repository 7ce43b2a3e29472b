"""What additive scores can say about two numbers, and dot products cannot."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib import pyplot as plt
from style import INK, WEIGHTS, WIDTH, save
from torch import Tensor, nn

from probseg.family.kernels import additive_edges

HIDDEN = 16
STEPS = 600
SHARPNESS = 12.0


def main() -> None:
    torch.manual_seed(0)
    places = torch.linspace(-1, 1, 48)[:, None]
    ones = torch.ones_like(places)
    tokens = torch.cat([places, ones], dim=-1)  # (48, 2), so that projections can shift
    wanted = (-SHARPNESS * (places.abs() - places.T).square()).log_softmax(-1)
    query, key = nn.Linear(2, HIDDEN, bias=False), nn.Linear(2, HIDDEN, bias=False)
    weights = nn.Parameter(torch.randn(1, HIDDEN) * HIDDEN**-0.5)
    left, right = nn.Linear(2, HIDDEN, bias=False), nn.Linear(2, HIDDEN, bias=False)

    def additive() -> Tensor:
        edges = additive_edges(query(tokens)[None, None], key(tokens)[None, None], weights)
        return edges.log_probability(slice(None))[0, 0]

    def dot_product() -> Tensor:
        return (left(tokens) @ right(tokens).T * HIDDEN**-0.5).log_softmax(-1)

    fitted = {
        "wanted": wanted,
        f"additive, {HIDDEN} hidden units": fit(
            additive, wanted, [*query.parameters(), *key.parameters(), weights]
        ),
        f"dot product, {HIDDEN} channels": fit(
            dot_product, wanted, [*left.parameters(), *right.parameters()]
        ),
    }
    figure, axes_row = plt.subplots(1, 3, figsize=(WIDTH, 3.0), layout="constrained", sharey=True)
    for axes, (name, log_p) in zip(axes_row, fitted.items(), strict=True):
        axes.imshow(
            log_p.exp().T,
            origin="lower",
            extent=(-1, 1, -1, 1),
            cmap=WEIGHTS,
            vmin=0,
            vmax=float(wanted.exp().max()),
        )
        lost = (wanted.exp() * (wanted - log_p)).sum(-1).mean()
        print(f"{name}: KL {lost:.4f} nats")
        axes.set_title(name)
        axes.set_xlabel(
            "query q" + ("" if name == "wanted" else f"\nKL {lost:.3f} nats"), color=INK
        )
        axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    axes_row[0].set_ylabel("key k")
    save(figure, "additive")


def fit(model: Callable[[], Tensor], wanted: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """Minimise the divergence from the posterior that is wanted."""
    optimiser = torch.optim.Adam(parameters, lr=0.03)
    for _ in range(STEPS):
        optimiser.zero_grad()
        (wanted.exp() * (wanted - model())).sum(-1).mean().backward()
        optimiser.step()
    return model().detach()


if __name__ == "__main__":
    main()
