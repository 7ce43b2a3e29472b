"""Time and memory of probabilistic attention against PyTorch's fused standard attention.

Each row of the results is measured in a process of its own, in turns with the yardstick. See
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from measure import RESULTS, Row, append_row, interleave, provenance, read_rows
from torch import Tensor

from probseg.lab.gauges import Call, timed, timed_with_peak
from probseg.ops.axial import axial_attention, span_mask, to_lines
from probseg.ops.probabilistic import probabilistic_attention
from probseg.ops.settings import InferenceSettings, KeyAdaptation, ValuePropagation

TITLES = {"forward": "forward", "backward": "forward + backward"}
CHANNELS, SPAN, CLICKS = 64, 64, 20
WIDTH = 256
"""Of the map of the axial cases, whose lines are its rows."""

WARM_UP = 768
"""Tokens of the warm-up: enough for "auto" to choose the backend of the larger problems."""

LONG = 20.0
"""Seconds from which on a single run is enough."""

FAILED = "failed: "
"""Starts the reason of a row that `--resume` tries again."""

NUMBERS = ("seconds", "seconds_median", "yardstick_seconds", "yardstick_median", "ratio")
NUMBERS += ("ratio_median", "extra_mib")
"""Columns with what was measured; a row without them has a reason."""

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """Options of `probabilistic_attention`, with the numbers of tokens that are measured.

    Queries and keys have the standard deviation `spread`. In `axial` cases, tokens are a map of
    width 256 whose lines are mixtures of their own; `clicked` ones have 20 fixed values.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[int, ...] = (1024, 4096, 16384, 65536)
    clicked: bool = False
    spread: float = 1.0
    axial: bool = False


ADAPTS = {"key_adaptation": KeyAdaptation(iterations=1, prior_precision=0.0)}
PROPAGATES = {
    "value_precision": 0.1,
    "log_prior": "key_magnitude",
    "value_propagation": ValuePropagation(iterations=5, prior_precision=1.0),
}
CASES = {
    "standard": Case(),
    "probabilistic": Case(),
    "key adaptation": Case(ADAPTS),
    "value propagation": Case(PROPAGATES, clicked=True),
    "everything": Case(ADAPTS | PROPAGATES, clicked=True),
    "axial": Case(sizes=(65536,), axial=True),
    "axial, key adaptation": Case(ADAPTS, sizes=(65536,), axial=True),
    # Keys that no query is near to: their masses underflow float32.
    "key adaptation, far keys": Case(
        ADAPTS | {"log_prior": "uniform"}, sizes=(4096, 16384), spread=8.0
    ),
}


@dataclass(frozen=True)
class Request:
    """What one process measures; `direction` is "forward", or "backward" for both."""

    case: str
    n: int
    direction: str
    device: str
    dtype: str
    threads: int
    seed: int
    budget: float


def main() -> None:
    """Measure what was asked for, row by row, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--dtype", choices=["float32", "bfloat16"], default="float32")
    add("--sizes", type=int, nargs="+", help="tokens, multiples of 256; default those of each case")
    add("--cases", choices=list(CASES), nargs="+", default=list(CASES), metavar="CASE", help="all")
    add("--passes", choices=TITLES, nargs="+", default=list(TITLES))
    add("--threads", type=int, default=2)
    add("--seed", type=int, default=0)
    add("--budget", type=float, default=10.0, help="seconds for the repetitions of a row")
    add("--timeout", type=float, default=1800.0, help="seconds after which a row is given up")
    add("--resume", action="store_true", help="skip rows that the CSV file has; failed ones not")
    add("--report", action="store_true", help="only write the table of what was measured before")
    add("--row", help=argparse.SUPPRESS)  # a Request: measure it in this process
    args = parser.parse_args()
    if args.row is not None:
        print(json.dumps(measure(Request(**json.loads(args.row)))))
        return
    path = RESULTS / f"attention_{args.device}_{args.dtype}.csv"
    done = {
        (row["case"], int(row["n"]), row["direction"], int(row["threads"]))
        for row in read_rows(path)
        if args.resume and not row["reason"].startswith(FAILED)
    }
    for request in () if args.report else requests(args):
        names = (request.case, request.n, request.direction)
        if (*names, request.threads) in done:
            continue
        measured = measure_elsewhere(request, args.timeout)
        print(*names, measured["reason"] or f"{measured['ratio']}x", sep=" | ", flush=True)
        who = "pytorch" if request.case == "standard" else "probseg"
        row: Row = {"case": request.case, "contestant": who, "n": request.n}
        row |= {"direction": request.direction, **measured}
        row |= {"threads": request.threads, "seed": request.seed}
        row["measured_at"] = datetime.now(UTC).isoformat(timespec="seconds")
        append_row(path, {**row, **provenance(args.device)})
    path.with_suffix(".md").write_text(table(read_rows(path)))


def requests(args: argparse.Namespace) -> Iterator[Request]:
    """Yield the rows, the quick ones first."""
    for n in sorted(args.sizes or {size for name in args.cases for size in CASES[name].sizes}):
        for name in args.cases:
            for direction in args.passes if args.sizes or n in CASES[name].sizes else ():
                how = args.device, args.dtype, args.threads, args.seed, args.budget
                yield Request(name, n, direction, *how)


def measure_elsewhere(request: Request, timeout: float) -> Row:
    """Measure in a fresh process: neither buffers nor a high-water mark are inherited."""
    command = [sys.executable, __file__, "--row", json.dumps(asdict(request))]
    reason = f"took more than {timeout:.0f} s"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {**dict.fromkeys(NUMBERS), "repetitions": 0, "reason": reason}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {**dict.fromkeys(NUMBERS), "repetitions": 0, "reason": FAILED + lines[-1]}
    measured: Row = json.loads(done.stdout.splitlines()[-1])
    return measured


def measure(request: Request) -> Row:
    """Measure memory first, then the seconds of contestant and yardstick in turns."""
    torch.set_num_threads(request.threads)
    device, dtype = request.device, getattr(torch, request.dtype)
    small = build(request, WARM_UP, dtype)
    with torch.no_grad():  # what is timed is what it is called
        result, expected = (of(*small.inputs) for of in (small.contestant, small.reference))
    tolerance = 1e-3 if result.dtype == torch.float32 else 5e-2
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    for call in calls_of(small, request.direction):  # threads, buffers, kernels of the libraries
        call()
    contestant, yardstick = calls_of(build(request, request.n, dtype), request.direction)
    first, extra = timed_with_peak(contestant, device)
    ours, theirs = [first], [timed(yardstick, device)]
    if first < LONG:
        calls = {"contestant": contestant, "yardstick": yardstick}
        ours, theirs = interleave(calls, device, budget=request.budget, minimum=3).values()
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    numbers = [min(ours), statistics.median(ours), min(theirs), statistics.median(theirs)]
    numbers += [min(ours) / min(theirs), statistics.median(ratios), extra]
    rounded = (None if number is None else float(f"{number:.4g}") for number in numbers)
    return {**dict(zip(NUMBERS, rounded, strict=True)), "repetitions": len(ours), "reason": None}


class Problem(NamedTuple):
    """A contestant, with `inputs` of queries, keys and values, and the yardstick with its own.

    The reference computes the case with all its logits written out.
    """

    contestant: Forward
    inputs: tuple[Tensor, Tensor, Tensor]
    yardstick: Forward
    yardstick_inputs: tuple[Tensor, ...]
    reference: Forward


def build(request: Request, tokens: int, dtype: torch.dtype) -> Problem:
    """Draw the inputs of a case, and set up who computes it."""
    case, device = CASES[request.case], request.device
    generator = torch.Generator().manual_seed(request.seed)
    shape = (1, 1, CHANNELS, tokens // WIDTH, WIDTH) if case.axial else (1, 1, tokens, CHANNELS)

    def draw(spread: float) -> Tensor:
        return (spread * torch.randn(shape, generator=generator)).to(device, dtype)

    inputs = (draw(case.spread), draw(case.spread), draw(1.0))
    clicks: dict[str, Tensor] = {}
    if case.clicked:
        mask = torch.zeros(1, tokens, dtype=torch.bool)
        mask[0, torch.randperm(tokens, generator=generator)[:CLICKS]] = True
        clicks = {"fixed_values": draw(1.0), "fixed_mask": mask.to(device)}

    def ours(backend: str) -> Forward:
        def forward(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            if case.axial:
                settings = InferenceSettings(backend=backend, **case.options)
                way = {"axis": "width", "span": SPAN}
                return axial_attention(queries, keys, values, settings, **way, **clicks)
            options = {"backend": backend, **case.options, **clicks}
            return probabilistic_attention(queries, keys, values, **options).values

        return forward

    # A float mask, because the fused kernel of the CPU would make one of a boolean mask each time.
    band = span_mask(WIDTH, SPAN).to(device, dtype) if case.axial else None

    def yardstick(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=band)

    contestant = yardstick if request.case == "standard" else ours("auto")
    lines = tuple(to_lines(maps, "width").contiguous() for maps in inputs) if case.axial else inputs
    return Problem(contestant, inputs, yardstick, lines, ours("reference"))


def calls_of(problem: Problem, direction: str) -> tuple[Call, Call]:
    """Return the runs of the contestant and of the yardstick."""

    def call_of(forward: Forward, inputs: tuple[Tensor, ...]) -> Call:
        if direction == "forward":
            return torch.no_grad()(lambda: forward(*inputs))
        leaves = tuple(tensor.detach().requires_grad_() for tensor in inputs)
        generator = torch.Generator().manual_seed(1)
        # The values have the shape of the result: as many queries as keys.
        weights = torch.randn(inputs[-1].shape, generator=generator).to(inputs[-1])
        return lambda: torch.autograd.grad((forward(*leaves) * weights).sum(), leaves)

    ours = call_of(problem.contestant, problem.inputs)
    return ours, call_of(problem.yardstick, problem.yardstick_inputs)


def table(lines: list[dict[str, str]]) -> str:
    """Return the page of what was measured; of equal rows the last one counts."""
    latest = {(of["case"], of["contestant"], int(of["n"]), of["direction"]): of for of in lines}
    # Small first, then in the order of the cases: the file is in the order of the measurements.
    order = list(CASES)
    rows = dict(sorted(latest.items(), key=lambda item: (item[0][2], order.index(item[0][0]))))
    origins = {
        f"- {row['machine']}, threads: {row['threads']}, PyTorch {row['torch']}, "
        f"commit {row['commit']}"
        for row in rows.values()
    }
    page = ["# Probabilistic attention: time and memory", "", *sorted(origins), ""]
    page += [
        "Seconds (best run; multiple of PyTorch's fused standard attention, measured in turns in "
        "the same process), peak extra MiB. How to read it: benchmarks/README.md."
    ]
    contestants = [*dict.fromkeys(name for _, name, _, _ in rows)]
    for direction, title in TITLES.items():
        problems = dict.fromkeys((n, case) for case, _, n, way in rows if way == direction)
        if problems:
            page += ["", f"## {title.capitalize()}", ""]
            page += [f"| N | case | {' | '.join(contestants)} |"]
            page += [f"|---:|---|{'---|' * len(contestants)}"]
        for n, case in problems:
            cells = [cell(rows.get((case, name, n, direction))) for name in contestants]
            page += [f"| {n:,} | {case} | {' | '.join(cells)} |"]
    return "\n".join(page) + "\n"


def cell(row: dict[str, str] | None) -> str:
    if row is None:
        return ""
    if row["reason"]:
        return row["reason"].replace("|", "/")
    seconds = f"{float(row['seconds']):.3g} s ({float(row['ratio']):.2f}x)"
    return f"{seconds}, {float(row['extra_mib']):.0f}" if row["extra_mib"] else seconds


if __name__ == "__main__":
    main()
