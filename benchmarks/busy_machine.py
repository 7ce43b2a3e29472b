"""Clicks while one other process computes, against clicks on an idle machine.

`python benchmarks/busy_machine.py` answers clicks on a photograph, with a process that multiplies
matrices and without it, in turns, each turn some clicks. It prints milliseconds by the clock
(medians of turns) and `ratio`, the median of the ratios of neighbouring turns. Both processes may
use the processors of this one, and as many threads as PyTorch chooses.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it

import subprocess
import sys
import time
from statistics import median

import torch
from measure import provenance
from skimage.data import coffee

import probseg

BUSY = "import torch\na = torch.rand(1500, 1500)\nprint(flush=True)\nwhile True:\n    a @ a"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lite2_unet_prop")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--clicks", type=int, default=6, help="of each turn")
    options = parser.parse_args()
    predictor = probseg.Predictor.from_pretrained(options.model, zoom=None)
    predictor.set_image(coffee()[:400, :600])
    seconds_of_clicks(predictor, options.clicks)
    idle, busy = [], []
    for _ in range(options.turns):
        idle.append(seconds_of_clicks(predictor, options.clicks))
        other = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
        assert other.stdout is not None, "a pipe"
        other.stdout.readline()
        busy.append(seconds_of_clicks(predictor, options.clicks))
        other.kill()
        other.wait()
    ratios = [b / a for a, b in zip(idle, busy, strict=True)]
    row = {"model": options.model, "processors": len(os.sched_getaffinity(0))}
    row |= {"threads": torch.get_num_threads(), "idle_ms": round(1000 * median(idle), 1)}
    row |= {"busy_ms": round(1000 * median(busy), 1), "ratio": round(median(ratios), 2)}
    print({**row, **provenance("cpu")})


def seconds_of_clicks(predictor: probseg.Predictor, clicks: int) -> float:
    """Return the median seconds of a click, after one that gets memory and caches."""
    predictor.reset()
    seconds = []
    for n in range(clicks + 1):
        began = time.perf_counter()
        predictor.predict([probseg.Click(250 + 12 * n, 150 + 9 * n)])
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:])


if __name__ == "__main__":
    main()
