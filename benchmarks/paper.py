"""The counterparts of the figures of Gabbur et al. (2021) with small networks.

``evaluate`` clicks through all objects with the rows of ``paper.yaml`` that have no result yet.
Without it, the figures, tables and tests are made again: from the folders of results where there
are some, else from what ``benchmarks/results`` keeps of them. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import paper_scores as scores
from measure import RESULTS
from paper_claims import examine, score
from paper_figures import draw
from paper_report import figure_name, write_claims, write_report
from paper_rows import PLAN, Plan, chosen, read_plan

from probseg.errors import USER_ERRORS


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; return its exit status."""
    args = _parser().parse_args(arguments)
    try:
        plan = read_plan(args.plan)
        if args.verb == "train":
            return _train(plan, args)
        if args.verb == "evaluate":
            return _evaluate(plan, args)
        return _report(plan, args)
    except USER_ERRORS as error:
        sys.stderr.write(f"paper.py: error: {error}\n")
        return 2


def _evaluate(plan: Plan, args: argparse.Namespace) -> int:
    from paper_evaluate import evaluate  # what the figures do without

    os.environ.setdefault("PROBSEG_ZOO", str(Path(__file__).parent / "zoo"))
    left_out = evaluate(plan, chosen(plan, args.only), args.folder, args.device)
    for sentence in left_out:
        sys.stderr.write(f"paper.py: left out: {sentence}\n")
    return 1 if left_out else 0


def _train(plan: Plan, args: argparse.Namespace) -> int:
    from paper_train import train

    if plan.training is None:
        sys.stderr.write(f"paper.py: error: {args.plan} has no `training`\n")
        return 2
    train(plan.training, args.seed, args.only or [*plan.training.networks])
    return 0


def _report(plan: Plan, args: argparse.Namespace) -> int:
    results, missing = scores.gather(plan, args.folder, args.results)
    if not results:
        sys.stderr.write("paper.py: error: nothing was evaluated yet; run `paper.py evaluate`\n")
        return 2
    scores.write(args.results, results)
    results = scores.read(args.results)  # with their four digits, as whoever has no folders does
    scored = score(plan, results)
    findings = [finding for figure in plan.figures for finding in examine(figure, scored)]
    evaluated = {result.row for result in results}
    for figure in plan.figures:
        if evaluated.isdisjoint(figure.rows):
            continue
        draw(args.results / figure_name(figure), figure, plan, scored)
    write_claims(args.results / "paper_claims.csv", findings)
    write_report(args.results / "paper.md", plan, scored, findings, results, missing)
    for finding in findings:
        print(f"{finding.figure}: {finding.better} over {finding.than}. {finding.sentence}")
    print(f"wrote {args.results}/paper.md, {len(missing)} results are missing")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("verb", nargs="?", choices=["train", "evaluate", "report"], default="report")
    add("--only", nargs="+", metavar="NAME", help="networks to train, rows to evaluate; all")
    add("--seed", type=int, default=0, help="of the training; %(default)s")
    add("--folder", type=Path, default=Path("runs/paper"), help="of the evaluations; %(default)s")
    add("--plan", type=Path, default=PLAN, help="rows, figures and claims; %(default)s")
    add("--results", type=Path, default=RESULTS, help="where reports go; %(default)s")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    return parser


if __name__ == "__main__":
    sys.exit(main())
