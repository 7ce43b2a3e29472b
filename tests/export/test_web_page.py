"""The page that runs exported graphs in the browser."""

import functools
import http.server
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

import probseg
from probseg.errors import UsageError
from probseg.export import Runner, export_model
from probseg.export.runner import averaged, resized
from probseg.models import build
from support.fakes import draw_scene
from support.micro import described
from support.pages import Page, browser
from support.sites import listening

pytestmark = pytest.mark.process

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: the extra [export]")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: the extra [export]")

CLICKS = [(31, 20, True), (70, 60, False), (40, 33, True)]
BOX = (20, 10, 80, 70)


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def write(model, path):
    """Export a network as a page; without npm or a network, skip the test."""
    try:
        export_model(model, path, to="page")
    except UsageError as error:
        if "npm" in str(error):
            pytest.skip(f"ONNX Runtime Web cannot be fetched: {error}")
        raise


@contextmanager
def served(folder, chromium):
    """Open the page of a folder in the browser."""
    with listening(functools.partial(Handler, directory=str(folder))) as address:
        opened = Page(chromium, f"{address}/").open()
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


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


@pytest.fixture
def fresh(page):
    page.press("Backspace")
    return page


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
        photograph.begin();
        let answer;
        for (const [clicks, box] of prompts) answer = await photograph.runner.predict(clicks, box);
        photograph.begin();
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
    with fresh.tab.expect_download() as saved:
        fresh.tab.click("#save")
    assert saved.value.suggested_filename == "photo_1.png"
    written = np.asarray(Image.open(saved.value.path()).convert("L"))
    np.testing.assert_array_equal(written == 255, last)


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
    seen = fresh.run("Array.from(probsegPage.photograph.runner.image.data)")
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


@pytest.mark.slow
def test_masks_of_the_shipped_model(tmp_path, chromium):
    write(probseg.create_model("lite0_unet_prop", pretrained=True), tmp_path / "site")
    clicks = [(288, 133, True), (357, 282, False), (299, 246, True)]  # on the cup
    masks = [answer > 0.5 for answer in expected(tmp_path / "site", clicks)]
    with served(tmp_path / "site", chromium) as page:
        for mask, (x, y, positive) in zip(masks, clicks, strict=True):
            page.click(x + 0.5, y + 0.5, "left" if positive else "right")
            assert 20_000 < mask.sum() < 100_000
            assert (page.mask() != mask).sum() <= 10


def test_npm_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="npm"):
        export_model(build(described("micro_fast")).eval(), tmp_path / "site", to="page", size=64)
    assert not list(tmp_path.iterdir())
