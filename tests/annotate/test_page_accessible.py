"""The annotation page for people with a screen reader or a keyboard alone, or who see little."""

import pytest
from PIL import Image

from support.fakes import draw_scene
from support.pages import Disks, Page, axe, browser, serving

pytestmark = pytest.mark.process


def serious(page):
    """Return the serious faults that axe-core finds, with their places."""
    found = page.tab.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        (fault["id"], [node["html"] for node in fault["nodes"]])
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_fault(theme, tmp_path):
    source = axe(tmp_path / "npm")
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(2):
        Image.fromarray(draw_scene(96, 128, seed=number)[0]).save(folder / f"{number}.png")
    (folder / "torn.png").write_bytes(b"no photograph")
    with serving(folder, Disks()) as address, browser() as chromium:
        page = Page(chromium, address, color_scheme=theme).open()
        page.tab.evaluate(source)
        page.click(40, 50)
        page.press("1", "Enter")
        page.until("clicker.finished.size")
        page.click(100, 50)
        page.press("u")
        page.until("clicker.uncertainty")
        faults = serious(page)  # with an open object
        page.press("Escape")
        page.click(40, 50)
        page.press("r")
        assert page.run("clicker.selected !== null")
        faults += serious(page)  # with a selected one, a message and a photograph to review
        page.press("?")
        faults += serious(page)
        page.press("Escape", "o")
        page.until("document.querySelector('.tile canvas[width]')")
        faults += serious(page)
        page.press("Enter")
        page.tab.get_by_role("button", name="Time and clicks").click()
        page.until("document.querySelector('#report').open")
        faults += serious(page)
        page.press("Escape", "n", "n")
        assert page.tab.locator("#unreadable").is_visible()
        faults += serious(page)
        page.tab.set_viewport_size({"width": 400, "height": 800})
        assert faults + serious(page) == []
        page.close()


FOCUSED = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
LISTS = {
    "chips": [(".chip:nth-child(2)", "Enter", "2dog")],
    "rows of labels": [
        ("#labels-button", "Enter", "Labels"),
        ("[aria-label='Move dog up']", "Enter", "Move dog up"),
        ("[aria-label='Name of dog']", "a Enter", "Name of doga"),
        ("[aria-label='Remove doga']", "Enter", "Remove cat"),
        ("[aria-label='Remove cat']", "Enter", "Labels"),
    ],
    "messages": [("#banner button:last-child", "Enter", "Photograph")],
    "finished objects": [
        (".object:nth-child(2) select", "ArrowDown", "Label"),
        (".object:nth-child(1) [data-role=hide]", "Enter", "Show"),
        (".object:nth-child(2) [data-role=delete]", "Enter", "Delete"),
        (".object [data-role=delete]", "Enter", "Photograph"),
    ],
}
"""What has the focus after keys were pressed in an element that is drawn anew, or vanishes."""


@pytest.mark.parametrize("part", LISTS)
def test_the_focus_stays_in_what_is_drawn_anew(part, tmp_path):
    for number in range(2):
        Image.fromarray(draw_scene(96, 128, seed=number)[0]).save(tmp_path / f"{number}.png")
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "1.png").touch()  # a message says that it cannot be read
    with serving(tmp_path, Disks()) as address, browser() as chromium:
        page = Page(chromium, address).open()
        for x in (30, 90) if part == "finished objects" else ():
            page.click(x, 48)
            page.press("Enter")
            page.until_stored()
        for selector, keys, expected in LISTS[part]:
            page.tab.locator(selector).first.focus()
            page.run("(document.activeElement.old = true)")
            page.press(*keys.split())
            page.until(f"!document.activeElement.old && ({FOCUSED}).startsWith('{expected}')")
        page.close()
