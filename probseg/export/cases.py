"""Recorded answers, by which a runner in another language can check itself."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from probseg.export.runner import Runner

NUMBER = 20


def draw_picture(seed: int) -> tuple[npt.NDArray[np.uint8], tuple[int, int]]:
    """Return an ellipse on a ground, both noisy, RGB, `(H, W, 3)`, and its centre `(x, y)`.

    All is integers below 2^32, so that other languages draw the same: `docs/export.md` says how.
    """
    state = seed

    def draw(least: int, most: int) -> int:
        nonlocal state
        state = (1664525 * state + 1013904223) % 2**32
        return least + (state >> 16) % (most - least)

    height, width = draw(60, 500), draw(60, 500)
    x0, y0 = draw(width // 4, 3 * width // 4), draw(height // 4, 3 * height // 4)
    a, b = draw(width // 8, width // 4), draw(height // 8, height // 4)
    colours = np.array([[draw(0, 240) for _ in range(3)] for _ in range(2)])
    y, x = np.ogrid[:height, :width]
    inside = (x - x0) ** 2 * b * b + (y - y0) ** 2 * a * a <= a * a * b * b
    noise = (x * 7919 + y * 104729 + x * y * 31) % 16
    return (colours[inside.astype(int)] + noise[..., None]).astype(np.uint8), (x0, y0)


def record(runner: Runner) -> list[dict[str, Any]]:
    """Return what a runner answers to a click, a correction and a box with a click.

    Every second case begins with the box alone.

    Each case has the seed and the size of the picture, and steps with what was added and the mask:
    lengths of runs of background and object in turns, row by row.
    """
    cases = []
    for seed in range(NUMBER):
        picture, (x, y) = draw_picture(seed)
        height, width = picture.shape[:2]
        runner.set_image(picture)
        box = [x // 2, y // 2, width - 1, height - 2]
        steps: list[dict[str, Any]] = [
            {"clicks": [[x, y, True]], "box": None},
            {"clicks": [[width // 10, height // 12, False]], "box": None},
            {
                "clicks": [[x + width // 16, y, True]],
                "box": box,
            },
        ]
        if seed % 2:
            steps.insert(0, {"clicks": [], "box": box})
        for step in steps:
            mask = runner.predict([(a, b, c) for a, b, c in step["clicks"]], step["box"]) > 0.5
            runs = [(value, len(list(run))) for value, run in groupby(mask.ravel().tolist())]
            step["runs"] = [0] * runs[0][0] + [length for _, length in runs]
        cases.append({"seed": seed, "size": [height, width], "steps": steps})
    return cases
