"""Text files in the encodings and with the line ends of all systems."""

import codecs
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probseg.errors import DataError
from probseg.texts import open_as_utf8, open_text, read_json, read_lines, read_text
from support.refusals import refused

WRITTEN = {
    "UTF-8": (b"", "utf-8"),
    "UTF-8 with a mark": (codecs.BOM_UTF8, "utf-8"),
    "UTF-16 LE": (codecs.BOM_UTF16_LE, "utf-16-le"),
    "UTF-16 BE": (codecs.BOM_UTF16_BE, "utf-16-be"),
    "UTF-32 LE": (codecs.BOM_UTF32_LE, "utf-32-le"),
    "UTF-32 BE": (codecs.BOM_UTF32_BE, "utf-32-be"),
}
"""Mark and encoding of each kind of text that is read."""

words = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0\ufeff"))


@pytest.mark.parametrize("mark, encoding", WRITTEN.values(), ids=WRITTEN)  # noqa: PT006
@given(lines=st.lists(words), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_all_marks_and_line_ends_are_read_alike(tmp_path_factory, mark, encoding, lines, end):
    path = tmp_path_factory.mktemp("text") / "list.txt"
    text = "".join(line + end for line in lines)
    path.write_bytes(mark + text.encode(encoding))
    expected = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    assert read_lines(path) == expected
    assert read_text(path) == text
    path.write_bytes(mark + json.dumps(lines, ensure_ascii=False).encode(encoding))
    assert read_json(path) == lines
    with open_as_utf8(path) as file:
        assert json.loads(file.read().decode("utf-8")) == lines


def test_marks_between_joined_lists_belong_to_no_name(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(codecs.BOM_UTF8 + b"a\n" + codecs.BOM_UTF8 + b"b\n")
    assert read_lines(path) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("content", [b"caf\xe9\n", b"a\0b\0", codecs.BOM_UTF16_LE + b"a\0b"])
def test_other_encodings_are_refused(tmp_path, content):
    path = tmp_path / "list.txt"
    path.write_bytes(content)
    refused(DataError, lambda: read_lines(path), path, "is not UTF-8 text", "save it")


def test_what_cannot_be_opened(tmp_path, monkeypatch):
    def denied(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    rows = [
        (tmp_path / "no.txt", "no such file"),
        (tmp_path, "is a folder"),
        (None, "(Permission denied)"),
    ]
    for path, reason in rows:
        if path is None:
            monkeypatch.setattr("pathlib.Path.open", denied)
        for open_it in (open_text, open_as_utf8):
            opened = open_it(path or tmp_path / "no.txt", "check `exclude`")
            refused(DataError, opened.__enter__, path or "no.txt", reason, "check `exclude`")
