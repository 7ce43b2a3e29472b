"""`runner.js` as a package: refusals, types, bundles."""

import json
import shutil
import subprocess

import numpy as np
import pytest

from probseg.export.folder import geometry_settings
from probseg.export.runner import ClassRunner, Runner
from probseg.export.targets import PAGE

SIZE = (400, 600)
ABOUT = {"graphs": {}, **geometry_settings()}
REFUSED = [
    ([(3000, 200, True)], None),
    ([(300, -1, False)], None),
    ([(300, 200, True), (600, 200, True)], None),
    ([], None),
    ([], (300, 300, 100, 100)),
    ([], (0, 0, 700, 100)),
    ([], (5, 5, 5, 9)),
    ([(10, 400, True)], (5, 5, 50, 90)),
]
"""Clicks and box that a runner refuses on an image of `SIZE`, in Python and in JavaScript."""

ASK = """
import { ClassRunner, Runner } from "./runner.js";
import { readFileSync, writeFileSync } from "node:fs";
const [about, [height, width], rows] = JSON.parse(readFileSync("asked.json"));
const runner = new Runner(about);
const said = (promise) => promise.then(() => "accepted", ({ message }) => message);
const messages = [await said(runner.predict([{ x: 1, y: 1, positive: true }]))];
await runner.setImage({ data: new Uint8ClampedArray(4 * height * width), height, width });
for (const [clicks, box] of rows) {
  const given = clicks.map(([x, y, positive]) => ({ x, y, positive }));
  messages.push(await said(runner.predict(given, box)));
}
messages.push(await said(runner.predict([[300, 200, true]])));
messages.push(await said(runner.setImage({ data: new Uint8Array(7), height, width })));
messages.push(await said(Runner.load("http://127.0.0.1:9/exported")));
for (const [kind, held] of [[Runner, { classes: [] }], [ClassRunner, about]]) {
  globalThis.fetch = async () => new Response(JSON.stringify(held));
  messages.push(await said(kind.load("http://127.0.0.1:9/exported")));
}
writeFileSync("messages.json", JSON.stringify([messages, runner.clicks, runner.box]));
"""


def refusal(runner, *asked):
    with pytest.raises((ValueError, RuntimeError)) as raised:
        runner.predict(*asked)
    return str(raised.value)


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_both_runners_refuse_the_same_in_the_same_words(tmp_path):
    (tmp_path / "export.json").write_text(json.dumps(ABOUT))
    runner = Runner(tmp_path)
    expected = [refusal(runner, [(1, 1, True)]).replace("set_image", "setImage")]
    runner.set_image(np.zeros((*SIZE, 3), np.uint8))
    expected += [refusal(runner, *asked) for asked in REFUSED]
    for name in ("runner.js", "geometry.js"):
        shutil.copyfile(PAGE / name, tmp_path / name)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "ort.wasm.min.mjs").write_text("export const env = { wasm: {} };")
    (tmp_path / "asked.json").write_text(json.dumps([ABOUT, SIZE, REFUSED]))
    (tmp_path / "ask.js").write_text(ASK)
    subprocess.run(["node", "ask.js"], cwd=tmp_path, check=True)
    messages, clicks, box = json.loads((tmp_path / "messages.json").read_text())
    assert messages[: len(expected)] == expected
    form, image, folder, *kinds = messages[len(expected) :]
    assert "{x, y, positive}, got [300,200,true]" in form
    assert "4 * width * height bytes" in image
    assert "`folder` must be" in folder
    assert "http://127.0.0.1:9/exported/" in folder
    with pytest.raises(ValueError, match="folder") as for_clicks:
        ClassRunner(tmp_path)
    (tmp_path / "export.json").write_text('{"classes": []}')
    with pytest.raises(ValueError, match="folder") as for_classes:
        Runner(tmp_path)
    assert kinds == [str(for_classes.value), str(for_clicks.value)]
    assert (clicks, box) == (runner.clicks, runner.box)
