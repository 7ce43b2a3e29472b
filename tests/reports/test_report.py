"""Reports of an evaluation: files, tables, pictures and the page."""

import base64
import html
import io
import json
import re
from collections import Counter
from dataclasses import fields, replace
from html.parser import HTMLParser

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageColor
from rich.console import Console

from probseg.clicks.annotators import HUMAN
from probseg.evaluation import (
    PROTOCOLS,
    SCORES,
    Frame,
    ObjectRecord,
    Picture,
    read_objects,
    run_object,
    scores_of,
    summarise_records,
)
from probseg.formats.colours import CLICK_COLOURS
from probseg.interact import OneStep
from probseg.metrics import area_under_curve
from probseg.reports import markdown_table, print_summary, write_report
from probseg.reports.figures import draw_curve, draw_overlays
from probseg.reports.gallery import LARGEST_SIDE, render_run
from probseg.reports.report import render_objects, render_options, render_page
from probseg.types import IGNORE, Click, Sample
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


BOXED = replace(PROTOCOLS["gabbur2021"], max_clicks=3, trials=2)
UNBOXED = replace(PROTOCOLS["ritm"], max_clicks=3)
EVIL = "<script>alert('&\"x')</script>"
VOID = {"meta", "link", "img", "source", "input", "br"}


class Page(HTMLParser):
    """Tags, their attributes and texts; fails where tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert "svg" in self.open, f"<{tag}/> does not close itself outside of SVG"
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else None, data))

    def of(self, *names):
        return [attributes for tag, attributes in self.tags if tag in names]

    def text(self, *without):
        return " ".join(data for tag, data in self.texts if tag not in without)


def picture(protocol, ious, size=(40, 60)):
    """A photograph with the object on its left half, the prediction growing with the clicks."""
    height, width = size
    y, x = np.mgrid[:height, :width]
    image = np.stack([255 * x / width, 255 * y / height, 0 * x], axis=2).astype(np.uint8)
    mask = (x < width // 2).astype(np.uint8)
    mask[:, width // 2] = IGNORE
    clicks = tuple(Click(4 + k, 5, k != 2) for k in range(1, len(ious)))
    frames = [Frame(k, x < width * k // 6, iou) for k, iou in enumerate(ious) if k in (0, 1, 3)]
    return Picture(image, mask, (1, 2, 33, 35) if protocol.box else None, clicks, tuple(frames))


def run(protocol, name, ious, *, dataset="Toy", trial=0, pictured=True, size=(40, 60)):
    steps = [step(0, iou=ious[0], boundary_iou=ious[0] / 2)]
    if protocol.box:
        steps = [step(0, seconds=0.25, iou=ious[0], boundary_iou=ious[0] / 2, brier=0.1, ece=0.1)]
    for k, iou in enumerate(ious[1:], start=1):
        scores = {"iou": iou, "boundary_iou": iou / 2, "brier": 0.1, "ece": 0.1}
        steps.append(step(k, (100 + k, 5, k != 2), 0.0625, **scores, compliance=1.0))
    drawn = picture(protocol, ious, size) if pictured and trial == 0 else None
    return ObjectRecord(dataset, name, trial, tuple(steps), name, picture=drawn)


def runs(protocol, number, dataset="Toy", **options):
    """Objects that are the better the higher their number."""
    first = 0.2 if protocol.box else 0.0
    return [
        run(
            protocol,
            f"object {n:04}",
            (first, *np.linspace(0.3, 0.5 + n / number / 2, 3)),
            dataset=dataset,
            trial=trial,
            **options,
        )
        for n in range(number)
        for trial in range(protocol.trials)
    ]


def render(records, protocol, metadata=None):
    return render_page(
        records,
        scores_of(records, protocol.first_result),
        summarise_records(records, protocol),
        protocol,
        metadata or {},
    )


METADATA = {
    "model": {"class_path": "probseg.create_model", "init_args": {"name": "a.b"}},
    "seed": 7,
    "data": {"test": ["A", "B"], "shuffle": False},
    "environment": {"versions": {"torch": "2.9"}, "commit": None},
}


@pytest.fixture(scope="module", params=[BOXED, UNBOXED], ids=lambda protocol: protocol.name)
def made(request):
    protocol = request.param
    records = [*runs(protocol, 10, "A"), *runs(protocol, 3, "B")]
    text = render(records, protocol, METADATA)
    return protocol, records, text, Page(text)


def test_the_document_is_whole(made):
    protocol, records, text, page = made
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    seen = re.sub(r"\s+", " ", page.text("script", "style"))
    assert f"{summarise_records(records, protocol)['A'].noc[90]:.2f}" in seen
    assert ("mIoU@0" in seen) == protocol.box
    assert f"a.b, protocol {protocol.name}" in seen
    counts = Counter(tag for tag, _ in page.tags)
    assert all(counts[tag] == 1 for tag in ("html", "head", "title", "body", "main", "h1"))
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(names) == len(set(names))
    references = [a[key] for _, a in page.tags for key in ("aria-labelledby", "for") if key in a]
    references += [a["href"][1:] for a in page.of("a", "use")]
    assert set(references) <= set(names)
    assert "$" not in page.text("script", "style")


def test_nothing_is_loaded_from_elsewhere(made):
    _, _, text, page = made
    for _, attributes in page.tags:
        for key in ("src", "srcset", "href", "poster", "data", "action", "xlink:href"):
            assert attributes.get(key, "#").startswith(("data:", "#")), attributes
    written = re.sub(r"data:image/\w+;base64,[\w+/=]+", "", text)
    assert not re.search(r"https?:|//\w|@import|url\(|@font-face|fetch\(|XMLHttp", written)
    assert not [
        attributes for _, attributes in page.tags if any(k.startswith("on") for k in attributes)
    ]


def test_pictures_are_embedded_once(made):
    _, _, _, page = made
    photos = [a for a in page.of("image") if a["href"].startswith("data:image/jpeg")]
    assert len(photos) == 8 + 3
    file = Image.open(io.BytesIO(base64.b64decode(photos[0]["href"].split(",")[1])))
    assert file.size == (60, 40) == (int(photos[0]["width"]), int(photos[0]["height"]))
    for source in [*page.of("img"), *page.of("source")]:
        address = source.get("src") or source["srcset"]
        chart = Image.open(io.BytesIO(base64.b64decode(address.split(",")[1])))
        assert chart.width > 1000
        assert "prefers-color-scheme: dark" in source.get("media", "prefers-color-scheme: dark")
    light = page.of("img")[0]
    assert abs(2 * int(light["width"]) - chart.width) < 1000


def test_everything_seen_can_be_read_aloud(made):
    _, _, _, page = made
    assert all(len(image["alt"]) > 20 for image in page.of("img"))
    drawings = page.of("svg")
    assert all(("role" in a and a["aria-label"]) or a.get("aria-hidden") for a in drawings)
    counts = Counter(tag for tag, _ in page.tags)
    assert counts["caption"] == counts["thead"] == counts["table"]
    assert len(page.of("th")) == len([a for a in page.of("th") if a.get("scope") in ("col", "row")])


def test_worst_and_best_runs_are_shown_in_order(made):
    protocol, _, text, _ = made
    shown = re.findall(r"<h3>(\w), (\w+)</h3>|<h4[^>]*>object 0*(\d+)<", text)
    order = ["".join(parts) for parts in shown]
    assert " ".join(order) == "Aworst 0 1 2 3 Abest 9 8 7 6 Bworst 0 1 2"
    assert text.count("<figcaption>image") == 8 + 3
    frames = 3 if protocol.box else 2  # without a box the empty mask is no answer
    assert text.count(' role="img" aria-label="object 0009: prediction') == frames


def test_a_run_shows_box_clicks_and_scores():
    (record, _) = runs(BOXED, 1)
    article = render_run(record, 0.5, "one")
    figures = article.split("<figure>")[1:]
    assert len(figures) == 2 + 3
    assert '<rect x="1.0" y="2.0" width="32.0" height="33.0"' in figures[0]
    marks = [re.findall(r"<text[^>]*>(\d+)<", figure) for figure in figures]
    assert marks == [[], [], [], ["1"], ["1", "2", "3"]]
    rounded = [float(value) > 0 for value in re.findall(r'rx="([\d.]+)"', figures[-1])]
    assert rounded == [True, False, True]  # the second click was on the background
    assert '<text x="5.5" y="5.5"' in figures[-1]  # the middle of pixel (5, 5)
    assert "prediction after 1 click, IoU 0.300" in figures[3]
    rows = re.findall(r"<tr><th scope=\"row\">(\d)</th>(.*?)</tr>", article)
    cells = [[number, *re.findall(r"<td>(.*?)</td>", row)] for number, row in rows]
    assert cells[0] == ["0", "", "", "", "0.2000", "0.250"]
    assert cells[2] == ["2", "102", "5", "\N{MINUS SIGN}", f"{record.steps[2].iou:.4f}", "0.062"]


def test_masks_mark_object_and_ignored_pixels_and_large_pictures_are_shrunk():
    large = render_run(run(UNBOXED, "large", (0.0, 0.5, 0.6, 0.7), size=(400, 1000)), 0.5, "one")
    sizes = {(int(a["width"]), int(a["height"])) for a in Page(large).of("image")}
    assert sizes == {(LARGEST_SIDE, round(400 * LARGEST_SIDE / 1000))}
    assert f'<text x="{LARGEST_SIDE / 1000 * 5.5:.1f}"' in large
    text = render_run(*runs(UNBOXED, 1), 0.5, "one")
    address = re.findall(r"data:image/png;base64,([^\"]+)\"/>\s*</svg><figcaption>truth", text)
    mask = Image.open(io.BytesIO(base64.b64decode(address[0]))).convert("RGBA")
    pixels = np.array(mask)
    assert pixels[20, 10].tolist() == [255, 212, 0, 95]  # object
    assert pixels[20, 29].tolist() == [255, 212, 0, 255]  # its edge
    assert pixels[20, 30].tolist() == [128, 128, 128, 150]  # ignored
    assert pixels[20, 50].tolist() == [0, 0, 0, 130]  # outside


def test_names_are_only_text():
    records = [
        run(UNBOXED, EVIL, (0.0, 0.3, 0.5, 0.6), dataset=f"{EVIL}$set"),
        run(UNBOXED, "plain", (0.0, 0.3, 0.5, 0.7), dataset=f"{EVIL}$set"),
    ]
    protocol = replace(UNBOXED, description=EVIL, name=EVIL)
    page = Page(render(records, protocol, {"model": EVIL, EVIL: EVIL}))
    assert len(page.of("script")) == 1
    assert not any("alert" in data for tag, data in page.texts if tag in ("script", "style"))
    assert page.text("script", "style").count(EVIL) > 10
    assert f"{EVIL}: truth" in [a.get("aria-label") for a in page.of("svg")]


def test_objects_are_listed_worst_first_with_means_over_trials():
    """Clicks to an IoU that one trial did not reach are a lower bound."""
    records = runs(BOXED, 4)
    records[0] = run(BOXED, "object 0000", (0.2, 0.3, 0.4, 0.95))
    scores = scores_of(records, BOXED.first_result)
    areas = {name: area_under_curve(of_set.ious, of_set.first) for name, of_set in scores.items()}
    text = render_objects(records, scores, areas, BOXED)
    header = re.findall(r'<th scope="col">(.*?)</th>', text)
    assert header == ["data", "object", "AUC", "IoU@0", "IoU@1", "IoU@3", "NoC@90", "clicks"]
    rows = re.findall(r"<tr>(<td>.*?)</tr>", text)
    assert [re.search(r"object \d+", row)[0] for row in rows] == [
        f"object {n:04}" for n in range(4)
    ]
    assert ["&gt; 3.0" in row for row in rows] == [True] * 4
    area = f"{100 * areas['Toy'][3].mean():.1f}"
    cells = re.findall(r">([^<>]+)</t[dh]>", rows[-1])
    assert cells == ["Toy", "object 0003", area, "20.0", "30.0", "87.5", "&gt; 3.0", "3.0"]
    values = [float(value) for value in re.findall(r'data-value="([^"]+)"', rows[-1])]
    assert values[1:] == [20, 30, 87.5, 3, 3]


def test_many_objects_are_not_all_listed():
    records = [*runs(UNBOXED, 900, "Many", pictured=False), *runs(UNBOXED, 150, "Few")]
    text = render(records, UNBOXED)
    assert len(text) < 10e6
    listed = re.findall(r"<tr><td>(\w+)</td><th scope=\"row\">object (\d+)", text)
    assert Counter(name for name, _ in listed) == {"Many": 400, "Few": 150}
    numbers = [int(number) for name, number in listed if name == "Many"]
    assert numbers == [*range(200), *range(700, 900)]
    assert "550 of 1050 objects, the 200 worst and best of each large data set." in text
    assert "Worst and best" not in render(runs(UNBOXED, 3, pictured=False), UNBOXED)
    at_once = replace(PROTOCOLS["box"], trials=1)
    page = Page(render([run(at_once, f"{n}", (0.5 + n / 10,)) for n in range(3)], at_once))
    assert "NoC" not in page.text("script", "style")
    assert len(page.of("img")) == 1


def test_every_option_is_explained():
    text = render_options(replace(BOXED, mistakes=HUMAN), METADATA)
    rows = dict(re.findall(r'<tr><th scope="row">(.*?)</th><td>(.*?)</td>', text))
    for field in fields(BOXED):
        assert field.name in rows
    assert {f"mistakes.{field.name}" for field in fields(HUMAN)} <= rows.keys()
    meanings = re.findall(r'<tr><th scope="row">[\w.]+</th><td>[^<]*</td><td>(.*?)</td></tr>', text)
    assert len(meanings) == len(fields(BOXED)) + len(fields(HUMAN))
    assert all(meaning.endswith(".") for meaning in meanings)
    assert (rows["max_clicks"], rows["box"], rows["target_iou"]) == ("3", "yes", "none")
    assert html.unescape(rows["data.test"]) == '["A", "B"]'
    assert (rows["environment.versions.torch"], rows["environment.commit"]) == ("2.9", "none")
    assert (rows["seed"], rows["data.shuffle"]) == ("7", "no")
