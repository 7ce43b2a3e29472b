import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probseg.errors import DataError
from probseg.evaluation import (
    PROTOCOLS,
    SCORES,
    ClickRecord,
    ObjectRecord,
    best_and_worst,
    read_objects,
    run_objects,
    unique,
    write_objects,
)
from probseg.evaluation.records import COLUMNS
from support.result_folders import step
from support.rows import each
from support.toy_models import paints_disks, toy_sample

# What Python 3.11 writes of a lone carriage return cannot be read again.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=5)
NAMES |= st.sampled_from(
    ["a,b", 'say "cheese"', "two\nlines", '"\n"', "größe 猫 🐈", "", " x ", "'"]
)
FLOATS = st.floats(allow_nan=False)
MAYBE = st.none() | FLOATS


def steps_of(length):
    clicks = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.booleans())
    scores = st.fixed_dictionaries(dict.fromkeys(SCORES, MAYBE) | {"iou": FLOATS})
    step = st.builds(
        lambda click, scores, seconds: ClickRecord(0, *click, scores, seconds),
        clicks | st.just((None, None, None)),
        scores,
        MAYBE,
    )
    return st.lists(step, min_size=length, max_size=length).map(
        lambda steps: tuple(step._replace(k=k) for k, step in enumerate(steps))
    )


@st.composite
def some_records(draw, most=4, longest=3):
    length = draw(st.integers(1, longest))
    keys = st.tuples(NAMES, NAMES, st.integers(0, 99))
    drawn = draw(st.lists(keys, min_size=1, max_size=most, unique=True))
    return [ObjectRecord(*key, draw(steps_of(length)), draw(NAMES)) for key in drawn]


def write(path, records):
    with path.open("w", newline="", encoding="utf-8") as file:
        write_objects(file, records)
    return path


@given(records=some_records())
def test_what_is_read_is_what_was_written(tmp_path_factory, records):
    path = write(tmp_path_factory.mktemp("records") / "objects.csv", records)
    assert read_objects(path) == records
    assert read_objects(str(path), unfinished=True) == (records if len(records) > 1 else [])


def test_lines_are_for_others_to_read(tmp_path):
    records = run_objects(paints_disks(5), [toy_sample()], PROTOCOLS["gabbur2021"], trials=[2])
    with write(tmp_path / "objects.csv", records).open(newline="") as file:
        header, *rows = list(csv.reader(file))
    assert tuple(header) == COLUMNS
    assert len(rows) == 11
    for row, line in zip(rows, records[0].steps, strict=True):
        cells = dict(zip(header, row, strict=True))
        assert (cells["dataset"], cells["object"], cells["photo"]) == (
            "Toy",
            "object 0",
            "object 0",
        )
        assert (cells["trial"], cells["k"]) == ("2", str(line.k))
        assert cells["sign"] == ("" if line.positive is None else "1" if line.positive else "-1")
        assert cells["x"] == ("" if line.x is None else str(line.x))
        assert float(cells["iou"]) == line.iou


LINE = "D,a,a,,0,{k},,,,0.5,0.5" + "," * (len(COLUMNS) - 11) + "\n"


def test_scores_that_an_older_file_lacks_are_none(tmp_path):
    path = write(tmp_path / "objects.csv", [of_iou("a", 0.25, 0.5)])
    rows = list(csv.reader(path.read_text().splitlines()))
    kept = [n for n, name in enumerate(rows[0]) if name not in ("jump", "brier")]
    path.write_text("".join(f"{','.join(row[n] for n in kept)}\n" for row in rows))
    (record,) = read_objects(path)
    assert [line.iou for line in record.steps] == [0.25, 0.5]
    assert all(line.scores["jump"] is line.scores["brier"] is None for line in record.steps)


HEADER = ",".join(COLUMNS) + "\n"


@each(
    ("text", "message"),
    [
        ("", "columns dataset, object"),
        ("a,b\n1,2\n", r"columns .* got \['a', 'b'\]"),
        (f"{HEADER}D,a,a,,0,zero,,,,0.5,0.5,,,,\n", "line 2 cannot be read .*zero"),
        (f"{HEADER}D,a,a,,0\n", "line 2 cannot be read"),
        (HEADER + LINE.format(k=0) + "Größe\n", "UTF-8"),
        (
            HEADER + LINE.format(k=0) + LINE.format(k=1) + "D,b,b,,0,0" + LINE[12:],
            "its runs have 1 to 2 lines; is it complete",
        ),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    path = tmp_path / "objects.csv"
    path.write_bytes(text.encode("cp1252"))
    with pytest.raises(DataError, match=f"objects.csv: .*{message}"):
        read_objects(path)


def offsets(path, records):
    """The file's length after each whole run, and after each run's first line."""
    ends, begun = [], []
    for n, record in enumerate(records):
        first = ObjectRecord(*record.key, record.steps[:1], record.photo)
        begun.append(write(path, [*records[:n], first]).stat().st_size)
        ends.append(write(path, records[: n + 1]).stat().st_size)
    return ends, begun


@given(records=some_records(most=3, longest=2))
def test_a_file_may_end_at_every_byte(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("cut") / "objects.csv"
    ends, begun = offsets(path, records)
    content = path.read_bytes()
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends)
        seen = sum(begin <= cut for begin in begun)
        # With one run there is nothing to tell its length by.
        assert read_objects(path, unfinished=True) == (records[:whole] if seen > 1 else [])


def test_damage_in_the_middle_is_no_kill(tmp_path):
    path = tmp_path / "objects.csv"
    broken = LINE.format(k=1).replace("0.5", "half")
    path.write_text(HEADER + LINE.format(k=0) + broken + LINE.format(k=2))
    with pytest.raises(DataError, match="line 3 cannot be read"):
        read_objects(path, unfinished=True)


def of_iou(name, *ious, trial=0, dataset="D"):
    steps = tuple(step(k, iou=iou) for k, iou in enumerate(ious))
    return ObjectRecord(dataset, name, trial, steps, name)


def test_each_run_once_sorted_and_the_first_counts():
    runs = [of_iou("b", 0.1), of_iou("a", 0.2, trial=1), of_iou("a", 0.3), of_iou("b", 0.4)]
    assert unique(runs) == [runs[2], runs[1], runs[0]]
    assert unique([]) == []


def test_the_best_and_the_worst_of_each_set_are_telling():
    generator = np.random.default_rng(0)
    means = generator.permutation(20) / 20
    runs = [of_iou(f"{n:02}", mean - 0.01, mean + 0.01) for n, mean in enumerate(means)]
    runs += [
        of_iou("only", 0.5, dataset="other"),
        of_iou("00", -1, trial=1),
        of_iou("01", 9, trial=1),
    ]
    chosen = {("D", f"{n:02}", 0) for n in np.argsort(means)[[0, 1, 2, -3, -2, -1]]}
    assert best_and_worst(runs, few=3) == chosen | {("other", "only", 0)}
    assert len(best_and_worst(runs)) == 9
