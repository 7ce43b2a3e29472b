"""The page learns from finished photographs: progress, result, use, undo, kills."""

from __future__ import annotations

import pytest

from probseg.annotate.learning import NAME
from support.annotate_client import draw_photographs
from support.learnings import SAYS, StandIn
from support.pages import Disks, Page, serving

pytestmark = pytest.mark.process

TEXT = "document.getElementById('learning').textContent"
SAID = "document.getElementById('banner').textContent"
SHOWN = "document.getElementById('model').value"


def button(page, name):
    return page.tab.get_by_role("button", name=name, exact=True).locator("visible=true").first


def test_learning_on_the_page(chromium, tmp_path, monkeypatch):
    monkeypatch.setenv("PROBSEG_CACHE", str(tmp_path / "cache"))
    folder = draw_photographs(tmp_path / "photographs")
    stand_in = StandIn(folder, monkeypatch)
    with serving(folder, Disks()) as address:
        page = Page(chromium, address).open(0)
        assert (
            not page.tab.locator("#use-learned, #use-shipped, #learn-stop")
            .locator("visible=true")
            .count()
        )
        button(page, "Learn from finished photographs").click()
        page.until("document.getElementById('banner').textContent.includes('got 0; press Done')")
        for _ in range(2):
            page.click(64, 48)
            page.press("Enter", "d")
        before = page.run(SHOWN)

        button(page, "Learn from finished photographs").click()
        page.until(f"{TEXT}.startsWith('Learning: 0 of 10 minutes')")
        while not stand_in.arguments(1):
            page.settle()
        stand_in.kill(1)
        page.until(f"{TEXT}.startsWith('Learning was interrupted')")
        button(page, "Learn from finished photographs").click()
        while not stand_in.arguments(2):
            page.settle()
        page.click(64, 48)
        assert page.mask().any(), "clicks are answered meanwhile"
        assert not page.tab.locator("#learn-curve").is_visible()
        run = stand_in.place / "2" / "run" / "version_0"
        run.mkdir(parents=True)
        (run / "curve.json").write_text("[[0, 0.8], [2, 0.875], [4, 0.85]]")
        caption = page.tab.locator("#learn-curve figcaption")
        caption.filter(
            has_text="80.0 % at the start, 85.0 % after 4 min, at best 87.5 %"
        ).wait_for()
        drawn = page.tab.locator("#learn-scores").get_attribute("points")
        assert drawn.startswith("0,36 50,4 100,14.66")
        stand_in.comes_out(SAYS)
        page.until(f"{TEXT}.includes('aves 1.30 of 4.20 clicks')")
        assert page.tab.locator("#learn-curve").is_visible()
        assert SAYS[1:] in page.banner()
        page.tab.locator("#banner button", has_text="Use it").click()
        page.until(f"{SHOWN} === '{NAME} 2'")
        page.until(f"{SAID} === 'Clicks are answered by what was learned from now on.'")
        page.settle()
        assert not button(page, "Use it").count()
        page.close()
    with serving(folder, Disks()) as address:  # which asks for another model by its name
        page = Page(chromium, address).open(2)
        assert page.mask().any(), "the work is there"
        button(page, "Use it").click()
        page.until(f"{SHOWN} === '{NAME} 2'")
        button(page, "Use the shipped model again").click()
        page.until(f"{SHOWN} === '{before}'")
        page.until(f"{SAID} === 'Clicks are answered by the shipped model again.'")
        page.settle()
        assert button(page, "Use it").count()
        stand_in.comes_out(None)
        button(page, "Learn from finished photographs").click()
        page.until(f"{TEXT}.startsWith('Learning: 0 of 10 minutes')")
        button(page, "Stop").click()
        page.until(f"{TEXT}.startsWith('Learning was interrupted')")
        stand_in.comes_out("probseg: error: the disk is full")
        button(page, "Learn from finished photographs").click()
        page.until(f"{TEXT} === 'Nothing was learned: the disk is full'")
        page.close()
