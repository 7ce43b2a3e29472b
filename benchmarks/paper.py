"""The counterparts of the figures of Gabbur et al. (2021) with small networks.

A plan, such as `paper.yaml` or `paper_frozen.yaml`, lists what is compared. `train` trains
its networks, where the plan has a training; `evaluate` clicks through all objects with the rows
that have no result yet; `repeat` does both for the rows of `--only` and compares their results
with the published ones. Without a verb, figures, tables and tests are made again, from the folders
of results or else from the files in `benchmarks/results`. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import paper_beliefs_report as beliefs
import paper_factors_report as factors
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
    if args.verb != "report":  # which needs no network
        os.environ.setdefault("PROBSEG_ZOO", str(Path(__file__).parent / "zoo"))
    try:
        plans = [read_plan(path) for path in args.plan]
        work = {"train": _train, "evaluate": _evaluate, "repeat": _repeat, "report": _report}
        status = max([work[args.verb](plan, args) for plan in plans])
    except USER_ERRORS as error:
        sys.stderr.write(f"paper.py: error: {error}\n")
        return 2
    for line in factors.report(args.results) if args.verb == "report" else ():
        print(line)
    return status


def _train(plan: Plan, args: argparse.Namespace) -> int:
    from paper_train import train  # needs more than the figures do

    if plan.training is None:
        sys.stderr.write(f"paper.py: {plan.name} has no `training`; see paper_frozen.yaml\n")
        return 0
    for seed in args.seed or range(plan.training.seeds):
        train(plan.training, seed, args.only or [*plan.training.networks])
    return 0


def _evaluate(plan: Plan, args: argparse.Namespace) -> int:
    from paper_evaluate import evaluate

    rows = chosen(plan, args.only)
    left_out = evaluate(plan, rows, args.folder / plan.name, args.device, args.seed)
    for sentence in left_out:
        sys.stderr.write(f"paper.py: left out: {sentence}\n")
    if left_out:
        sys.stderr.write("paper.py: benchmarks/README.md says how to get or train the networks\n")
    return 1 if left_out else 0


def _repeat(plan: Plan, args: argparse.Namespace) -> int:
    from paper_train import train_missing

    if args.only is None:
        sys.stderr.write("paper.py: error: `repeat` needs rows, such as --only prob\n")
        return 2
    rows = chosen(plan, args.only)
    if plan.training is not None:
        train_missing(plan.training, [model for row in rows for model in row.models], args.seed)
    status = _evaluate(plan, args)
    for line in scores.differences(plan, rows, args.folder / plan.name, args.results):
        print(line)
    return status


def _report(plan: Plan, args: argparse.Namespace) -> int:
    results, missing = scores.gather(plan, args.folder / plan.name, args.results)
    if not results:
        sys.stderr.write("paper.py: error: nothing was evaluated yet; run `paper.py evaluate`\n")
        return 2
    scores.write(args.results, plan.name, results)
    results = scores.read(args.results, plan.name)  # four digits, as without the folders
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
    add("verb", nargs="?", choices=["train", "evaluate", "repeat", "report"], default="report")
    add("--only", nargs="+", metavar="NAME", help="networks to train, rows to evaluate; all")
    add("--seed", type=int, nargs="+", help="of trainings and evaluations; default all")
    add("--folder", type=Path, default=Path("runs"), help="of the evaluations; %(default)s")
    add("--plan", type=Path, nargs="+", default=PLANS, help="rows, figures and claims; default all")
    add("--results", type=Path, default=RESULTS, help="where reports go; %(default)s")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    return parser


if __name__ == "__main__":
    sys.exit(main())
