"""Finished objects on the annotation page: selected, changed, undone, copied and counted."""

import numpy as np
import pytest
from PIL import Image

from support.fakes import draw_scene
from support.pages import Disks, Page, serving

pytestmark = pytest.mark.process

OBJECTS = "clicker.objects.map(object => object.label)"
OPEN = "clicker.current.object !== null"


@pytest.fixture
def page(chromium, tmp_path):
    for number in range(4):
        Image.fromarray(draw_scene(96, 128, seed=number)[0]).save(tmp_path / f"{number:02d}.png")
    with serving(tmp_path, Disks()) as address:
        page = Page(chromium, address).open()
        yield page
        page.close()


def finish(page, x, y, label):
    """Finish an object with one click, and wait until its mask is there."""
    page.click(x, y)
    page.press(label, "Enter")
    page.until_stored()


def test_a_click_on_a_finished_object_selects_it(page):
    finish(page, 40, 50, "1")
    finish(page, 100, 50, "2")
    page.click(40, 50)
    assert page.run("clicker.selected") == page.run("clicker.objects[0].id")
    assert page.run(f"[{OPEN}, {OBJECTS}]") == [False, ["cat", "dog"]]
    assert page.tab.locator(".object.selected select").input_value() == "cat"
    page.press("2")
    assert page.run(OBJECTS) == ["dog", "dog"]
    assert page.run("clicker.selected !== null")
    page.press("Enter")
    assert page.run(f"[{OPEN}, {OBJECTS}, clicker.selected]") == [True, ["dog"], None]
    assert len(page.clicks) == 1
    page.click(100, 50)  # an object is open: a click like any other
    assert len(page.clicks) == 2
    page.press("Escape")
    assert page.run(f"[{OPEN}, {OBJECTS}]") == [False, ["dog", "dog"]]
    assert not page.mask().any()
    page.press("Escape")
    page.click(100, 50)
    page.press("Delete")
    assert page.run(f"[{OBJECTS}, clicker.selected]") == [["dog"], None]
    page.click(40, 50)
    page.press("Escape")
    assert page.run("clicker.selected") is None
    page.tab.get_by_role("button", name="Hide").click()
    page.click(40, 50)  # what is hidden is not in the way
    assert page.run(OPEN)
    page.press("Escape")
    page.tab.get_by_role("button", name="Select: dog").click()
    assert page.run("clicker.selected === clicker.objects[0].id")


def test_undo_and_redo_reach_across_objects(page):
    states = [page.run(f"[{OBJECTS}, {OPEN}]")]

    def after(*keys):
        page.press(*keys)
        states.append(page.run(f"[{OBJECTS}, {OPEN}]"))

    page.click(40, 50)
    after()
    shown = page.mask()
    after("1")
    after("Enter")
    page.until("clicker.finished.values().next().value?.stamp")
    page.click(40, 50)
    after("2")
    after("Enter")
    page.click(110, 80)
    after()
    after("Escape")
    assert page.run("[clicker.selected, clicker.redoable]") == [None, False]
    for number in range(len(states) - 2, -1, -1):
        page.press("z")
        assert page.run(f"[{OBJECTS}, {OPEN}]") == states[number], number
        if number == 1:
            np.testing.assert_array_equal(page.mask(), shown)
    assert page.tab.get_by_label("Undo").is_disabled()
    page.open()
    for state in states[1:]:
        page.press("Shift+Z")
        assert page.run(f"[{OBJECTS}, {OPEN}]") == state


def test_holes_stray_parts_and_copies_by_one_keystroke(page):
    page.click(60, 50)
    whole = page.mask()
    page.press("e")
    page.run("clicker.brush = 4 * clicker.view.scale")
    page.drag((60, 50), (61, 50))
    page.press("b")
    page.drag((5, 5), (6, 5))
    ragged = page.mask()
    assert (ragged[50, 60], ragged[5, 5]) == (False, True)
    page.press("f")
    page.tab.get_by_role("button", name="Remove stray parts").click()
    page.settle()
    np.testing.assert_array_equal(page.mask(), whole)
    page.press("i")
    assert "no stray part" in page.banner()
    page.press("z", "z")
    np.testing.assert_array_equal(page.mask(), ragged)
    page.press("Shift+Z", "Shift+Z", "b", "1", "Enter")
    finish(page, 110, 80, "2")
    page.press("v")
    assert "Nothing to copy" in page.banner()
    page.click(110, 80)  # a selected object is copied first
    page.press("n", "n", "v")
    assert not page.mask()[50, 60]
    assert page.mask()[80, 110]
    page.press("v")
    assert page.run(OBJECTS) == ["dog"]
    page.until("clicker.finished.size")
    finished = page.mask("clicker.finished.values().next().value")
    assert finished[80, 110]
    np.testing.assert_array_equal(page.mask(), whole & ~finished)
    page.press("v")
    assert "All objects" in page.banner()
    page.press("Enter")
    assert page.run(OBJECTS) == ["dog", "cat"]


def test_objects_are_copied_after_the_list_of_labels_has_changed(page):
    name = "person (sitting; seen from behind; partly hidden by a vehicle)"
    page.tab.locator("#new-label").fill(name)
    page.tab.locator("#new-label").press("Enter")
    page.until(f"probsegPage.session.labels.includes('{name}')")
    inside = """(() => { const chip = [...document.querySelectorAll('.chip')].at(-1);
    const box = chip.getBoundingClientRect();
    return [...chip.children].every((part) => part.getBoundingClientRect().left > box.left
        && part.getBoundingClientRect().right < box.right); })()"""
    assert page.run(inside), "colour and number of a long label are seen"
    finish(page, 60, 50, "1")
    page.press("n", "v")
    assert page.mask()[50, 60]
    page.press("v")
    assert "All objects" in page.banner()


def test_caps_lock_turns_no_undo_into_redo(page):
    page.click(60, 50)
    page.click(40, 50)
    page.press("z")
    typed = """(() => document.activeElement.dispatchEvent(new KeyboardEvent("keydown",
    { key: "Z", modifierCapsLock: true, bubbles: true, cancelable: true })))()"""
    page.run(typed)
    page.settle()
    assert len(page.clicks) == 0
    page.run(typed.replace('"Z"', '"z"').replace("modifier", "shiftKey: true, modifier"))
    page.settle()
    assert len(page.clicks) == 1


def test_two_imported_files_of_one_name_are_not_taken_for_one(page):
    masks = [{"name": "00_1.png", "mimeType": "image/png", "buffer": b"first"}] * 2
    page.tab.set_input_files("#import-files", masks)
    assert "two of the files are called 00_1.png" in page.banner()


def test_a_number_finishes_the_object_if_wanted(page):
    page.click(40, 50)
    page.press("2")
    assert page.run(f"[{OPEN}, {OBJECTS}]") == [True, []]
    page.tab.get_by_label("Number keys finish the object").check()
    page.press("1")
    assert page.run(f"[{OPEN}, {OBJECTS}]") == [False, ["cat"]]
    page.press("2")  # for the object that is begun next
    page.open()
    page.click(100, 50)
    page.press("2")
    assert page.run(f"[{OPEN}, {OBJECTS}]") == [False, ["cat", "dog"]]


def listed(page):
    names = "probsegPage.session.photographs"
    return page.run(f"probsegPage.strip.keys.map(key => {names}[probsegPage.byId.get(key)].name)")


def test_photographs_are_found_by_name_number_label_and_state(page):
    finish(page, 40, 50, "1")
    finish(page, 100, 50, "1")
    page.press("d")
    page.until("probsegPage.index === 1")
    page.settle()
    finish(page, 40, 50, "2")
    labels, states = page.tab.locator("#label-filter"), page.tab.locator("#filter")
    assert labels.locator("option").all_inner_texts() == [
        "All labels",
        "cat (2)",
        "dog (1)",
        "no object (2)",
    ]
    assert page.tab.locator("#strip .thumb-name").first.inner_text() == "00.png"
    labels.select_option("cat (2)")
    assert listed(page) == ["00.png"]
    states.select_option("Open")
    assert listed(page) == []
    assert page.tab.get_by_text("None is like this").is_visible()
    labels.select_option("no object (2)")
    assert listed(page) == ["02.png", "03.png"]
    labels.select_option("")
    page.run("clicker.over.focus()")
    page.press("/")
    page.tab.keyboard.type("3.P")
    assert listed(page) == ["03.png"]
    page.press("Enter")
    assert page.run("probsegPage.photo.name") == "03.png"
    assert listed(page) == ["01.png", "02.png", "03.png"]
    page.press("/")
    page.tab.keyboard.type("#1")
    page.press("Enter")
    assert page.run("probsegPage.photo.name") == "00.png"
    page.press("/")
    page.tab.keyboard.type("#9")
    page.press("Enter")
    assert "no photograph" in page.banner()
    page.tab.locator("#strip").focus()
    page.press("End")
    assert page.run("probsegPage.photo.name") == "03.png"
    page.press("Home")
    assert page.run("probsegPage.photo.name") == "01.png"
    page.press("Escape", "1")
    page.open()  # as the server counts them
    assert "cat (2)" in labels.locator("option").all_inner_texts()
    assert page.run("clicker.label") == "cat"
