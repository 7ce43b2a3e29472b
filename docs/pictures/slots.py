"""Slots that share out the pixels of a photograph, update by update."""

from __future__ import annotations

import torch
from matplotlib import pyplot as plt
from style import WEIGHTS, WIDTH, coffee, pixels, save, show
from torch import Tensor

from probseg.family.low_rank import BasesEdges
from probseg.family.slots import slot_attention
from probseg.ops.em import responsibilities

NUM_SLOTS = 4
SCALE = 2.0
SHOWN = (0, 1, 3, 10)


def main() -> None:
    generator = torch.Generator().manual_seed(2)
    photo = coffee(48)
    tokens = pixels(photo, position=0.6)
    ends = torch.cat([tokens, torch.ones_like(tokens[..., :1])], dim=-1)
    colours = torch.from_numpy(photo).reshape(1, 1, -1, 3)
    chosen = torch.randn(1, 1, NUM_SLOTS, tokens.shape[-1], generator=generator) * 0.3
    figure, grid = plt.subplots(
        len(SHOWN), NUM_SLOTS + 1, figsize=(WIDTH, 4.0), layout="constrained"
    )
    for axes_row, iterations in zip(grid, SHOWN, strict=True):
        slots = chosen
        if iterations:
            slots = slot_attention(
                ends, chosen, tokens, iterations=iterations, scale=SCALE, as_keys=as_keys
            ).slots
        keys = as_keys(slots)
        shares = responsibilities(ends, keys, SCALE)[0, 0].T.reshape(NUM_SLOTS, *photo.shape[:2])
        read = BasesEdges(ends, keys, scale=SCALE).expect(colours).reshape(photo.shape)
        first = iterations == SHOWN[0]
        show(axes_row[0], read, "read out" if first else "")
        word = "update" if iterations == 1 else "updates"
        axes_row[0].set_ylabel("start" if first else f"{iterations} {word}")
        for k, axes in enumerate(axes_row[1:]):
            show(axes, shares[k], f"slot {k + 1}" if first else "", cmap=WEIGHTS, vmin=0, vmax=1)
        likelihood = torch.logsumexp(SCALE * ends @ keys.mT, -1).mean()
        print(
            f"{iterations} updates: mean log evidence {likelihood:.3f} + const, masses "
            f"{[round(float(m), 3) for m in shares.mean((1, 2))]}"
        )
    save(figure, "slots")


def as_keys(slots: Tensor) -> Tensor:
    """Append minus half the squared length: logits are then those of Gaussians."""
    return torch.cat([slots, -slots.square().sum(-1, keepdim=True) / 2], dim=-1)


if __name__ == "__main__":
    main()
