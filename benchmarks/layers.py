"""Time and memory of each attention layer on maps, against PyTorch's fused attention.

`python benchmarks/layers.py` prints the table of docs/attention.md: CPU seconds of one thread, the
least of three calls in turns with the yardstick, and the peak of additional memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from probseg.attention import ATTENTIONS, build_attention
from probseg.lab.gauges import timed_with_peak

SIDES = (32, 64, 128)
"""Of the maps: 1,024, 4,096 and 16,384 tokens."""

LONG = 20.0
"""Seconds above which a layer is not measured."""


def cell(attend: Callable[[], object], yardstick: Callable[[], object]) -> tuple[str, float]:
    """Return "seconds (multiple of the yardstick), memory", and the seconds."""
    _, memory = timed_with_peak(attend, "cpu")
    times: dict[Callable[[], object], list[float]] = {attend: [], yardstick: []}
    for _ in range(3):
        for call, taken in times.items():
            start = time.process_time()
            call()
            taken.append(time.process_time() - start)
    ours, theirs = (min(taken) for taken in times.values())
    return f"{ours:.3f} s ({ours / theirs:.2g}x), {memory or 0:.0f} MiB", ours


@torch.inference_mode()
def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| layer, one head of 32 channels |", " | ".join(f"{n * n:,} tokens" for n in SIDES), "|")
    print("|:--|" + "--:|" * len(SIDES))
    cases = {f"`{name}`": (name, {}) for name in ATTENTIONS}
    cases["`probabilistic`"] = ("probabilistic", {"key_iterations": 0})
    cases["`probabilistic`, keys adapt once"] = ("probabilistic", {"key_prior": 0.001})
    for title, (name, options) in cases.items():
        torch.manual_seed(0)
        layer = build_attention(name, 32, 32, **options).eval()
        cells, last = [], 0.0
        for side in SIDES:
            if 16 * last > LONG:
                cells.append(f"over {LONG:.0f} s")
                continue
            x, tokens = torch.randn(1, 32, side, side), torch.randn(1, 1, side * side, 32)
            text, last = cell(
                lambda layer=layer, x=x: layer(x),
                lambda q=tokens: F.scaled_dot_product_attention(q, q, q),
            )
            cells.append(text)
        print(f"| {title} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
