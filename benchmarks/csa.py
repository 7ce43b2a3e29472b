"""Time and memory of the corrective self-attention head with full attention, in training.

Gabbur et al. (2021, App. E) shrink images to 64 pixels for it, because their layer holds all pairs.
Each size is measured in a process of its own. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import torch
from measure import RESULTS, Row, append_row, provenance

from probseg.heads.csa import CorrectiveSelfAttention
from probseg.lab.gauges import MIB, timed, timed_with_peak
from probseg.types import FeatureInfo

_STRIDE = 4  # of the decoder's map
_CHANNELS = 64  # of the decoder's map


def main() -> None:
    """Measure all sizes and write them as they come."""
    args = _parser().parse_args()
    if args.row is not None:
        print(json.dumps(_measure(args.row, args.device, args.threads)))
        return
    path = RESULTS / f"csa_{args.device}.csv"
    path.unlink(missing_ok=True)
    origin = provenance(args.device)
    for size in args.sizes:
        options = ["--device", args.device, "--threads", str(args.threads)]
        command = [sys.executable, __file__, "--row", str(size), *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        measured: Row = json.loads(done.stdout.splitlines()[-1])
        print(", ".join(f"{name} {value}" for name, value in measured.items()), flush=True)
        append_row(path, {**measured, "threads": args.threads, **origin})
    print(f"wrote {path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    sizes_help = "sides of the square map on which each pixel sees every other"
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 256], help=sizes_help)
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)  # measure it in this process
    return parser


def _measure(size: int, device: str, threads: int) -> Row:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    inputs = FeatureInfo(channels=(_CHANNELS,), strides=(_STRIDE,))
    head = CorrectiveSelfAttention(inputs, attention="probabilistic", layout="full").to(device)

    def draw(side: int) -> tuple[torch.Tensor, torch.Tensor]:
        coarse = max(1, side // _STRIDE)
        features = torch.randn(1, _CHANNELS, coarse, coarse, device=device)
        clicks = torch.zeros(1, 2, side, side, device=device)
        clicks[0, 0, side // 3, side // 2] = 1.0
        return features, clicks

    def train(features: torch.Tensor, clicks: torch.Tensor) -> None:
        head(features, clicks).square().mean().backward()

    train(*draw(32))  # threads and buffers
    features, clicks = draw(size)
    seconds, peak = timed_with_peak(lambda: train(features, clicks), device)
    with torch.no_grad():
        forward = timed(lambda: head(features, clicks), device)
    matrix = size**4 * 4 / MIB
    return {
        "side": size,
        "pixels": size**2,
        "forward_seconds": round(forward, 3),
        "both_seconds": round(seconds, 3),
        "peak_mib": None if peak is None else round(peak, 1),
        "one_matrix_of_pairs_mib": round(matrix, 1),
    }


if __name__ == "__main__":
    main()
