"""Ablations of EMANet on CamVid, with small networks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from emanet_plan import PLAN, read_plan


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    plan = read_plan(args.plan)
    if args.verb == "train":
        from emanet_train import train

        training = plan.trainings[args.training]
        train(plan, training, args.seed, args.only or training.networks)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("verb", nargs="?", choices=["train", "evaluate", "report"], default="report")
    add("--training", default="frozen")
    add("--only", nargs="+", metavar="NAME", help="networks to train, rows to evaluate; all")
    add("--seed", type=int, default=0, help="of the training; %(default)s")
    add("--plan", type=Path, default=PLAN, help="rows, figures and claims; default all")
    return parser


if __name__ == "__main__":
    sys.exit(main())
