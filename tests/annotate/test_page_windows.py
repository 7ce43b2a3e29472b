"""Several windows on one folder, and what they show: news, looks, colours, reports."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from probseg import convert
from probseg.annotate import sessions
from support.annotate_client import draw_photographs
from support.pages import Disks, Page, serving

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path):
    return draw_photographs(tmp_path / "photos", 4)


@pytest.fixture
def windows(address, chromium):
    """Two windows of different people, the second of which came later."""
    first = Page(chromium, address).open()
    second = Page(chromium, address).open()
    yield first, second
    first.close()
    second.close()


def test_two_annotators_are_not_given_the_same_photograph(windows):
    first, second = windows
    name = "probsegPage.photo.name"
    assert [page.run(name) for page in windows] == ["photo0.png", "photo1.png"]
    first.until("document.querySelectorAll('.thumb.elsewhere').length === 1")
    first.press("d")
    assert first.run(name) == "photo2.png", "the second one is at work on photo1.png"
    second.press("p")
    assert second.run(name) == "photo0.png", "who asks for a photograph gets it"
    first.press("p", "p")
    second.until("document.getElementById('progress-text').textContent.includes('another window')")
    first.context.close()
    second.until("!document.querySelector('.thumb.elsewhere')")


def test_windows_show_what_is_done_in_others(windows):
    first, second = windows
    second.run("probsegPage.open(0)")
    second.settle()
    first.click(64, 48)
    second.until("clicker.mask")
    assert np.array_equal(first.mask(), second.mask())
    first.run("probsegPage.chooseLabel('dog')")
    first.press("Enter")
    second.until("clicker.objects.length === 1 && !clicker.mask")
    second.until("probsegPage.session.photographs[0].labels.dog === 1")
    first.press("r")
    second.until("probsegPage.photo.state === 'review'")
    second.click(20, 20)  # at once, on what it knows
    assert second.banner() == ""
    first.until("clicker.mask")
    first.tab.locator(".chips input").fill("zebra")
    first.tab.locator(".chips input").press("Enter")
    second.until("document.querySelector('.chips').textContent.includes('zebra')")


def test_labels_are_merged_only_after_a_question(windows):
    page, _ = windows
    for x, label in ((30, "dog"), (90, "cat")):
        page.run(f"probsegPage.chooseLabel('{label}')")
        page.click(x, 48)
        page.press("Enter")
    page.until("probsegPage.session.photographs[0].labels.cat === 1")
    asked = []

    def answer(dialog):
        asked.append(dialog.message)
        dialog.accept() if len(asked) > 1 else dialog.dismiss()

    page.tab.on("dialog", answer)
    page.tab.locator("#labels-button").click()
    for labels in (["cat", "dog"], ["cat"]):
        page.tab.get_by_label("Name of dog").fill("cat")
        page.tab.keyboard.press("Enter")
        page.until(f"[...probsegPage.session.labels].sort().join() === '{','.join(labels)}'")
        page.until(f"document.querySelectorAll('#label-rows input').length === {len(labels)}")
    assert [text.split(":")[0] for text in asked] == 2 * [
        "1 finished object with the label “dog” will have “cat”, as others have"
    ]


def test_labels_that_get_another_name_are_shown_with_it(windows):
    first, second = windows
    slow = """(before => { window.fetch = async (path, ...rest) => {
        const answer = await before(path, ...rest);
        const wait = path.endsWith("/labels") ? 200 : path.endsWith("/shared") ? 600 : 0;
        await new Promise(done => setTimeout(done, wait));
        return answer; }; })(window.fetch)"""
    second.tab.evaluate(f"void {slow}")  # news of the change come before the answer to it
    first.run("probsegPage.chooseLabel('dog')")
    second.tab.locator("#labels-button").click()
    second.tab.get_by_label("Name of dog").fill("wolf")
    second.tab.keyboard.press("Enter")
    second.until("probsegPage.session.labels.includes('wolf')")
    second.tab.get_by_label("Name of wolf").wait_for(timeout=5000)
    first.until("probsegPage.session.labels.includes('wolf')")
    first.until("document.querySelector('#labels [aria-pressed=true]')?.textContent === '2wolf'")


def test_what_is_sent_back_reaches_the_annotator_with_a_comment(windows, folder):
    annotator, reviewer = windows
    annotator.click(64, 48)
    annotator.press("Enter", "d")
    reviewer.press("o")
    reviewer.run("probsegPage.grid._select(probsegPage.session.photographs[0].id)")
    reviewer.tab.keyboard.press("r")
    reviewer.tab.locator("#comment-text").fill("the ear is missing")
    reviewer.tab.keyboard.press("Enter")
    annotator.until("!document.getElementById('banner').hidden")
    assert annotator.banner() == "photo0.png was sent back: “the ear is missing”"
    box = "document.querySelector('#banner span').getBoundingClientRect()"
    below = f"(({{ x, y }}) => document.elementFromPoint(x + 5, y + 5))({box})"
    assert annotator.run(f"{below} === clicker.over"), "clicks reach the photograph below"
    annotator.tab.locator("#banner button", has_text="Open it").click()
    annotator.until("probsegPage.photo.name === 'photo0.png' && !probsegPage.arriving")
    annotator.until("!document.getElementById('banner').hidden")
    assert annotator.banner() == "Sent back: “the ear is missing”"
    reviewer.settle()
    assert reviewer.banner() == "", "who sent it back knows"
    annotator.press("d")
    reviewer.until("probsegPage.session.photographs[0].state === 'done'")
    note = reviewer.run("document.querySelector('.tile').title")
    assert note.splitlines()[1:] == ["done; the reviewer says: the ear is missing"]


def test_undoing_a_decision_says_which(windows):
    annotator, reviewer = windows
    reviewer.press("o")
    ids = reviewer.run("probsegPage.session.photographs.map(({ id }) => id)")
    for photo in ids[2:4]:
        reviewer.run("probsegPage.grid._select(arguments_[0])", photo)
        reviewer.press("a")
        reviewer.until(
            f"probsegPage.session.photographs.find(p => p.id === '{photo}').state === 'accepted'"
        )
    annotator.run("probsegPage.open(3)")
    annotator.settle()
    annotator.click(64, 48)
    reviewer.until("probsegPage.session.photographs[3].state === 'open'")
    reviewer.press("z")
    reviewer.until("!document.getElementById('banner').hidden")
    assert reviewer.banner().startswith("Not taken back: “accepted” of photo3.png.")
    assert annotator.run("clicker.mask !== null"), "the annotator's click stays"
    reviewer.press("z")
    reviewer.until("probsegPage.session.photographs[2].state === 'open'")
    reviewer.until("document.getElementById('banner').textContent.startsWith('Taken back')")
    assert reviewer.banner() == "Taken back: “accepted” of photo2.png. It is “open” again."


def test_news_that_come_late_do_not_take_the_list_back(windows):
    page, _ = windows
    state = "probsegPage.session.photographs[0].state"
    page.run("(window.late = structuredClone(probsegPage.session), 0)")
    page.press("r")
    page.run("(window.news = structuredClone(probsegPage.photo), 0)")
    page.press("r", "d")
    page.run("probsegPage.note(probsegPage.session.photographs[0], news)")
    assert page.run(state) == "done"
    page.run("probsegPage.take(late)")  # a list that was made before
    assert page.run(state) == "done"


def test_a_decision_on_a_photograph_that_vanished_is_left_out_of_undo(windows, folder):
    page, _ = windows
    page.press("o", "a", "x")
    page.until("probsegPage.session.photographs[1].state === 'rejected'")
    (folder / "photo1.png").unlink()
    headers = "{ headers: { 'X-Probseg-Token': location.hash.slice(1) } }"
    page.run(f"fetch('/api/session', {headers}).then(a => a.json()).then(s => probsegPage.take(s))")
    for end in ("The photograph is gone.", "“open” again."):
        page.press("z")
        page.until(f"document.getElementById('banner').textContent.endsWith('{end}')")
    assert page.banner().startswith("Taken back: “accepted” of photo0.png.")


def test_a_window_that_missed_news_asks_for_all(chromium, folder):
    with serving(folder, Disks()) as address:
        port = int(address.split(":")[2].split("/")[0])
        page = Page(chromium, address).open()
    with serving(folder, Disks(), port):
        other = Page(chromium, address).open(2)
        other.press("r")
        page.until("probsegPage.session.photographs[2].state === 'review'")
        other.close()
        page.close()


def test_the_server_ends_while_windows_listen(folder):
    command = [sys.executable, "-m", "probseg", "annotate", folder, "--no-browser", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        address = next(line for line in process.stdout if line.startswith("http")).strip()
        url, token = address.split("/#")
        curl = ["curl", "-sN", "-H", f"X-Probseg-Token: {token}", f"{url}/api/events?window=w"]
        with subprocess.Popen(curl, stdout=subprocess.PIPE, text=True) as listener:
            assert json.loads(listener.stdout.readline()[6:]) == {"open": {}}
            process.terminate()
            assert process.wait(20) in (143, -15)
            listener.wait(5)
        process.stdout.read()


def test_dark_files_of_16_bits_are_bright_for_people_and_the_network_and_it_is_said(
    chromium, tmp_path
):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 900, (60, 80), np.uint16)
    pixels[20:40, 20:40] = 1020
    Image.fromarray(pixels).save(tmp_path / "grey.png")
    Image.fromarray((pixels >> 2).astype(np.uint8)).save(tmp_path / "plain.png")
    with serving(tmp_path, Disks()) as address:
        page = Page(chromium, address).open()
        assert "16-bit values end at 1020" in page.tab.locator("#notice").inner_text()
        page.press("t")
        assert page.banner().startswith("Select")
        notice, banner = (f"{one}.getBoundingClientRect()" for one in ("notice", "banner"))
        assert page.run(f"{notice}.bottom < {banner}.top")
        page.press("n")
        assert not page.tab.locator("#notice").is_visible()
        page.close()


def test_contrast_opacity_and_names_are_of_this_browser(windows):
    page, _ = windows
    page.click(64, 48)
    page.run("probsegPage.chooseLabel('dog')")
    page.press("Enter")
    page.until_stored()
    before = page.window()
    look = "Array.from(document.querySelectorAll('[data-look]')).map(({ value }) => value)"
    assert page.run(look) == ["100", "100", "50"]
    for name, value in (("contrast", "200"), ("opacity", "0")):
        page.tab.locator(f"[data-look={name}]").fill(value)
    page.settle()
    assert page.run("getComputedStyle(clicker.photo).filter") == "brightness(1) contrast(2)"
    assert (page.window() != before).mean() > 0.02
    assert len(page.mask("clicker.finished.get(clicker.objects[0].id)")) > 0
    page.open(0)
    assert page.run(look) == ["200", "100", "0"]


def test_colours_are_those_of_classes_and_names_stand_on_masks(windows):
    page, other = windows
    for label, x in (("cat", 30), ("dog", 64), ("cat", 100), (None, 64)):
        page.run("probsegPage.chooseLabel(arguments_[0])", label)
        page.click(x, 20 if label is None else 70)
        page.press("Enter")
    colours = page.run("clicker.objects.map(({ id }) => clicker.colour(id))")
    assert colours[0] == colours[2] != colours[1]
    assert colours[3] not in colours[:3]
    chips = "Array.from(document.querySelectorAll('.chip-colour')).map(e => e.style.background)"
    assert len(set(page.run(chips))) == 2
    drawn = "(texts => { const own = CanvasRenderingContext2D.prototype; const fill = own.fillText;"
    drawn += "own.fillText = function (text) { texts.push(text); fill.apply(this, arguments); };"
    drawn += "window.texts = texts; })([])"
    page.run(drawn)
    drawn_now = page.run("(texts.length = 0, clicker._draw(), [...texts])")
    assert drawn_now == ["cat", "dog", "cat"]
    other.run(drawn)
    other.press("o")
    other.until("window.texts.length >= 3")
    assert other.run("window.texts.slice(0, 3)") == ["cat", "dog", "cat"]
    page.run("clicker.select(clicker.objects[0].id)")
    page.press("j")
    assert page.run("clicker.view.scale") > 1.5 * page.run("clicker._fitScale()")
    page.press("j")
    assert page.run("clicker.fitted")


def test_an_export_shows_how_far_it_is_and_stops_when_told(windows, monkeypatch):
    page, other = windows
    page.click(64, 48)
    page.press("Enter")
    write = convert.WRITERS["yolo"]

    def slowly(draft, images, *more):
        return write(draft, (time.sleep(2) or image for image in images), *more)

    monkeypatch.setattr(sessions, "TELLING", 0)
    monkeypatch.setitem(convert.WRITERS, "yolo", slowly)
    page.tab.locator("#format").select_option("yolo")
    page.tab.locator("#export").click()
    banner = "document.getElementById('banner').textContent"
    page.until(f"{banner}.includes('Writing: 2 of 4 photographs')")
    assert not other.run(f"{banner}.includes('Writing')")
    page.tab.locator("#banner button", has_text="Stop").click()
    page.until(f"{banner}.includes('stopped: nothing was written')")


def test_exports_are_explained_with_what_to_do(windows):
    page, _ = windows
    page.click(64, 48)
    page.press("Enter")
    page.click(20, 20)
    page.tab.locator("#format").select_option("yolo")
    page.tab.locator("#export").click()
    page.until("document.getElementById('exported').open")
    said = page.tab.locator("#losses").inner_text().splitlines()
    assert "unfinished objects, of photo0.png" in said
    assert any(line.startswith("Open these photographs") for line in said)
    advice = page.run("Array.from(document.querySelectorAll('#losses dd')).map(e => e.textContent)")
    assert all(advice), said
    path = page.tab.locator("#exported-path code").inner_text()
    assert path.endswith("annotations-yolo")
    page.context.grant_permissions(["clipboard-read"])
    page.tab.locator("#exported-path button").click()
    assert page.tab.evaluate("navigator.clipboard.readText()") == path
