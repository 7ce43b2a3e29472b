"""What a fresh process costs before it answers: imports, the first mask, lists and refusals.

`python benchmarks/start.py` starts each command in turns and prints a row for it: seconds of
processor time and by the clock (least of all turns), and the ratio of its processor time to that of
`import torch`. With `--against DIR`, another checkout takes turns with this one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import provenance

ROOT = Path(__file__).parents[1]
TORCH = "import torch"

MASK = """
import numpy, probseg
predictor = probseg.Predictor.from_pretrained("lite0_unet_prop")
predictor.set_image(numpy.full((480, 640, 3), 90, numpy.uint8))
predictor.predict([probseg.Click(320, 240)]).binary
"""

COMMANDS = {
    TORCH: ("-c", "import torch"),
    "first mask": ("-c", MASK),
    "data list": ("cli.py", "data", "list"),
    "missing data of test": ("cli.py", "test", "--config", "configs/experiment/grabcut.yaml"),
    "unknown option of predict": ("cli.py", "predict", "photo.jpg", "--clik", "1,1"),
    "unknown option of fit": ("cli.py", "fit", "--tainer.max_epochs", "3"),
    "unknown option of the trainer": ("cli.py", "fit", "--trainer.max_epoch", "3"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    options = parser.parse_args()
    checkouts = [ROOT] if options.against is None else [ROOT, options.against.resolve()]
    names = list(dict.fromkeys([TORCH, *options.commands]))
    for checkout in checkouts:  # compiles modules
        cost(checkout, COMMANDS["first mask"])
    least: dict[tuple[str, Path], tuple[float, float]] = {}
    for _ in range(options.turns):
        for name in names:
            for checkout in checkouts:
                before = least.get((name, checkout), (float("inf"),) * 2)
                now = cost(checkout, COMMANDS[name])
                least[name, checkout] = min(before[0], now[0]), min(before[1], now[1])
    for name in names:
        processor, clock = least[name, ROOT]
        row: dict[str, object] = {"command": name, "processor_seconds": round(processor, 2)}
        row |= {"seconds": round(clock, 2), "ratio": round(processor / least[TORCH, ROOT][0], 2)}
        for other in checkouts[1:]:
            row["processor_seconds_before"] = round(least[name, other][0], 2)
        print({**row, **provenance("cpu")}, flush=True)


def cost(checkout: Path, arguments: tuple[str, ...]) -> tuple[float, float]:
    """Run Python in a checkout, and return its seconds of processor time and by the clock."""
    with tempfile.TemporaryDirectory() as empty:
        environment = {
            **os.environ,
            "PYTHONPATH": str(checkout),
            "PROBSEG_DATA": empty,
            "OMP_NUM_THREADS": "1",
        }
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=checkout,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, _, usage = os.wait4(process.pid, 0)
        return usage.ru_utime + usage.ru_stime, time.perf_counter() - began


if __name__ == "__main__":
    main()
