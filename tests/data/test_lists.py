"""Lists of names: of photographs, objects and classes."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from support.fakes import draw_scene, save, write_folder
from support.refusals import refused
from support.rows import each

stems = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/\t\ufeff"),
    min_size=1,
    max_size=8,
).filter(str.strip)


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


@given(known=st.lists(stems, min_size=2, unique_by=lambda s: unicodedata.normalize("NFC", s)))
def test_each_photograph_is_found_by_its_stem_and_its_file(tmp_path_factory, known):
    root = tmp_path_factory.mktemp("folder")
    files = {stem: root / "images" / f"{stem}.jpg" for stem in known}
    for form in ("{}.jpg", "images/{}.jpg", "images\\{}.jpg", f"{root}/images/{{}}.jpg"):
        if "\\" in form and any("\\" in stem for stem in known):
            continue  # Windows has no such files
        path = write(root / "list.txt", "\n".join(form.format(stem) for stem in known))
        found, unknown = match_names(path, "split", files.items())
        assert [*found.values()] == known
        assert not unknown


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
def test_the_first_name_of_a_marked_list_counts(tmp_path, encoding, monkeypatch):
    root = write_folder(tmp_path, images=3)
    names = [f"photo{i}#1" for i in range(3)]
    path = write(root / "list.txt", "photo0\r\nphoto2.jpg\r\n", encoding)
    for data in (
        ImageMaskFolder(root, exclude="list.txt"),
        Selected(ImageMaskFolder(root), exclude=path),
    ):
        assert [data.object_name(i) for i in range(len(data))] == names[1:2]
    chosen = ImageMaskFolder(root, split="list.txt")
    assert [chosen.object_name(i) for i in range(len(chosen))] == names[::2]
    path = write(
        root / "w.txt", "".join(f"{name}\t{i}\r\n" for i, name in enumerate(names)), encoding
    )
    assert Selected(ImageMaskFolder(root), weights=path).weights.tolist() == [0, 1, 2]
    path = write(root / "classes.txt", "cat \r\ndog\r\n\r\n", encoding)
    assert read_classes(path) == ["cat", "dog"]
    path = write(root / "val.txt", "2007_1  1\r\n2007_2 -1\r\n", encoding)
    assert first_words(path) == ["2007_1", "2007_2"]
    json = '{"a.jpg": [{"box": [1, 2, 3, 4]}]}'
    for name, text in (("p.csv", "image,x,y\r\na.jpg,3,4\r\n"), ("p.json", json)):
        prompts = read_prompts(write(root / name, text, encoding))
        assert [image.file for image in prompts.images] == ["a.jpg"]


TEXTS = (".txt", ".tsv", ".csv", ".json")


@pytest.mark.parametrize("name", SETS)
def test_all_texts_of_a_data_set_may_have_marks(tmp_path, name):
    root = tmp_path / "set"
    SETS[name].write(root)
    paths = [path for path in sorted(root.rglob("*")) if path.suffix in TEXTS]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    for encoding in ("utf-8-sig", "utf-16") if paths else ():
        for path, text in zip(paths, texts, strict=True):
            write(path, text.replace("\n", "\r\n"), encoding)
        data = SETS[name].open(root)
        names = [data.object_name(i) for i in range(len(data))]
        assert names == [name for _, name, *_ in SETS[name].objects]
    if paths:
        for path in paths:
            path.write_bytes(b"\xff\xfe\xff")
        refused(DataError, lambda: SETS[name].open(root), root, "is no text in UTF-8")


def test_classes_have_the_numbers_of_their_lines(tmp_path):
    path = write(tmp_path / "classes.txt", "cat\ndog house\n\n")
    assert read_classes(path) == ["cat", "dog house"]
    for text, words in (
        ("cat\n\ndog\n", "line 2 is blank"),
        ("cat\ncat \n", "'cat' is there twice"),
    ):
        refused(DataError, lambda t=text: read_classes(write(path, t)), path, words)


def test_lists_of_published_sets_have_each_name_once(tmp_path):
    path = write(tmp_path / "val.txt", "2007_1\n2007_2\n2007_1 \n")
    refused(DataError, lambda: first_words(path), path, "line 3: '2007_1' is in line 1 too")


@each(
    ("options", "words"),
    [
        ({"exclude": "list.txt"}, ["of its 1 names none", "`exclude`"]),
        ({"split": "list.txt"}, ["zz"]),
        ({"prefixes": ["photo", "zz"]}, ["`prefixes`", "none begins with 'zz'", "photo0"]),
    ],
)
def test_a_selection_that_selects_nothing_is_refused(tmp_path, options, words):
    root = write_folder(tmp_path, images=2)
    write(root / "list.txt", "zz\n")
    refused(DataError, lambda: ImageMaskFolder(root, **options), root, *words)


def test_an_image_without_a_mask_can_be_left_out(tmp_path, caplog):
    root = write_folder(tmp_path, images=2)
    save(draw_scene()[0], root / "images" / "bare.jpg")
    write(root / "list.txt", "bare\n")
    assert len(ImageMaskFolder(root, exclude="list.txt")) == 2
    assert not caplog.messages


def test_tables_of_prompts_from_spreadsheets(tmp_path):
    text = "image, object, x ,y\r\ncat.jpg , 1 ,3,4\r\ncat.jpg,1,5, 6\r\n,,,\r\ncat.jpg,2,7,8\r\n"
    (image,) = read_prompts(write(tmp_path / "p.csv", text, "utf-8-sig")).images
    assert image.file == "cat.jpg"
    assert [[(c.x, c.y) for c in one.clicks] for one in image.objects] == [
        [(3, 4), (5, 6)],
        [(7, 8)],
    ]
    for text, words in (
        ("image,x,y\na,b.jpg,3,4\n", ["line 2", "more cells than columns"]),
        ("image,x,y,x\na.jpg,3,4,5\n", ["each once"]),
        ("image;x;y\na.jpg;3;4\n", ["columns", "image;x;y"]),
    ):
        path = write(tmp_path / "p.csv", text)
        refused(DataError, lambda path=path: read_prompts(path), path, *words)
