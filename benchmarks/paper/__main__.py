"""The figures of Gabbur et al. (2021) and the ablations of EMANet with small networks.

A plan of `benchmarks/paper/plans` lists what is compared. `train` trains its networks; `evaluate`
asks the rows that have no result yet; `repeat` does both for the rows of `--only` and compares
their results with the published ones. `report` makes figures, tables and tests again from the files
in `benchmarks/results`. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.paper import emanet, results
from benchmarks.paper.claims import examine_all, score
from benchmarks.paper.evaluate import evaluate
from benchmarks.paper.plan import RESULTS, Plan, read_plan
from benchmarks.paper.report import draw, write_claims, write_page
from benchmarks.paper.train import train
from probseg.errors import USER_ERRORS, UsageError

ALL = ["paper", "paper_frozen", "paper_tuned", "paper_propagation", "paper_csa", "emanet"]


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    add = parser.add_argument
    add("verb", choices=["train", "evaluate", "repeat", "report"])
    add("--plan", nargs="+", default=ALL, help="names or files; default all")
    add("--only", nargs="+", metavar="NAME", help="networks to train, rows to evaluate; all")
    add("--seed", type=int, nargs="+", help="of trainings and evaluations; all")
    add("--training", nargs="+", help="of the plan emanet: frozen, end_to_end; all")
    add("--folder", type=Path, default=Path("runs"), help="of the evaluations; %(default)s")
    add("--results", type=Path, default=RESULTS, help="where reports go; %(default)s")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args(arguments)
    os.environ.setdefault("PROBSEG_ZOO", str(Path(__file__).parents[1] / "zoo"))
    status = 0
    try:
        for name in args.plan:
            if Path(name).stem == "emanet":
                _emanet(emanet.PLAN if name == "emanet" else Path(name), args)
            else:
                status = max(status, _do(read_plan(name), args))
    except USER_ERRORS as error:
        sys.stderr.write(f"benchmarks.paper: error: {error}\n")
        return 2
    return status


def _do(plan: Plan, args: argparse.Namespace) -> int:
    if args.verb == "report":
        _report(plan, args)
        return 0
    training = plan.training
    if args.verb == "train":
        for seed in args.seed or range(training.seeds if training else 0):
            assert training is not None, "the plan has a training"
            train(training, seed, args.only or [*training.networks])
        return 0
    rows = plan.chosen(args.only)
    if args.verb == "repeat" and args.only is None:
        raise UsageError("`repeat` needs rows, such as --only prob")
    if args.verb == "repeat" and training is not None:
        models = {model for row in rows for model in row.models}
        for seed in args.seed or range(training.seeds):
            names = [of for of in training.networks if str(training.place(of, seed)) in models]
            train(training, seed, names)
    left_out = evaluate(plan, rows, args.folder / plan.name, args.device, args.seed)
    for sentence in left_out:
        sys.stderr.write(f"left out: {sentence}; benchmarks/README.md says how to train it\n")
    if args.verb == "repeat":
        folder = args.folder / plan.name
        print("\n".join(results.differences(plan, rows, folder, args.results)))
    return 1 if left_out else 0


def _report(plan: Plan, args: argparse.Namespace) -> None:
    gathered, missing = results.gather(plan, args.folder / plan.name, args.results)
    if not gathered:
        raise UsageError(
            f"{plan.name}: nothing was evaluated yet; run `evaluate --plan {plan.name}`"
        )
    results.write(args.results, plan.name, gathered)
    gathered = results.read(args.results, plan.name)  # four digits, as without the folders
    scored = score(plan, gathered)
    findings = examine_all(plan, scored)
    evaluated = {result.row for result in gathered}
    for figure in plan.figures:
        if not evaluated.isdisjoint(figure.rows):
            draw(args.results / f"{plan.name}_{figure.name}.png", figure, plan, scored)
    write_claims(args.results / f"{plan.name}_claims.csv", findings)
    page = args.results / f"{plan.name}.md"
    write_page(page, plan, scored, findings, gathered, missing)
    for finding in findings:
        print(f"{finding.figure}: {finding.better} over {finding.than}. {finding.sentence}")
    print(f"wrote {page}, {len(missing)} results are missing")


def _emanet(path: Path, args: argparse.Namespace) -> None:
    plan = emanet.read_plan(path)
    seeds = [*(args.seed or range(plan.seeds))]
    for name in args.training or plan.trainings:
        training = plan.trainings[name]
        names = training.chosen(args.only)
        for seed in seeds if args.verb in ("train", "repeat") else ():
            emanet.train(plan, training, seed, names)
        if args.verb in ("evaluate", "repeat"):
            counts = emanet.evaluate(plan, training, seeds, names)
            emanet.write_counts(args.results, emanet.read_counts(args.results) | counts)
    if args.verb in ("report", "repeat"):
        emanet.report(args.results, plan, emanet.read_counts(args.results))


if __name__ == "__main__":
    sys.exit(main())
