import io
import json
import re
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from PIL import ImageColor
from rich.console import Console

from probseg.evaluation import (
    PROTOCOLS,
    SCORES,
    ObjectRecord,
    read_objects,
    run_object,
    summarise_records,
)
from probseg.formats.colours import CLICK_COLOURS
from probseg.interact import OneStep
from probseg.reports import markdown_table, print_summary, write_report
from probseg.reports.figures import draw_curve, draw_overlays
from probseg.types import Sample
from support.result_folders import step

GABBUR = replace(PROTOCOLS["gabbur2021"], max_clicks=4, trials=3)
RITM = replace(PROTOCOLS["ritm"], max_clicks=3)
SETS = ("Berkeley", "GrabCut")


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
        for dataset in SETS
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
    return json.loads(json.dumps(summary.as_json()))


def test_objects_rebuild_the_summary_exactly(report):
    protocol, records, paths = report
    results = json.loads(paths["results"].read_text(encoding="utf-8"))
    read = read_objects(paths["objects"])
    rebuilt = {
        name: as_json(summary) for name, summary in summarise_records(read, protocol).items()
    }
    assert results["datasets"] == rebuilt
    assert type(protocol)(**results["protocol"]) == protocol
    assert results["metadata"] == {"model": "toy", "seed": 0}
    assert rebuilt == {name: as_json(s) for name, s in summarise_records(records, protocol).items()}


def test_results_come_last(tmp_path, monkeypatch):
    paths = write_report(tmp_path, evaluate(RITM)[:1], RITM, {})
    assert "±n/a<br>[n/a] |" in paths["table"].read_text(encoding="utf-8"), "a single run"

    def broken(*arguments, **options):
        raise OSError("no space left")

    monkeypatch.setattr("probseg.reports.report.markdown_table", broken)
    with pytest.raises(OSError, match="no space"):
        write_report(tmp_path, evaluate(RITM)[:2], RITM, {})
    assert not paths["results"].exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for name, path in paths.items() if name != "results"
    )


# Two objects of one photograph and one of another, K = 2: every number can be checked by hand.
IOUS = {"a": (0.2, 0.6, 0.9), "b": (0.4, 0.8, 0.7), "c": (0.0, 0.85, 0.96)}
SHORT = replace(GABBUR, max_clicks=2, trials=1)


def by_hand(name, trial=0, ious=None, dataset="Toy"):
    steps = []
    for k, iou in enumerate(ious or IOUS[name]):
        click = (3, 4, True) if k else (None, None, None)
        compliance = (None, 1.0, 0.5)[k]
        scores = {"iou": iou, "boundary_iou": iou / 2, "brier": 0.1 * k, "ece": 0.05 * k}
        steps.append(step(k, click, 0.5 - 0.1 * k, **scores, compliance=compliance))
    return ObjectRecord(dataset, name, trial, tuple(steps), "one" if name in "ab" else "two")


def cells(markdown, start):
    """Cells of the only line of Markdown that starts so, line breaks as spaces."""
    (line,) = [line for line in markdown.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip().replace("<br>", " ") for cell in line.strip("|").split("|")]


def test_tables_show_the_numbers():
    summaries = summarise_records([by_hand(name) for name in IOUS], SHORT)
    (summary,) = summaries.values()
    table = markdown_table(summaries, SHORT)
    means, counts, others = table.split("\n## ")[1:]
    spread = 100 * np.std([0.2, 0.4, 0.0], ddof=1) / 3**0.5
    interval = f"[{100 * summary.ci_low[0]:.1f}, {100 * summary.ci_high[0]:.1f}]"
    assert cells(means, "Toy")[:5] == ["Toy", "3", "2", "1", f"20.0±{spread:.1f} {interval}"]
    assert [cell[:4] for cell in cells(means, "Toy")[5:]] == ["75.0", "85.3"]
    low, high = summary.noc_ci[90]
    error = np.std([2, 2, 2], ddof=1)
    assert cells(counts, "Toy | NoC@90") == [
        "Toy",
        "NoC@90",
        f"2.00±{error:.2f}",
        f"[{low:.2f}, {high:.2f}]",
        "2",  # two of three are there after two clicks
        "3",
        "3",  # at the cap
        "1",  # never there
    ]
    assert cells(counts, "Toy | NoC@80")[2].startswith("1.33±")
    assert cells(counts, "Toy | NoC@95")[4] == "> 2"
    areas = [np.trapezoid(ious) / 2 for ious in IOUS.values()]
    shown = dict(zip(cells(others, "data"), cells(others, "Toy"), strict=True))
    assert shown["AUC"].startswith(f"{100 * np.mean(areas):.1f}±")
    titles = [title.partition("@")[0] for title in shown]
    assert titles[2:-3] == [score.title for name, score in SCORES.items() if name != "iou"]
    expected = {
        "boundary IoU@2": "42.7",
        "Brier score@2": "0.2000",
        "ECE@2": "0.1000",
        "kept@2": "50.0",
        "jumps": "n/a",
        "worse": "16.7 (by 10.0)",
        "first answer (s)": "0.5 / 0.5",
        "next answer (s)": "0.35 / 0.4",
    }
    assert {title: shown[title] for title in expected} == expected


def test_columns_begin_with_the_first_answer():
    boxes = replace(PROTOCOLS["box"], trials=1)
    records = [by_hand(name, ious=IOUS[name][:1]) for name in IOUS]
    table = markdown_table(summarise_records(records, boxes), boxes)
    assert "NoC" not in table
    assert "worse" not in table
    for protocol, first in ((GABBUR, "mIoU@0"), (RITM, "mIoU@1")):
        table = markdown_table(summarise_records(evaluate(protocol), protocol), protocol)
        header = next(line for line in table.splitlines() if line.startswith("| data"))
        assert header.split("|")[5].strip() == first, "the empty mask is no result"
        assert header.split("|")[-2].strip() == f"mIoU@{protocol.max_clicks}"


@pytest.mark.parametrize(
    ("target", "kept"), [(0.95, [80, 85, 90, 95]), (0.85, [80, 85]), (0.7, [])]
)
def test_where_runs_end_nothing_is_said_of_higher_ious(tmp_path, target, kept):
    stops = replace(SHORT, target_iou=target)
    records = [by_hand(name) for name in IOUS]
    (summary,) = summarise_records(records, stops).values()
    for counts in (summary.noc, summary.noc_ci, summary.failures_at_cap, summary.survival):
        assert list(counts) == kept
    paths = write_report(tmp_path, records, stops, {})
    results = json.loads(paths["results"].read_text(encoding="utf-8"))
    assert list(results["datasets"]["Toy"]["noc"]) == [str(percent) for percent in kept]
    page = paths["page"].read_text(encoding="utf-8")
    table = paths["table"].read_text(encoding="utf-8")
    sections = table.split("\n## ")[1:]
    assert len(sections) == (3 if kept else 2)  # without a table of numbers of clicks
    assert all(f"ended at an IoU of {100 * target:g} %" in section for section in sections)
    assert ("Higher IoUs are left out" in table) == bool(kept)
    for percent in (80, 85, 90, 95):
        assert (f"NoC@{percent}" in table) == (percent in kept)
    listed = [percent for percent in kept if percent <= 90][-1:]
    assert set(re.findall(r"<th scope=\"col\">(NoC@\d+)", page)) == {f"NoC@{q}" for q in listed}
    assert re.findall(r"never reached (\d+)(?:&nbsp;|\s)%", page) == [str(q) for q in listed]


def test_the_console_shows_the_same():
    summaries = summarise_records(evaluate(GABBUR), GABBUR)
    console = Console(width=220, record=True, file=io.StringIO())
    print_summary(console, summaries, GABBUR)
    text = console.export_text()
    for title in ("Mean IoU", "Number of clicks", "Other scores"):
        assert f"{title}, protocol gabbur2021" in text
    table = markdown_table(summaries, GABBUR)
    shown = [
        cell.strip() for line in table.splitlines() if "GrabCut" in line for cell in line.split("|")
    ]
    assert all(part in text for cell in shown for part in cell.split("<br>"))
    assert sum("±" in cell for cell in shown) > 6


def test_names_are_neither_html_nor_cells():
    name = "<img src=x> &lt; a&b|<b>"
    summaries = {name: summarise_records([by_hand("a")], SHORT)["Toy"]}
    protocol = replace(SHORT, name="<i>p</i>", description="<script>1 < 2</script>")
    table = markdown_table(summaries, protocol)
    assert set(re.findall(r"<\S*", table)) == {"<", "<br>[n/a]"}
    assert "| &lt;img src=x> &amp;lt; a&amp;b\\|&lt;b> |" in table
    assert "# &lt;i>p&lt;/i> (version" in table
    assert "&lt;script>1 < 2&lt;/script>" in table


def test_pictures_show_something(report):
    protocol, _, paths = report
    drawn = {name: cv2.imread(str(paths[name])) for name in ("curve", "survival", "overlays")}
    for name in ("curve", "survival"):
        assert min(drawn[name].shape[:2]) > 400
        assert len(np.unique(drawn[name].astype(int) @ (1, 256, 65536))) > 50
    columns = 6 if protocol.box else 4  # image, truth, after 0, 1, 3 or only 1 clicks, final
    overlays = drawn["overlays"]
    assert overlays.shape[1] > 200 * columns
    assert overlays.shape[0] > 6 * 120
    click = ImageColor.getrgb(CLICK_COLOURS[True])[::-1]
    for bgr in (click, (255, 200, 0), (0, 212, 255)):  # click, prediction, truth
        assert (np.abs(overlays.astype(int) - bgr).max(axis=2) < 12).sum() > 100


def test_figures_have_their_titles(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "probseg.reports.figures._save", lambda figure, target: drawn.append(figure)
    )
    records = evaluate(RITM, pictures=True)
    hidden = [replace(record, picture=None) for record in records[:2]]
    draw_curve(io.BytesIO(), summarise_records(records, RITM), RITM)
    draw_overlays(io.BytesIO(), records, RITM)
    draw_overlays(io.BytesIO(), [*hidden, *records[2:]], RITM)
    many = [replace(records[0], dataset=of, name=str(n)) for of in SETS for n in range(12)]
    draw_overlays(io.BytesIO(), many, RITM)
    curve, *sheets = drawn
    assert curve.axes[0].get_title(loc="left") == "ritm"
    assert [sheet.get_suptitle() for sheet in sheets] == ["", "4 of 6 objects", "8 of 24 objects"]
    titles = [axes.get_title(loc="left") for axes in sheets[2].axes]
    objects = [title.partition(",")[0] for title in titles if "/" in title]
    assert objects == [f"{of} / {number}" for of in ("Berkeley", "GrabCut") for number in range(4)]
