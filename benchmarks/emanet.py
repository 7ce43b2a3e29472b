"""The ablations of EMANet (Li et al., 2019) on CamVid, with small networks.

`train` trains the networks of each seed side by side, `evaluate` counts what they find on the
test frames, `report` makes tables, tests and figures from the counts that `benchmarks/results`
keeps. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from emanet_counts import read_counts, write_counts
from emanet_plan import PLAN, read_plan
from emanet_report import write_report
from measure import RESULTS

from probseg.errors import USER_ERRORS


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; return its exit status."""
    args = _parser().parse_args(arguments)
    try:
        plan = read_plan(args.plan)
        seeds = range(plan.seeds) if args.seed is None else [args.seed]
        chosen = [
            (plan.trainings[name], plan.trainings[name].chosen(args.only))
            for name in args.training or plan.trainings
        ]
        if "train" in args.verbs:
            from emanet_train import train  # which the report does without

            for training, names in chosen:
                for seed in seeds:
                    train(plan, training, seed, names)
        if "evaluate" in args.verbs:
            from emanet_evaluate import evaluate

            for training, names in chosen:
                counts = evaluate(plan, training, seeds, names)
                write_counts(args.results, read_counts(args.results) | counts)
        if "report" in args.verbs:
            write_report(args.results, plan, read_counts(args.results))
    except USER_ERRORS as error:
        sys.stderr.write(f"emanet.py: error: {error}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("verbs", nargs="+", choices=["train", "evaluate", "report"])
    add("--training", nargs="+", choices=["frozen", "end_to_end"], help="all")
    add("--only", nargs="+", metavar="NAME", help="networks to train and evaluate; all")
    add("--seed", type=int, help="of the trainings; all")
    add("--plan", type=Path, default=PLAN, help="networks, trainings and claims; %(default)s")
    add("--results", type=Path, default=RESULTS, help="where counts and reports are; %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
