"""The annotation page, used by mouse, keyboard and finger as a person would."""

import numpy as np
import pytest
from PIL import ExifTags, Image

from support.fakes import draw_scene
from support.pages import Disks, Page, serving

pytestmark = pytest.mark.process

RED = (np.s_[20:29], np.s_[50:59])
"""Rows and columns of a red square on the photograph of marks."""
TURNS = Image.Transpose
TURNED = {
    1: None,
    2: TURNS.FLIP_LEFT_RIGHT,
    3: TURNS.ROTATE_180,
    4: TURNS.FLIP_TOP_BOTTOM,
    5: TURNS.TRANSPOSE,
    6: TURNS.ROTATE_90,
    7: TURNS.TRANSVERSE,
    8: TURNS.ROTATE_270,
}
"""How the pixels of a file with each EXIF orientation are turned."""
EXIF, TORN, BROKEN = 12, 20, 21
"""Places of the first turned photograph and of the unreadable ones."""


def marked_photo():
    photo = np.full((90, 120, 3), 128, np.uint8)
    photo[RED] = 255, 0, 0
    return photo


def is_red(pixels):
    return (pixels[..., 0] > 180) & (pixels[..., 1:] < 90).all(axis=-1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(12):
        Image.fromarray(draw_scene(96, 128, seed=number)[0]).save(folder / f"{number:02d}.png")
    upright = Image.fromarray(marked_photo())
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        stored = TURNED[orientation]
        stored = upright if stored is None else upright.transpose(stored)
        stored.save(folder / f"exif{orientation}.jpg", exif=exif, quality=95, subsampling=0)
    whole = (folder / "exif1.jpg").read_bytes()
    (folder / "torn.jpg").write_bytes(whole[: len(whole) * 3 // 4])
    (folder / "zz_no_photo.png").write_bytes(b"no photograph at all")
    return folder


@pytest.fixture(scope="module")
def address(folder):
    with serving(folder, Disks()) as address:
        yield address


@pytest.fixture
def page(chromium, address):
    page = Page(chromium, address)
    yield page
    page.close()


def centre_of_red(page, ratio=1):
    red = is_red(page.window())
    red[:, : 160 * ratio] = False  # the thumbnails
    rows, columns = np.nonzero(red)
    return (columns.mean() + 0.5) / ratio, (rows.mean() + 0.5) / ratio


@pytest.mark.parametrize("ratio", [1, 2])
def test_clicks_land_on_the_pixel_under_the_pointer(chromium, address, ratio):
    page = Page(chromium, address, device_scale_factor=ratio).open(EXIF)
    for zoom in (0.3, 1, 4):
        page.run(f"clicker.zoom({zoom} / clicker.view.scale)")
        page.settle()
        page.tab.mouse.move(5, 5)
        page.tab.mouse.click(*centre_of_red(page, ratio))
        page.settle()
        x, y, positive = page.clicks[-1]
        assert positive
        assert abs(x - 54.5) < 0.8 / zoom  # mouse events are in whole CSS pixels
        assert abs(y - 24.5) < 0.8 / zoom
        page.press("Backspace")
    page.close()


def test_photographs_are_upright_in_all_eight_orientations(page):
    page.open()
    for turn in range(8):
        page.run(f"probsegPage.open({EXIF + turn})")
        page.settle()
        assert page.run("[clicker.size.width, clicker.size.height]") == [120, 90]
        page.tab.mouse.click(*centre_of_red(page))
        page.settle()
        x, y, _ = page.clicks[-1]
        assert (x, y) == pytest.approx((54.5, 24.5), abs=0.6)
        page.press("Backspace")


FETCHES = {
    "slow": "await new Promise(done => setTimeout(done, 600)); return real(url, options);",
    "late": "window.calls = (window.calls ?? 0) + 1;"
    "await new Promise(done => setTimeout(done, 600 / window.calls)); return real(url, options);",
    "held": "await new Promise(done => (window.held ??= []).push(done));return real(url, options);",
    "gone": "throw new TypeError('no server');",
    # Only the first action arrives, and its answer does not.
    "lost": "if (url.includes('/actions') && !window.arrived) {"
    "  window.arrived = true; await real(url, options); }"
    "throw new TypeError('lost');",
}


def trouble(page, kind, what="/actions"):
    """Make requests with `what` in their address slow, or as if there was no server."""
    page.tab.evaluate(
        "([what, kind]) => { const real = window.real ??= window.fetch;"
        "window.fetch = async (url, options) => {"
        "  if (!url.includes(what)) return real(url, options);"
        f"  {FETCHES[kind]} }} }}",
        [what, kind],
    )


def calm(page):
    page.tab.evaluate("window.fetch = window.real")


def test_of_rapid_clicks_all_marks_stay_and_the_last_answer_is_shown(page):
    page.open(0)
    trouble(page, "held")
    given = [(30, 30), (60, 40), (90, 60), (40, 70), (100, 20)]
    for x, y in given:
        page.click(x, y, wait=False)
    assert len(page.clicks) == page.run("clicker.marks().unanswered.size") == 5
    calm(page)
    page.run("window.held.forEach(done => done())")
    page.settle()
    assert [(round(x), round(y)) for x, y, _ in page.clicks] == given
    assert page.run("clicker.timings.length") == 1  # masks that were painted
    shown = page.mask()
    page.run("clicker.refresh()")
    page.settle()
    assert shown.any()
    np.testing.assert_array_equal(page.mask(), shown)


def test_a_reload_in_mid_object_loses_nothing(page):
    page.open(1)
    page.click(60, 50)
    page.click(10, 10, button="right")
    clicks, shown = page.clicks, page.mask()
    assert [positive for *_, positive in clicks] == [True, False]
    page.open()
    assert page.run("probsegPage.index") == 1
    page.settle()
    assert page.clicks == clicks
    np.testing.assert_array_equal(page.mask(), shown)


def test_undo_and_redo_chains(page):
    page.open(2)
    masks = [page.mask()]
    for x, y in [(60, 50), (20, 20), (100, 80)]:
        page.click(x, y)
        masks.append(page.mask())
    assert len({mask.tobytes() for mask in masks}) == 4
    for number in (2, 1, 0):
        page.press("z")
        assert len(page.clicks) == number
        np.testing.assert_array_equal(page.mask(), masks[number])
    assert page.tab.get_by_label("Undo").is_disabled()
    assert page.run("clicker.current.object") is None
    for number in (1, 2, 3):
        page.press("Shift+Z")
        np.testing.assert_array_equal(page.mask(), masks[number])
    assert page.tab.get_by_label("Redo").is_disabled()


def test_an_object_with_the_keyboard_alone(page):
    page.open(3)
    for _ in range(40):
        page.tab.keyboard.press("Tab")
        if page.run("document.activeElement === clicker.over"):
            break
    outline = page.run("getComputedStyle(clicker.over).outlineStyle")
    assert outline != "none"
    page.press("ArrowRight", "ArrowDown", "Shift+ArrowDown", "a")
    ((x, y, positive),) = page.clicks
    step = max(1, 16 / page.run("clicker.view.scale"))
    assert positive
    assert (x, y) == (int(64 + step) + 0.5, int(48.5 + step) + 1.5)
    page.press("ArrowLeft", "s")
    assert [sign for *_, sign in page.clicks] == [True, False]
    page.press("2", "Enter")
    assert page.run("clicker.objects.map(object => object.label)") == ["dog"]
    page.press("d")
    assert page.run("[probsegPage.index, probsegPage.session.photographs[3].state]") == [4, "done"]
    page.press("p", "?")
    assert page.tab.get_by_role("dialog").is_visible()
    page.press("Escape")
    assert page.run("probsegPage.index") == 3


def test_hurried_changes_of_photograph_end_at_the_last_one(page):
    page.open(0)
    trouble(page, "late", "/open")  # the first answer comes last
    for key in "nnnp":
        page.tab.keyboard.press(key)
    page.click(60, 50)  # on the old photograph: for none
    page.tab.wait_for_timeout(900)
    name = page.run("probsegPage.session.photographs[2].id")
    assert page.run("[probsegPage.index, clicker.root.dataset.photo]") == [2, name]
    before = page.clicks
    page.click(30, 30)
    assert len(page.clicks) == len(before) + 1
    assert page.banner() == ""


def test_two_tabs(chromium, address):
    first, second = Page(chromium, address).open(4), Page(chromium, address)
    second.tab.route("**/api/events*", lambda route: route.abort())  # it hears of nothing
    second.open(4)
    first.click(60, 50)
    second.click(30, 30)
    assert "another tab" in second.banner()
    assert second.clicks == first.clicks
    np.testing.assert_array_equal(second.mask(), first.mask())
    second.click(30, 30)
    assert len(second.clicks) == 2
    first.close()
    second.close()


def test_a_change_elsewhere_is_not_taken_for_the_answer_that_was_lost(chromium, address):
    first, second = Page(chromium, address).open(4), Page(chromium, address).open(4)
    trouble(first, "gone", "/api")
    first.click(100, 60, wait=False)
    first.tab.wait_for_selector("#banner:not([hidden])")
    second.click(90, 30)
    calm(first)
    first.settle()
    assert "was not carried out" in first.banner()
    assert first.clicks == second.clicks
    assert (100, 60, True) not in [(round(x), round(y), sign) for x, y, sign in first.clicks]
    first.close()
    second.close()


def test_box_brush_and_eraser(page):
    page.open(5)
    page.tab.keyboard.down("Shift")
    page.drag((20.2, 10.2), (110.7, 90.7))
    page.tab.keyboard.up("Shift")
    assert page.run("clicker.current.box") == [20, 10, 111, 91]
    page.press("b")
    page.drag((10, 5), (60, 5))
    assert page.mask()[5, 10:60].all()
    size = page.run("clicker.brush")
    page.tab.keyboard.down("Shift")
    page.tab.mouse.wheel(0, -100)
    page.tab.keyboard.up("Shift")
    page.until(f"clicker.brush === {size} * 1.25")
    page.press("[", "e")
    page.drag((30, 5), (31, 5))
    assert not page.mask()[5, 30]
    assert page.mask()[5, 50]
    page.press("e")
    page.tab.get_by_role("button", name="Background", exact=True).click()
    page.click(100, 70)  # the left button marks what the tool says
    assert page.clicks[-1][2] is False


def test_finishing_and_opening_again(page):
    page.open(6)
    page.click(60, 50)
    shown = page.mask()
    page.tab.get_by_role("button", name="cat").click()
    page.press("Enter")
    assert page.run("clicker.objects.map(object => object.label)") == ["cat"]
    page.until("clicker.finished.values().next().value?.stamp")
    number = page.run("clicker.objects[0].id")
    assert page.clicks == []
    assert not page.mask().any()
    np.testing.assert_array_equal(
        page.mask(
            f"clicker.finished.get({number}) && {{region: clicker.finished.get({number}).region}}"
        ),
        shown,
    )
    page.tab.get_by_role("button", name="Open again").click()
    page.settle()
    assert len(page.clicks) == 1
    np.testing.assert_array_equal(page.mask(), shown)
    page.click(20, 20)
    corrected = page.mask()
    page.press("Enter")
    page.until("clicker.finished.size")
    assert page.run("clicker.objects.map(object => [object.id, object.area])") == [
        [number, corrected.sum()]
    ]
    page.tab.get_by_role("button", name="Delete").click()
    page.settle()
    assert page.run("clicker.objects.length") == 0


def test_done_finishes_the_open_object(page):
    photo = "probsegPage.session.photographs[4]"
    state = f"[probsegPage.index, {photo}.state, {photo}.objects]"
    page.open(4)
    page.press("Escape")  # what other tests began
    page.click(60, 50)
    page.tab.get_by_role("button", name="dog").click()
    page.press("d")
    page.until("probsegPage.index === 5")
    assert page.run(state) == [5, "done", 1]
    page.press("p")
    assert page.run("clicker.objects.map(object => object.label)") == ["dog"]
    page.click(100, 20)
    assert page.run(state) == [4, "open", 1]
    page.press("Escape")
    assert page.run(state) == [4, "done", 1], "all is as it was"
    page.press("d", "p")
    trouble(page, "slow")
    page.click(100, 20, wait=False)
    page.tab.keyboard.press("d")  # before the answer to the click
    page.until("probsegPage.index === 5")
    assert page.run(state) == [5, "done", 2]
    page.press("p")
    page.tab.keyboard.press("e")
    page.drag((20, 90), (30, 90))
    page.press("d")
    assert "no pixel" in page.banner()
    assert page.run(state) == [4, "open", 2]


@pytest.mark.parametrize("kind", ["gone", "lost"])
def test_without_the_server_nothing_is_lost_or_given_twice(page, kind):
    page.open({"gone": 7, "lost": 8}[kind])
    trouble(page, kind, "/api")
    page.click(60, 50, wait=False)
    page.click(20, 20, wait=False)
    page.tab.wait_for_selector("#banner:not([hidden])")
    assert "nothing is lost" in page.banner()
    assert len(page.clicks) == 2
    calm(page)
    page.settle()
    assert page.banner() == ""
    clicks = page.clicks
    assert len(clicks) == 2
    page.open()
    assert page.clicks == clicks


def test_unreadable_photographs_say_why(page):
    page.open(BROKEN)
    reason = page.tab.locator("#unreadable")
    assert "cannot be read" in reason.inner_text()
    page.press("p")  # to one that the list takes for whole
    page.until("!document.querySelector('#unreadable').hidden")
    assert "damaged or incomplete" in reason.inner_text()
    page.press("d")
    page.until(f"probsegPage.index == {BROKEN}")
    page.press("p", "p")
    page.settle()
    assert page.run("probsegPage.index") == TORN - 1
    assert not reason.is_visible()
    page.open(BROKEN)
    page.press("/")
    page.tab.keyboard.type(f"#{TORN}")
    page.press("Enter", "p")  # which is typed into no field
    page.settle()
    assert page.run("probsegPage.index") == TORN - 2


def test_the_photograph_before_is_one_of_the_list(page):
    page.open(2)
    page.run("probsegPage.strip.set([1, 4].map((n) => probsegPage.session.photographs[n].id))")
    near = "probsegPage.byId.get(probsegPage.neighbour(step)?.id)"
    assert page.run(f"[-1, 1].map((step) => {near})") == [1, 4]
    page.run("probsegPage.filter()")


def test_a_slow_preview_switches_itself_off(page):
    page.open(9)
    page.tab.mouse.move(*page.place(60, 50))
    page.until("clicker.preview.region")
    trouble(page, "slow", "/preview")
    for x in range(20, 100, 4):
        page.tab.mouse.move(*page.place(x, 50))
        page.tab.wait_for_timeout(60)
    assert page.run("clicker.preview.slow")
    assert page.run("clicker.preview.region") is None
    assert not page.tab.locator("#preview input").is_checked()
    calm(page)
    page.tab.locator("#preview input").check()
    page.tab.mouse.move(*page.place(60, 40))
    page.until("clicker.preview.region")
    assert page.clicks == []


def test_pinch_wheel_and_pan_keep_the_point_under_the_pointer(page):
    page.open(10)
    x, y = 450, 330
    point = page.point(x, y)
    page.tab.mouse.move(x, y)
    page.tab.mouse.wheel(0, -400)
    page.settle()
    assert page.run("clicker.view.scale") > 6
    assert page.place(*point) == pytest.approx((x, y), abs=0.01)
    page.tab.keyboard.down(" ")
    page.tab.mouse.down()
    page.tab.mouse.move(x + 50, y - 20)
    page.tab.mouse.up()
    page.tab.keyboard.up(" ")
    assert page.place(*point) == pytest.approx((x + 50, y - 20), abs=0.01)
    before, point = page.run("clicker.view.scale"), page.point(x, y)
    touch = page.context.new_cdp_session(page.tab)
    for kind, apart in (("touchStart", 40), ("touchMove", 60), ("touchMove", 80)):
        points = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert page.run("clicker.view.scale") == pytest.approx(2 * before, rel=0.01)
    assert page.place(*point) == pytest.approx((x, y), abs=0.5)
    assert page.clicks == []


def test_the_strip_and_the_list_hold_thousands(page):
    page.open(11)
    known = page.run("probsegPage.session.photographs[11]")
    photographs = [{**known, "id": f"p{n}", "name": f"{n}.png"} for n in range(1000)]
    objects = [
        {"id": n, "label": None, "area": 4, "window": [0, 0, 2, 2], "clicks": 1, "seconds": 1}
        for n in range(5000)
    ]
    page.tab.evaluate(
        "([photographs, objects]) => { probsegPage.session.photographs = photographs;"
        "probsegPage.take(probsegPage.session); probsegPage.showObjects(objects); }",
        [photographs, objects],
    )
    for selector, name, last in [("#strip", ".thumb", "999.png"), ("#objects", ".object", None)]:
        page.tab.evaluate(f"document.querySelector('{selector}').scrollTop = 1e9")
        page.settle()
        rows = page.tab.locator(f"{selector} {name}")
        assert 0 < rows.count() < 40
        assert last is None or page.tab.get_by_title(last).is_visible()


def disk(x, y, radius, shape=(96, 128)):
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    return (columns - x) ** 2 + (rows - y) ** 2 <= radius**2


def test_knobs_change_the_mask_that_is_shown(page):
    page.open(0)
    page.press("Backspace")
    page.click(64, 48)
    ((x, y, _),) = page.clicks
    clicked = int(x), int(y)
    np.testing.assert_array_equal(page.mask(), disk(*clicked, 18))
    knob = page.tab.locator("[data-knob=value_iterations]")
    knob.fill("3")
    page.until("clicker.mask.region.width > 40")
    np.testing.assert_array_equal(page.mask(), disk(*clicked, 38))
    assert page.run("Boolean(clicker.ghost)")  # the outline before, to compare with
    page.run("clicker.over.focus()")
    page.tab.keyboard.down("c")
    page.until("clicker.compared")
    np.testing.assert_array_equal(page.mask("clicker.compared.mask"), disk(*clicked, 8))
    page.tab.keyboard.up("c")
    assert page.run("clicker.compared") is None
    np.testing.assert_array_equal(page.mask(), disk(*clicked, 38))
    page.open()
    assert knob.input_value() == "3"  # what was tried is not kept
    knob.fill("1")
    page.until("clicker.mask.region.width < 40")


def test_uncertainty_and_the_click_that_it_suggests(page):
    page.open(9)
    page.click(40, 40)
    page.press("u")
    page.until("clicker.uncertainty")
    page.press("g")
    page.until("clicker.crosshair")
    wanted = page.run("clicker.suggestion")
    page.press("a" if wanted["positive"] else "s")
    assert page.clicks[-1] == (wanted["x"], wanted["y"], wanted["positive"])


def test_hidden_masks_and_marks(page):
    page.open(1)
    page.press("Backspace")
    page.click(60, 50)
    page.tab.mouse.move(5, 5)
    page.press("0")  # so that the frame of the keyboard's focus is there
    shown = page.window()
    page.press("h")
    assert (page.window() != shown).mean() > 0.01
    page.press("h")
    assert (page.window() != shown).mean() < 0.001


@pytest.mark.parametrize("width", [1000, 1440])
def test_nothing_sticks_out_of_the_panel(page, width):
    page.open(1).resize(width, 700)
    right = "getBoundingClientRect().right"
    parts = "[...document.querySelectorAll('.page-panel section :is(button, input, output)')]"
    assert page.run(f"{parts}.every(p => p.{right} < p.closest('section').{right} + 0.5)")


def test_narrow_screens_and_the_theme(chromium, address):
    size = {"width": 400, "height": 800}
    page = Page(chromium, address, viewport=size, color_scheme="light").open(0)
    assert page.run("document.documentElement.scrollWidth") == 400
    assert page.window()[5, 200].min() > 200
    page.tab.get_by_role("button", name="Light or dark").click()
    page.open()
    page.tab.wait_for_timeout(200)
    assert page.window()[5, 200].max() < 60
    page.close()
