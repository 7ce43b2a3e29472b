"""Keys, menus, sliders and lists of the annotation page do what they show, and no more."""

import json

import pytest

from support.annotate_client import draw_photographs
from support.pages import Disks, Page, serving

pytestmark = pytest.mark.process

STATES = "probsegPage.session.photographs.map(({ state }) => state)"
CORNERS = "JSON.stringify(probsegPage.outline.polygons)"


@pytest.fixture
def page(chromium, tmp_path):
    with serving(draw_photographs(tmp_path, 4), Disks()) as address:
        page = Page(chromium, address).open(0)
        page.run("clicker.setPreview(false)")
        yield page
        page.close()


@pytest.mark.parametrize("end", ["Escape", "pointercancel"])
def test_a_corner_that_is_let_go_is_where_it_was(page, end):
    page.click(64, 48)
    page.press("y")
    page.until("probsegPage.outline.polygons.length")
    before = page.run(CORNERS)
    page.aim(*json.loads(before)[0][0][0])
    page.tab.mouse.down()
    page.tab.mouse.move(*page.place(5, 5), steps=3)
    assert page.run(CORNERS) != before
    if end == "Escape":
        page.tab.keyboard.press("Escape")
    else:
        page.run("clicker.over.dispatchEvent(new PointerEvent('pointercancel', { pointerId: 1 }))")
    page.tab.mouse.up()
    page.settle()
    assert page.run(CORNERS) == before


def test_the_list_is_the_one_that_its_menu_says(page):
    page.click(64, 48)
    page.press("Enter")
    menu = page.tab.locator("#label-filter")
    menu.select_option("no label (1)")
    assert page.tab.locator(".thumb").count() == 1
    page.tab.locator(".object select").select_option("cat")
    page.until(f"clicker.objects[0].label === 'cat' && {STATES}.length")
    page.settle()
    assert menu.evaluate("menu => menu.selectedOptions[0].text") == "All labels"
    assert page.tab.locator(".thumb").count() == 4


def test_a_key_that_is_held_finishes_one_photograph(page):
    for key, states in {"d": ["done"], "a": ["done", "accepted"]}.items():
        for _ in range(4):
            page.tab.keyboard.down(key)
            page.settle()
        page.tab.keyboard.up(key)
        page.until("!probsegPage.grid.sending")
        assert page.run(STATES) == states + ["open"] * (4 - len(states))
        page.press("o")


def test_sliders_beside_the_overview_are_moved_by_arrow_keys(page):
    page.press("o")
    current = "probsegPage.grid.current"
    before = page.run(current)
    slider = page.tab.locator("[data-look=opacity]")
    for key, value in {"ArrowRight": "55", "Home": "0"}.items():
        slider.press(key)
        assert slider.input_value() == value
        assert page.run(current) == before
