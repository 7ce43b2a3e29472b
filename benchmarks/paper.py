"""The counterparts of the figures of Gabbur et al. (2021) with small networks.

A plan, such as ``paper.yaml`` or ``paper_frozen.yaml``, says what is compared. ``train`` trains the
networks of one seed, where a plan says how; ``evaluate`` clicks through all objects with the rows
that have no result yet. Without either, the figures, tables and tests are made again: from the
folders of results where there are some, else from what ``benchmarks/results`` keeps of them. See
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import paper_beliefs_report as beliefs
import paper_scores as scores
from measure import RESULTS
from paper_claims import examine_all, score
from paper_figures import draw
from paper_report import figure_name, write_claims, write_report
from paper_rows import PLANS, Plan, chosen, read_plan

from probseg.errors import USER_ERRORS


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; return its exit status."""
    args = _parser().parse_args(arguments)
    os.environ.setdefault("PROBSEG_ZOO", str(Path(__file__).parent / "zoo"))
    try:
        plans = [read_plan(path) for path in args.plan]
        if args.verb == "train":
            return _train(plans, args)
        work = _evaluate if args.verb == "evaluate" else _report
        return max([work(plan, args) for plan in plans])
    except USER_ERRORS as error:
        sys.stderr.write(f"paper.py: error: {error}\n")
        return 2


def _evaluate(plan: Plan, args: argparse.Namespace) -> int:
    from paper_evaluate import evaluate  # what the figures do without

    left_out = evaluate(plan, chosen(plan, args.only), args.folder / plan.name, args.device)
    for sentence in left_out:
        sys.stderr.write(f"paper.py: left out: {sentence}\n")
    return 1 if left_out else 0


def _train(plans: Sequence[Plan], args: argparse.Namespace) -> int:
    from paper_train import train

    trainings = [plan.training for plan in plans if plan.training is not None]
    if not trainings:
        sys.stderr.write("paper.py: error: no plan has a `training`; see paper_frozen.yaml\n")
        return 2
    for training in trainings:
        train(training, args.seed, args.only or [*training.networks])
    return 0


def _report(plan: Plan, args: argparse.Namespace) -> int:
    results, missing = scores.gather(plan, args.folder / plan.name, args.results)
    if not results:
        sys.stderr.write("paper.py: error: nothing was evaluated yet; run `paper.py evaluate`\n")
        return 2
    scores.write(args.results, plan.name, results)
    results = scores.read(
        args.results, plan.name
    )  # with their four digits, as whoever has no folders does
    scored = score(plan, results)
    findings = examine_all(plan, scored)
    evaluated = {result.row for result in results}
    for figure in plan.figures:
        if evaluated.isdisjoint(figure.rows):
            continue
        draw(args.results / figure_name(plan, figure), figure, plan, scored)
    write_claims(args.results / f"{plan.name}_claims.csv", findings)
    write_report(args.results / f"{plan.name}.md", plan, scored, findings, results, missing)
    for test in beliefs.report(args.results, plan.name):
        print(f"{test.section}: {test.setting}. {test.claim} {test.verdict.capitalize()}.")
    for finding in findings:
        print(f"{finding.figure}: {finding.better} over {finding.than}. {finding.sentence}")
    print(f"wrote {args.results}/{plan.name}.md, {len(missing)} results are missing")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("verb", nargs="?", choices=["train", "evaluate", "report"], default="report")
    add("--only", nargs="+", metavar="NAME", help="networks to train, rows to evaluate; all")
    add("--seed", type=int, default=0, help="of the training; %(default)s")
    add("--folder", type=Path, default=Path("runs"), help="of the evaluations; %(default)s")
    add("--plan", type=Path, nargs="+", default=PLANS, help="rows, figures and claims; default all")
    add("--results", type=Path, default=RESULTS, help="where reports go; %(default)s")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    return parser


if __name__ == "__main__":
    sys.exit(main())
