import json
from copy import deepcopy

import pytest

from probseg.errors import UnknownNameError, ZooError
from probseg.models import read_preset
from probseg.zoo.index import INDEX, description_of, parse_index, read_index, write_index
from probseg.zoo.store import read_config
from support.rows import each
from support.zoos import add_model


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    root = tmp_path_factory.mktemp("zoo")
    for name in ("micro_conv.b", "micro_conv.a", "micro_emanet.c"):
        add_model(root, name)
    return root


@pytest.fixture
def index(zoo):
    return json.loads((zoo / INDEX).read_text())


def parsed(index):
    return parse_index(json.dumps(index).encode(), "index.json")


def test_the_index_comes_back_in_order(zoo, tmp_path):
    entries = read_index(zoo)
    assert list(entries) == ["micro_conv.b", "micro_conv.a", "micro_emanet.c"]
    write_index(entries, tmp_path)
    assert read_index(tmp_path) == entries
    assert (tmp_path / INDEX).read_bytes() == (zoo / INDEX).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [INDEX]


def test_preset_and_arguments_are_the_description(zoo):
    for name, entry in read_index(zoo).items():
        assert description_of(entry) == read_config(zoo / name)
    assert description_of(read_index(zoo)["micro_conv.a"]) == read_preset("micro_conv")
    changed = read_index(zoo)["micro_emanet.c"]
    assert description_of(changed)["init_args"]["head"]["init_args"]["num_classes"] == 3


def test_no_index(tmp_path):
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="no zoo index; reinstall probseg"):
            read_index(tmp_path)
        (tmp_path / INDEX).mkdir(exist_ok=True)


def test_other_schemas_are_refused(index):
    for schema in (1, 3, "2", None):
        with pytest.raises(ZooError, match=rf"^index\.json: schema {schema} is not 2"):
            parsed({**index, "schema": schema})


def test_files_that_are_no_json_are_refused():
    for content in (b"", b"{", b"\xff\xfe", b"nonsense"):
        with pytest.raises(ZooError, match=r"^here: is not JSON"):
            parse_index(content, "here")


def test_other_documents_are_refused(index):
    documents = [
        ([], "schema: expected"),
        ({}, "schema: expected"),
        ({"schema": 2}, "models: expected a list, got None"),
        ({"schema": 2, "models": {}}, "models: expected a list"),
        ({"schema": 2, "models": [3]}, r"models\[0\]: expected an object, got 3"),
        ({**index, "models": 2 * index["models"]}, r"models\[3\]\.name: expected"),
    ]
    for content, message in documents:
        with pytest.raises(ZooError, match=f"index.json: {message}"):
            parsed(content)


def test_missing_and_surplus_keys_are_named(index):
    for key in list(index["models"][1]):
        row = {name: value for name, value in index["models"][1].items() if name != key}
        with pytest.raises(ZooError, match=rf"models\[1\]\.{key}: expected a value, got 'nothing'"):
            parsed({**index, "models": [index["models"][0], row]})
    index["models"][1]["pickle"] = "weights.pt"
    with pytest.raises(ZooError, match=r"models\[1\]\.pickle: expected one of the keys name, task"):
        parsed(index)


@each(
    ("key", "value", "told"),
    [
        ("name", "micro_conv", r"name: expected architecture\.tag"),
        ("name", "micro_conv.a/..", "name: expected"),
        ("name", "micro_conv.a\n", "name: expected"),
        ("name", None, "name: expected"),
        ("task", "detection", "task: expected interactive or semantic"),
        ("task", ["semantic"], "task: expected"),
        ("description", 3, "description: expected text"),
        ("arguments", [], "arguments: expected an object"),
        ("parameters", 3.5, "parameters: expected a whole number"),
        ("parameters", -1, "parameters: expected a whole number"),
        ("data", "text", "data: expected a list"),
        ("data", [3], r"data\[0\]: expected text"),
        ("hours", "1.5", "hours: expected a finite number"),
        ("hours", float("inf"), "hours: expected a finite number"),
        ("metrics", {"a": 0.5}, r"metrics\.a: expected an object"),
        ("metrics", {"a": {"value": 1}}, r"metrics\.a\.error: expected a value"),
        ("metrics", {"a": {"value": "1", "error": None}}, r"metrics\.a\.value: expected a finite"),
        ("metrics", {"a": {"value": 1, "error": "0"}}, r"metrics\.a\.error: expected a finite"),
        ("files", [], "files: expected an object"),
        ("files", {}, r"files\.model\.safetensors: expected a file, got 'nothing'"),
    ],
)
def test_wrong_values_are_named(index, key, value, told):
    index = deepcopy(index)
    index["models"][2][key] = value
    with pytest.raises(ZooError, match=rf"^index\.json: models\[2\]\.{told}.*damaged: restore"):
        parsed(index)


def test_files_cannot_leave_the_folder_of_their_model(index):
    files = index["models"][0]["files"]
    names = ("../x", "a/b", "/etc/x", "..", ".", ".hidden", "a\\b", "C:x", "", "a\0b", "a\n")
    for name in names:
        index["models"][0]["files"] = {**files, name: {"sha256": "0" * 64, "bytes": 1}}
        with pytest.raises(ZooError, match=r"models\[0\]\.files: expected names of files"):
            parsed(index)


@each(("key", "value"), [("sha256", "0" * 63), ("sha256", "G" * 64), ("bytes", "1"), ("bytes", -1)])
def test_what_files_must_be_is_checked(index, key, value):
    index = deepcopy(index)
    index["models"][0]["files"]["config.json"][key] = value
    with pytest.raises(ZooError, match=rf"models\[0\]\.files\.config\.json\.{key}: expected"):
        parsed(index)


def test_a_preset_is_a_name_and_no_path(index):
    index["models"][0]["preset"] = "../experiment/folder"
    with pytest.raises(UnknownNameError, match="unknown model"):
        description_of(parsed(index)["micro_conv.b"])
