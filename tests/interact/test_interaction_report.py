import csv
import io
import json
import subprocess
import sys
from dataclasses import asdict, replace

import cv2
import numpy as np
import pytest
import torch
from rich.console import Console

from probseg.interact import (
    PROTOCOLS,
    ObjectRecord,
    OneStep,
    Step,
    environment,
    print_summary,
    read_ious,
    run_object,
    summarise_records,
    write_report,
)
from probseg.interact.report import _git
from probseg.metrics import summarise
from probseg.types import Sample

GABBUR = replace(PROTOCOLS["gabbur2021"], max_clicks=4, trials=3)
RITM = replace(PROTOCOLS["ritm"], max_clicks=3)


@OneStep
def paints_disks(image, prompts):
    y, x = torch.meshgrid(*map(torch.arange, image.shape[2:]), indexing="ij")
    inside = torch.zeros(image.shape[2:], dtype=torch.bool)
    for (column, row), label in zip(prompts.points[0], prompts.labels[0], strict=True):
        inside[(x - column) ** 2 + (y - row) ** 2 <= 64] = bool(label)
    return torch.where(inside, 1.0, -1.0)[None, None]


def sample(number, dataset):
    height, width = 50 + 7 * number, 80 - 5 * number
    mask = np.zeros((height, width), dtype=np.uint8)
    mask[10:35, 15 : 30 + 4 * number] = 1
    image = np.full((height, width, 3), 200, dtype=np.uint8)
    return Sample(image, mask, f"{number}, with a comma", dataset)


def evaluate(protocol, pictures=False):
    return [
        run_object(
            paints_disks,
            sample(number, dataset),
            protocol,
            trial=trial,
            keep_picture=pictures and trial == 0,
        )
        for dataset in ("Berkeley", "GrabCut")
        for number in range(3)
        for trial in range(protocol.trials)
    ]


@pytest.fixture(scope="module", params=[GABBUR, RITM], ids=lambda protocol: protocol.name)
def report(request, tmp_path_factory):
    protocol = request.param
    records = evaluate(protocol, pictures=True)
    folder = tmp_path_factory.mktemp("report") / "new" / "folder"
    return protocol, records, write_report(folder, records, protocol, {"model": "toy", "seed": 0})


def as_json(summary):
    return json.loads(json.dumps(asdict(summary)))


def test_objects_rebuild_the_summary_exactly(report):
    protocol, records, paths = report
    results = json.loads(paths["results"].read_text(encoding="utf-8"))
    arrays = read_ious(paths["objects"])
    assert {name: ious.shape for name, ious in arrays.items()} == {
        name: (3, protocol.trials, protocol.max_clicks + 1) for name in ("Berkeley", "GrabCut")
    }
    rebuilt = {name: as_json(summarise(ious)) for name, ious in arrays.items()}
    assert results["datasets"] == rebuilt
    assert rebuilt == {name: as_json(s) for name, s in summarise_records(records).items()}


def test_results_hold_every_option_and_the_metadata(report):
    protocol, _, paths = report
    results = json.loads(paths["results"].read_text(encoding="utf-8"))
    assert type(protocol)(**results["protocol"]) == protocol
    assert results["metadata"] == {"model": "toy", "seed": 0}


def test_objects_hold_every_step(report):
    protocol, records, paths = report
    with paths["objects"].open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["dataset", "object", "trial", "k", "x", "y", "sign", "iou", "seconds"]
    steps = [(record, step) for record in records for step in record.steps]
    assert len(rows) == len(steps) == 2 * 3 * protocol.trials * (protocol.max_clicks + 1)
    for row, (record, step) in zip(rows, steps, strict=True):
        assert (row["dataset"], row["object"]) == (record.dataset, record.name)
        assert (int(row["trial"]), int(row["k"])) == (record.trial, step.k)
        assert float(row["iou"]) == step.iou
        assert row["x"] == ("" if step.x is None else str(step.x))
        assert row["sign"] == {None: "", True: "1", False: "-1"}[step.positive]
        assert (float(row["seconds"]) if row["seconds"] else None) == step.seconds


def test_order_and_repeats_of_the_runs_do_not_matter(tmp_path):
    records = evaluate(GABBUR)
    mixed = [*records[::-1], *records[:2]]
    first = write_report(tmp_path / "a", records, GABBUR, {})
    second = write_report(tmp_path / "b", mixed, GABBUR, {})
    for name in ("results", "objects", "table"):
        assert first[name].read_bytes() == second[name].read_bytes()
    assert "overlays" not in first


def test_table_shows_the_numbers(report):
    protocol, records, paths = report
    table = paths["table"].read_text(encoding="utf-8")
    summary = summarise_records(records)["GrabCut"]
    line = next(line for line in table.splitlines() if line.startswith("| GrabCut"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    over_trials = f"±{100 * summary.se_trials[3]:.1f}" if protocol.box else ""
    assert (
        cells[-1] == f"{100 * summary.miou[3]:.1f}±{100 * summary.se_objects[3]:.1f}{over_trials}"
    )
    assert ("mIoU@0" in table) == protocol.box
    assert f"≥{protocol.max_clicks}@90" in table
    console = Console(width=200, record=True, file=io.StringIO())
    print_summary(console, summarise_records(records), protocol)
    text = console.export_text()
    assert all(cell in text for cell in cells)


def test_pictures_show_something(report):
    protocol, _, paths = report
    curve, overlays = (cv2.imread(str(paths[name])) for name in ("curve", "overlays"))
    assert min(curve.shape[:2]) > 400
    assert len(np.unique(curve.reshape(-1, 3), axis=0)) > 50
    columns = 6 if protocol.box else 4  # image, truth, after 0, 1, 3 or only 1 clicks, final
    assert overlays.shape[1] > 200 * columns
    assert overlays.shape[0] > 6 * 120
    for bgr in ((74, 163, 23), (255, 200, 0), (0, 212, 255)):  # click, prediction, truth
        assert (np.abs(overlays.astype(int) - bgr).max(axis=2) < 12).sum() > 100


def records_of(ious):
    return [
        ObjectRecord("Toy", name, trial, (Step(0, None, None, None, value, None),) * 2)
        for (name, trial), value in ious.items()
    ]


def test_missing_trials_are_named():
    with pytest.raises(ValueError, match=r"trials \[0, 1\].*Toy.*\[1\] of b"):
        summarise_records(records_of({("a", 0): 0.5, ("a", 1): 0.5, ("b", 1): 0.5}))


def test_no_record_is_no_report(tmp_path):
    with pytest.raises(ValueError, match="records"):
        write_report(tmp_path, [], RITM, {})


def test_a_single_object_and_trial_have_no_spread(tmp_path):
    paths = write_report(tmp_path, evaluate(RITM)[:1], RITM, {})
    assert "±n/a |" in paths["table"].read_text(encoding="utf-8")
    assert json.loads(paths["results"].read_text())["datasets"]["Berkeley"]["se_objects"] is None


def test_environment_is_json_and_names_the_versions():
    found = json.loads(json.dumps(environment()))
    assert found["versions"]["torch"] == torch.__version__
    assert found["device"] == "cpu"
    assert found["commit"] is None or len(found["commit"]) == 40
    assert {"python", "platform", "dirty"} <= found.keys()


def test_environment_does_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("probseg.interact.report._git", _git.__wrapped__)  # without its cache
    assert environment()["commit"] is None


def test_importing_interact_stays_light():
    code = (
        "import sys, probseg.interact\n"
        "heavy = {'lightning', 'albumentations', 'matplotlib', 'wandb', 'timm'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
