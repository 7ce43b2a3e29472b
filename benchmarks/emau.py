"""EMAU against a non-local block: forward time and peak memory on one map, side by side.

The blocks have the same convolutions; one looks at a few bases, the others at all pixels, written
out or by PyTorch's fused kernel. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import RESULTS, Row, append_row, interleave, provenance
from torch import Tensor

from probseg.lab.gauges import timed_with_peak
from probseg.semantic.heads import EMAU

SIDE, CHANNELS = 128, 512

Block = Callable[[Tensor], Tensor]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of turns")
    parser.add_argument("--peak", help=argparse.SUPPRESS)  # of this block, in this process
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    blocks, x = contestants(args.device), draw(SIDE, args.device)
    if args.peak is not None:
        block = blocks[args.peak]
        block(draw(9, args.device))  # threads and buffers
        print(json.dumps(timed_with_peak(lambda: block(x), args.device)[1]))
        return
    path = RESULTS / f"emau_{args.device}.csv"
    path.unlink(missing_ok=True)
    calls = {name: lambda block=block: block(x) for name, block in blocks.items()}
    seconds = interleave(calls, args.device, budget=args.budget, minimum=3)
    peaks = {name: peak_elsewhere(name, args) for name in blocks}
    for name in blocks:
        turns = zip(seconds[name], seconds["EMAU"], strict=True)
        own, least = peaks[name], peaks["EMAU"]
        row: Row = {"side": SIDE, "channels": CHANNELS, "block": name}
        row["seconds"] = round(min(seconds[name]), 4)
        row["ratio"] = round(min(seconds[name]) / min(seconds["EMAU"]), 2)
        row["ratio_median"] = round(statistics.median(a / b for a, b in turns), 2)
        row["turns"] = len(seconds[name])
        row["extra_mib"] = None if own is None else round(own, 1)
        row["memory_ratio"] = None if own is None or not least else round(own / least, 2)
        print(row, flush=True)
        append_row(path, {**row, "threads": args.threads, **provenance(args.device)})


def contestants(device: str) -> dict[str, Block]:
    """Return the blocks in evaluation mode."""
    torch.manual_seed(0)
    unit = EMAU(CHANNELS).to(device, memory_format=torch.channels_last).eval()

    def written_out(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return torch.softmax(queries @ keys.transpose(-2, -1), dim=-1) @ values

    def fused(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(queries, keys, values, scale=1.0)

    def non_local(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Block:
        def block(x: Tensor) -> Tensor:
            tokens = unit.enter(x).flatten(2).transpose(-2, -1).unsqueeze(1)
            values = attend(tokens, tokens, tokens).squeeze(1).transpose(-2, -1).reshape(x.shape)
            return F.relu(unit.leave(F.relu(values)).add_(x), inplace=True)

        return block

    names = {"non-local, written out": written_out, "non-local, fused": fused}
    return {"EMAU": unit, **{name: non_local(attend) for name, attend in names.items()}}


def draw(side: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(1, CHANNELS, side, side, generator=generator)
    return drawn.relu().to(device, memory_format=torch.channels_last)


def peak_elsewhere(name: str, args: argparse.Namespace) -> float | None:
    """Return the MiB of one call in a process of its own, where nothing else was allocated."""
    options = ["--device", args.device, "--threads", str(args.threads), "--peak", name]
    command = [sys.executable, __file__, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: float | None = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
