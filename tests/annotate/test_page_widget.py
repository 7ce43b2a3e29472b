"""The notebook clicker: its messages, and its front end in a browser."""

import base64
import io
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from probseg.annotate.frames import unpack
from probseg.geometry import ZOOMS
from probseg.interact.predictor import Predictor
from probseg.types import Click
from support.fakes import draw_scene, micro_model
from support.pages import browser

pytest.importorskip("anywidget", reason="the notebook clicker needs anywidget")

from probseg.annotate.widget import Clicker

PHOTO = draw_scene(60, 80)[0]
FIRST = {"type": "click", "x": 40.5, "y": 30.9, "positive": True}
SECOND = {"type": "click", "x": 2.0, "y": 3.5, "positive": False}


@pytest.fixture(scope="module")
def model():
    return micro_model("micro_previous")  # what a click gives depends on the answers before it


class Frontend:
    """What a notebook does: sends numbered questions and reads the answers."""

    def __init__(self, widget):
        self.widget, self.sent = widget, []
        widget.send = lambda content, buffers=None: self.sent.append((content, buffers or []))

    def ask(self, action, number=3, sequence=7):
        content = {"number": number, "sequence": sequence, "action": action}
        self.widget._handle_custom_msg(content, [])
        answer, buffers = self.sent[-1]
        assert answer["number"] == number
        return answer, buffers

    def masked(self, action):
        _, (frame,) = self.ask(action)
        header, mask = unpack(frame, PHOTO.shape[:2])
        assert header["sequence"] == 7
        return header, mask


@pytest.fixture
def frontend(model):
    return Frontend(Clicker(PHOTO, Predictor(model)))


def expected(model, clicks=(), box=None):
    predictor = Predictor(model)
    predictor.set_image(PHOTO)
    if box is not None:
        predictor.predict(box=box)
    for click in clicks:
        mask = predictor.predict([click])
    return mask.binary


def test_clicks_answer_as_the_predictor_does(frontend, model):
    given = [Click(40, 30), Click(2, 3, positive=False)]  # the pixels that the places lie in
    for number, action in enumerate([FIRST, SECOND], 1):
        header, mask = frontend.masked(action)
        np.testing.assert_array_equal(mask, expected(model, given[:number]))
        assert [tuple(click.values()) for click in header["current"]["clicks"]] == [
            (x + 0.5, y + 0.5, positive) for x, y, positive in given[:number]
        ]
    assert frontend.widget.clicks == tuple(given)
    np.testing.assert_array_equal(frontend.widget.mask.binary, mask)


def test_cells_wait_for_an_answer_that_is_under_way_in_another_thread(frontend, monkeypatch):
    session = frontend.widget._predictor.session
    add, began, let_go = session.add, threading.Event(), threading.Event()

    def slow(step):
        began.set()
        assert let_go.wait(60)
        return add(step)

    monkeypatch.setattr(session, "add", slow)
    with ThreadPoolExecutor() as threads:
        click = threads.submit(frontend.ask, FIRST)
        assert began.wait(60)
        read = [threads.submit(getattr, frontend.widget, name) for name in ("clicks", "mask")]
        assert not wait(read, timeout=0.2).done
        let_go.set()
        click.result()
        clicks, mask = (of.result() for of in read)
    assert clicks == (Click(40, 30),)
    assert mask.binary.any()


def test_a_predictor_that_is_given_is_left_alone(model):
    given = Predictor(model, zoom="fixed")
    given.set_image(PHOTO)
    given.predict([(9, 9)])
    first = Frontend(Clicker(PHOTO, given))
    first.masked(FIRST)
    Clicker(PHOTO[:30, :20], given)
    assert [*given.clicks] == [Click(9, 9)]
    given.reset()
    assert len(first.masked(SECOND)[0]["current"]["clicks"]) == 2
    own = first.widget._predictor
    assert own.model is given.model  # whose weights take memory
    assert own._loop.zoom == ZOOMS["fixed"]


@pytest.mark.parametrize("form", [str, Path, Image.open])
def test_files_and_pillow_images_are_shown(model, tmp_path, form):
    path = tmp_path / "photo.png"
    Image.fromarray(PHOTO).save(path)
    frontend = Frontend(Clicker(form(path), Predictor(model)))
    np.testing.assert_array_equal(frontend.masked(FIRST)[1], expected(model, [Click(40, 30)]))
    shown = Image.open(io.BytesIO(frontend.ask({"type": "image"})[1][0]))
    np.testing.assert_array_equal(np.asarray(shown), PHOTO)


def test_undo_and_redo_chains(frontend, model):
    masks = [frontend.masked({"type": "box", "box": [20, 10, 60, 50]})[1]]
    masks += [frontend.masked(action)[1] for action in (FIRST, SECOND)]
    for place in (1, 0):
        np.testing.assert_array_equal(frontend.masked({"type": "undo"})[1], masks[place])
    header, mask = frontend.masked({"type": "undo"})
    assert mask is None
    assert (header["undo"], header["redo"]) == (False, True)
    for wanted in masks:
        np.testing.assert_array_equal(frontend.masked({"type": "redo"})[1], wanted)
    frontend.masked({"type": "undo"})
    assert not frontend.masked(SECOND)[0]["redo"]  # a new click forgets what was undone


def test_a_preview_changes_nothing(frontend, model):
    _, before = frontend.masked(FIRST)
    preview = frontend.masked({**SECOND, "type": "preview"})[1]
    predictor = Predictor(model)  # whose previews are answered at one scale, unlike clicks
    predictor.set_image(PHOTO)
    predictor.predict([Click(40, 30)])
    wanted = predictor.session.preview(Click(2, 3, positive=False)).mask.binary
    np.testing.assert_array_equal(preview, wanted)
    assert frontend.widget.clicks == (Click(40, 30),)
    np.testing.assert_array_equal(frontend.masked({"type": "mask"})[1], before)


def test_finished_objects_are_kept_and_the_next_begins_empty(frontend):
    _, mask = frontend.masked(FIRST)
    header, nothing = frontend.masked({"type": "finish", "label": None})
    assert (nothing, header["current"]) == (None, None)
    assert [(row["id"], row["area"]) for row in header["objects"]] == [(0, mask.sum())]
    np.testing.assert_array_equal(frontend.widget.masks[0], mask)
    np.testing.assert_array_equal(frontend.widget.mask.binary, mask)
    _, (frame,) = frontend.ask({"type": "masks", "objects": [0]})
    np.testing.assert_array_equal(unpack(frame, PHOTO.shape[:2])[1], mask)
    assert len(frontend.masked({"type": "finish"})[0]["objects"]) == 1


def test_uncertainty_is_entropy_in_bytes(frontend):
    frontend.masked(FIRST)
    _, doubt = frontend.masked({"type": "uncertainty"})
    assert doubt.dtype == np.uint8
    np.testing.assert_allclose(doubt / 255, frontend.widget.mask.uncertainty, atol=0.5 / 255)


def test_what_cannot_be_done_is_answered_with_the_reason(frontend):
    for action in ({**FIRST, "x": 80.0}, {"type": "brush"}, {"type": "box", "box": [9, 9, 3, 3]}):
        answer, buffers = frontend.ask(action)
        assert answer["error"]
        assert not buffers
    assert frontend.widget.clicks == ()


FRONT = """async ([esm, css]) => {
  document.head.append(Object.assign(document.createElement("style"), {textContent: css}));
  const heard = new Set(); // of the kernel, by all views
  window.show = async el => {
    const on = {};
    const model = {
      get: () => 400,
      on: (name, act) => { on[name] = act; if (name === "msg:custom") heard.add(act); },
      off: name => { heard.delete(on[name]); delete on[name]; },
      send: (content, {iopub}) => {
        if (window.cut) throw new Error("Cannot send");
        if (!window.died) answered(content);
        else if (window.forgot) iopub.status({content: {execution_state: "idle"}});
      },
    };
    const answered = async content => {
      const [answer, coded] = await window.kernel(content);
      const bytes = Uint8Array.from([0, ...atob(coded)].map(c => c ? c.charCodeAt(0) : 0));
      const view = coded ? [new DataView(bytes.buffer, 1)] : []; // as notebooks give
      for (const act of heard) act(answer, view);
    };
    const module = URL.createObjectURL(new Blob([esm], {type: "text/javascript"}));
    const leave = (await import(module)).default.render({model, el});
    return {leave, lose: () => on["comm_live_update"]()};
  };
  Object.assign(window, await window.show(document.body));
}"""


NOTEBOOKS = """() => {
  // Keys that would reach shortcuts: of JupyterLab, whose Lumino looks at a key on its way down,
  // from the focused element upwards, and of notebooks that listen around the widget.
  window.reached = [];
  document.addEventListener("keydown", event => {
    for (let at = event.target; at; at = at.parentElement) {
      if (at.hasAttribute("data-lm-suppress-shortcuts")) return;
      if (at.matches(":focus:not(:read-write)")) return window.reached.push(`lab ${event.key}`);
    }
  }, true);
  document.addEventListener("keydown", event => window.reached.push(`around ${event.key}`));
}"""


@contextmanager
def opened(frontend):
    """The widget in a tab, which must have no errors."""

    def kernel(content):
        answer, buffers = frontend.ask(content["action"], content["number"], content["sequence"])
        return answer, base64.b64encode(buffers[0]).decode() if buffers else ""

    with browser() as chromium:
        tab = chromium.new_page()
        complaints = []
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.expose_function("kernel", kernel)
        tab.evaluate(FRONT, [frontend.widget._esm, frontend.widget._css])
        tab.wait_for_function("document.querySelector('.clicker').clicker.image")
        yield tab
        assert not complaints


def test_in_a_browser(frontend):
    with opened(frontend) as tab:
        stage = tab.locator(".clicker-over").bounding_box()
        x, y = stage["x"] + stage["width"] / 2, stage["y"] + stage["height"] / 2
        tab.mouse.click(x + 3, y + 2)  # a pixel is 4 of the screen
        tab.wait_for_function("document.querySelector('.clicker').clicker.current.clicks.length")
        assert frontend.widget.clicks == (Click(40, 30),)
        tab.keyboard.press("s")  # at the crosshair, in the middle
        tab.keyboard.press("z")
        tab.wait_for_function("!document.querySelector('.clicker').clicker.pending.length")
        assert len(frontend.widget.clicks) == 1
        shown = tab.evaluate("document.querySelector('.clicker').clicker.mask?.region.area ?? 0")
        assert shown == frontend.widget.mask.binary.sum()
        assert tab.get_by_role("button", name="Brush").count() == 0


def test_keys_do_not_reach_the_shortcuts_of_the_notebook(frontend):
    with opened(frontend) as tab:
        tab.evaluate(NOTEBOOKS)
        tab.locator(".clicker-over").click()
        buttons = tab.locator(".clicker button:enabled").all()
        assert len(buttons) > 3
        for button in buttons:
            button.focus()
            tab.keyboard.press("d")
        tab.locator(".clicker-over").focus()
        for key in ("d", "d", "c", "v", "m", "y", "Escape", "ArrowDown"):
            tab.keyboard.press(key)
        assert tab.evaluate("reached") == []
        for key in ("s", "z"):
            tab.keyboard.press(f"Control+{key}")  # of which the clicker has the second
        assert tab.evaluate("reached.splice(0)") == [
            *("lab Control", "around Control", "lab s", "around s"),
            *("lab Control", "around Control"),
        ]
        tab.evaluate("document.activeElement.blur()")
        tab.keyboard.press("d")
        assert tab.evaluate("reached") == ["around d"]


GONE = {
    "while a click waits": "window.died = true",
    "before a click": "window.cut = true",
    "unnoticed": "window.died = window.forgot = true",
}


@pytest.mark.parametrize("when", GONE)
def test_a_kernel_that_is_gone_is_told(frontend, when):
    with opened(frontend) as tab:
        tab.evaluate(GONE[when])
        tab.locator(".clicker-over").click()
        if when == "while a click waits":
            tab.wait_for_function("document.querySelector('.clicker').clicker.pending.length")
            tab.evaluate("lose()")
        tab.get_by_role("alert").filter(has_text="run the cell again").wait_for()
        assert tab.evaluate("document.querySelector('.clicker').clicker.pending.length") == 0
        if when == "before a click":  # a new view gets no photograph, and says so
            tab.evaluate("show(document.body.appendChild(document.createElement('div')))")
            tab.get_by_role("alert").nth(1).filter(has_text="run the cell again").wait_for()


def test_two_views_show_the_same(frontend):
    with opened(frontend) as tab:
        tab.evaluate("show(document.body.appendChild(document.createElement('div')))")
        views = "[...document.querySelectorAll('.clicker')].map(of => of.clicker)"
        tab.wait_for_function(f"{views}.every(view => view.image) && {views}.length === 2")
        same = "{views}.every(view => view.{what})"
        tab.locator(".clicker-over").nth(0).click()
        what = "mask && view.current.clicks.length === 1"
        tab.wait_for_function(same.format(views=views, what=what))
        tab.get_by_role("button", name="Finish").nth(1).click()
        what = "finished.size === 1 && !view.current.clicks.length"
        tab.wait_for_function(same.format(views=views, what=what))


def test_a_clicker_that_was_removed_leaves_the_memory(frontend):
    with opened(frontend) as tab:
        tab.evaluate("window.clicker = new WeakRef(document.querySelector('.clicker').clicker)")
        tab.evaluate("(leave(), window.leave = null, document.body.replaceChildren())")
        memory = tab.context.new_cdp_session(tab)
        for _ in range(50):
            memory.send("HeapProfiler.collectGarbage")
            if tab.evaluate("!clicker.deref()"):
                return
        pytest.fail("it is still there")
