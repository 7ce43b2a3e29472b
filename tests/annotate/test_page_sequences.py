"""Random commands at any latency: the screen, the server, the files and the exports agree."""

import base64
import json
import random
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from PIL import Image

from probseg.annotate.frames import unpack
from support.annotate_client import draw_photographs
from support.pages import TOKEN, Disks, Page, serving

pytestmark = pytest.mark.process

LATENCIES = (0, 50, 800)
KEYS = (*["Enter"] * 3, "Escape", *"zzZ", "Backspace", *"fi12", "Delete", *"dnprugtmvyyc", "Delete")
BROKEN = b"no photograph"
KINDS = ("turn", "break", "rename", "move", "new", "delete", "import", "labels", "other")
MOVES = ("d", "n", "p")  # while the next photograph loads, the page takes no clicks
SLOW = """latency => { const real = window.real ??= window.fetch;
window.held?.forEach(send => send()); window.held = [];
window.fetch = async (url, options) => {
  await new Promise(send => latency === null ? held.push(send) : setTimeout(send, latency));
  return real(url, options); } }"""
SCREEN = """[probsegPage.photo.id, probsegPage.photo.state, clicker.undoable, clicker.redoable,
clicker.objects.map(({ id, label, area }) => [id, label, area]),
clicker.current.object, clicker.current.label ?? null,
clicker.current.clicks.map(({ x, y, positive }) => [x, y, positive])]"""


class Machine:
    """A page, its server, and a folder, to which things happen."""

    def __init__(self, chromium, place, numbers):
        self.folder, self.numbers = draw_photographs(place, 4), numbers
        self.running, self.port, self.told = ExitStack(), 0, []
        self.restart()
        self.page = Page(chromium, self.address).open(0)
        self.slow(0)
        self.page.run("clicker.setPreview(false)")

    def restart(self):
        self.running.close()
        self.address = self.running.enter_context(serving(self.folder, Disks(), self.port))
        self.port = int(self.address.split(":")[2].split("/")[0])

    def slow(self, latency):
        """Delay requests by milliseconds; with None, they are held until the next call."""
        self.page.tab.evaluate(SLOW, latency)

    def reload(self):
        self.settle()
        self.page.open()
        self.slow(0)
        self.page.run("clicker.setPreview(false)")

    def files(self):
        return sorted(
            path for place in (".", "sub") for path in (self.folder / place).glob("*.png")
        )

    def request(self, path, body=None):
        request = urllib.request.Request(f"{self.address.split('#')[0]}api/{path}")
        request.add_header("X-Probseg-Token", TOKEN)
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        with urllib.request.urlopen(request) as answer:
            return answer.read()

    def settle(self):
        self.page.settle()
        self.page.until("!clicker.fetching && clicker.root.dataset.waiting === '0'")

    def command(self, name, at):
        """Do what a person does; nothing waits for an answer."""
        page, mouse, keyboard = self.page, self.page.tab.mouse, self.page.tab.keyboard
        self.told.append((name, at))
        if name in ("left", "right"):
            page.click(*at, button=name, wait=False)
        elif name in ("brush", "eraser", "box"):
            keyboard.press({"brush": "b", "eraser": "e", "box": "x"}[name])
            page.aim(*at)
            mouse.down()
            mouse.move(*page.place(at[0] + 20, at[1] + 9), steps=3)
            mouse.up()
            if name != "box":
                keyboard.press(name[0])
        elif name == "review":  # in the overview, and back
            for key in ("o", *self.numbers.choices(["ArrowRight", "a", "x", "r", "z"], k=3), "o"):
                keyboard.press(key)
                self.settle()
                if page.run("document.getElementById('comment').open"):
                    keyboard.press("Enter")  # it goes back without a comment
        elif name == "snap":
            keyboard.press("k")
            self.command("brush", at)
            keyboard.press("k")
        else:
            keyboard.press(name)

    def draw(self):
        """Return a random command and a place for it."""
        place = self.numbers.uniform(1, 120), self.numbers.uniform(1, 90)
        pointed = ["left"] * 12 + ["right", "brush", "eraser", "eraser", "box", "snap", "review"]
        return self.numbers.choice([*pointed, *KEYS]), place

    def disturb(self):
        """Change a file, act in another window, import, or stop the server and start it again."""
        self.settle()
        path = self.numbers.choice(self.files())
        kind = self.numbers.choice(["restart", "restart", *KINDS])
        self.told.append((kind, path.name))
        content = path.read_bytes()
        if kind == "restart":
            return self.restart()
        if kind in ("import", "labels", "other"):
            self.elsewhere(kind, path)
            return self.reload()
        if kind == "turn":
            if content != BROKEN:
                Image.open(path).rotate(180).save(path)
        elif kind == "break":
            path.write_bytes(BROKEN)
        elif kind in ("rename", "move"):
            home = self.folder / ("sub" if kind == "move" and path.parent == self.folder else ".")
            home.mkdir(exist_ok=True)
            path.rename(home / f"{self.numbers.randrange(10**6)}.png")
        elif kind == "new":
            pixels = np.frombuffer(self.numbers.randbytes(96 * 128 * 3), np.uint8)
            Image.fromarray(pixels.reshape(96, 128, 3)).save(
                self.folder / f"{self.numbers.randrange(10**6)}.png"
            )
        else:
            path.unlink()
        self.page.open()
        self.settle()
        if kind in ("turn", "break", "delete") and self.numbers.random() < 0.7:
            path.write_bytes(content)
        return self.reload()

    def elsewhere(self, kind, path):
        """Act as another window does."""
        name = path.relative_to(self.folder).as_posix()
        if kind == "labels":
            old, new = self.numbers.sample(["cat", "dog", "horse", "cow"], 2)
            self.request("labels", {"rename": old, "to": new})
        elif kind == "import":
            x, y = self.numbers.randrange(60), self.numbers.randrange(40)
            corners = [x, y, x + 50, y, x + 9, y + 40]
            content = {
                "images": [{"id": 1, "file_name": name, "height": 96, "width": 128}],
                "annotations": [
                    {"id": 1, "image_id": 1, "category_id": 1, "segmentation": [corners]}
                ],
                "categories": [{"id": 1, "name": "horse"}],
            }
            piece = base64.b64encode(json.dumps(content).encode()).decode()
            body = {"upload": x, "piece": 0, "name": "a.json", "content": piece, "last": True}
            with suppress(urllib.error.HTTPError):  # a photograph that is set aside
                self.request("import", body)
        else:
            for photo in json.loads(self.request("session"))["photographs"]:
                if photo["name"] == name and photo["error"] is None:
                    revision = json.loads(self.request(f"photos/{photo['id']}"))["revision"]
                    action = {"type": "state", "state": self.numbers.choice(["done", "rejected"])}
                    body = {"sequence": 1, "revision": revision, "action": action}
                    try:
                        self.request(f"photos/{photo['id']}/actions", body)
                    except urllib.error.HTTPError as error:
                        if error.code != 400:  # an open object has no pixel
                            raise

    def check(self):
        """Compare what the page shows with the server, the masks and `annotations.json`."""
        self.settle()
        photos = json.loads(self.request("session"))["photographs"]
        wrong = json.loads(self.request("export", {"format": "coco"}))["lost"]
        coco = json.loads((self.folder / "annotations.json").read_text())
        names = {one["id"]: one["file_name"] for one in coco["images"]}
        kinds = {one["id"]: one["name"] for one in coco["categories"]}
        exported, known = {}, {}
        for one in coco["annotations"]:
            entry = one["id"], kinds[one["category_id"]], one["area"]
            exported.setdefault(names[one["image_id"]], set()).add(entry)
        for photo in photos:
            if photo["error"] is not None:
                assert not photo["objects"] or any(photo["name"] in line for line in wrong)
                assert not photo["changed"] or any(photo["name"] in line for line in wrong)
                continue
            header, mask = unpack(self.request(f"photos/{photo['id']}/mask"), (96, 128))
            known[photo["id"]] = header, mask
            objects = {(one["id"], one["label"], one["area"]) for one in header["objects"]}
            assert (photo["objects"], photo["state"]) == (len(objects), header["state"])
            if photo["state"] == "rejected":
                assert photo["name"] not in exported
                continue
            named = {(number, label or "object", area) for number, label, area in objects}
            opened = (header["current"] or {}).get("object")
            ours = {one for one in exported.get(photo["name"], set()) if one[0] != opened}
            assert ours == named, photo["name"]
            stem = photo["name"].removesuffix(".png")
            areas = [
                int((np.asarray(Image.open(path)) > 0).sum())
                for path in (self.folder / "masks").glob(f"{stem}_*.png")
            ]
            assert sorted(areas) == sorted(one[2] for one in exported.get(photo["name"], ()))
        self._check_screen(known)

    def _check_screen(self, known):
        number, *shown = self.page.run(SCREEN)
        if number not in known:
            return
        header, mask = known[number]
        current = header["current"] or {"object": None, "label": None, "clicks": []}
        clicks = [[one["x"], one["y"], one["positive"]] for one in current["clicks"]]
        objects = [[one["id"], one["label"], one["area"]] for one in header["objects"]]
        moves = [header["undo"], header["redo"]]
        wanted = [header["state"], *moves, objects, current["object"], current["label"], clicks]
        assert shown == wanted, f"{shown}, wanted {wanted}"
        mask = np.zeros((96, 128), np.bool_) if mask is None else mask
        assert np.array_equal(self.page.mask(), mask), "the open object"
        for one in objects:
            frame = self.request(f"photos/{number}/objects/{one[0]}/mask")
            region = self.page.mask(
                f"(found => found && {{ region: found.region }})(clicker.finished.get({one[0]}))"
            )
            assert np.array_equal(region, unpack(frame, (96, 128))[1]), one

    def close(self):
        for name in json.loads(self.request("session"))["formats"]:
            self.request("export", {"format": name})  # each is written
        self.page.close()
        self.running.close()


def run(chromium, place, seed, actions, latencies=LATENCIES):
    numbers = random.Random(seed)
    machine = Machine(chromium, place, numbers)
    try:
        for number in range(1, actions + 1):
            if number % 10 == 0:
                machine.slow(numbers.choice(latencies))
            if number % 50 == 0:
                machine.disturb()
            name, at = machine.draw()
            machine.command(name, at)
            if name in MOVES or numbers.random() < 0.1:
                machine.settle()
            time.sleep(numbers.choice([0, 0, 0.02]))
            if number % 25 == 0:
                machine.check()
        machine.check()
    except BaseException:
        print(f"seed {seed}: {machine.told[-30:]}")
        raise
    finally:
        machine.close()


@pytest.mark.parametrize("seed", range(2))
def test_screen_server_files_and_exports_agree(chromium, tmp_path, seed):
    run(chromium, tmp_path / "photos", seed, 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_long_sequences(chromium, tmp_path, seed):
    run(chromium, tmp_path / "photos", seed, 500)


@pytest.fixture
def machine(chromium, tmp_path):
    machine = Machine(chromium, tmp_path / "photos", random.Random(0))
    machine.slow(800)
    yield machine
    machine.check()
    machine.close()


SPOTS = [(20, 20), (64, 48), (105, 75)]


def test_each_click_and_enter_is_an_object_on_a_slow_link(machine):
    for at in SPOTS:
        machine.command("left", at)
        machine.command("1", at)
        machine.command("Enter", at)
    machine.settle()
    assert machine.page.run("clicker.objects.map(({ label }) => label)") == ["cat"] * 3
    machine.command("left", SPOTS[0])  # selects the first one
    machine.command("Delete", SPOTS[0])
    machine.command("left", SPOTS[0])
    machine.command("Escape", SPOTS[0])
    machine.settle()
    assert machine.page.run("[clicker.objects.length, clicker.current.object]") == [2, None]


@pytest.mark.parametrize("refused", ["f", "i", "zz"])
def test_what_a_refused_command_leaves_is_what_is_shown(machine, refused):
    machine.command("left", SPOTS[1])
    for key in refused:
        machine.command(key, SPOTS[1])
    machine.settle()
    assert machine.page.banner()
    assert machine.page.mask().any() == (refused != "zz")
    if refused != "zz":
        machine.command("Enter", SPOTS[1])
        machine.settle()
        assert machine.page.run("clicker.objects.length") == 1


def test_commands_on_a_photograph_that_cannot_be_read_hold_nothing_up(machine):
    page = machine.page
    machine.slow(0)
    (machine.folder / "photo1.png").write_bytes(b"no photograph")
    machine.reload()
    for key in ("n", "u", "1", "r", "f", "n"):
        machine.command(key, SPOTS[0])
    machine.settle()
    assert page.run("[probsegPage.index, probsegPage.photo.state]") == [2, "open"]
    page.click(*SPOTS[0])
    assert page.mask().any()


def test_while_a_photograph_loads_the_page_says_so_and_takes_no_clicks(machine):
    page, busy = machine.page, "$('clicker').ariaBusy".replace("$", "document.getElementById")
    assert page.run(busy) == "false"
    machine.slow(None)
    machine.command("n", SPOTS[0])
    assert page.run(busy) == "true"
    machine.command("left", SPOTS[1])
    machine.slow(0)
    machine.settle()
    assert page.run(f"[{busy}, clicker.current.object]") == ["false", None]


def test_an_error_of_a_photograph_that_was_left_is_shown_with_its_name(machine):
    machine.slow(0)
    machine.page.press("e")
    machine.page.drag((100, 8), (110, 8))
    machine.slow(None)
    machine.command("Enter", SPOTS[0])
    machine.command("n", SPOTS[0])
    machine.slow(0)
    said = "document.querySelector('#banner:not([hidden])')?.textContent ?? ''"
    machine.page.until(f"({said}).startsWith('photo0.png: the object has no pixel')")


def test_menus_give_the_keyboard_back(machine):
    machine.slow(0)
    menu = machine.page.tab.locator("#sort")
    menu.dispatch_event("pointerdown")
    menu.select_option(index=1)
    machine.page.press("n")
    assert machine.page.run("probsegPage.index") == 1


def test_a_label_is_typed_while_answers_arrive(machine):
    page = machine.page
    page.click(*SPOTS[0], wait=False)
    page.tab.locator("#new-label").click()
    page.tab.keyboard.type("donkey", delay=300)  # d, o, n and y are commands elsewhere
    page.tab.keyboard.press("Enter")
    page.tab.keyboard.press("Enter")
    machine.settle()
    assert page.run("[clicker.objects.map(({ label }) => label), clicker.label]") == [
        ["donkey"],
        "donkey",
    ]
    assert page.run("[probsegPage.index, probsegPage.photo.state]") == [0, "open"]


def test_another_address_is_opened_in_the_same_tab(machine):
    tab = machine.page.tab
    tab.evaluate("location.hash = 'another'")
    tab.wait_for_selector("#banner[data-kind=fatal]")
    tab.evaluate(f"location.hash = '{TOKEN}'")
    tab.wait_for_selector("body[data-ready]")


def test_objects_of_a_file_that_changed_are_kept_by_a_button(machine):
    page = machine.page
    machine.slow(0)
    page.click(*SPOTS[1])
    page.press("Enter")
    path = machine.folder / "photo0.png"
    Image.open(path).rotate(180).save(path)
    machine.reload()
    assert "has changed" in page.tab.locator("#unreadable").inner_text()
    page.tab.get_by_role("button", name="Keep its objects").click()
    page.until("clicker.objects.length === 1 && !probsegPage.photo.error")


def test_a_photograph_whose_earlier_file_is_back_is_shown_when_it_is_opened(machine):
    page = machine.page
    machine.slow(0)
    page.click(*SPOTS[1])
    page.press("Enter", "n")
    page.click(*SPOTS[0])
    path = machine.folder / "photo0.png"
    content = path.read_bytes()
    Image.open(path).rotate(180).save(path)
    machine.reload()
    path.write_bytes(content)
    machine.slow(300)
    page.press("p", "z")  # waits until it is known that the file is readable again
    assert page.run("[clicker.objects.length, probsegPage.photo.error]") == [0, None]


def test_a_photograph_has_arrived_when_the_mask_of_its_open_object_is_shown(machine):
    machine.command("left", SPOTS[1])
    machine.command("n", SPOTS[1])
    machine.command("p", SPOTS[1])
    machine.page.until("!probsegPage.arriving && probsegPage.index === 0")
    assert machine.page.mask().any()


def test_a_photograph_is_opened_after_what_was_sent_from_the_grid(machine):
    machine.page.run(
        "(note => (window.states = [], probsegPage.note = function (...given) {"
        " note.apply(this, given); states.push(this.photo.state); }, null))(probsegPage.note)"
    )
    machine.slow(300)
    for key in "oazo":
        machine.page.tab.keyboard.press(key)
    machine.page.until("states.includes('accepted') && probsegPage.photo.state === 'open'")
    machine.check()


def test_annotations_of_others_are_imported_by_a_button(machine, tmp_path):
    page = machine.page
    machine.slow(0)
    page.click(*SPOTS[0])
    corners = [60, 40, 60, 60, 90, 60, 90, 40]
    content = {
        "images": [{"id": "7", "file_name": "x\\photo0.png", "height": 96, "width": 128}],
        "annotations": [{"id": 1, "image_id": "7", "category_id": 1, "segmentation": [corners]}],
        "categories": [{"id": 1, "name": "horse"}],
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content) + " " * (1 << 20))  # several pieces
    page.tab.set_input_files("#import-files", path)
    objects = "clicker.objects.map(({ label, area }) => `${label} ${area}`).join()"
    page.until(f"{objects} === 'horse 600'")
    assert page.run("probsegPage.session.labels.at(-1)") == "horse"
    page.until("document.getElementById('banner').innerText.startsWith('Imported: 1 object.')")
    page.run("clicker.refresh()")  # as after any news
    assert page.banner().startswith("Imported: 1 object.")
    assert page.mask().any(), "the open object stays"


def test_strokes_edit_the_selected_object_and_are_cut_where_they_leave(machine):
    page = machine.page
    machine.slow(0)
    page.click(*SPOTS[1])
    page.press("Enter")
    before = page.run("clicker.objects[0].area")
    page.click(*SPOTS[1])
    page.press("e")
    page.drag((40, 48), (500, 48))
    assert page.run("clicker.objects.length") == 1
    assert page.run("clicker.objects[0].area") < before
    assert page.run("clicker.current.object") is None
    page.press("Escape")

    page.drag((100, 8), (110, 8))
    assert "without a pixel" in page.tab.locator(".clicker-status").inner_text()
    page.press("Escape")
    assert page.run("clicker.current.object") is None
    long = "Array.from({ length: 25000 }, (_, i) => [i % 120, 20])"
    page.run(
        "(clicker.gesture = { kind: 'stroke', positive: true, radius: 2, snap: false, "
        f"points: {long} }}, clicker._up({{ clientX: 0, clientY: 0 }}))"
    )
    machine.settle()
    assert page.mask()[20, 5:115].all()


def test_labels_of_the_open_and_of_the_next_object(machine):
    page = machine.page
    machine.slow(0)
    page.click(*SPOTS[0])
    page.press("1", "Enter", "2")
    page.click(*SPOTS[0])
    page.press("Enter")  # opens it again
    assert page.tab.locator("#labels [aria-pressed=true]").inner_text().endswith("cat")
    page.press("Enter")
    page.click(*SPOTS[2])
    page.press("Enter")
    labels = "clicker.objects.map(({ label }) => label)"
    assert page.run(labels) == ["cat", "dog"]
    page.tab.on("dialog", lambda dialog: dialog.accept())
    page.tab.get_by_role("button", name="Edit labels").click()
    page.tab.get_by_label("Name of cat").fill("dog")
    page.tab.get_by_label("Name of cat").press("Tab")
    page.until(f"{labels}.join() === 'dog,dog' && probsegPage.session.labels.length === 1")
    page.tab.get_by_label("Remove dog").click()
    page.until(f"{labels}.join() === ',' && !probsegPage.session.labels.length")
    page.tab.keyboard.press("Escape")


def outcome(chromium, place, seed, actions, latency):
    """Give the same commands at a latency, 0 for one after the answer to the other."""
    machine = Machine(chromium, place, random.Random(seed))
    machine.slow(latency)
    for _ in range(actions):
        name, at = machine.draw()
        machine.command(name, at)
        if name in (*MOVES, "y") or not latency or machine.page.run("probsegPage.outline.shown"):
            machine.settle()  # corners are taken hold of where they are seen
    machine.check()
    photos = json.loads(machine.request("session"))["photographs"]
    rows = [
        (photo["name"], photo["state"], sorted(photo["labels"].items()), photo["objects"])
        for photo in photos
    ]
    areas = [
        sorted(one["area"] for one in json.loads(machine.request(f"photos/{p['id']}"))["objects"])
        for p in photos
    ]
    machine.close()
    return rows, areas


@pytest.mark.parametrize("seed", [7])
def test_commands_mean_the_same_at_every_latency(chromium, tmp_path, seed):
    wanted = outcome(chromium, tmp_path / "0", seed, 40, 0)
    for latency in LATENCIES[1:]:
        assert outcome(chromium, tmp_path / str(latency), seed, 40, latency) == wanted, latency
