import base64
import html
import io
import re
from collections import Counter
from dataclasses import fields, replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from probseg.clicks.annotators import HUMAN
from probseg.evaluation import PROTOCOLS, Frame, ObjectRecord, Picture, scores_of, summarise_records
from probseg.metrics import area_under_curve
from probseg.reports.gallery import LARGEST_SIDE, render_run
from probseg.reports.report import render_objects, render_options, render_page
from probseg.types import IGNORE, Click
from support.result_folders import step

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
