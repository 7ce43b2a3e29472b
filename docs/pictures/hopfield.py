"""Letters that a Hopfield network stores, and one of them, half hidden, retrieved."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import LinearSegmentedColormap
from PIL import Image, ImageDraw, ImageFont
from style import BLUE, GREY, INK, ORANGE, WIDTH, save, show
from torch import Tensor

from probseg.family.energy import hopfield_energy, hopfield_retrieval

LETTERS = "ABEKSTXZ"
SIDE = 20
BETAS = {0.5: GREY, 6.0: ORANGE, 24.0: BLUE}
STEPS = 8
TONES = LinearSegmentedColormap.from_list("tones", ["#ffffff", "#e9edf2", INK])


def main() -> None:
    patterns = torch.stack([drawn(letter) for letter in LETTERS])[None, None]  # (1, 1, 8, 400)
    half = patterns[:, :, 3:4].clone()  # K
    half[..., SIDE * SIDE // 2 :] = 0.0
    figure = plt.figure(figsize=(WIDTH, 4.4), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1, 3.3])
    row = upper.subplots(1, len(LETTERS))
    for axes, pattern in zip(row, patterns[0, 0], strict=True):
        letter(axes, pattern)
    upper.suptitle("stored patterns", fontsize=9.5)
    left, right = lower.subfigures(1, 2, width_ratios=[1.25, 1])
    grid = left.subplots(len(BETAS), 4)
    energies = right.subplots()
    for axes_row, (beta, colour) in zip(grid, BETAS.items(), strict=True):
        states = [half]
        for _ in range(STEPS):
            states.append(hopfield_retrieval(states[-1], patterns, scale=beta).states)
        for axes, step in zip(axes_row, (0, 1, 2, STEPS), strict=True):
            letter(axes, states[step][0, 0, 0])
            if beta == min(BETAS):
                axes.set_title("start" if step == 0 else f"update {step}")
        axes_row[0].set_ylabel(f"$\\beta = {beta:g}$", color=colour)
        energy = torch.cat([hopfield_energy(s, patterns, scale=beta).flatten() for s in states])
        energy += math.log(len(LETTERS)) / beta + 0.5  # never below 0 then
        energies.plot(
            range(STEPS + 1), energy, "o-", color=colour, ms=4, label=f"$\\beta={beta:g}$"
        )
        cosines = torch.cosine_similarity(states[-1][0, 0], patterns[0, 0])
        print(f"beta {beta}: energies {[round(float(e), 3) for e in energy]}")
        print(
            "  cosine with", {k: round(float(c), 3) for k, c in zip(LETTERS, cosines, strict=True)}
        )
    energies.set(
        xlabel="update", title="no update raises the energy", xticks=range(0, STEPS + 1, 2)
    )
    energies.set_ylim(bottom=0)
    energies.legend()
    save(figure, "hopfield")


def letter(axes: plt.Axes, pattern: Tensor) -> None:
    largest = float(pattern.abs().max())
    show(axes, pattern.reshape(SIDE, SIDE), cmap=TONES, vmin=-largest, vmax=largest)


def drawn(character: str) -> Tensor:
    """Draw a letter as a vector of unit length, -1 for paper and 1 for ink before that."""
    fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(str(fonts / "DejaVuSans-Bold.ttf"), SIDE)
    picture = Image.new("L", (SIDE, SIDE))
    place = (SIDE / 2, SIDE / 2)
    ImageDraw.Draw(picture).text(place, character, fill=255, font=font, anchor="mm")
    ink = torch.from_numpy(np.asarray(picture, dtype=np.float32)).flatten() / 127.5 - 1.0
    return ink / ink.norm()


if __name__ == "__main__":
    main()
