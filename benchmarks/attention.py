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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import torch
from attention_cases import CASES, WARM_UP, WIDTH, Forward, Problem, build
from measure import (
    GIB,
    RESULTS,
    Row,
    append_row,
    available_gib,
    interleave,
    is_out_of_memory,
    limit_memory,
    provenance,
    read_rows,
)
from torch import Tensor

from probseg.lab.gauges import Call, timed, timed_with_peak

PASSES = ("forward", "backward")
TITLES = {"forward": "forward", "backward": "forward + backward"}

NUMBERS = (
    "seconds",
    "seconds_median",
    "yardstick_seconds",
    "yardstick_median",
    "ratio",
    "ratio_median",
    "extra_mib",
)
"""Columns with what was measured; a row without them has a reason."""

LONG = 20.0
"""Seconds from which on a single run is enough."""

FAILED = "failed: "
"""Starts the reason of a row that `--resume` tries again."""


@dataclass(frozen=True)
class Request:
    """What one process measures; `direction` is "forward", or "backward" for both."""

    case: str
    contestant: str
    n: int
    direction: str
    device: str
    dtype: str
    threads: int
    seed: int
    budget: float
    limit_gib: float


def main() -> None:
    """Measure what was asked for, row by row, and write the report."""
    args = _parser().parse_args()
    if args.row is not None:
        print(json.dumps(_measure_guarded(Request(**json.loads(args.row)))))
        return
    stem = RESULTS / f"attention_{args.device}_{args.dtype}"
    if not args.report:
        _run(args)
    rows = read_rows(stem.with_suffix(".csv"))
    stem.with_suffix(".md").write_text(table(rows))
    print(f"wrote {stem}.md")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    sizes_help = "numbers of tokens, for all cases (default: those of each case)"
    parser.add_argument("--sizes", type=_size, nargs="+", help=sizes_help)
    cases, cases_help = list(CASES), f"of {list(CASES)}; names with spaces need quotes"
    parser.add_argument(
        "--cases", choices=cases, nargs="+", default=cases, metavar="CASE", help=cases_help
    )
    parser.add_argument("--passes", choices=PASSES, nargs="+", default=PASSES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    budget_help = "seconds for the repetitions of a row"
    parser.add_argument("--budget", type=float, default=10.0, help=budget_help)
    limit_help = "memory that a process may take (default: most of what is available)"
    parser.add_argument("--limit-gb", type=float, help=limit_help)
    timeout_help = "seconds after which a row is given up"
    parser.add_argument("--timeout", type=float, default=1800.0, help=timeout_help)
    resume_help = "skip rows that the CSV file has; rows that failed are tried again"
    parser.add_argument("--resume", action="store_true", help=resume_help)
    report_help = "only write the report of what was measured before"
    parser.add_argument("--report", action="store_true", help=report_help)
    parser.add_argument("--row", help=argparse.SUPPRESS)  # a Request: measure it in this process
    return parser


def _size(text: str) -> int:
    if (size := int(text)) > 0 and size % WIDTH == 0:
        return size
    msg = f"sizes are multiples of {WIDTH}, the width of the axial cases' map, got {size}"
    raise argparse.ArgumentTypeError(msg)


def _run(args: argparse.Namespace) -> None:
    path = RESULTS / f"attention_{args.device}_{args.dtype}.csv"
    done = {
        (row["case"], row["contestant"], int(row["n"]), row["direction"], int(row["threads"]))
        for row in read_rows(path)
        if args.resume and not row["reason"].startswith(FAILED)
    }
    origin = provenance(args.device)
    for request in _requests(args):
        names = (request.case, request.contestant, request.n, request.direction)
        if (*names, request.threads) in done:
            continue
        print(*names, sep=" | ", end=": ", flush=True)
        measured = _measure_elsewhere(request, args.timeout)
        print(_summary(measured), flush=True)
        key = dict(zip(("case", "contestant", "n", "direction"), names, strict=True))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        how: Row = {"threads": request.threads, "seed": request.seed, "measured_at": now}
        append_row(path, {**key, **measured, **how, **origin})


def _requests(args: argparse.Namespace) -> Iterator[Request]:
    """List the rows, the quick ones first."""
    cases = [CASES[name] for name in args.cases]
    for n in sorted(args.sizes or {size for case in cases for size in case.sizes}):
        for case in cases:
            if args.sizes is None and n not in case.sizes:
                continue
            for contestant in case.contestants:
                for direction in args.passes:
                    limit = args.limit_gb or available_gib(args.device)
                    yield Request(
                        case.name,
                        contestant,
                        n,
                        direction,
                        args.device,
                        args.dtype,
                        args.threads,
                        args.seed,
                        args.budget,
                        limit,
                    )


def _measure_elsewhere(request: Request, timeout: float) -> Row:
    """Measure in a fresh process: neither buffers nor a high-water mark are inherited."""
    matrix = CASES[request.case].pairs(request.n) * 4 / GIB
    if request.contestant == "materialised":
        needed = 2 * matrix  # the logits and the weights, at the very least
        if needed > request.limit_gib:
            reason = f"needs more than {needed:.3g} GiB, limit {request.limit_gib:.3g} GiB"
            return _without_numbers(reason)
    command = [sys.executable, __file__, "--row", json.dumps(asdict(request))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return _without_numbers(f"took more than {timeout:.0f} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return _without_numbers(FAILED + lines[-1])
    measured: Row = json.loads(done.stdout.splitlines()[-1])
    return measured


def _measure_guarded(request: Request) -> Row:
    torch.set_num_threads(request.threads)
    limit_memory(request.limit_gib, request.device)
    try:
        return _measure(request)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return _without_numbers(f"needs more than the limit of {request.limit_gib:.3g} GiB")


def _measure(request: Request) -> Row:
    """Measure memory first, then the seconds of contestant and yardstick in turns."""
    case, device = CASES[request.case], request.device
    dtype = getattr(torch, request.dtype)
    small = build(case, request.contestant, WARM_UP, device, dtype, request.seed)
    _check(small)
    for call in _calls(small, request.direction):  # threads, buffers and kernels of the libraries
        call()
    problem = build(case, request.contestant, request.n, device, dtype, request.seed)
    contestant, yardstick = _calls(problem, request.direction)
    first, extra = timed_with_peak(contestant, device)
    if first < LONG:
        calls = {"contestant": contestant, "yardstick": yardstick}
        seconds = interleave(calls, device, budget=request.budget, minimum=3)
        ours, theirs = seconds["contestant"], seconds["yardstick"]
    else:
        ours, theirs = [first], [timed(yardstick, device)]
    pairwise = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    numbers = (
        min(ours),
        statistics.median(ours),
        min(theirs),
        statistics.median(theirs),
        min(ours) / min(theirs),
        statistics.median(pairwise),
        extra,
    )
    rounded = (None if number is None else float(f"{number:.4g}") for number in numbers)
    return {**dict(zip(NUMBERS, rounded, strict=True)), "repetitions": len(ours), "reason": None}


def _without_numbers(reason: str) -> Row:
    return {**dict.fromkeys(NUMBERS), "repetitions": 0, "reason": reason}


def _check(problem: Problem) -> None:
    """Make sure that what is timed is what it is called: compare it with the reference."""
    with torch.no_grad():
        result = problem.contestant(*problem.inputs)
        expected = problem.reference(*problem.inputs)
    tolerance = 1e-3 if result.dtype == torch.float32 else 5e-2
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


def _calls(problem: Problem, direction: str) -> tuple[Call, Call]:
    """Return the runs of the contestant and of the yardstick."""
    return (
        _call(problem.contestant, problem.inputs, direction),
        _call(problem.yardstick, problem.yardstick_inputs, direction),
    )


def _call(forward: Forward, inputs: tuple[Tensor, Tensor, Tensor], direction: str) -> Call:
    if direction == "forward":
        return torch.no_grad()(lambda: forward(*inputs))
    leaves = tuple(tensor.detach().requires_grad_() for tensor in inputs)
    generator = torch.Generator().manual_seed(1)
    # The values have the shape of the result: as many queries as keys.
    weights = torch.randn(inputs[-1].shape, generator=generator).to(inputs[-1])

    def call() -> tuple[Tensor, ...]:
        return torch.autograd.grad((forward(*leaves) * weights).sum(), leaves)

    return call


def _summary(measured: Row) -> str:
    if measured["reason"] is not None:
        return str(measured["reason"])
    extra = "" if measured["extra_mib"] is None else f", {measured['extra_mib']:.0f} MiB"
    return f"{measured['seconds']:.4g} s, {measured['ratio']:.2f}x{extra}"


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
        "the same process), peak extra MiB. How to read it: benchmarks/README.md.",
    ]
    contestants = [*dict.fromkeys(name for _, name, _, _ in rows)]
    for direction, title in TITLES.items():
        problems = dict.fromkeys((n, case) for case, _, n, way in rows if way == direction)
        if problems:
            page += ["", f"## {title.capitalize()}", ""]
            page += [f"| N | case | {' | '.join(contestants)} |"]
            page += [f"|---:|---|{'---|' * len(contestants)}"]
        for n, case in problems:
            cells = [_cell(rows.get((case, name, n, direction))) for name in contestants]
            page += [f"| {n:,} | {case} | {' | '.join(cells)} |"]
    return "\n".join(page) + "\n"


def _cell(row: dict[str, str] | None) -> str:
    if row is None:
        return ""
    if row["reason"]:
        return row["reason"].replace("|", "/")
    seconds = f"{float(row['seconds']):.3g} s ({float(row['ratio']):.2f}x)"
    return f"{seconds}, {float(row['extra_mib']):.0f}" if row["extra_mib"] else seconds


if __name__ == "__main__":
    main()
