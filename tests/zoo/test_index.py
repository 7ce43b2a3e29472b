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


@each(
    ("content", "told"),
    [
        *((content, "is not JSON") for content in (b"", b"{", b"\xff\xfe", b"nonsense")),
        *((content, "schema None is not 2") for content in (b"[]", b"{}", b'{"schema": null}')),
        *((b'{"schema": %d}' % schema, f"schema {schema} is not 2") for schema in (1, 3)),
        (b'{"schema": 2}', "models: .* got None"),
        (b'{"schema": 2, "models": {}}', "models: .* got {}"),
        (b'{"schema": 2, "models": [3]}', r"models\[0\]: .* got 3"),
    ],
)
def test_other_documents_are_refused(content, told):
    with pytest.raises(ZooError, match=f"^here: {told}"):
        parse_index(content, "here")


FILE = {"sha256": "0" * 64, "bytes": 1}
NAMES = ("../x", "a/b", "/etc/x", "..", ".", ".hidden", "a\\b", "C:x", "", "a\0b", "a\n")
FILES = {"model.safetensors": FILE, "config.json": FILE}


@each(
    ("key", "value", "told"),
    [
        *(("name", value, "name: ") for value in ("micro_conv", "a.b/..", "a.b\n", None)),
        *(("task", value, "task: ") for value in ("detection", ["semantic"])),
        ("description", 3, "description: "),
        ("arguments", [], "arguments: "),
        *(("parameters", value, "parameters: ") for value in (3.5, -1, True)),
        *(("data", value, "data") for value in ("text", [3])),
        *(("hours", value, "hours: ") for value in ("1.5", float("inf"))),
        ("metrics", {"a": 0.5}, r"metrics\.a: "),
        ("metrics", {"a": {"value": 1}}, r"metrics\.a\.error: "),
        ("metrics", {"a": {"value": "1", "error": None}}, r"metrics\.a\.value: "),
        ("metrics", {"a": {"value": 1, "error": "0"}}, r"metrics\.a\.error: "),
        ("files", [], "files: "),
        ("files", {}, r"files\.model\.safetensors: expected a file"),
        *(("files", {**FILES, name: FILE}, "files: expected names of files") for name in NAMES),
        *(
            ("files", {**FILES, "config.json": FILE | wrong}, r"files\.config\.json\.")
            for wrong in ({"sha256": "0" * 63}, {"sha256": "G" * 64}, {"bytes": "1"}, {"bytes": -1})
        ),
        ("pickle", "weights.pt", "pickle: "),
        ("hours", ..., "hours: "),
        ("name", "micro_conv.b", "name: expected a name that no other has"),
    ],
)
def test_wrong_values_are_named(index, key, value, told):
    index = deepcopy(index)
    index["models"][2][key] = value
    if value is ...:
        del index["models"][2][key]
    with pytest.raises(ZooError, match=rf"^index\.json: models\[2\]\.{told}.*damaged: restore"):
        parse_index(json.dumps(index).encode(), "index.json")


def test_a_preset_is_a_name_and_no_path(index):
    index["models"][0]["preset"] = "../experiment/folder"
    entries = parse_index(json.dumps(index).encode(), "index.json")
    with pytest.raises(UnknownNameError, match="unknown model"):
        description_of(entries["micro_conv.b"])
