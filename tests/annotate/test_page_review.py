"""The annotation page for reviews: the grid, split, merge and outline, keys, report, exports."""

import json

import numpy as np
import pytest
from PIL import Image

from probseg.images import read_image
from probseg.interact.steps import brush_pixels, snap
from probseg.types import Stroke
from support.fakes import draw_scene
from support.pages import READER, TOKEN, Page

pytestmark = pytest.mark.process

STATES = "probsegPage.session.photographs.map(photo => photo.state)"
LABELS = "clicker.objects.map(object => object.label)"


@pytest.fixture
def folder(tmp_path):
    for number in range(5):
        Image.fromarray(draw_scene(96, 128, seed=number)[0]).save(tmp_path / f"{number:02d}.png")
    return tmp_path


@pytest.fixture
def page(chromium, address):
    page = Page(chromium, address).open()
    yield page
    page.close()


def finish(page, *clicks, label="1"):
    """Finish an object of clicks, and wait until its mask is there."""
    for x, y in clicks:
        page.click(x, y)
    page.press(label, "Enter")
    page.until_stored()


def finished(page):
    """Return the masks of the finished objects as the page has them."""
    page.until_stored()
    ids = page.run("clicker.objects.map(({ id }) => id)")
    return [page.mask(f"clicker.finished.get({number})") for number in ids]


def test_the_grid_shows_all_masks_and_takes_decisions_by_keyboard(page):
    finish(page, (40, 50))
    finish(page, (100, 50), label="2")
    page.press("d", "b")
    page.drag((60, 50), (70, 50))
    page.press("Enter", "d", "o")
    assert not page.tab.locator("#clicker").is_visible()
    assert page.tab.locator(".tile").count() == 5
    page.until("document.querySelector('.tile canvas[width]')")
    drawn = page.run(
        "Array.from(document.querySelector('.tile canvas').getContext('2d')"
        ".getImageData(0, 0, 128, 96).data).filter((_, i) => i % 4 === 3)"
    )
    masks = np.array(drawn).reshape(96, 128) > 0
    assert masks[50, 40]
    assert masks[50, 100]
    assert not masks[10, 10]
    current = "document.querySelector('.tile[aria-selected=true]').title.slice(0, 2)"
    for key, tile in {"End": 4, "ArrowDown": 4, "PageUp": 0, "ArrowUp": 0, "PageDown": 4}.items():
        page.press(key)
        assert page.run(current) == f"{tile:02d}", key
    page.press("Home")
    for key in "axr":  # before any answer
        page.tab.keyboard.press(key)
    page.tab.keyboard.press("Enter")  # without a comment
    wanted = ["accepted", "rejected", "returned", "open", "open"]
    page.until(f"JSON.stringify({STATES}) === '{json.dumps(wanted, separators=(',', ':'))}'")
    assert page.tab.locator(".tile[aria-selected=true]").get_attribute("title") == "03.png"
    page.press("z")
    page.until(f"{STATES}[2] === 'open'")
    page.press("Shift+Z")
    page.until(f"{STATES}[2] === 'returned'")
    page.press("z", "z", "z")
    page.until(f"{STATES}[0] === 'done'")
    page.press("z")
    page.until("document.getElementById('banner').textContent.includes('no decision')")
    page.press("Shift+Z")
    page.until(f"{STATES}[0] === 'accepted'")
    page.press("Enter")
    assert page.run("probsegPage.index") == 0
    assert page.tab.locator("#clicker").is_visible()
    assert page.run("clicker.objects.length") == 2
    page.press("z")  # the state is one more change of the photograph
    assert page.run(STATES)[0] == "done"
    page.tab.locator("#sort").select_option("Worst masks first")
    order = page.run("probsegPage.strip.keys.map(id => probsegPage.byId.get(id))")
    quality = page.run("probsegPage.session.photographs.map(photo => photo.quality)")
    assert order == sorted(range(5), key=lambda n: (quality[n] is None, quality[n]))
    assert None in quality
    page.open()
    assert page.run("probsegPage.session.photographs.map(photo => photo.quality)") == quality


def test_names_in_the_grid_are_on_their_objects(page):
    finish(page, (64, 95))
    page.press("o")
    tile = "document.querySelector('.tile canvas[width]')"
    page.until(tile)
    painted = page.run(f"Array.from({tile}.getContext('2d').getImageData(0, 0, 128, 96).data)")
    rows, columns = np.nonzero(np.array(painted).reshape(96, 128, 4)[..., :3].min(axis=-1) > 200)
    assert rows.min() > 70
    assert 40 < columns.mean() < 88


def test_two_decisions_on_a_photograph_are_undone_and_decided_again(page):
    page.press("o", "a", "ArrowLeft", "r")
    page.tab.keyboard.press("Enter")  # without a comment
    page.until(f"{STATES}[0] === 'returned'")
    for keys, state in (("z", "accepted"), ("z", "open"), ("Z", "accepted"), ("Z", "returned")):
        page.press(keys)
        page.until(f"{STATES}[0] === '{state}'")
    page.press("z", "z")
    page.until(f"{STATES}[0] === 'open'")


def test_who_accepts_twice_takes_back_no_work(page):
    finish(page, (40, 50))
    page.press("o", "a", "ArrowLeft", "a")
    page.until(f"{STATES}[0] === 'accepted'")
    page.press("z")
    page.until(f"{STATES}[0] === 'open'")
    page.press("z")
    page.until("document.getElementById('banner').textContent.startsWith('Not taken back')")
    assert page.run("probsegPage.session.photographs[0].objects") == 1


def test_what_is_said_of_the_open_object_stays_when_it_is_asked_for_again(page):
    says = "clicker.readout.textContent"
    page.click(40, 50)
    said = page.run(says)
    assert said.startswith("expected IoU")
    page.run("clicker.refresh()")
    page.settle()
    assert page.run(says) == said
    page.open()
    assert page.run(says) == said
    page.press("Enter", "x")
    page.drag((25, 35), (56, 66))
    assert page.run(says).startswith("most of this object is on finished ones")


def test_the_list_of_keys_begins_at_its_top(page):
    page.resize(900, 400)
    page.tab.keyboard.press("?")
    assert page.run("document.querySelector('#help').scrollHeight") > 400
    assert page.run("document.querySelector('#help').scrollTop") == 0


def test_objects_are_split_and_merged(page):
    finish(page, (20, 20), (100, 70))
    page.press("t")
    assert "Select the object" in page.banner()
    (whole,) = finished(page)
    page.click(20, 20)
    page.press("t")
    assert page.run(LABELS) == ["cat", "cat"]
    parts = finished(page)
    np.testing.assert_array_equal(parts[0] | parts[1], whole)
    assert not (parts[0] & parts[1]).any()
    page.press("z")
    np.testing.assert_array_equal(finished(page)[0], whole)
    page.press("Shift+Z")
    page.press("Escape")
    page.click(20, 20)
    page.press("2", "m")
    assert "other object" in page.banner()
    page.click(60, 10)
    assert "no finished object" in page.banner()
    assert page.run("clicker.current.object ?? null") is None, "no object was begun"
    page.click(100, 70)
    assert page.run(f"[{LABELS}, clicker.selected]") == [["dog"], page.run("clicker.objects[0].id")]
    np.testing.assert_array_equal(finished(page)[0], whole)
    page.press("z")
    assert sorted(page.run(LABELS)) == ["cat", "dog"]


def test_the_outline_has_corners_to_drag(page):
    page.press("y")
    assert "Click on an object" in page.banner()
    page.click(40, 50)
    whole = page.mask()
    page.press("y")
    page.until("probsegPage.outline.polygons.length")
    corners = "probsegPage.outline.polygons[0][0]"
    count = page.run(f"{corners}.length")
    right = page.run(f"{corners}.reduce((a, b) => (b[0] > a[0] ? b : a))")
    page.drag(right, (100, 50))
    moved = page.mask()
    assert moved[50, 80:95].all()
    np.testing.assert_array_equal(moved[:, :40], whole[:, :40])
    assert page.run(f"{corners}.length") == count
    page.press("z")
    np.testing.assert_array_equal(page.mask(), whole)
    page.press("Shift+Z")
    np.testing.assert_array_equal(page.mask(), moved)
    page.until(f"{corners}.some(([x]) => x > 95)")
    tip = page.run(f"{corners}.reduce((a, b) => (b[0] > a[0] ? b : a))")
    page.click(*tip, button="right")
    assert not page.mask()[50, 90]
    page.press("Enter")
    assert page.run("[clicker.objects.length, probsegPage.outline.shown]") == [1, False]


def test_a_tool_that_was_chosen_goes_before_corners(page):
    page.press("b")
    page.click(40, 50)
    page.press("y")
    assert page.run("clicker.tool") == "object", "its corners can be dragged at once"
    x, y = page.run("probsegPage.outline.polygons[0][0][0]")
    page.press("x")
    page.drag((x, y), (90, 80))
    assert page.run("clicker.current.box") == pytest.approx([x, y, 90, 80], abs=0.5)


def test_corners_of_an_earlier_mask_are_not_taken_hold_of(page):
    page.click(40, 50)
    page.press("y")
    x, y = page.run("probsegPage.outline.polygons[0][0][0]")
    page.run("(clicker.command(() => clicker.send({ type: 'clear' }), true), null)")
    point = f"{{ x: {x}, y: {y} }}, {{ button: 0 }}, clicker.view.scale"
    assert page.run(f"probsegPage.outline.grip({point})") is None
    page.settle()
    assert not page.mask().any()


def test_a_click_holds_while_a_message_moves_the_photograph(page):
    page.aim(40, 50)
    page.tab.mouse.down()
    x, y = page.place(40, 50)
    page.run("document.getElementById('notice').hidden = false")
    page.run("document.getElementById('notice').textContent = 'It moves.'")
    top = "clicker.over.getBoundingClientRect().top + clicker.view.y"
    page.until(f"{top} + 50 * clicker.view.scale > {y} + 6")
    page.tab.mouse.move(x + 1, y)
    page.tab.mouse.up()
    page.settle()
    assert page.clicks == [(pytest.approx(40, abs=0.5), pytest.approx(50, abs=0.5), True)]


def test_keys_come_from_a_file(page, folder):
    keys = folder / "keys.json"
    keys.write_text('{"done": "w", "undo": ["q", "z"], "accept": "d"}')
    page.open()
    page.click(40, 50)
    page.press("d")
    assert page.run(STATES)[0] == "open"
    page.press("q")
    assert page.clicks == []
    assert page.tab.get_by_label("Undo").get_attribute("title") == "Undo (Q)"
    page.press("w")
    assert page.run(STATES)[0] == "done"
    page.press("?")
    assert page.tab.locator("#keys kbd", has_text="W, R").is_visible()
    refused = {
        '{"done": "n"}': "next and of done",
        '{"accept": "z"}': "accept and of undo",
        '{"next": "ArrowLeft"}': "the page itself",
        '{"nothing": "k"}': "no action “nothing”",
        "{": "cannot be read as JSON",
    }
    for text, reason in refused.items():
        keys.write_text(text)
        page.tab.reload()
        page.tab.locator("#banner").wait_for()
        assert reason in page.banner()


def test_the_report_and_every_format_are_written_from_the_page(page, folder):
    finish(page, (40, 50))
    finish(page, (100, 50), (110, 20), label="2")
    page.tab.get_by_role("button", name="Time and clicks").click()
    page.tab.get_by_role("dialog").wait_for()
    rows = page.tab.locator("#efforts tr").all_inner_texts()
    assert [row.split("\t")[:2] for row in rows] == [
        ["Label", "Objects"],
        ["cat", "1"],
        ["dog", "1"],
        ["all", "2"],
    ]
    assert rows[2].split("\t")[3] == "2.0"
    page.tab.get_by_role("button", name="Write report.csv").click()
    path = page.tab.locator("#exported-path code")
    path.wait_for()
    assert path.inner_text().endswith("report.csv")
    page.tab.locator("#exported .close").click()
    assert (folder / "report.csv").read_text().startswith("label,objects,seconds,clicks")
    names = page.tab.locator("#format option")
    assert names.first.inner_text() == "COCO: annotations.json"
    page.tab.locator("#format").select_option("yolo")
    page.tab.get_by_role("button", name="Write", exact=True).click()
    path.wait_for()
    assert path.inner_text().endswith("annotations-yolo")
    assert (folder / "annotations-yolo").is_dir()


def test_readers_see_the_masks_and_change_nothing(chromium, page, address):
    finish(page, (40, 50))
    reader = Page(chromium, address.replace(TOKEN, READER)).open()
    reader.until_stored()
    assert finished(reader)[0].any()
    assert not reader.tab.locator("#done").is_visible()
    assert not reader.tab.locator("[data-role=delete]").is_visible()
    reader.click(100, 50)
    assert "only shows" in reader.banner()
    reader.press("Escape", "o")
    reader.tab.keyboard.press("x")
    reader.until("document.querySelector('#banner').textContent.includes('only shows')")
    page.open()
    assert page.run(f"[{STATES}[0], {LABELS}]") == ["open", ["cat"]]
    reader.close()


def test_strokes_that_snap(page, folder):
    image = read_image(folder / "00.png")
    button = page.tab.get_by_role("button", name="Snap", exact=True)
    assert button.get_attribute("aria-pressed") == "false"
    page.press("b", "k")
    assert button.get_attribute("aria-pressed") == "true"
    page.run("clicker.brush = 20 * clicker.view.scale")
    page.tab.keyboard.down("Shift")
    page.tab.mouse.move(*page.place(60.5, 40.5))
    page.tab.mouse.wheel(0, 100)
    page.tab.keyboard.up("Shift")
    page.until("Math.abs(clicker.brush - 16 * clicker.view.scale) < 1e-6")
    sent = page.run(
        "(() => { const { send } = clicker.transport; window.sent = [];"
        "clicker.transport.send = function (action, ...rest) {"
        "if (action.type === 'brush') window.sent.push(action);"
        "return send.call(this, action, ...rest); }; return window.sent; })()"
    )
    assert sent == []
    page.drag((50.5, 40.5), (70.5, 40.5))
    page.until_stored()
    (action,) = page.run("window.sent")
    assert action["snap"] is True
    points = tuple((x, y) for x, y in action["points"])
    stroke = Stroke(points, action["radius"])
    none = np.zeros(image.shape[:2], np.float32)
    expected = snap(stroke, image, none).pixels
    assert 0 < expected.sum() < brush_pixels(stroke, none.shape).sum()
    np.testing.assert_array_equal(page.mask(), expected)
    page.press("z")
    assert not page.mask().any()
    page.press("Z")
    np.testing.assert_array_equal(page.mask(), expected)
    button.click()  # off again: the whole disk is erased
    page.press("e")
    page.drag((50.5, 40.5), (51.5, 40.5))
    page.until_stored()
    last = page.run("window.sent.at(-1)")
    assert last["snap"] is False
    erased = Stroke(tuple((x, y) for x, y in last["points"]), last["radius"])
    np.testing.assert_array_equal(page.mask(), expected & ~brush_pixels(erased, none.shape))
