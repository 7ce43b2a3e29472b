"""The notebook clicker in JupyterLab itself, in Chromium.

Its command is `jupyter-lab` on PATH, or the path in PROBSEG_JUPYTERLAB, in an environment with
anywidget and jupyterlab_widgets. The kernel runs with the Python of that environment, which finds
the packages of this one.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from support.pages import browser

COMMAND = os.environ.get("PROBSEG_JUPYTERLAB") or shutil.which("jupyter-lab")
pytestmark = pytest.mark.skipif(
    COMMAND is None,
    reason="JupyterLab is not installed: PROBSEG_JUPYTERLAB names its command",
)

PATIENCE = 240
"""Seconds for the server, and for the kernel with its imports, on a machine with other work."""

CELLS = (
    "from probseg.annotate.widget import Clicker\n"
    "from probseg.interact.predictor import Predictor\n"
    "from support.fakes import draw_scene, micro_model\n"
    'clicker = Clicker(draw_scene(60, 80)[0], Predictor(micro_model("micro_previous")))\n'
    "clicker",
    "print(len(clicker.clicks), 'clicks')",
)

SHORTCUTS = ("d", "d", "x", "c", "v", "m", "y", "a", "b")
"""Keys that delete, cut, copy, paste, change or insert cells of the notebook."""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The page of a notebook with two cells."""
    root = tmp_path_factory.mktemp("jupyter")
    cells = [
        {"cell_type": "code", "source": source, "id": f"cell{number}", "metadata": {},
         "outputs": [], "execution_count": None}
        for number, source in enumerate(CELLS)
    ]  # fmt: skip
    kernel = {"name": "probseg", "display_name": "probseg", "language": "python"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4}
    (root / "notebook.ipynb").write_text(json.dumps({**notebook, "nbformat_minor": 5}))
    python = Path(COMMAND).parent / "python"
    spec = {
        "argv": [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "env": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        "display_name": "probseg",
        "language": "python",
    }
    place = root / "data" / "kernels" / "probseg"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(spec))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        COMMAND,
        "--no-browser",
        "--allow-root",
        f"--port={port}",
        "--ServerApp.port_retries=0",
    ]
    words += ["--IdentityProvider.token=secret", f"--ServerApp.root_dir={root}"]
    own = {"HOME": str(root), "JUPYTER_PATH": str(root / "data")}
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    log = root / "log.txt"
    with log.open("w") as output:
        server = subprocess.Popen(
            words, cwd=root, env={**clean, **own}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        stop = time.monotonic() + PATIENCE
        while not _is_up(port):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < stop, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/lab/tree/notebook.ipynb?token=secret"
    finally:
        server.terminate()
        server.wait(60)


def _is_up(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token=secret") as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def tab(address):
    """The notebook after its first cell has run."""
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(1000 * PATIENCE)
        page.goto(address)
        page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]')
        first = page.locator(".jp-Notebook .jp-Cell").first
        widget, prompt = page.locator(".clicker-over"), first.locator(".jp-InputArea-prompt")
        stop = time.monotonic() + PATIENCE
        while not widget.is_visible():
            assert time.monotonic() < stop, page.locator(".jp-Notebook").inner_text()
            if prompt.inner_text() == "[ ]:":  # not taken yet, or a kernel forgot it that connects
                first.locator(".cm-content").click()
                page.keyboard.press("Control+Enter")
            page.wait_for_timeout(2000)
        page.wait_for_selector(".clicker-tools [data-tool=fit]:enabled")  # the photograph is there
        yield page


def cells(tab):
    return tab.locator(".jp-Notebook .jp-Cell").count()


def clicks(tab):
    """Number of clicks that the kernel knows, by the second cell."""
    second = tab.locator(".jp-Notebook .jp-Cell").nth(1)
    second.locator(".cm-content").click()
    before = second.locator(".jp-InputArea-prompt").inner_text()
    tab.keyboard.press("Control+Enter")
    stop = time.monotonic() + PATIENCE
    while "clicks" not in (text := second.locator(".jp-OutputArea").inner_text()) or (
        second.locator(".jp-InputArea-prompt").inner_text() in (before, "[*]:")
    ):
        assert time.monotonic() < stop, text
        time.sleep(0.1)
    return int(text.split()[-2])


def test_keys_on_the_photograph_and_its_buttons_leave_the_notebook_alone(tab):
    photograph = tab.locator(".clicker-over")
    photograph.click(position={"x": 200, "y": 150})
    tab.keyboard.press("d")
    tab.keyboard.press("d")
    assert cells(tab) == len(CELLS)
    tab.wait_for_function("document.querySelector('.clicker').clicker.current.clicks.length === 1")
    assert clicks(tab) == 1
    photograph.click(position={"x": 220, "y": 170})
    for key in SHORTCUTS:
        tab.keyboard.press(key)
    assert cells(tab) == len(CELLS)
    buttons = tab.locator(".jp-OutputArea button:visible:not([disabled])")
    assert buttons.count() > 2
    for button in buttons.element_handles():  # of which a key may disable others
        button.focus()
        for key in ("d", "d", "c", "v"):
            tab.keyboard.press(key)
    assert cells(tab) == len(CELLS)
    # The shortcuts are alive: next to the widget they do delete the cell.
    tab.locator(".jp-Notebook .jp-Cell").nth(1).locator(".jp-InputArea-prompt").click()
    tab.keyboard.press("Escape")
    tab.keyboard.press("d")
    tab.keyboard.press("d")
    assert cells(tab) == len(CELLS) - 1


def test_the_notebook_is_saved_with_the_photograph_focused(tab):
    tab.locator(".clicker-over").focus()
    with tab.expect_request(lambda sent: sent.method == "PUT", timeout=30_000):
        tab.keyboard.press("Control+s")


def test_a_kernel_that_was_restarted_is_told(tab):
    told = tab.get_by_role("alert").filter(has_text="run the cell again")
    tab.locator(".jp-NotebookPanel-toolbar [data-jp-item-name=restart]").click()
    tab.locator(".jp-Dialog .jp-mod-accept").click()
    told.wait_for()
    told.evaluate("of => of.hidden = true")
    tab.locator(".clicker-tools [data-tool=object]").click()
    tab.locator(".clicker-over").click()
    told.wait_for()
    tab.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]')  # to be ended
