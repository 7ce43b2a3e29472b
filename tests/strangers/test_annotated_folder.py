"""Annotated folders of strangers: their databases, links and names are data, and nothing else."""

import json
import logging
import os
import re
import shutil
import sqlite3
import struct
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from probseg.annotate.answers import MOST_ITERATIONS, ModelHost
from probseg.annotate.database import COLUMNS, INVERSES, DamagedError, values
from probseg.annotate.files import DATABASE, read_keys
from probseg.annotate.photographs import refusals
from probseg.annotate.store import Finished, Store
from probseg.cli import main
from probseg.data import ImageMaskFolder
from probseg.data.cache import cached
from probseg.errors import DataError, UsageError
from probseg.paths import LEADS_OUT, leads_out
from probseg.terminal import console, print_line, print_paths
from support.annotate_client import MODEL, begin, draw_photographs
from support.confined import confined
from support.rows import each

CLICK = {"type": "click", "x": 64.0, "y": 48.0, "positive": True}
MASK = Finished.from_labels(np.pad(np.ones((20, 20), np.uint8), ((40, 36), (50, 58))))


@pytest.fixture(scope="module")
def model_host():
    return ModelHost(MODEL)


@pytest.fixture
def folder(tmp_path):
    return draw_photographs(tmp_path / "photos", 1)


def annotated(path):
    """Write a database with an object that was finished, opened and clicked on again."""
    store = Store(path)
    for revision in range(4):
        with store.change("photo0.png", revision):
            if revision == 0:
                store.begin("photo0.png", "cat's")
            elif revision == 1:
                store.finish(1, MASK, "a model", 0.5)
            elif revision == 2:
                store.reopen(1)
            store.add_step(1, CLICK)
    store.set_setting("labels", ["cat's"])
    store.close()
    return path


def execute(path, *scripts):
    with closing(sqlite3.connect(path)) as db:
        for script in scripts:
            db.executescript(script)


def as_version_3(path):
    """Turn a database into one whose history has statements as text."""
    with closing(sqlite3.connect(path)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            db.execute(f"DROP TRIGGER {name}")
        for number, inverse, literals in db.execute(
            "SELECT number, inverse, literals FROM history"
        ).fetchall():
            parts, text = literals.split(", "), INVERSES[inverse]
            for part in parts:
                text = text.replace("?", part, 1)
            db.execute("UPDATE history SET inverse = ? WHERE number = ?", (text, number))
        db.executescript("ALTER TABLE history DROP COLUMN literals; PRAGMA user_version = 3")
        db.commit()
    return path


COMPUTED = "ALTER TABLE settings ADD COLUMN u TEXT AS (upper(value))"

FOREIGN = [
    ("CREATE TRIGGER t AFTER INSERT ON settings BEGIN DELETE FROM objects; END", "trigger `t`"),
    ("CREATE VIEW v AS SELECT 1", "view `v`"),
    ("CREATE TABLE other (x)", "table `other`"),
    ("CREATE VIRTUAL TABLE words USING fts5(x)", "table `words"),
    ("CREATE INDEX extra ON settings(upper(value))", "index `extra`"),
    (COMPUTED, "`settings`"),
    ("ALTER TABLE settings ADD COLUMN u TEXT DEFAULT 'x'", "`settings`"),
    ("DROP TABLE settings; CREATE VIEW settings AS SELECT 'a' name, '1' value", "view `settings`"),
    (
        "DROP TRIGGER steps_insert; CREATE TRIGGER steps_insert AFTER INSERT ON steps "
        "BEGIN DELETE FROM photographs; END",
        "trigger `steps_insert`",
    ),
    ("DROP TRIGGER steps_insert", "other tables"),
    ("PRAGMA user_version = 0", "schema 0"),
    ("PRAGMA user_version = -1", "schema -1"),
]


@each(("script", "named"), FOREIGN)
def test_what_is_not_ours_in_the_schema_is_refused_by_name(tmp_path, script, named):
    path = annotated(tmp_path / "a.sqlite")
    execute(path, script)
    with pytest.raises(DamagedError, match=rf"{named}.*rename the folder `.probseg`"):
        Store(path)


@each(("script", "named"), [*FOREIGN[:5], *FOREIGN[7:8], (COMPUTED, "column `u` of settings")])
def test_of_an_old_schema_kinds_and_names_count_as_only_rows_are_read(tmp_path, script, named):
    path = as_version_3(annotated(tmp_path / "a.sqlite"))
    execute(path, script)
    with pytest.raises(DamagedError, match=rf"{named}.*rename the folder `.probseg`"):
        Store(path)


@each(
    "statement",
    [
        "ATTACH 'other.sqlite' AS other",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "PRAGMA writable_schema = ON",
        "PRAGMA journal_mode = DELETE",
        "CREATE TABLE t (x)",
        "CREATE TEMP TABLE t (x)",
        "CREATE TEMP TRIGGER t AFTER INSERT ON settings BEGIN DELETE FROM objects; END",
        "DROP TABLE objects",
        "ALTER TABLE objects ADD COLUMN x",
        "VACUUM INTO 'other.sqlite'",
        "REINDEX",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('x')",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT * FROM n",
    ],
)
def test_a_connection_reaches_nothing_but_our_tables(tmp_path, statement, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "a.sqlite")
    with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|denied|prohibited|attached"):
        store._db.execute(statement)
    store.close()
    assert not (tmp_path / "other.sqlite").exists()


@each(
    ("inverse", "literals"),
    [
        ("UPDATE settings SET value = 1", "1"),
        ("ATTACH 'victim' AS v", ""),
        ("objects_label", "'x', 1); DROP TABLE objects; --"),
        ("objects_label", "1"),
        ("objects_label", "1, 2, 3"),
        ("objects_label", "'line\nbreak', 1"),
        ("objects_label", f"'{'long' * 26}', 1"),
        ("objects_open", "7, 1"),
        ("objects_counts", "X'00', 1"),
        ("objects_counts", "'run on' , 1"),
        ("objects_area", f"{'9' * 5000}, 1"),
        ("objects_quality", "9.0e+999, 1"),
        ("photographs_state", "'evil', 'photo0.png'"),
        ("steps_delete", "1, 9, 'no JSON'"),
        ("steps_delete", '1, 9, \'{"type": "click", "x": 1e400, "y": 0, "positive": true}\''),
        ("steps_delete", f"1, 9, '{'[' * 100_000}'"),
    ],
)
@pytest.mark.parametrize("move", ["undo", "close_again"])
def test_a_history_that_we_did_not_write_changes_nothing(tmp_path, inverse, literals, move):
    path = annotated(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as db:
        row = ("photo0.png", 4, 0, 1, inverse, literals)
        columns = "photo, revision, undone, object, inverse, literals"
        db.execute(f"INSERT INTO history ({columns}) VALUES (?, ?, ?, ?, ?, ?)", row)
        db.commit()
    store = Store(path)
    before = store.objects("photo0.png")
    with pytest.raises(DataError, match="damaged"), store.change("photo0.png", 4):
        store.undo("photo0.png") if move == "undo" else store.close_again(1)
    assert store.objects("photo0.png") == before
    store.close()


def test_an_old_history_is_undone_and_a_strange_one_left_behind(tmp_path, caplog):
    path = as_version_3(annotated(tmp_path / "a.sqlite"))
    store = Store(path)
    assert [step["type"] for step in store.objects("photo0.png")[0].steps] == ["click"] * 4
    for revision in (4, 5, 6, 7):
        with store.change("photo0.png", revision):
            assert store.undo("photo0.png")
        if revision == 5:
            assert store.objects("photo0.png")[0].mask == MASK.png
    assert store.objects("photo0.png") == []
    for revision in (8, 9, 10, 11):
        with store.change("photo0.png", revision):
            assert store.redo("photo0.png")
    assert store.objects("photo0.png")[0].label == "cat's"
    store.close()
    victim = annotated(tmp_path / "victim.sqlite")
    strange = as_version_3(annotated(tmp_path / "b.sqlite"))
    text = f"ATTACH '{victim}' AS v; DELETE FROM v.objects".replace("'", "''")
    execute(strange, f"UPDATE history SET inverse = '{text}' WHERE number = 3")
    store = Store(strange)
    assert "undo begins anew" in caplog.text
    with store.change("photo0.png", 4):
        assert not store.undo("photo0.png")
        store.close_again(1)
    assert not store.objects("photo0.png")[0].open
    assert store.begin("photo0.png") == 2, "numbers are used once"
    store.close()
    assert not list(tmp_path.glob(".*"))
    assert not list(tmp_path.glob("*-*"))


def test_literals_are_what_sqlite_quotes():
    given = [None, 0, -7, 2**62, 0.1, -1e300, "", "it's '' X'00' NULL 1, 2", b"", b"\0\xff", "é\n"]
    with closing(sqlite3.connect(":memory:")) as db:
        expression = " || ', ' || ".join(["quote(?)"] * len(given))
        (literals,) = db.execute(f"SELECT {expression}", given).fetchone()
    assert values(literals) == given


@each("end", ["-journal", "-wal", "-shm", ""])
def test_nothing_is_reached_through_files_beside_the_database(model_host, tmp_path, end):
    folder = draw_photographs(tmp_path / "photos", 1)
    annotated(folder / DATABASE)
    outside = tmp_path / "outside"
    place = folder / f"{DATABASE}{end}"
    place.unlink(missing_ok=True)
    place.symlink_to(outside)
    with pytest.raises(UsageError, match="link"):
        begin(folder, model_host)
    assert not outside.exists()
    place.unlink()


def test_a_journal_that_names_a_file_of_the_user_deletes_nothing(tmp_path):
    """SQLite deletes the super-journal that a journal names once it has carried that out."""
    path, victim = annotated(tmp_path / "a.sqlite"), tmp_path / "victim"
    victim.touch()
    magic, name = bytes.fromhex("d9d505f920a163d7"), os.fsencode(victim)
    pages = path.stat().st_size // 4096
    header = (magic + struct.pack(">5I", 0, 1, pages, 512, 4096)).ljust(512, b"\0")
    named = struct.pack(">I", (1 << 30) // 4096 + 1) + name
    end = struct.pack(">2I", len(name), sum(name)) + magic
    (tmp_path / "a.sqlite-journal").write_bytes(header + named + end)
    with pytest.raises(UsageError, match="is not written by probseg"):
        Store(path)
    assert victim.exists()


SETTINGS = [
    ("inference", {"model": MODEL, "settings": {"click_iterations": 1_000_000}}),
    ("inference", {"model": MODEL, "settings": {"click_iterations": True}}),
    ("inference", {"model": MODEL, "settings": {"click_prior": float("nan")}}),
    ("inference", {"model": MODEL, "settings": {"zoom": ["scales"]}}),
    ("inference", {"model": MODEL, "settings": {"os.system": 1}}),
    ("inference", {"model": MODEL, "settings": {str(n): n for n in range(1000)}}),
    ("inference", {"model": MODEL, "settings": 3}),
    ("inference", {"model": ["x"], "settings": {}}),
    ("inference", []),
    ("labels", "text"),
    ("labels", [3]),
    ("labels", ["x" * 101]),
    ("labels", ["\x1b[31m"]),
    ("labels", [str(n) for n in range(1001)]),
    ("avoid_finished", 3),
    ("exports", {"masks": "1"}),
    ("renamed", {"cat": 1}),
    ("seen", "now"),
    ("annotations_due", []),
]


@each(("name", "value"), SETTINGS)
def test_settings_of_others_are_bounded(tmp_path, model_host, name, value, caplog):
    caplog.clear()
    folder = draw_photographs(tmp_path / "photos", 1)
    path = annotated(folder / DATABASE)
    with closing(sqlite3.connect(path)) as db:
        sql = "INSERT OR REPLACE INTO settings VALUES (?, ?)"
        db.execute(sql, (name, json.dumps(value)))
        db.commit()
    model_host.first = None
    before = model_host.settings()
    client = begin(folder, model_host)
    session = client.get("/api/session")
    assert {key: session["settings"][key] for key in before} == before
    assert session["labels"] in ([], ["cat's"])
    client.sessions.store.setting(name)
    client.sessions.close()
    assert "not used" in caplog.text


@each("text", ["", "[" * 100_000, "9" * 5000, "{", '"\ud800"'.encode("utf-8", "surrogatepass")])
def test_texts_that_are_no_settings_are_left_out(tmp_path, text, caplog):
    caplog.clear()
    path = annotated(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE settings SET value = CAST(? AS TEXT)", (text,))
        db.commit()
    store = Store(path)
    assert store.setting("labels") is None
    assert "labels is not used" in caplog.text
    store.close()


def test_iterations_are_bounded_where_they_are_set(folder, model_host):
    client = begin(folder, model_host)
    for wrong in (MOST_ITERATIONS + 1, 1_000_000, 1.0, True, 10**400):
        answer = client.http.post("/api/settings", json={"click_iterations": wrong})
        assert answer.status_code == 400
        assert f"from 0 to {MOST_ITERATIONS}" in answer.json()["error"]
    client.sessions.close()


@pytest.mark.parametrize("where", ["folder", "here", "elsewhere"])
def test_no_model_is_loaded_that_only_the_folder_names(folder, where, caplog, monkeypatch):
    """Neither by a path, nor as a run of a folder `runs/` that came with the photographs."""
    monkeypatch.chdir(folder)
    places = {"folder": f"{folder}/m/", "here": "runs/m", "elsewhere": f"{folder.parent}/m/"}
    model = Path(places[where])
    (model / "checkpoints").mkdir(parents=True)
    (model / "config.yaml").touch()
    (model / "checkpoints" / "best.ckpt").touch()
    loaded = []
    monkeypatch.setattr(ModelHost, "load", lambda self, name: loaded.append(name))
    model_host = ModelHost(runs=Path("runs"))
    model_host.resume(folder, places[where], {})
    assert loaded == ["lite2_unet_prop"]
    assert f"was last used with {places[where]!r}: give --model to use it" in caplog.text
    assert model_host.first is None


SECRET = b"\x89PNG a private file"


def test_links_out_of_the_folder_are_not_followed(tmp_path, model_host):
    """Not to keep a copy, to look whether old files are kept, nor to write."""
    folder, secret, other = tmp_path / "set", tmp_path / "secret.png", tmp_path / "made"
    draw_photographs(folder / "images", 1)
    secret.write_bytes(SECRET)
    for place in ("masks/photo0_1.png", "masks/photo0_2.png", "annotations.json"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).symlink_to(secret)
    (folder / ".probseg" / "masks").mkdir(parents=True)
    (folder / ".probseg" / "masks" / "photo0.done").symlink_to(other)
    (folder / "images" / "all").symlink_to("/")
    client = begin(folder, model_host)
    reasons = dict(client.sessions.files.refused())
    assert reasons["masks/photo0_1.png"] == LEADS_OUT
    client.click(64, 48)
    client.act({"type": "finish", "label": None})
    client.http.post("/api/export", json={"format": "coco"})
    client.sessions.close()
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in files if path.read_bytes() == SECRET]
    assert secret.read_bytes() == SECRET
    assert not other.exists()
    (folder / "keys.json").symlink_to(secret)
    with pytest.raises(UsageError, match=r"keys\.json: a link leads out"):
        begin(folder, model_host)


def test_keys_are_read_from_a_file(tmp_path):
    os.mkfifo(tmp_path / "keys.json")
    with pytest.raises(UsageError, match="device or pipe"):
        read_keys(tmp_path)


@each(
    ("place", "to", "out"),
    [
        ("set/images/a.png", "../../x.png", True),
        ("set/images/a.png", "../x.png", False),
        ("set/a.png", "x.png", False),
        ("set/a.png", "/etc/hostname", True),
        ("set/inner", "..", True),
    ],
)
def test_one_rule_for_links(tmp_path, place, to, out):
    path, folder = tmp_path / place, tmp_path / "set"
    path.parent.mkdir(parents=True)
    path.symlink_to(to)
    assert leads_out(path, folder) is out
    assert leads_out(path, path.parent) is out
    assert leads_out(path / "below.png", folder) is out
    alias = tmp_path / "alias"
    alias.symlink_to(folder)
    assert leads_out(alias / path.relative_to(folder), alias) is out
    assert leads_out(folder / "../x.png", folder)
    assert leads_out(tmp_path / "x.png", folder)


def test_data_sets_name_links_out_of_their_folder(tmp_path):
    secret = draw_photographs(tmp_path / "mine", 1) / "photo0.png"
    for place in ("images", "masks"):
        root = tmp_path / f"{place} of others"
        for part in ("images", "masks"):
            draw_photographs(root / part, 1)
        Image.new("L", (128, 96), 255).save(root / "masks" / "photo0.png")
        (root / place / "photo0.png").unlink()
        (root / place / "photo0.png").symlink_to(secret)
        with pytest.raises(DataError, match=rf"{place}/photo0\.png: {LEADS_OUT}"):
            ImageMaskFolder(root)
        assert main(["data", "check", str(root)]) in (1, 2)
        for name, value in (("PROBSEG_FOLLOW_LINKS", "1"), ("PROBSEG_DATA", secret.parent)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(name, str(value))
                if place == "images":
                    assert len(ImageMaskFolder(root)) == 1, "links of one's own are followed"


@pytest.mark.parametrize("kind", ["folder", "lock", "pipe"])
def test_an_index_beside_the_data_is_kept_without_links(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PROBSEG_CACHE", raising=False)
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir(), outside.mkdir()

    def index():
        os.environ.pop("PROBSEG_CACHE", None)
        return cached("numbers", [], {}, lambda: {"numbers": np.arange(3)}, root)["numbers"]

    index()
    kept = root / ".probseg"
    (header,) = kept.glob("*.json")
    if kind == "folder":
        shutil.rmtree(kept)
        kept.symlink_to(outside)
    else:
        header.unlink()
        lock = header.with_suffix(".lock")
        lock.unlink(missing_ok=True)
        os.mkfifo(header) if kind == "pipe" else lock.symlink_to(outside / "new")
    seen = confined(lambda: index().sum() - 3)
    assert (seen.status, list(outside.iterdir())) == (0, [])


@pytest.mark.parametrize("victim", ["../victim", "{outside}/victim", "masks/../../victim"])
def test_predictions_stay_in_their_folders(folder, tmp_path, monkeypatch, capsys, victim):
    """The records of a folder of results name no file to delete outside of it."""
    monkeypatch.chdir(tmp_path)
    (folder / "linked.png").symlink_to(draw_photographs(tmp_path / "mine", 1) / "photo0.png")
    (tmp_path / "victim").touch()
    record = {"digest": None, "files": [victim.format(outside=tmp_path)]}
    output = tmp_path / "out"
    (output / ".probseg").mkdir(parents=True)
    (output / ".probseg" / "photo0.png.json").write_text(json.dumps(record))
    rows = [f"{name},30,20,100,80\n" for name in ("photo0.png", "linked.png")]
    Path("boxes.csv").write_text("".join(["image,x0,y0,x1,y1\n", *rows]))
    given = ("photos", "--prompts", "boxes.csv", "--output", "out", "--model", MODEL)
    with pytest.raises(SystemExit):
        main(["predict", *given])
    assert f"failed: linked.png: {LEADS_OUT}" in capsys.readouterr().out
    assert (tmp_path / "victim").exists()
    assert (output / "masks" / "photo0_1.png").exists() or (output / "masks").is_dir()


@pytest.mark.parametrize("place", ["masks", ".probseg", "overlays"])
def test_results_are_not_written_through_links(folder, tmp_path, monkeypatch, capsys, place):
    monkeypatch.chdir(tmp_path)
    for name in ("out", "outside"):
        Path(name).mkdir()
    Path("out", place).symlink_to("../outside")
    Path("boxes.csv").write_text("image,x0,y0,x1,y1\nphoto0.png,30,20,100,80\n")
    given = ("photos", "--prompts", "boxes.csv", "--output", "out", "--model", MODEL)
    assert main(["predict", *given, "--format", "masks,overlays"]) == 2
    assert "link out of the folder" in capsys.readouterr().err
    assert not list(Path("outside").iterdir())


ESCAPES = "bad\x1b]0;TITLE\x07\x9b31m\u202e.jpg"


def test_control_characters_do_not_reach_a_terminal(tmp_path, capsys, monkeypatch):
    """Whoever prints: errors, notices, tables and results of all verbs."""
    monkeypatch.chdir(draw_photographs(tmp_path / "photos", 1))
    Path(ESCAPES).write_bytes(b"no picture")
    Path("masks").mkdir()
    Path("masks", ESCAPES).touch()
    Path("boxes.csv").write_text(f"image,x0,y0,x1,y1\n{ESCAPES},3,2,10,8\n")
    logging.getLogger("probseg.annotate").warning("%s", ESCAPES)
    console().print(ESCAPES)
    folder = ("predict", ".", "--prompts", "boxes.csv", "--output", "out", "--model", MODEL)
    single = ("predict", ESCAPES, "--click", "1,1", "--output", "o.png")
    for arguments in (folder, single, ("data", "check", "."), ("zoo", "show", ESCAPES)):
        with suppress(SystemExit):
            main(arguments)
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert text.count("bad\\x1b]0;TITLE") >= 4
    assert not set(text) & set("\x1b\x07\x9b\u202e")


def test_no_name_begins_a_line_of_output(tmp_path, capsys, monkeypatch):
    name = "a\nprobseg: forged.jpg"
    monkeypatch.chdir(draw_photographs(tmp_path / "photos", 1))
    Path(name).write_bytes(b"no picture")
    for arguments in (
        ("predict", name, "--click", "1,1", "--output", "o.png"),
        ("data", "check", "."),
    ):
        with suppress(SystemExit):
            main(arguments)
    logging.getLogger("probseg.annotate").warning("%s", name)
    print_paths(console(), [Path(name)])
    print_line(name)
    captured = capsys.readouterr()
    text = "\n".join([captured.out, captured.err, *refusals([(name, "a reason")])])
    assert text.count("forged") >= 5
    assert not re.search("^probseg: forged", text, re.MULTILINE)


def test_all_that_is_printed_goes_through_one_place(repository):
    raw = re.compile(r"sys\.std(out|err)\.write\((?!.*printable)|(?<![\w.])(Console|print)\((?!\))")
    found = {
        f"{path.name}: {line.strip()}"
        for path in (repository / "probseg").rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if raw.search(line)
    }
    assert found == {
        "terminal.py: console=Console(stderr=True),",  # of Lightning's bars
        'benchmark.py: print(json.dumps(asdict(measure(request["name"], Settings(**options)))))',
    }


def use(path):
    """Open a database and carry out what a page can ask for; faults are our errors or SQLite's."""
    errors = UsageError, DataError, sqlite3.Error
    with suppress(*errors), closing(Store(path)) as store:
        store.overview(), store.efforts(), store.unwritten(), store.with_open_objects()
        for name in SETTINGS:
            store.setting(name[0])
        for name in store.names():
            store.objects(name)
        for move in (store.undo, store.undo, store.redo, lambda _: store.close_again(1)):
            with store.change("photo0.png", store.photograph("photo0.png").revision):
                move("photo0.png")
                store.objects("photo0.png")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return annotated(tmp_path_factory.mktemp("sound") / "a.sqlite").read_bytes()


@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=20),
    cut=st.floats(0, 1),
    whole=st.booleans(),
)
def test_damaged_bytes_are_an_error_that_says_what_to_do(
    sound, tmp_path_factory, flips, cut, whole
):
    content = bytearray(sound if whole else sound[: int(cut * len(sound))])
    for place, byte in flips if content else ():
        content[place % len(content)] = byte
    path = tmp_path_factory.mktemp("damaged") / "a.sqlite"
    path.write_bytes(content)
    use(path)


ROWS = st.one_of(
    *(st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.binary(), st.none()),
    st.sampled_from(["click", "[]", "{}", '{"type": "box"}', "objects_delete", "1, NULL", -1, 0]),
)


@given(table=st.sampled_from(sorted(COLUMNS)), data=st.data())
def test_rows_of_any_values_are_an_error_or_read(sound, tmp_path_factory, table, data):
    path = tmp_path_factory.mktemp("rows") / "a.sqlite"
    path.write_bytes(sound)
    column = data.draw(st.sampled_from(COLUMNS[table]))
    with closing(sqlite3.connect(path)) as db, suppress(sqlite3.IntegrityError):
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(f"UPDATE {table} SET {column} = ?", (data.draw(ROWS),))
        db.commit()
    use(path)


def test_an_object_of_another_photograph_is_an_error_not_a_crash(folder, model_host):
    """Sizes of masks and steps are those of their photograph, which may be damaged since."""
    client = begin(folder, model_host)
    client.click(100, 90)
    client.act({"type": "finish", "label": None})
    client.act({"type": "reopen", "object": 1})
    client.sessions.close()
    Image.new("RGB", (40, 30)).save(folder / "photo0.png")
    client = begin(folder, model_host)
    for path in ("mask", "uncertainty", "masks", "objects/1/mask"):
        answer = client.http.get(f"{client.path()}/{path}")
        assert answer.status_code in (200, 422), path
    client.act({"type": "cancel"})
    client.sessions.close()
    (folder / "photo0.png").write_bytes(b"damaged")
    client = begin(folder, model_host)
    (described,) = client.get(client.path())["objects"]
    assert described["window"] == [0, 0, 0, 0]
    client.sessions.close()


def session(folder):
    """Annotate, undo and export; no statement of SQL is that of the folder."""
    statements, connect = [], sqlite3.connect

    def traced(*arguments, **options):
        db = connect(*arguments, **options)
        db.set_trace_callback(statements.append)
        return db

    sqlite3.connect = traced
    logging.getLogger("probseg").addHandler(logging.StreamHandler())
    client = begin(folder, ModelHost())
    client.http.post(f"{client.path()}/open", json={})
    client.http.get(f"{client.path()}/image")
    for action in (
        *({"type": kind} for kind in ("undo", "redo", "cancel", "undo")),
        CLICK,
        {"type": "finish", "label": "cat"},
        *({"type": kind} for kind in ("undo", "redo")),
        {"type": "state", "state": "done"},
    ):
        body = {"revision": client.get(client.path())["revision"], "action": action}
        print(action["type"], client.http.post(f"{client.path()}/actions", json=body).status_code)
    for name in client.get("/api/session")["formats"]:
        client.http.post("/api/export", json={"format": name})
    client.sessions.close()
    assert statements
    assert not [text for text in statements if "victim" in text or "ATTACH" in text.upper()]


def test_a_whole_session_with_a_hostile_folder_touches_nothing_outside(tmp_path):
    folder, victim = tmp_path / "set", annotated(tmp_path / "victim.sqlite")
    draw_photographs(folder / "images", 1)
    inference = {"model": f"{folder}/.probseg/m/", "settings": {"click_iterations": 10**6}}
    with closing(sqlite3.connect(annotated(folder / DATABASE))) as db:
        sql = "INSERT INTO settings VALUES ('inference', ?)"
        db.execute(sql, (json.dumps(inference),))
        attack = f"ATTACH '{victim}' AS v; DELETE FROM v.objects"
        db.execute("UPDATE history SET inverse = ? WHERE revision = 4", (attack,))
        db.commit()
    for place in ("masks/photo0_1.png", "annotations.json", ".probseg/masks/photo0.done"):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).symlink_to(victim)
    before = victim.read_bytes()
    seen = confined(lambda: session(folder), [folder])
    assert (seen.status, seen.outside) == (0, []), seen.text
    assert "undo 422" in seen.text
    assert "finish 200" in seen.text
    assert f"was last used with '{folder}/.probseg/m/'" in seen.text
    assert victim.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [folder, victim]


def in_folder(folder, change):
    descriptor = os.open(folder, os.O_RDONLY)
    change(descriptor)
    os.close(descriptor)


@each(
    ("change", "is_outside"),
    [
        (lambda place: (place / "file").rename(place / "link"), False),  # takes its place
        (lambda place: in_folder(place, lambda own: os.remove("link", dir_fd=own)), False),
        (lambda place: (place / "link").unlink(), False),
        (lambda place: (place / "link").write_text(""), True),
        (lambda place: (place / "link").chmod(0o600), True),
        (lambda place: (place / "out" / "victim").unlink(), True),
        (lambda place: in_folder(place.parent, lambda top: os.mkdir("new", dir_fd=top)), True),
        (lambda place: os.system("true"), True),
    ],
)
def test_what_happens_outside_is_seen(tmp_path, change, is_outside):
    """A link is in the folder that it is in; what it leads to is not."""
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "victim").touch()
    (place / "file").touch()
    (place / "link").symlink_to("../victim")
    (place / "out").symlink_to("..")
    seen = confined(lambda: change(place), [place])
    assert (seen.status, len(seen.outside)) == (0, is_outside), seen
