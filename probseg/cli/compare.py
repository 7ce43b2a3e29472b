"""The verb compare."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from probseg.cli.arguments import Parser, check_writable
from probseg.errors import UsageError
from probseg.evaluation import PERCENTS
from probseg.metrics import REPORTED_CLICKS
from probseg.reports.comparison import COMPARED, compare
from probseg.reports.comparison_inputs import (
    default_names,
    model_names,
    pairings,
    read_result,
    runs_in,
)
from probseg.reports.comparison_report import (
    LEGEND,
    comparison_tables,
    remarks,
    verdicts,
    write_comparison,
)
from probseg.reports.settings import over_seeds, setting_tables, write_settings
from probseg.terminal import Grid, console, print_paths, print_table
from probseg.texts import one_line

EXAMPLES = f"""\
examples:
  probseg compare RUN_A RUN_B
  probseg compare runs/standard/version_0/test/ritm runs/csa/version_0/test/ritm
  probseg compare A B C --names standard csa csa_ft --output comparisons/heads
  probseg compare A B --metric miou@5 noc@90 boundary_iou
  probseg compare ablation/standard ablation/csa --latex

metrics, as far as the protocol has them:
  {" ".join(f"miou@{k}" for k in REPORTED_CLICKS)} auc
  {" ".join(f"noc@{q}" for q in PERCENTS)} {" ".join(f"failures@{q}" for q in PERCENTS)}
  {" ".join(COMPARED)}
"""


def run(arguments: Sequence[str]) -> None:
    """Run `probseg compare` with the arguments that follow it."""
    options = _parser().parse_args(list(arguments))
    check_writable("--output", options.output)
    folders: list[Path] = options.folders
    names = options.names
    if names and (len(names) != len(folders) or len(set(names)) < len(names)):
        raise UsageError(
            f"--names must be a different name for each of {len(folders)} folders, got {names}"
        )
    if all(seeds := [runs_in(folder) for folder in folders]):
        named = zip(names or default_names(folders), seeds, strict=True)
        compare_settings(dict(named), options.output, options.metric, latex=options.latex)
        return
    if options.latex:
        raise UsageError(
            f"--latex: {folders[0]} is no setting, a folder with a run for each seed, as `probseg "
            "ablate` leaves it"
        )
    if len(folders) < 2:
        raise UsageError(
            f"FOLDER must be given at least twice, the reference first, got {len(folders)}"
        )
    by_protocol = pairings(folders)
    for protocol, results in by_protocol.items():
        output = options.output / protocol if len(by_protocol) > 1 else options.output
        _compare(results, names or model_names(results), output, options)


def compare_settings(
    settings: Mapping[str, Sequence[Path]],
    output: Path,
    metrics: Sequence[str] | None,
    *,
    latex: bool,
) -> None:
    """Compare settings, each with the runs of its seeds; write the files and print the tables."""
    by_protocol = pairings([run for runs in settings.values() for run in runs])
    for protocol, folders in by_protocol.items():
        found = iter(folders)
        results = {
            name: [read_result(next(found), f"{name}/{run.name}") for run in runs]
            for name, runs in settings.items()
        }
        cells = over_seeds(results, metrics)
        folder = output / protocol if len(by_protocol) > 1 else output
        paths = write_settings(folder, cells, latex=latex)
        terminal = console(highlight=False)
        for table in setting_tables(cells):
            title = f"{table.title}, protocol {protocol}"
            print_table(terminal, title, Grid(table.header, table.rows), table.legend)
        print_paths(terminal, paths)


def _compare(
    folders: Sequence[Path], names: Sequence[str], output: Path, options: argparse.Namespace
) -> None:
    """Compare results under one protocol, write the files and print the tables."""
    comparison = compare(
        [read_result(folder, name) for folder, name in zip(folders, names, strict=True)],
        metrics=options.metric,
        common_only=options.common_objects,
        allow_different_protocols=options.allow_different_protocols,
    )
    try:
        paths = write_comparison(output, comparison)
    except OSError as error:
        raise UsageError(f"--output {output}: cannot be written: {error}") from error
    terminal = console(highlight=False)
    terminal.print(one_line(f"protocol {comparison.results[0].protocol['name']}"), markup=False)
    for table in comparison_tables(comparison):
        print_table(terminal, table.title, Grid(table.header, table.rows))
    terminal.print(LEGEND, style="dim")
    for sentence in [*remarks(comparison), *(verdict.text for verdict in verdicts(comparison))]:
        terminal.print(f"\n{one_line(sentence)}", markup=False, soft_wrap=True)
    print_paths(terminal, paths)


def _parser() -> Parser:
    parser = Parser(
        prog="probseg compare",
        description="Compare results with the first one, paired by object: differences, confidence "
        "intervals and tests.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="a run, or a folder of results of `probseg test`; the first one is the reference. "
        "Runs are compared under each protocol that all were tested under. Or a setting, a folder "
        "of runs with several seeds: means of settings with errors over their seeds",
    )
    add(
        "--output",
        type=Path,
        default=Path("comparison"),
        metavar="DIR",
        help="folder for comparison.md, comparison.json and curves.png, with a folder for each "
        "protocol if there are several (default: %(default)s)",
    )
    add(
        "--names",
        nargs="+",
        metavar="NAME",
        help="names of the results (default: names of the tested models or runs)",
    )
    add(
        "--metric",
        nargs="+",
        metavar="METRIC",
        help="metrics to compare, chosen before seeing the results (default: all)",
    )
    add("--latex", action="store_true", help="write the table of settings for a paper, too")
    add(
        "--common-objects",
        action="store_true",
        help="compare only the objects that are in all results",
    )
    add(
        "--allow-different-protocols",
        action="store_true",
        help="compare results of different protocols, up to the smallest number of clicks",
    )
    return parser
