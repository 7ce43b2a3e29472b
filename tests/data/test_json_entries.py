"""Large JSON files entry by entry, with chunks so small that every token is cut somewhere."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import probseg.data.json_entries as module
from probseg.data.json_entries import json_entries

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
LAYOUTS = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def expected(content):
    """The same from a file that is read as a whole."""
    entries = []
    for key, value in content.items():
        entries += [(key, entry) for entry in value] if isinstance(value, list) else [(key, value)]
    return entries


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.dictionaries(st.text(), VALUES, max_size=4), layout=LAYOUTS,
       chunk=st.integers(1, 40))  # fmt: skip
def test_entries_are_those_of_the_whole_file(tmp_path, monkeypatch, content, layout, chunk):
    monkeypatch.setattr(module, "CHUNK", chunk)
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content, **layout), encoding="utf-8")
    assert list(json_entries(path)) == expected(content)


@pytest.mark.parametrize("number", ["-12.5e-10", "1E5", "0", "-7", "1234567890123456789"])
def test_numbers_that_are_cut_anywhere(tmp_path, monkeypatch, number):
    path = tmp_path / "file.json"
    path.write_text(f'{{"a": {number}, "b": [{number}, {number}]}}')
    for chunk in range(1, path.stat().st_size + 1):
        monkeypatch.setattr(module, "CHUNK", chunk)
        value = json.loads(number)
        assert list(json_entries(path)) == [("a", value), ("b", value), ("b", value)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunk=st.integers(1, 40), length=st.integers(0, 82))
def test_files_that_are_cut_off_are_refused(tmp_path, monkeypatch, chunk, length):
    monkeypatch.setattr(module, "CHUNK", chunk)
    content = {"images": [{"id": 1}, {"id": -2.5e3}], "n": 12, "annotations": [[], "a]b", True]}
    text = json.dumps(content)
    assert len(text) == 83
    path = tmp_path / "file.json"
    path.write_text(text[:length])
    with pytest.raises(ValueError, match="character"):
        list(json_entries(path))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[1, 2]", 0), ('{"a": [1 2]}', 9), ('{"a": [1,]}', 9), ('{"a": 1} x', 9), ('{"a" 1}', 5),
        ('{"a": [1], }', 11), ('{"a": nothing}', 6), ('{"a": [1}', 8),
    ],
)  # fmt: skip
def test_mistakes_are_placed(tmp_path, text, place):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"at character {place}(,|$)"):
        list(json_entries(path))


def test_keys_are_in_quotes(tmp_path):
    path = tmp_path / "file.json"
    path.write_text("{1: 2}")
    with pytest.raises(ValueError, match="key in quotes, got 1"):
        list(json_entries(path))


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        ('{"a": [1, nothing, ', "Expecting value at character 10"),
        ('{"a": [{"b" 1}, ', "delimiter at character 12"),
        ('{"a": [1x, ', r"expected '\]' at character 8, got 'x'"),
        ('{"a": ["\\x", ', r"Invalid \\escape.* at character 8"),
        ('{"a": ["b\n, ', "Invalid control character at at character 9"),
        ('{"a": [-Infinite, ', "Expecting value at character 7"),
    ],
)
def test_after_a_mistake_no_more_is_read(tmp_path, monkeypatch, begin, told):
    monkeypatch.setattr(module, "CHUNK", 100)
    chunks = []
    read_on = module._Text._read_on
    monkeypatch.setattr(module._Text, "_read_on", lambda text: chunks.append(1) or read_on(text))
    path = tmp_path / "file.json"
    path.write_text(f"{begin}{'1, ' * 5000}1]}}")
    with pytest.raises(ValueError, match=told):
        list(json_entries(path))
    assert len(chunks) == 1


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 1000)
    longest = []

    class Text(module._Text):
        def value(self):
            longest.append(len(self.text))
            return super().value()

    monkeypatch.setattr(module, "_Text", Text)
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"a": [[number] * 5 for number in range(5000)]}))
    assert path.stat().st_size > 100_000
    assert [entry for _, entry in json_entries(path)] == [[number] * 5 for number in range(5000)]
    assert max(longest) < 4000
