"""The page that runs exported graphs in the browser."""

import functools
import http.server
import io
import json
import re
import shutil
import subprocess
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_mask

import probseg
from probseg.errors import UsageError
from probseg.export import ClassRunner, Runner, export_model
from probseg.export.runner import averaged, resized
from probseg.images import rgb_pixels
from probseg.models import build, read_preset
from support.fakes import draw_scene
from support.firefox import FirefoxPage, firefox
from support.micro import described
from support.pages import Page
from support.sites import listening

pytestmark = pytest.mark.process

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: the extra [export]")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: the extra [export]")

CLICKS = [(31, 20, True), (70, 60, False), (40, 33, True)]
BOX = (20, 10, 80, 70)


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Isolated(Handler):
    """Sends the headers with which a page may have threads."""

    def end_headers(self):
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


def write(model, path, **options):
    """Export a network as a page; without npm or a network, skip the test."""
    try:
        export_model(model, path, to="page", **options)
    except UsageError as error:
        if "npm" in str(error):
            pytest.skip(f"ONNX Runtime Web cannot be fetched: {error}")
        raise


@contextmanager
def served(folder, chromium, query=""):
    """Open the page of a folder in the browser."""
    with listening(functools.partial(Handler, directory=str(folder))) as address:
        opened = Page(chromium, f"{address}/{query}").open()
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A page with a micro network whose classifier adapts, and a photograph of odd size."""
    torch.manual_seed(1)  # whose masks are not empty
    model = build(described("micro_previous", head={"click_iterations": 1})).eval()
    model.working_size = 64
    path = tmp_path_factory.mktemp("export") / "site"
    write(model, path)
    Image.fromarray(draw_scene(101, 133, seed=3)[0]).save(path / "photo.png")
    return path


@pytest.fixture(scope="module")
def page(folder, chromium):
    with served(folder, chromium) as opened:
        yield opened


REOPEN = """(async () => {
    if (probsegPage.photograph) probsegPage.photograph.saved = true;
    await probsegPage.open(await (await fetch("photo.png")).blob(), "photo.png");
})()"""


@pytest.fixture
def fresh(page):
    page.tab.evaluate(REOPEN)
    return page


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def browsed(request, folder, page, tmp_path_factory):
    """The page in one of the browsers."""
    if request.param == "chromium":
        yield page
        return
    with in_firefox(folder, tmp_path_factory.mktemp("firefox")) as opened:
        yield opened


@contextmanager
def in_firefox(folder, place):
    handler = functools.partial(Handler, directory=str(folder))
    with listening(handler) as address, firefox(place / "p") as tab:
        page = FirefoxPage(tab, f"{address}/").open()
        yield page
        page.close()


@pytest.fixture
def either(browsed):
    browsed.tab.evaluate(REOPEN)
    return browsed


def expected(folder, clicks, box=None):
    """Probabilities that the runner in Python gives, prompt by prompt."""
    runner = Runner(folder, threads=1)
    runner.set_image(np.asarray(Image.open(folder / "photo.png")))
    answers = [] if box is None else [runner.predict(box=box)]
    return answers + [runner.predict([click]) for click in clicks]


def probability(page, prompts):
    """Ask the runner in the browser, prompt by prompt, and return its last answer."""
    asked = """([prompts]) => (async () => {
        const { photograph } = probsegPage;
        photograph.runner.reset();
        let answer;
        for (const [clicks, box] of prompts) answer = await photograph.runner.predict(clicks, box);
        await photograph.runner.reset();
        return [answer.height, answer.width, Array.from(answer.data)];
    })()"""
    height, width, data = page.tab.evaluate(asked, [prompts])
    return np.array(data).reshape(height, width)


@pytest.mark.parametrize("box", [None, BOX])
def test_probabilities_are_those_of_the_runner_in_python(page, folder, box):
    wanted = expected(folder, CLICKS, box)[-1]
    prompts = [[[{"x": x, "y": y, "positive": positive}], None] for x, y, positive in CLICKS]
    found = probability(page, ([] if box is None else [[[], list(box)]]) + prompts)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert np.ptp(wanted) > 1e-2


def test_clicks_undo_and_finish_on_the_page(fresh, folder):
    masks = [answer > 0.5 for answer in expected(folder, CLICKS)]
    for number, (x, y, positive) in enumerate(CLICKS):
        fresh.click(x + 0.5, y + 0.5, "left" if positive else "right")
        assert (fresh.mask() != masks[number]).sum() <= 3
    assert fresh.clicks == [(x + 0.5, y + 0.5, positive) for x, y, positive in CLICKS]
    last = fresh.mask()
    assert last.any()
    fresh.press("z", "z")
    assert (fresh.mask() != masks[0]).sum() <= 3
    fresh.press("Z", "Z")
    np.testing.assert_array_equal(fresh.mask(), last)
    fresh.press("Enter")
    assert fresh.clicks == []
    fresh.until("clicker.finished.has(0)")
    np.testing.assert_array_equal(fresh.mask("clicker.finished.get(0)"), last)


def drawn(page, box):
    """Draw a box on the page, and return its mask."""
    page.press("x")
    page.drag(box[:2], box[2:])
    assert page.mask().any()
    return page.mask()


def saved(page, button):
    """Save in a format, and return the name of the file and its bytes."""
    page.tab.click("#save")
    with page.tab.expect_download() as download:
        page.tab.click(f"#saving button[value={button}]")
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def test_finished_objects_are_reopened_deleted_and_saved(fresh):
    first = drawn(fresh, BOX)
    fresh.press("Enter")
    second = drawn(fresh, (90, 40, 120, 90))
    name, archive = saved(fresh, "png")  # with the open one, as the dialog asks
    assert name == "photo_masks.zip"
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        assert opened.testzip() is None
        pictures = [Image.open(opened.open(one)) for one in ("photo_1.png", "photo_2.png")]
    assert [picture.mode for picture in pictures] == ["L", "L"]
    for picture, mask in zip(pictures, (first, second), strict=True):
        np.testing.assert_array_equal(np.asarray(picture), 255 * mask)
    name, text = saved(fresh, "coco")
    assert name == "photo.json"
    annotations = json.loads(text)["annotations"]
    for one, mask in zip(annotations, (first, second), strict=True):
        encoded = coco_mask.frPyObjects(one["segmentation"], *mask.shape)
        np.testing.assert_array_equal(coco_mask.decode(encoded), mask)
        assert one["area"] == mask.sum()
    fresh.run("clicker.select(0)")
    fresh.tab.click("#reopen")
    fresh.settle()
    np.testing.assert_array_equal(fresh.mask(), first)
    assert fresh.run("clicker.current.box && clicker.objects.length") == 1
    fresh.press("Escape")  # as it was
    fresh.until_stored()
    np.testing.assert_array_equal(fresh.mask("clicker.finished.get(0)"), first)
    fresh.run("clicker.select(0)")
    fresh.tab.click("#delete")
    fresh.settle()
    assert fresh.run("clicker.objects.map(({ id }) => id)") == [1]
    name, picture = saved(fresh, "png")
    assert name == "photo_1.png"
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(picture))), 255 * second)


@pytest.mark.parametrize(
    ("width", "height", "least"), [(390, 844, 650), (320, 568, 380), (844, 390, 250)]
)
def test_the_photograph_fills_the_screen(either, width, height, least):
    either.resize(width, height)
    frames = either.run(
        "[clicker.over, ...document.querySelectorAll('button, label.open-file')]"
        ".map((one) => one.getBoundingClientRect()).map(({ width, height }) => [width, height])"
    )
    assert frames[0][1] >= least
    assert frames[0][0] == width
    sides = [side for frame in frames[1:] for side in frame if any(frame)]
    assert min(sides) >= 44
    assert either.run("document.documentElement.scrollWidth") <= width
    assert either.run("document.documentElement.scrollHeight") <= height
    either.resize(1000, 700)


OPEN_BOTH = """(async () => {
    const blob = async (width, height) => {
        const canvas = new OffscreenCanvas(width, height);
        canvas.getContext("2d").fillRect(0, 0, width / 2, height);
        return new File([await canvas.convertToBlob()], `${width}.png`, { type: "image/png" });
    };
    const give = (type, name, file) => {
        const data = new DataTransfer();
        data.items.add(file);
        const event = new Event(type, { bubbles: true, cancelable: true });
        Object.defineProperty(event, name, { value: data });
        document.body.dispatchEvent(event);
        return event.defaultPrevented;
    };
    const [large, small] = [await blob(3000, 2200), await blob(60, 40)];
    return [give("drop", "dataTransfer", large), give("paste", "clipboardData", small)];
})()"""


def test_the_newest_picture_wins_whether_dropped_or_pasted(either):
    assert either.tab.evaluate(OPEN_BOTH) == [True, True]
    either.until("clicker.size.width === 60 && clicker.image && !clicker.locked")
    either.tab.evaluate("new Promise((done) => setTimeout(done, 1500))")
    assert either.run("[clicker.size.width, probsegPage.photograph.width]") == [60, 60]
    # What is transparent is white for the network, as for Python.
    assert either.run("Array.from(probsegPage.photograph.pixels.data.slice(-4))") == [255] * 4


OVERLAP = """(async () => {
    const { runner } = probsegPage;
    const pixels = (value) => {
        return { data: new Uint8Array(4 * 60 * 80).fill(value), width: 80, height: 60 };
    };
    const ask = async (x) => (await runner.predict([{ x, y: 20, positive: true }])).data.join();
    await runner.setImage(pixels(90));
    const one = [await ask(9), await ask(30)];
    runner.setImage(pixels(90));
    const other = [ask(9), ask(30), runner.setImage(pixels(255)), ask(9)];
    const answers = await Promise.all(other);
    return [one[0] !== one[1], answers[0] === one[0], answers[1] === one[1], answers[3].length > 0];
})()"""


def test_calls_wait_for_each_other(either):
    assert either.tab.evaluate(OVERLAP) == [True] * 4


PREPARED = """(async () => {
    const { runner } = probsegPage;
    const used = [];
    await runner.setImage(runner.image);
    for (const [x, y, positive] of [[31, 20, true], [70, 60, false], [40, 33, true]]) {
        await runner.prepare();
        const prepared = new Map(runner.known);
        await runner.ask([{ x, y, positive }]);
        const view = String(used.length ? runner.answer.view : runner._view(null)); // of all first
        used.push(prepared.get(view) === runner.known.get(view));
    }
    return used;
})()"""


def test_what_a_click_needs_is_encoded_before_it(fresh):
    assert fresh.tab.evaluate(PREPARED) == [True] * 3


SOURCES = """(async () => {
    const { runner } = probsegPage;
    const canvas = Object.assign(document.createElement("canvas"), { width: 40, height: 30 });
    const context = canvas.getContext("2d");
    context.fillStyle = "rgba(240, 40, 80, 0.5)";
    context.fillRect(5, 6, 20, 15);
    const blob = await new Promise((done) => canvas.toBlob(done));
    const image = Object.assign(new Image(), { src: URL.createObjectURL(blob) });
    await image.decode();
    const pixels = context.getImageData(0, 0, 40, 30);
    const seen = [];
    for (const source of [pixels, canvas, blob, image, await createImageBitmap(blob)]) {
        await runner.setImage(source);
        seen.push(Array.from(runner.image.data));
    }
    return seen;
})()"""


def test_pictures_of_all_kinds_lie_on_white(either):
    drawn = np.zeros((30, 40, 4), np.uint8)
    drawn[6:21, 5:25] = (240, 40, 80, 128)
    expected = rgb_pixels(Image.fromarray(drawn))
    for seen in either.tab.evaluate(SOURCES):
        pixels = np.reshape(seen, (30, 40, 4))[..., :3]
        np.testing.assert_allclose(pixels, expected, atol=2)  # canvases round colours by alpha


DISPOSED = """(async () => {
    const { Runner } = await import("./runner.js");
    const runner = await Runner.load("./", { proxy: true });
    await runner.setImage(new ImageData(40, 30));
    const ask = () => runner.predict([{ x: 9, y: 9, positive: true }]);
    const { data } = await ask();
    await runner.dispose();
    return [data.length, await ask().then(() => "answered", () => "refused")];
})()"""


def test_a_runner_that_was_disposed_has_no_graphs(either):
    assert either.tab.evaluate(DISPOSED) == [1200, "refused"]


def test_save_says_that_there_is_nothing(fresh):
    fresh.tab.click("#save")
    fresh.tab.wait_for_selector("#message:has-text('no mask yet')")


def test_unsaved_masks_are_not_lost_without_a_question(fresh, tmp_path):
    drawn(fresh, BOX)
    asked = []
    fresh.tab.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    Image.new("RGB", (30, 20)).save(tmp_path / "other.png")
    fresh.tab.set_input_files("#file", tmp_path / "other.png")
    fresh.until("clicker.mask")
    (question,) = asked
    assert "1 object" in question
    assert fresh.run("clicker.size.width") == 133
    unload = "window.dispatchEvent(new Event('beforeunload', { cancelable: true }))"
    assert fresh.run(unload) is False
    fresh.press("Backspace", "Escape")
    assert fresh.run(unload) is True


def test_licences_and_a_manifest_go_with_the_page(folder):
    assert "Apache License" in (folder / "LICENSE").read_text(encoding="utf-8")
    assert "ONNX Runtime" in (folder / "NOTICE").read_text(encoding="utf-8")
    package = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    assert (package["name"], package["type"]) == ("probseg-runner", "module")
    assert all((folder / file).is_file() for file in package["exports"]["."].values())


VISITED = """(async () => {
    const { env } = await import("./ort.wasm.min.mjs");
    return [crossOriginIsolated, env.wasm.numThreads > 1];
})()"""
CORES = "Object.defineProperty(Navigator.prototype, 'hardwareConcurrency', { value: 6 })"


@pytest.mark.parametrize("name", ["chromium", "firefox"])
def test_after_a_visit_threads_compute_and_no_network_is_needed(name, folder, chromium, tmp_path):
    """On a host that sends no headers."""
    chosen = served(folder, chromium, "?picture=photo.png")
    with chosen if name == "chromium" else in_firefox(folder, tmp_path) as page:
        if name == "chromium":
            page.context.add_init_script(CORES)
        seen, masks = [], []
        for _ in range(3):
            seen.append(page.tab.evaluate(VISITED))
            page.click(CLICKS[0][0] + 0.5, CLICKS[0][1] + 0.5)
            masks.append(page.mask())
            page.tab.wait_for_selector("body[data-kept]")
            if name == "chromium":
                page.context.set_offline(len(seen) == 2)
            page.run("probsegPage.photograph.saved = true")  # or leaving is asked about
            page.open()
    assert [isolated for isolated, _ in seen] == [False, True, True]
    if name == "chromium":  # in Firefox they are as many as this machine has
        assert [threads for _, threads in seen] == [False, True, True]
    assert masks[0].any()
    assert all((mask != masks[0]).sum() <= 3 for mask in masks[1:])


def test_a_page_that_does_not_start_says_why(folder, chromium):
    tab = chromium.new_page()
    tab.goto((folder / "index.html").as_uri())
    assert "a web server" in tab.inner_text("#message")
    tab.close()


TYPED = """
import { ClassRunner, Runner, masked, type Answer, type Click } from "probseg-runner";
const runner: Runner = await Runner.load("/demo/", { threads: 2 });
await runner.setImage(document.querySelector("img")!);
const clicks: Click[] = [{ x: 1, y: 2, positive: true }];
const { data, height } = await runner.predict(clicks, [0, 0, 10, 10]);
const answer: Answer = await runner.ask(clicks);
const { window: [left], payload } = masked(answer);
console.log(data[0]! + height + left + payload.length, runner.clicks, runner.box);
// @ts-expect-error
await runner.predict([[300, 200, true]]);
await runner.dispose();
const other: ClassRunner = await ClassRunner.load("/classes/");
const labels: Uint8Array = (await other.predict(document.querySelector("img")!)).data;
console.log(other.classes[labels[0]!]);
await other.dispose();
"""

STRICT = ["--strict", "--noEmit", "--module", "nodenext"]


@pytest.fixture(scope="module")
def project(folder, tmp_path_factory):
    """A project of Vite and esbuild with the program of `docs/export.md`, and its folder."""
    project = tmp_path_factory.mktemp("app")
    page = (Path(probseg.__file__).parents[1] / "docs/export.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```js\n(import [^`]+?document\.body.+?)```", page, re.DOTALL)
    (project / "main.js").write_text(program, encoding="utf-8")
    (project / "typed.ts").write_text(TYPED, encoding="utf-8")
    (project / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    start = '<!doctype html><body></body><script type="module" src="/main.js"></script>'
    (project / "index.html").write_text(start, encoding="utf-8")
    shutil.copytree(folder, project / "public" / "demo")
    npm = shutil.which("npm") or pytest.skip("npm is not installed")
    install = [npm, "install", "--install-links", "--prefer-offline", "--no-audit", "--no-fund"]
    packages = [str(folder), "vite", "esbuild", "typescript"]
    fetched = subprocess.run([*install, *packages], cwd=project, capture_output=True, check=False)
    if fetched.returncode:
        pytest.skip(f"npm cannot fetch bundlers: {fetched.stderr.decode()[-300:]}")
    return project


def built(project, program, *arguments):
    """Run a program that npm has installed."""
    asked = [project / "node_modules/.bin" / program, *arguments]
    done = subprocess.run(asked, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_are_strict(project):
    built(project, "tsc", *STRICT, "typed.ts")


@pytest.mark.parametrize("bundler", ["vite", "esbuild"])
def test_bundles_click_on_a_phone(project, folder, chromium, bundler):
    """Also where the page is isolated, so that several threads compute."""
    if bundler == "vite":
        built(project, "vite", "build")
    else:
        built(project, "esbuild", "main.js", "--bundle", "--format=esm", "--outfile=out/main.js")
        shutil.copy(project / "index.html", project / "out")
        (project / "out/demo").symlink_to(folder)
    place, handler = ("dist", Handler) if bundler == "vite" else ("out", Isolated)
    (mask, *_) = (answer > 0.5 for answer in expected(folder, CLICKS[:1]))
    with listening(functools.partial(handler, directory=str(project / place))) as address:
        tab = chromium.new_page(viewport={"width": 390, "height": 844})
        tab.goto(address)
        tab.set_input_files("input:enabled", folder / "photo.png")
        tab.wait_for_selector("canvas[width='133']")
        tab.click("canvas", position={"x": CLICKS[0][0], "y": CLICKS[0][1]})
        red = "document.querySelector('canvas').getContext('2d').getImageData(0, 0, 133, 101).data"
        tab.wait_for_function(f"{red}.join().includes('255,0,0,255')")
        pixels = np.reshape(tab.evaluate(f"Array.from({red})"), (101, 133, 4))
        assert tab.evaluate("crossOriginIsolated") == (bundler == "esbuild")
        tab.close()
    assert ((pixels == (255, 0, 0, 255)).all(axis=2) != mask).sum() <= 3
    assert mask.any()


@pytest.mark.parametrize("size", [(40, 61), (101, 200), (13, 9), (133, 7)])
def test_resizing_rounds_as_in_python(page, size):
    maps = np.random.default_rng(0).random((101, 61, 3), dtype=np.float32)
    script = """async ([data, height, width, channels, size]) => {
        const { resized } = await import("./runner.js");
        const maps = { data: Float32Array.from(data), height, width, channels };
        return Array.from(resized(maps, size).data);
    }"""
    found = page.tab.evaluate(script, [maps.ravel().tolist(), *maps.shape, list(size)])
    np.testing.assert_array_equal(np.array(found, np.float32), resized(maps, size).ravel())


def test_a_photograph_of_ones_own(fresh, tmp_path):
    picture = draw_scene(40, 50, seed=4)[0]
    Image.fromarray(picture).save(tmp_path / "mine.png")
    fresh.tab.set_input_files("#file", tmp_path / "mine.png")
    fresh.until("clicker.size.width === 50 && clicker.image")
    fresh.click(20, 20)
    assert fresh.mask().shape == (40, 50)
    assert fresh.tab.input_value("#file") == ""  # or the same file could not be chosen again
    seen = fresh.run("Array.from(probsegPage.photograph.pixels.data)")
    np.testing.assert_array_equal(np.reshape(seen, (40, 50, 4))[..., :3], picture)


def test_copies_of_large_photographs_are_those_of_python(page):
    image = np.random.default_rng(0).integers(0, 256, (90, 131, 3), np.uint8)
    script = """async ([data, height, width, size]) => {
        const { averaged } = await import("./runner.js");
        const image = { data: Uint8ClampedArray.from(data), height, width, channels: 3 };
        return Array.from(averaged(image, size).data);
    }"""
    found = page.tab.evaluate(script, [image.ravel().tolist(), 90, 131, [45, 66]])
    np.testing.assert_array_equal(found, averaged(image, (45, 66)).ravel())


def test_a_large_photograph(fresh, folder, tmp_path):
    """The network sees reduced copies; a click answers as in Python."""
    picture = draw_scene(1500, 2100, seed=4)[0]
    Image.fromarray(picture).save(tmp_path / "large.png")
    fresh.tab.set_input_files("#file", tmp_path / "large.png")
    fresh.until("clicker.size.width === 2100 && clicker.image")
    runner = Runner(folder, threads=1)
    runner.set_image(picture)
    for x, y, positive in ((800, 500, True), (1400, 900, False)):
        mask = runner.predict([(x, y, positive)]) > 0.5
        fresh.click(x + 0.5, y + 0.5, "left" if positive else "right")
        assert (fresh.mask() != mask).mean() < 1e-3


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """A page with a micro network for classes, and pictures."""
    torch.manual_seed(0)
    model = build(read_preset("micro_emanet", "semantic")).eval()
    path = tmp_path_factory.mktemp("export") / "classes"
    write(model, path, classes=[f"class-{n}" for n in range(model.num_classes)])
    Image.fromarray(draw_scene(101, 133, seed=3)[0]).save(path / "photo.png")
    Image.fromarray(draw_scene(60, 2100, seed=4)[0]).save(path / "large.png")
    return path


def test_a_page_of_classes(classes, chromium):
    runner = ClassRunner(classes, threads=1)
    labels = runner.predict(np.asarray(Image.open(classes / "photo.png")))
    shares = {
        f"{name} {100 * (labels == n).mean():.1f} %": (labels == n).sum()
        for n, name in enumerate(runner.classes)
        if (labels == n).any()
    }
    assert len(shares) > 1
    with served(classes, chromium) as page:
        found = np.reshape(page.run("Array.from(probsegPage.photograph.classes)"), labels.shape)
        assert (found != labels).sum() <= 2
        legend = page.tab.locator("#legend button")
        assert legend.all_inner_texts() == sorted(shares, key=shares.__getitem__, reverse=True)
        page.until_stored()
        y, x = (int(place) for place in np.argwhere(found == found[50, 60])[0])
        page.click(x + 0.5, y + 0.5)
        pressed = page.tab.locator("#legend [aria-pressed=true]").all_inner_texts()
        assert [text.split()[0] for text in pressed] == [runner.classes[found[50, 60]]]
        page.tab.click("#legend [aria-pressed=false]")
        assert page.run("clicker.selected") not in (None, found[50, 60])
        page.run("clicker.select(null)")
        assert page.tab.locator("#legend [aria-pressed=true]").count() == 0
        assert page.tab.locator(".clicker-tools button:visible").count() == 1
        for name, size in (("photo.png", (101, 133)), ("large.png", (60, 2100))):
            page.tab.set_input_files("#file", classes / name)
            page.until(f"probsegPage.photograph.name === '{name}' && !clicker.locked")
            with page.tab.expect_download() as download:
                page.tab.click("#save")
            written = Image.open(download.value.path())
            assert (written.mode, written.size) == ("L", size[::-1])
            if name == "photo.png":
                np.testing.assert_array_equal(np.asarray(written), found)
        assert page.run("[clicker.size.width, clicker.size.height]") == [1024, 29]


def test_a_page_of_classes_in_firefox(classes, tmp_path):
    runner = ClassRunner(classes, threads=1)
    labels = runner.predict(np.asarray(Image.open(classes / "photo.png")))
    with in_firefox(classes, tmp_path) as page:
        page.tab.evaluate(REOPEN)
        page.until("probsegPage.photograph.name === 'photo.png' && !clicker.locked")
        found = np.reshape(page.run("Array.from(probsegPage.photograph.classes)"), labels.shape)
        assert (found != labels).sum() <= 2
        page.until_stored()
        page.click(60.5, 50.5)
        legend = "[...document.querySelectorAll('#legend [aria-pressed=true]')]"
        (pressed,) = page.run(f"{legend}.map((button) => button.innerText)")
        assert pressed.split()[0] == runner.classes[found[50, 60]]


@pytest.mark.slow
def test_masks_of_the_shipped_model(tmp_path, chromium):
    write(probseg.create_model("lite0_unet_prop", pretrained=True), tmp_path / "site")
    clicks = [(288, 133, True), (357, 282, False), (299, 246, True)]  # on the cup
    masks = [answer > 0.5 for answer in expected(tmp_path / "site", clicks)]
    with served(tmp_path / "site", chromium) as page:
        for mask, (x, y, positive) in zip(masks, clicks, strict=True):
            page.click(x + 0.5, y + 0.5, "left" if positive else "right")
            assert 20_000 < mask.sum() < 150_000  # of 240,000: the cup, or with its saucer
            assert (page.mask() != mask).sum() <= 10


def test_npm_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="npm"):
        export_model(build(described("micro_fast")).eval(), tmp_path / "site", to="page", size=64)
    assert not list(tmp_path.iterdir())
