"""Clicks that a training on one's own objects saves, on photographs that it never saw.

`python benchmarks/own_objects.py KIND... --minutes 10 --seeds 0 1 2` trains the recommended model,
as `probseg fit --config configs/experiment/folder.yaml` does, on `KIND/labelled`, and lets it and
the network of the run click through `KIND/test`, both folders with `images/` and `masks/`. The
protocol is that of the page, up to an IoU of 90 %. Photographs of the test decide nothing, not even
which checkpoint is the best. Each training is a row of `results/own_objects.csv`; one that is there
is not repeated. `--report` prints the table of `docs/own_images.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path
from statistics import mean

import torch
from measure import append_row, provenance, read_rows

import probseg
from probseg.data import Berkeley, GrabCut, ImageMaskFolder
from probseg.data.base import InteractiveDataset
from probseg.descriptions import RECOMMENDED
from probseg.evaluation import get_protocol, run_objects
from probseg.reports.comparison import compare
from probseg.reports.comparison_inputs import Result, read_result
from probseg.reports.report import write_report
from probseg.zoo import create_interactive
from probseg.zoo.trained import Run

RESULTS = Path(__file__).parent / "results" / "own_objects.csv"
PROTOCOL = dataclasses.replace(get_protocol("probseg"), target_iou=0.9)
METRICS = ("noc@90", "miou@1")
"""What is compared: the first one with its interval."""
BEFORE: dict[tuple[type, Path], Result] = {}
"""What the recommended network takes, by the class and folder of the photographs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the trainings")
    parser.add_argument("--known", action="store_true", help="also click on GrabCut and Berkeley")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.report:
        print(table(read_rows(RESULTS)))
        return
    for seed in options.seeds:
        for kind in options.kinds:
            print(measured(kind, options.minutes, seed, options.runs, options.known), flush=True)


def measured(kind: Path, minutes: float, seed: int, runs: Path, known: bool) -> dict[str, object]:
    """Train on a kind of objects and return a row, which is added to the results."""
    about = {"kind": kind.name, "minutes": f"{minutes:g}", "seed": str(seed)}
    for done in read_rows(RESULTS):
        if about.items() <= done.items():
            return dict(done)
    labelled = ImageMaskFolder(kind / "labelled")
    settings = {
        "seed_everything": seed,
        "data.num_workers": 0,
        "trainer.logger.init_args.save_dir": runs,
        "trainer.logger.init_args.name": kind.name,
    }
    began = time.monotonic()
    run = probseg.train(kind / "labelled", settings, minutes=minutes)
    took = round((time.monotonic() - began) / 60, 1)
    tested = compared(run, ImageMaskFolder(kind / "test"))
    row: dict[str, object] = {
        **about,
        "photographs": len([*(kind / "labelled" / "images").iterdir()]),
        "objects": len(labelled),
        "took": took,
        "said": run.sentence,
        **tested,
    }
    for name, photographs in (("grabcut", GrabCut), ("berkeley", Berkeley)):
        found = compared(run, photographs()) if known else dict.fromkeys(tested)
        row |= {f"{name}_{key}": value for key, value in found.items()}
    row |= provenance("cpu")
    append_row(RESULTS, row)
    return row


def compared(run: Run, photographs: InteractiveDataset) -> dict[str, object]:
    """Return what the network of a run saves against the recommended one, with its interval."""
    place = (type(photographs), photographs.root)
    if place not in BEFORE:
        BEFORE[place] = clicked(RECOMMENDED, photographs)
    rows = compare([BEFORE[place], clicked(run, photographs)], metrics=METRICS).rows
    names = {"noc@90": "clicks", "miou@1": "miou1"}
    found: dict[str, object] = {"tested": len(photographs)}
    for row in rows:
        name = names[row.metric]
        found |= {f"{name}_before": row.reference_mean, f"{name}_after": row.other_mean}
        found |= {f"{name}_low": row.low, f"{name}_high": row.high}
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in found.items()
    }


def clicked(name: str | Run, photographs: InteractiveDataset) -> Result:
    """Click through photographs with a network."""
    network = create_interactive(str(name), pretrained=True)
    samples = [photographs[n] for n in range(len(photographs))]
    with torch.inference_mode():
        records = run_objects(network, samples, PROTOCOL)
    with tempfile.TemporaryDirectory() as folder:
        write_report(Path(folder), records, PROTOCOL, {"seed": 0}, brief=True)
        return read_result(Path(folder), Path(str(name)).name)


def table(rows: list[dict[str, str]]) -> str:
    """Return a line for each kind, number of photographs and time: means over the seeds.

    An interval is the mean of the intervals of the seeds, whose objects are the same.
    """
    lines = [
        "| objects | photographs | minutes | clicks to 90 % | saved (95 % interval) | each seed "
        "| mIoU@1 | GrabCut | Berkeley |",
        "|:--|--:|--:|--:|:--|:--|--:|--:|--:|",
    ]
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        kind = row["kind"].removesuffix(f" {row['photographs']}")
        groups.setdefault((kind, row["photographs"], row["minutes"]), []).append(row)
    kinds = [kind for kind, *_ in groups]
    by_kind = sorted(groups, key=lambda of: (kinds.index(of[0]), int(of[1]), float(of[2])))
    for about in by_kind:
        seeds = groups[about]
        before, after, low, high = (
            mean([float(row[f"clicks_{name}"]) for row in seeds])
            for name in ("before", "after", "low", "high")
        )
        each = (float(row["clicks_before"]) - float(row["clicks_after"]) for row in seeds)
        cells = (
            *about,
            change(seeds, "clicks", 1),
            f"{before - after:+.2f} ({0 - high:+.2f} to {0 - low:+.2f})",
            ", ".join(f"{saved:+.2f}" for saved in each),
            change(seeds, "miou1", 100),
            *(change(seeds, f"{known}_clicks", 1) for known in ("grabcut", "berkeley")),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def change(rows: list[dict[str, str]], name: str, scale: int) -> str:
    """Return a mean before and after trainings, of those that measured it; empty without any."""
    digits = 1 if scale == 100 else 2
    pairs = [(row[f"{name}_before"], row[f"{name}_after"]) for row in rows]
    measured = [tuple(map(float, pair)) for pair in pairs if all(pair)]
    figures = (f"{scale * mean(column):.{digits}f}" for column in zip(*measured, strict=True))
    return " -> ".join(figures)


if __name__ == "__main__":
    main()
