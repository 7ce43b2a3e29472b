"""What happens on the annotation page, in other windows and to files while answers are awaited."""

import numpy as np
import pytest
from PIL import Image

from support.annotate_client import draw_photographs
from support.pages import Disks, Page, serving

pytestmark = pytest.mark.process

HOLD = """(parts => { window.real ??= window.fetch; window.held ??= []; window.asked ??= [];
window.parts = parts;
window.fetch = async (url, options) => {
  asked.push(url);
  const answer = await real(url, options);
  if (window.parts.some(part => url.includes(part)))
    await new Promise(hand => held.push({ url, hand }));
  return answer; }; })"""
"""Hold answers to requests whose addresses have one of the parts, until they are let go."""

LET_GO = """part => { if (!part) window.parts = []; // also those that are still to come
held = held.filter(({ url, hand }) => !url.includes(part) || hand()); }"""
HIDE = """(hidden => {
Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
document.dispatchEvent(new Event("visibilitychange")); })"""
IDS = "probsegPage.session.photographs.map(({ id }) => id)"
STATES = "probsegPage.session.photographs.map(({ state }) => state)"
RED = (200, 10, 10)


@pytest.fixture
def folder(tmp_path):
    return draw_photographs(tmp_path / "photos", 4)


@pytest.fixture
def page(chromium, address):
    page = Page(chromium, address).open(0)
    page.run("clicker.setPreview(false)")
    yield page
    page.close()


@pytest.fixture
def other(chromium, address, page):
    """A window that came later."""
    other = Page(chromium, address).open(3)
    yield other
    other.close()


def hold(page, *parts):
    page.tab.evaluate(HOLD, parts)


def let_go(page, part=""):
    """Hand over what is held; without a part of an address, nothing is held any more."""
    if not part:
        hold(page)
    page.tab.evaluate(LET_GO, part)


def go_and_come(page):
    """Go to another tab and back."""
    for hidden in (True, False):
        page.tab.evaluate(HIDE, hidden)


def look_again(page):
    """Go to another tab and back, and wait for the list of photographs as it is by then."""
    page.run("(window.before = probsegPage.session, 0)")
    go_and_come(page)
    page.until("probsegPage.session !== before")


def redden(folder, number):
    """Put another file in the place of a photograph."""
    Image.new("RGB", (128, 96), RED).save(folder / "new.png")
    (folder / "new.png").replace(folder / f"photo{number}.png")


def is_red(page):
    """Wait until the photograph is there, and return whether it is the red one."""
    page.settle()
    x, y = page.place(64, 48)
    return np.array_equal(page.window()[round(y), round(x)], RED)


def test_a_command_is_for_the_photograph_that_is_named(page):
    ids = page.run(IDS)
    hold(page, "/image")
    page.run("(probsegPage.visit(2), 0)")
    page.until("clicker.transport.photo.name === 'photo2.png'")
    hold(page, "/image", "/open")
    page.run("(probsegPage.visit(3), 0)")
    page.tab.keyboard.press("r")
    page.until(f"held.some(({{ url }}) => url.includes('{ids[2]}/image'))")
    let_go(page, f"{ids[2]}/image")
    page.run("clicker.transport.fetchImage().then(() => new Promise(done => setTimeout(done)))")
    let_go(page)
    page.until(f"{STATES}.includes('review')")
    assert page.run(STATES) == ["open", "open", "open", "review"]


def test_what_is_typed_into_a_number_is_no_command(page):
    page.click(64, 48)
    minutes = page.tab.locator("#learn-minutes")
    minutes.focus()
    minutes.select_text()
    page.press("Backspace", "2", "0")
    assert minutes.input_value() == "20"
    assert page.run("clicker.current.label ?? null") is None
    assert len(page.clicks) == 1


def test_a_list_that_cannot_be_read_again_is_said_and_does_not_block_the_page(page, other, folder):
    page.run("(real => (window.setTimeout = (act, wait) => real(act, wait / 20), 0))(setTimeout)")
    hold(page)
    (folder / "keys.json").write_text("{")
    go_and_come(page)
    page.until("asked.filter(url => url.includes('events')).length > 8")  # of 6 connections
    assert "keys.json" in page.banner()
    (folder / "keys.json").unlink()
    other.press("r")
    page.until(f"{STATES}[3] === 'review'")


def test_the_next_photograph_is_of_the_file_that_is_there_now(page, folder):
    redden(folder, 1)  # its earlier pixels are on their way already
    look_again(page)
    page.press("n")
    assert is_red(page)


def test_the_photograph_is_shown_again_when_its_file_is_another_one(page, folder):
    redden(folder, 0)
    look_again(page)
    assert is_red(page)


def test_a_photograph_that_was_renamed_gives_its_place_to_another_one(page, folder):
    (folder / "photo0.png").rename(folder / "zebra.png")
    look_again(page)
    page.settle()
    assert page.tab.locator("#name").inner_text() == "photo1.png"
    page.click(64, 48)
    assert page.banner() == ""
    assert page.mask().any()


def test_a_tab_that_was_loaded_in_the_back_asks_for_what_it_missed(chromium, address, other):
    page = Page(chromium, address)
    page.context.add_init_script(f"{HIDE}(true)")
    page.open()
    other.press("r")
    page.tab.evaluate(HIDE, False)
    page.until(f"{STATES}[3] === 'review'")
    page.close()


def test_news_are_heard_while_the_first_photograph_is_on_its_way(chromium, address, other):
    page = Page(chromium, address)
    page.context.add_init_script(f"{HOLD}(['/open'])")
    page.tab.goto(address)
    page.until("window.held?.length && asked.some(url => url.includes('events'))")
    other.press("r")
    page.until(f"{STATES}[3] === 'review'")
    let_go(page)
    page.tab.wait_for_selector("body[data-ready]")
    page.close()


def test_what_is_finished_elsewhere_while_the_image_is_on_its_way_is_shown(page, other):
    hold(page, "/image")
    page.run("(probsegPage.visit(2), 0)")
    page.until("clicker.transport.photo.name === 'photo2.png'")
    other.run("probsegPage.visit(2)")
    other.click(30, 30)
    other.press("Enter")
    page.until("clicker.transport.stale && probsegPage.session.photographs[2].objects")
    let_go(page)
    page.settle()
    assert page.run("clicker.objects.length") == 1
    page.click(90, 70)
    assert page.banner() == ""
    assert page.mask().any()


def test_objects_are_kept_on_a_file_that_changes_while_the_page_is_open(page, folder):
    page.click(64, 48)
    page.press("Enter", "n")
    redden(folder, 0)
    page.press("p")
    assert "has changed" in page.tab.locator("#unreadable").inner_text()
    page.tab.get_by_role("button", name="Keep its objects").click()
    page.until("clicker.objects.length === 1 && !probsegPage.photo.error")


def test_settings_may_change_where_no_photograph_can_be_read(page, folder):
    page.click(64, 48)
    page.press("Enter")
    (folder / "photo1.png").write_bytes(b"no photograph")
    page.press("n")
    page.run("clicker.refresh()")  # as after a change of settings
    assert page.tab.locator(".object").count() == 0, "those of the photograph before"
    page.open()
    page.run("clicker.refresh()")
    assert page.banner() == ""


def test_masks_that_are_still_read_are_asked_for_once_at_a_time(page, folder):
    (folder / "keys.json").write_text("{")
    hold(page, "session")
    page.tab.clock.install()
    for _ in range(2):
        page.run("probsegPage.take({ ...probsegPage.session, unread: 3 })")
    page.tab.clock.run_for(5000)
    assert page.run("asked.filter(url => url.endsWith('session')).length") == 1
    let_go(page)
    page.until("!document.getElementById('banner').hidden")
    assert "keys.json" in page.banner()


def test_a_slider_of_this_window_is_not_one_of_another_window(page):
    slider = page.tab.locator("#knobs input").first
    slider.evaluate("slider => slider.old = true")
    hold(page, "/settings", "/shared")
    slider.press("ArrowRight")
    page.until("held.length === 2")  # the news were there before the answer
    slider.press("ArrowRight")
    let_go(page, "/shared")
    let_go(page)
    page.until("!probsegPage.unshared")
    page.settle()
    assert page.banner() == ""
    assert slider.evaluate("slider => [slider.old, slider.value]") == [True, "3"]
    page.open()
    assert slider.input_value() == "3"


def test_what_is_in_no_file_is_said_as_long_as_it_is_true(page):
    for lines, said in ((["1 object"], "Not in the files: 1 object."), ([], "")):
        page.run("probsegPage.take({ ...probsegPage.session, left_out: arguments_[0] })", lines)
        assert page.banner() == said


@pytest.mark.parametrize(
    ("came_out", "said"),
    [
        ({"state": "done", "sentence": "it saves 2 clicks"}, "It saves 2 clicks."),
        ({"state": "failed", "sentence": "no room"}, "Nothing was learned: no room"),
    ],
)
def test_what_was_learned_while_nobody_looked_is_said(page, came_out, said):
    for learning in ({"state": "running", "gone": 1, "minutes": 10}, came_out):
        page.run("probsegPage.take({ ...probsegPage.session, learning: arguments_[0] })", learning)
    assert page.banner() == said


def test_windows_keep_their_photographs_when_the_server_is_started_again(chromium, folder):
    with serving(folder, Disks()) as address:
        port = int(address.split(":")[2].split("/")[0])
        page = Page(chromium, address).open()
        page.run("(window.before = probsegPage.session, 0)")
    with serving(folder, Disks(), port):
        page.until("probsegPage.session !== before")
        other = Page(chromium, address).open()
        assert [one.run("probsegPage.photo.name") for one in (page, other)] == [
            "photo0.png",
            "photo1.png",
        ]
        other.close()
        page.close()


PICTURES = "[...document.querySelectorAll('.thumb img')]"


def test_each_thumbnail_is_asked_for_once(chromium, address):
    page = Page(chromium, address)
    page.context.add_init_script(f"{HOLD}(['/thumbnail'])")
    page.open(3)
    page.until("held.length === 3")
    coming = page.run("held.map(({ url }) => url)")
    page.run("probsegPage.strip.redraw()")
    for address in coming:
        let_go(page, address)
        page.until("new Set(asked.filter(url => url.endsWith('/thumbnail'))).size === 4")
    let_go(page)
    page.until(f"{PICTURES}.every(image => image.src)")
    assert len(page.run("asked.filter(url => url.endsWith('/thumbnail'))")) == 4
    page.close()


def test_the_thumbnail_of_an_earlier_file_does_not_come_back(chromium, tmp_path):
    folder = draw_photographs(tmp_path, 1)
    with serving(folder, Disks()) as address:
        page = Page(chromium, address)
        page.context.add_init_script(f"{HOLD}(['/thumbnail'])")
        page.open()
        page.until("held.length")
        redden(folder, 0)
        look_again(page)
        page.until("held.length > 1")
        page.settle()
        red, green, _ = page.run(f"""(async () => {{
            while (held.length) {{  // the answer to the first request comes last
                held.pop().hand();
                await new Promise(done => setTimeout(done, 50));
            }}
            probsegPage.strip.redraw();
            await new Promise(requestAnimationFrame);
            const image = {PICTURES}[0];
            await image.decode();
            const context = new OffscreenCanvas(320, 240).getContext("2d");
            context.drawImage(image, 0, 0);
            return [...context.getImageData(9, 9, 1, 1).data].slice(0, 3); }})()""")
        assert red > 180
        assert green < 40
        page.close()


def test_a_tab_with_decisions_that_are_not_answered_is_not_closed_silently(page):
    asks = "window.dispatchEvent(new Event('beforeunload', { cancelable: true }))"
    page.press("o")
    hold(page, "/actions")
    page.tab.keyboard.press("a")
    page.until("held.length")
    assert not page.run(asks), "the browser asks"
    let_go(page)
    page.until("!probsegPage.grid.sending")
    assert page.run(asks)
