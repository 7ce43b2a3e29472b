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
    (tmp_path / "keys.json").write_text('{"review": "@"}')
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


@pytest.mark.parametrize("key", ["Space", "Enter"])
def test_the_mask_without_adapting_is_shown_while_its_button_is_held_by_a_key(page, key):
    page.click(64, 48)
    page.tab.locator("#without").focus()
    page.tab.keyboard.down(key)
    page.until("clicker.compared")
    page.tab.keyboard.up(key)
    assert page.run("clicker.compared") is None


def test_characters_of_altgr_are_keys(page):
    brush = page.run("clicker.brush")
    for key in "[@":
        held = f"key: '{key}', ctrlKey: true, altKey: true, modifierAltGraph: true, bubbles: true"
        page.run(f"clicker.over.dispatchEvent(new KeyboardEvent('keydown', {{ {held} }}))")
    page.settle()
    assert page.run("clicker.brush") < brush
    assert page.run(STATES)[0] == "review"


def test_rows_are_in_their_order_and_say_their_places(chromium, tmp_path):
    with serving(draw_photographs(tmp_path, 30, (24, 32)), Disks()) as address:
        page = Page(chromium, address, viewport={"width": 1000, "height": 400}).open(29)
        page.until("document.querySelector('.thumb[aria-posinset=\"30\"]')")
        strip = "document.getElementById('strip')"
        rows = f"[...{strip}.querySelectorAll('.thumb')].map(row => Number(row.ariaPosInSet))"
        first = page.run(rows)[0]
        page.run(f"({strip}.scrollTop -= 150)")
        page.until(f"Math.min(...{rows}) < {first}")
        places = page.run(rows)
        assert places == sorted(places)
        assert page.run(f"{strip}.querySelector('.thumb').ariaSetSize") == "30"
        page.close()


def test_the_photograph_is_sharp_on_another_screen(page):
    page.context.add_init_script(
        "(real => { window.queries = []; window.matchMedia = query => {"
        " queries.push(real.call(window, query)); return queries.at(-1); }; })(matchMedia)"
    )
    page.open()
    width, height = page.run("[innerWidth, innerHeight]")
    screen = page.context.new_cdp_session(page.tab)
    for ratio in (2, 3):
        size = {"width": width, "height": height, "deviceScaleFactor": ratio, "mobile": False}
        screen.send("Emulation.setDeviceMetricsOverride", size)
        page.run(  # which the emulation leaves out
            "queries.filter(({ media, matches }) => media.includes('resolution') && !matches)"
            ".forEach(query => query.dispatchEvent(new Event('change')))"
        )
        *drawn, seen = page.run(
            "[clicker.photo.width, clicker.over.width, clicker.stage.clientWidth]"
        )
        assert drawn == [ratio * seen] * 2


def test_buttons_of_the_photograph_rest_while_the_overview_hides_it(page):
    for shown in (True, False):
        page.press("o")
        for name in ("#done", "#review"):
            assert page.tab.locator(name).is_disabled() is shown
        assert page.run("document.querySelector('#objects').inert") is shown
