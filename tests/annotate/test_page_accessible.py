"""The annotation page for people who use a screen reader, or see little contrast: axe-core."""

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
