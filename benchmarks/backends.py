"""Time of each backend of the two primitives, from which the order of "auto" is read.

All backends of a row are timed in turns in the same process. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from measure import RESULTS, Row, append_row, interleave, provenance
from torch import Tensor

from probseg.lab.gauges import Call
from probseg.ops.attention import BackendError, LogPrior, assign, attend
from probseg.ops.axial import span_mask

_LONGEST_MATERIALISED = 2048
"""Tokens beyond which "reference" is left out: it is several times slower than the others there."""

_LINES, _LENGTH, _SPAN = 256, 256, 64  # the rows of a 256 x 256 map


class Setting(NamedTuple):
    """What one row measures; problems of a batch larger than 1 see a band only."""

    primitive: str
    direction: str
    batch: int
    n: int
    channels: int
    value_channels: int
    prior: str


def main() -> None:
    """Time all settings and write them as they come."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--threads", type=int, default=2)
    add("--sizes", type=int, nargs="+", default=[2**n for n in range(7, 14)], help="tokens")
    add("--backends", nargs="+", help="default: reference, chunked, sdpa, and flex on CUDA")
    add("--budget", type=float, default=0.4, help="seconds for a row; each backend runs once")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path = RESULTS / f"backends_{args.device}.csv"
    path.unlink(missing_ok=True)
    origin = provenance(args.device)
    names = ["reference", "chunked", "sdpa", *(["flex"] if args.device == "cuda" else [])]
    for setting in _settings(args.sizes):
        print(*setting, sep=" | ", end=":", flush=True)
        seconds, reasons = _measure(setting, args.backends or names, args.device, args.budget)
        fastest = min(map(min, seconds.values()), default=0.0)
        for name in args.backends or names:
            runs = seconds.get(name)
            ratio = None if runs is None else round(min(runs) / fastest, 3)
            numbers: Row = {
                "backend": name,
                "seconds": None if runs is None else float(f"{min(runs):.4g}"),
                "ratio": ratio,
                "repetitions": 0 if runs is None else len(runs),
                "reason": reasons.get(name),
            }
            print("", name, "-" if ratio is None else f"{ratio:.2f}x", end="", flush=True)
            append_row(path, {**setting._asdict(), **numbers, "threads": args.threads, **origin})
        print(f" of {fastest:.3g} s", flush=True)
    print(f"wrote {path}")


def _settings(sizes: list[int]) -> Iterator[Setting]:
    shapes = [*((1, size) for size in sizes), (_LINES, _LENGTH)]
    ways = itertools.product(("attend", "assign"), ("forward", "backward"))
    contents = ((d, v, prior) for d in (32, 64) for v in (d, 1) for prior in ("none", "unit"))
    for (primitive, direction), (batch, n), (channels, value_channels, prior) in itertools.product(
        ways, shapes, contents
    ):
        yield Setting(primitive, direction, batch, n, channels, value_channels, prior)


def _measure(
    setting: Setting, names: list[str], device: str, budget: float
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the seconds of the backends that can serve, and why the others cannot."""
    calls: dict[str, Call] = {}
    reasons: dict[str, str] = {}
    for name in names:
        if name == "reference" and setting.n > _LONGEST_MATERIALISED:
            reasons[name] = f"left out beyond {_LONGEST_MATERIALISED} tokens"
            continue
        call = _call(setting, name, device)
        try:
            # The first call compiles what is to be compiled. On the CPU nothing is, so that a
            # small problem answers as well whether the backend can serve.
            (call if device == "cuda" else _call(_smaller(setting), name, device))()
        except BackendError as error:
            reasons[name] = str(error)
            continue
        calls[name] = call
    return interleave(calls, device, budget=budget, minimum=1), reasons


def _smaller(setting: Setting) -> Setting:
    return setting._replace(batch=min(2, setting.batch), n=min(128, setting.n))


def _call(setting: Setting, backend: str, device: str) -> Call:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(setting.batch, 1, *shape, generator=generator).to(device)

    queries, keys = draw(setting.n, setting.channels), draw(setting.n, setting.channels)
    payload = draw(setting.n, setting.value_channels)
    leaves = [queries, keys, payload]
    terms: list[Tensor] = []
    if setting.batch > 1:
        terms.append(span_mask(setting.n, _SPAN, queries.device))
    if setting.prior == "unit":
        terms.append(draw(setting.n))
        leaves.append(terms[-1])
    log_prior: LogPrior | None = tuple(terms) or None
    weights = draw(setting.n, setting.value_channels)
    statistic_weights = draw(setting.n)  # of the log evidence or the log mass
    primitive = attend if setting.primitive == "attend" else assign

    def forward() -> tuple[Tensor, Tensor]:
        return primitive(
            queries,
            keys,
            payload,
            log_prior=log_prior,
            scale=setting.channels**-0.5,
            backend=backend,
        )

    if setting.direction == "forward":
        return torch.no_grad()(forward)
    for leaf in leaves:
        leaf.requires_grad_()

    def backward() -> tuple[Tensor, ...]:
        means, statistic = forward()
        loss = (means * weights).sum() + (statistic * statistic_weights).sum()
        return torch.autograd.grad(loss, leaves)

    return backward


if __name__ == "__main__":
    main()
