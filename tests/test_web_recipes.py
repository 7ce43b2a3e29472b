"""Pages and a server of `docs/recipes`: two people at once get what each gets alone.

Gradio, Streamlit and FastAPI are in the environment of the Python in PROBSEG_WEB, or in this one.
"""

import io
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

import probseg
from support.fakes import draw_scene, save
from support.pages import PATIENCE, browser

pytestmark = pytest.mark.process

PYTHON = os.environ.get("PROBSEG_WEB", sys.executable)
RECIPES = Path(__file__).resolve().parent.parent / "docs" / "recipes"
PICTURES = {"a": draw_scene(120, 160, seed=1)[0], "b": draw_scene(150, 140, seed=2)[0]}
CLICKS = {"a": [(40, 60), (110, 70)], "b": [(70, 75), (20, 30)]}


@contextmanager
def served(place, package, *words, **variables):
    """Run a server of a package until its page answers; yields its address."""
    has = [PYTHON, "-c", f"import {package}"]
    if subprocess.run(has, capture_output=True, check=False).returncode:
        pytest.skip(f"{package} is not installed: PROBSEG_WEB names a Python that has it")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= {name: value.replace("PORT", port) for name, value in variables.items()}
    started = [PYTHON, *(str(word).replace("PORT", port) for word in words)]
    address = f"http://127.0.0.1:{port}"
    with (place / "log.txt").open("w") as log:
        server = subprocess.Popen(started, stdout=log, stderr=log, env=environment, cwd=place)
        try:
            stop = time.monotonic() + 4 * PATIENCE
            while True:
                said = (place / "log.txt").read_text()
                assert server.poll() is None, said
                assert time.monotonic() < stop, said
                try:
                    urllib.request.urlopen(f"{address}/", timeout=5).close()
                    break
                except urllib.error.HTTPError:  # it has no page
                    break
                except OSError:
                    time.sleep(0.2)
            yield address
        finally:
            server.terminate()
            server.wait()


@pytest.fixture(scope="module")
def alone():
    """Areas of the masks that a predictor of one's own gives, click by click."""
    predictor = probseg.Predictor.from_pretrained("lite0_unet_prop")
    areas = {}
    for name, picture in PICTURES.items():
        predictor.set_image(picture)
        areas[name] = [int(predictor.predict([click]).binary.sum()) for click in CLICKS[name]]
    return areas


def both(place, address, click):
    """Open a picture in two browsers' windows, and click in them in turns; returns the areas."""
    areas = {name: [] for name in PICTURES}
    with browser() as started:
        tabs = {name: started.new_context().new_page() for name in PICTURES}
        for name, tab in tabs.items():
            tab.set_default_timeout(1000 * PATIENCE)
            tab.goto(address)
            tab.wait_for_selector("input[type=file]", state="attached")
            tab.set_input_files("input[type=file]", save(PICTURES[name], place / f"{name}.png"))
        for n in range(2):
            for name, tab in tabs.items():
                before = tab.locator("text=/\\d+ pixels/").all_inner_texts()
                click(tab, CLICKS[name][n], PICTURES[name].shape)
                stop = time.monotonic() + PATIENCE
                while (said := tab.locator("text=/\\d+ pixels/").all_inner_texts()) in ([], before):
                    assert time.monotonic() < stop, tab.inner_text("body")
                    time.sleep(0.1)
                areas[name].append(int(re.search(r"(\d+) pixels", said[-1])[1]))
    return areas


def press(picture, place, shape):
    """Click on a pixel of a picture that is shown at some size."""
    picture.wait_for()
    frame = picture.bounding_box()
    scale = frame["width"] / shape[1]
    picture.click(position={"x": (place[0] + 0.5) * scale, "y": (place[1] + 0.5) * scale})


def test_gradio(tmp_path, alone):
    own = {"GRADIO_SERVER_PORT": "PORT", "GRADIO_ANALYTICS_ENABLED": "False"}
    with served(tmp_path, "gradio", RECIPES / "gradio_clicks.py", **own) as address:

        def click(tab, place, shape):
            press(tab.locator("[data-testid='image'] img, .image-frame img").first, place, shape)

        areas = both(tmp_path, address, click)
    assert_like(areas, alone)


def test_streamlit(tmp_path, alone):
    words = ("--server.port=PORT", "--server.headless=true", "--browser.gatherUsageStats=false")
    recipe = RECIPES / "streamlit_clicks.py"
    started = ("-m", "streamlit", "run", recipe, *words)
    with served(tmp_path, "streamlit_image_coordinates", *started) as address:

        def click(tab, place, shape):
            press(tab.frame_locator("iframe").locator("img"), place, shape)

        areas = both(tmp_path, address, click)
    assert_like(areas, alone)


def test_fastapi(tmp_path, alone):
    words = ("-m", "uvicorn", "--port=PORT", f"--app-dir={RECIPES}", "fastapi_clicks:app")
    with served(tmp_path, "fastapi, multipart", *words) as address:
        client = httpx.Client(base_url=address, timeout=PATIENCE)
        keys, areas = {}, {name: [] for name in PICTURES}
        for name, picture in PICTURES.items():
            content = save(picture, tmp_path / f"{name}.png").read_bytes()
            keys[name] = client.post("/pictures", files={"picture": content}).json()
        for n in range(2):
            for name, key in keys.items():
                x, y = CLICKS[name][n]
                answer = client.post(f"/pictures/{key}/clicks", params={"x": x, "y": y})
                mask = Image.open(io.BytesIO(answer.content))
                assert (mask.mode, mask.size) == ("L", PICTURES[name].shape[1::-1])
                areas[name].append(int((np.asarray(mask) == 255).sum()))
        assert areas == alone
        outside = client.post(f"/pictures/{keys['a']}/clicks", params={"x": 1000, "y": 5})
        assert (outside.status_code, "1000" in outside.text) == (422, True)
        assert client.post("/pictures/other/clicks", params={"x": 1, "y": 5}).status_code == 404
        assert client.post("/pictures", files={"picture": b"no picture"}).status_code == 422


def assert_like(areas, alone):
    """Assert areas of clicks that a browser may place a pixel aside."""
    for name, own in alone.items():
        assert areas[name] == pytest.approx(own, rel=0.05)
