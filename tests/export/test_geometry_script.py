"""`geometry.js` of exported pages computes what `probseg.geometry` does, function by function."""

import json
import shutil
import subprocess
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from probseg import geometry
from probseg.export.folder import geometry_settings
from probseg.export.targets import PAGE
from probseg.geometry import LEVELS, RECOMMENDED_ZOOM, ZOOMS, View, Zoom, shrink_to
from probseg.interact.mask import ProbabilityMap
from probseg.types import Click

SETTINGS = geometry_settings()
ASK = """
import * as geometry from "./geometry.mjs";
import { readFileSync, writeFileSync } from "node:fs";
const calls = JSON.parse(readFileSync("calls.json"));
const results = calls.map(([name, values]) => geometry[name](...values));
writeFileSync("results.json", JSON.stringify(results));
"""


def plain(value):
    """A value of Python as the script takes and returns it, in JSON."""
    match value:
        case Zoom():
            return SETTINGS["zoom"] | asdict(value)
        case Click():
            return {"x": value.x, "y": value.y, "positive": value.positive}
        case View():
            return {"box": value.box, "size": value.size}
        case ProbabilityMap():
            return {"values": plain(value.array()), "box": value.box, "size": value.size}
        case np.ndarray() if value.dtype == np.float32:
            height, width = value.shape
            return {"data": value.ravel().tolist(), "height": height, "width": width}
        case np.ndarray():
            return value.tolist()
        case dict() if value is not SETTINGS["kept"]:  # labels of samples
            return [[list(key), sign] for key, sign in value.items()]
        case list() | tuple():
            return [plain(part) for part in value]
    return value


def calls(seed):
    """Names of functions and their arguments: the same in both, and what the script takes besides.

    Images have from one pixel to some thousand; boxes touch borders, and clicks have fractions.
    """
    random = np.random.default_rng(seed)
    size = tuple(int(side) for side in random.integers(1, random.choice([9, 120, 3000]), 2))

    def box():
        x0, y0 = (int(random.integers(0, size[axis])) for axis in (1, 0))
        return x0, y0, int(random.integers(x0, size[1])) + 1, int(random.integers(y0, size[0])) + 1

    def answer(place, dense):
        height, width = geometry.box_size(place)
        shape = (height, width) if dense and height * width < 900 else random.integers(1, 12, 2)
        values = random.random((*shape,)) ** random.choice([0.3, 1, 8])
        return ProbabilityMap(torch.tensor(values, dtype=torch.float32), place, size)

    places = random.random((int(random.integers(1, 6)), 2)) * size[::-1]
    places = places.round() if seed % 2 else places
    places = np.minimum(places, np.array(size[::-1]) - 1)
    clicks = [Click(x, y, bool(random.integers(3))) for x, y in places.tolist()]
    zoom = replace(ZOOMS[RECOMMENDED_ZOOM], min_side=int(random.choice([1, 20, 200])))
    first, second, window, view = answer(box(), True), answer(box(), seed % 3), box(), box()
    view = View(view, tuple(int(side) for side in random.integers(1, 400, 2)))
    copies = [shrink_to(size, longest) for longest in LEVELS]
    last = box() if seed % 2 else None
    yield "crop_around", (last, clicks, size), SETTINGS["crop_margin"]
    yield "object_box", (first, 0.5)
    yield "first_windows", (zoom, clicks[0], size)
    yield "next_window", (zoom, last, first, clicks)
    yield "look_window", (zoom, window, clicks[-1], size, last)
    yield "look_size", (zoom, window)
    yield "look_share", (first, second), zoom
    yield "expected_iou", (first,)
    yield "cut_factor", (first,), zoom
    yield "misses_box", (first, window), SETTINGS["least_of_a_box"]
    yield "to_samples", (np.array([click[:2] for click in clicks], float), view)
    yield "box_to_samples", (window, view)
    yield "view_samples", (first, view)
    yield "find_copy", (view, size, copies)
    yield "find_copy", (View((0, 0, size[1], size[0]), copies[1]), size, copies)
    yield "copy_samples", (view, size, copies[seed % 3])
    yield "click_labels", (clicks, View(window, first.shape))
    yield "keep_clicks", (second.array(), second.box, clicks), SETTINGS["kept"]


def assert_same(one, other, name):
    """Assert equal numbers but for rounding, in lists of lists."""
    if isinstance(one, dict):
        one, other = one["data"], other["data"]
    if isinstance(one, list):
        assert len(one) == len(other), name
        for parts in zip(one, other, strict=True):
            assert_same(*parts, name)
    else:
        assert one == other or one == pytest.approx(other, rel=1e-5, abs=1e-6), name


def camel(name):
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_the_script_computes_what_python_does(tmp_path):
    rows = [row for seed in range(150) for row in calls(seed)]
    shutil.copyfile(PAGE / "geometry.js", tmp_path / "geometry.mjs")
    (tmp_path / "ask.mjs").write_text(ASK)
    asked = [[camel(name), plain([*values, *more])] for name, values, *more in rows]
    (tmp_path / "calls.json").write_text(json.dumps(asked))
    subprocess.run(["node", "ask.mjs"], cwd=tmp_path, check=True)
    results = json.loads((tmp_path / "results.json").read_text())
    for (name, values, *_), result in zip(rows, results, strict=True):
        assert_same(plain(getattr(geometry, name)(*values)), result, (name, values))
