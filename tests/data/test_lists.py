"""Lists of names: of photographs, objects and classes."""

import pytest

from probseg.data import ImageMaskFolder, Selected
from probseg.data.layout import (
    first_words,
    match_names,
    names_to_leave_out,
    names_to_use,
    read_classes,
)
from probseg.data.prompts import read_prompts
from probseg.errors import DataError
from support.drawn_sets import SETS
from support.fakes import write_folder
from support.refusals import refused
from support.rows import each


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


@each(
    ("line", "meant"),
    [
        ("cat", "cat"),
        ("  cat\t0.9", "cat"),
        ("cat.jpg", "cat"),
        ("cat.PNG ", "cat"),
        ("images/cat.jpg", "cat"),
        ("./images/cat", "cat"),
        (r"images\cat.jpg", "cat"),
        ("#1", "#1"),
        ("cafe\u0301", "caf\u00e9"),
        ("v1.2", "v1.2"),
        ('"cat"', "cat"),
        ('  "images/cat.jpg"\t0.9', "cat"),
        ('"a, ""b"".jpg"', 'a, "b"'),
        ('"c"', '"c"'),
        ('"', None),
        ("Cat", None),
        ("cat.txt", None),
        ("other/cat.jpg", None),
        (r"C:\images\cat.jpg", None),
        ("# cat", None),
        ("a.jpg", DataError),
        ("a.jpg.png", "a.jpg"),
    ],
)
def test_ways_to_write_a_name(tmp_path, line, meant):
    known = ("cat", "#1", "caf\u00e9", "v1.2", "a", "a.jpg", 'a, "b"', '"c"', "d")
    names = [(stem, tmp_path / "images" / f"{stem}.png") for stem in known]
    path = write(tmp_path / "list.txt", f"\n{line}\r\n")
    if meant is DataError:
        words = (path, "line 2: 'a.jpg' can be 'a' or 'a.jpg'", "with its suffix")
        refused(DataError, lambda: match_names(path, "split", names), *words)
        return
    found, unknown = match_names(path, "split", names)
    assert found == ({2: meant} if meant else {})
    assert unknown == ([] if meant else [line.split("\t")[0].strip()])


def test_lists_to_use_are_complete_and_lists_to_leave_out_say_what_they_miss(tmp_path, caplog):
    known = [("a", None), ("b", None), ("c", None)]
    path = write(tmp_path / "list.txt", "b\nzz\na\n")
    refused(DataError, lambda: names_to_use(path, "split", known, "odd names"), path, "1 odd", "zz")
    assert names_to_leave_out(path, "exclude", known, "mine") == {"a", "b"}
    assert "1 of its 3 names are not in mine" in caplog.text
    caplog.clear()
    write(path, "x\ny.jpg\n")
    words = (path, "of its 2 names none", "mine", "'a'", "`exclude`")
    refused(DataError, lambda: names_to_leave_out(path, "exclude", known, "mine"), *words)
    write(path, f"\x1b[35ma\x1b[m\na\u200b\n{'z' * 999}\n")  # as `ls` with colours
    unseen = (r"'\x1b[35ma\x1b[m'", r"'a\u200b'", "'zzz")
    message = refused(DataError, lambda: names_to_leave_out(path, "x", known, "mine"), *unseen)
    assert len(message) < 400 + len(str(path))
    write(path, "b\na\nb.jpg\n")
    words = (path, "line 3: 'b' is in line 1 too")
    refused(DataError, lambda: names_to_use(path, "split", known, "odd names"), *words)
    assert names_to_leave_out(path, "exclude", known, "mine") == {"a", "b"}
    assert not caplog.messages
    write(path, "\n\n")
    for read in (names_to_use, names_to_leave_out):
        refused(DataError, lambda r=read: r(path, "split", known, "odd names"), path, "`split`")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_the_first_name_of_a_marked_list_counts(tmp_path, encoding):
    root = write_folder(tmp_path, images=3)

    def marked(name, text):
        return write(root / name, text.replace("\n", "\r\n"), encoding)

    def names_of(data):
        return [data.object_name(i)[5] for i in range(len(data))]

    path = marked("list.txt", "photo0\nphoto2.jpg\n")
    assert names_of(ImageMaskFolder(root, exclude="list.txt")) == ["1"]
    assert names_of(Selected(ImageMaskFolder(root), exclude=path)) == ["1"]
    assert names_of(ImageMaskFolder(root, split="list.txt")) == ["0", "2"]
    path = marked("w.txt", "".join(f"photo{i}#1\t{i}\n" for i in range(3)))
    assert Selected(ImageMaskFolder(root), weights=path).weights.tolist() == [0, 1, 2]
    assert read_classes(marked("classes.txt", "cat \ndog\n\n")) == ["cat", "dog"]
    assert first_words(marked("val.txt", "2007_1  1\n2007_2 -1\n")) == ["2007_1", "2007_2"]
    json = '{"a.jpg": [{"box": [1, 2, 3, 4]}]}'
    for name, text in (("p.csv", "image,x,y\na.jpg,3,4\n"), ("p.json", json)):
        assert [image.file for image in read_prompts(marked(name, text)).images] == ["a.jpg"]


@pytest.mark.parametrize("name", SETS)
def test_all_texts_of_a_data_set_may_have_marks(tmp_path, name):
    SETS[name].write(root := tmp_path / "set")
    suffixes = (".txt", ".tsv", ".csv", ".json")
    texts = {path: path.read_text("utf-8") for path in root.rglob("*") if path.suffix in suffixes}
    if not texts:
        return
    for encoding in ("utf-8-sig", "utf-16"):
        for path, text in texts.items():
            write(path, text.replace("\n", "\r\n"), encoding)
        data = SETS[name].open(root)
        names = [data.object_name(i) for i in range(len(data))]
        assert names == [name for _, name, *_ in SETS[name].objects]
    for path in texts:
        path.write_bytes(b"\xff\xfe\xff")
    refused(DataError, lambda: SETS[name].open(root), root, "is not UTF-8 text")


def test_classes_have_the_numbers_of_their_lines(tmp_path):
    path = write(tmp_path / "classes.txt", "cat\ndog house\n\n")
    assert read_classes(path) == ["cat", "dog house"]
    for read, text, words in (
        (read_classes, "cat\n\ndog\n", "line 2 is blank"),
        (read_classes, "cat\ncat \n", "'cat' is there twice"),
        (first_words, "2007_1\n2007_2\n2007_1 \n", "line 3: '2007_1' is in line 1 too"),
    ):
        refused(DataError, lambda r=read, t=text: r(write(path, t)), path, words)
