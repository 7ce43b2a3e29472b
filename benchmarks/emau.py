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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from measure import RESULTS, Row, append_row, interleave, provenance, read_rows
from torch import Tensor

from probseg.lab.gauges import timed_with_peak
from probseg.semantic.emau import EMAU

EMAU_NAME = "EMAU"


class Case(NamedTuple):
    """A map."""

    side: int
    channels: int


CASES = [Case(128, 512)]


def main() -> None:
    """Measure all maps and write the table."""
    args = _parser().parse_args()
    if args.peak is not None:
        side, channels, name = args.peak
        print(json.dumps(_peak(Case(int(side), int(channels)), name, args)))
        return
    path = RESULTS / f"emau_{args.device}.csv"
    path.unlink(missing_ok=True)
    origin = provenance(args.device)
    for case in CASES:
        for row in _measure(case, args):
            print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
            append_row(path, {**row, "threads": args.threads, **origin})
    report = path.with_suffix(".md")
    report.write_text(_table(path), encoding="utf-8")
    print(f"wrote {path} and {report}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of turns for each map")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)  # measure it in this process
    return parser


def _written_out(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return torch.softmax(queries @ keys.transpose(-2, -1), dim=-1) @ values


def _fused(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries, keys, values, scale=1.0)


def _blocks(channels: int, device: str) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the contestants in evaluation mode."""
    torch.manual_seed(0)
    unit = EMAU(channels).to(device, memory_format=torch.channels_last).eval()

    def non_local(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def block(x: Tensor) -> Tensor:
            tokens = unit.enter(x).flatten(2).transpose(-2, -1).unsqueeze(1)
            values = attend(tokens, tokens, tokens).squeeze(1).transpose(-2, -1).reshape(x.shape)
            return F.relu(unit.leave(F.relu(values)).add_(x), inplace=True)

        return block

    return {
        EMAU_NAME: unit,
        "non-local, written out": non_local(_written_out),
        "non-local, fused": non_local(_fused),
    }


def _draw(case: Case, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(1, case.channels, case.side, case.side, generator=generator)
    return drawn.relu().to(device, memory_format=torch.channels_last)


@torch.no_grad()
def _measure(case: Case, args: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(args.threads)
    blocks = _blocks(case.channels, args.device)
    x = _draw(case, args.device)
    calls = {name: lambda block=block: block(x) for name, block in blocks.items()}
    seconds = interleave(calls, args.device, budget=args.budget, minimum=3)
    peaks = {name: _peak_elsewhere(case, name, args) for name in blocks}
    for name in blocks:
        turns = zip(seconds[name], seconds[EMAU_NAME], strict=True)
        own, least = peaks[name], peaks[EMAU_NAME]
        yield {
            "side": case.side,
            "channels": case.channels,
            "block": name,
            "seconds": round(min(seconds[name]), 4),
            "ratio": round(min(seconds[name]) / min(seconds[EMAU_NAME]), 2),
            "ratio_median": round(statistics.median(a / b for a, b in turns), 2),
            "turns": len(seconds[name]),
            "extra_mib": None if own is None else round(own, 1),
            "memory_ratio": None if own is None or not least else round(own / least, 2),
        }


def _peak_elsewhere(case: Case, name: str, args: argparse.Namespace) -> float | None:
    """Return the MiB of one call in a process of its own, where nothing else was allocated."""
    options = ["--device", args.device, "--threads", str(args.threads)]
    command = [sys.executable, __file__, *options, "--peak", *map(str, case), name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: float | None = json.loads(done.stdout.splitlines()[-1])
    return found


@torch.no_grad()
def _peak(case: Case, name: str, args: argparse.Namespace) -> float | None:
    torch.set_num_threads(args.threads)
    block = _blocks(case.channels, args.device)[name]
    block(_draw(case._replace(side=9), args.device))  # threads and buffers
    x = _draw(case, args.device)
    return timed_with_peak(lambda: block(x), args.device)[1]


def _table(path: Path) -> str:
    rows = read_rows(path)
    first = rows[0]
    lines = [
        "# EMAU and the non-local block",
        "",
        f"- {first['machine']}, threads: {first['threads']}, PyTorch {first['torch']}, commit "
        f"{first['commit']}",
        "",
        "Forward pass on one map, 64 bases, three iterations, float32, channels last. How to read "
        "it: benchmarks/README.md.",
        "",
        "| map | block | seconds | times the EMAU (median of turns) | extra MiB | times the EMAU |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['side']} x {row['side']} x {row['channels']} | {row['block']} | {row['seconds']} "
        f"| {row['ratio']} ({row['ratio_median']}) | {row['extra_mib']} | {row['memory_ratio']} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
