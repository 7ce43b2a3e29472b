"""Model folders, checkpoints and models of the hub in strangers' hands: plain data, or refused."""

import contextlib
import copy
import json
import struct
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg import create_model
from probseg.errors import USER_ERRORS, UnknownNameError, WeightsError, ZooError
from probseg.models import list_presets, read_preset
from probseg.models.schema import checked
from probseg.weight_files import read_pickled
from probseg.zoo.index import CONFIG
from probseg.zoo.store import save
from support.confined import confined
from support.fakes import micro_model
from support.micro import MICRO, described

BACKBONE = ("init_args", "backbone", "init_args")
OVERLAY = {"url": "http://127.0.0.1:9160/.bash_aliases", "hf_hub_id": None, "source": None}


def shared(levels):
    """A list of few bytes whose text would have 2 ** levels elements."""
    value = [1]
    for _ in range(levels):
        value = [value, value]
    return value


def changed(place, value):
    """The description of a small network with one value put somewhere."""
    description = copy.deepcopy(read_preset("micro_csa"))
    node = description
    for key in place[:-1]:
        node = node.setdefault(key, {})
    node[place[-1]] = value
    return description


HOSTILE = {
    **{
        f"option {key}": ((*BACKBONE, "options"), {key: value})
        for key, value in {
            "pretrained": True,
            "pretrained_cfg": {"url": "file:///etc/passwd"},
            "pretrained_cfg_overlay": OVERLAY,
            "checkpoint_path": "weights.pth",
            "cache_dir": "/tmp",
            "features_only": False,
            "weights": "x",
            "layers": [10**7],
            "depth": 65,
            "norm_layer": "os.system(1)",
        }.items()
    },
    "hub": ((*BACKBONE, "name"), "hf-hub:a/b"),
    "folder": ((*BACKBONE, "name"), "local-dir:/tmp"),
    "NUL": ((*BACKBONE, "name"), "resnet18\0"),
    "negative": (("init_args", "working_size"), -5),
    "huge": (("init_args", "working_size"), 10**400),
    "text": (("init_args", "temperature"), "1"),
    "no number": (("init_args", "temperature"), float("nan")),
    "channels": (("init_args", "head", "init_args", "channels"), 10**9),
    "iterations": (("init_args", "head", "init_args", "propagation_iterations"), 10**6),
    "unknown key": (("init_args", "cache_dir"), "x"),
    "beside": (("weights",), "x"),
    "shared lists": (("init_args", "head", "init_args", "channels"), shared(60)),
    "class in options": (
        ("init_args", "head", "init_args", "options"),
        {"key_prior": {"class_path": "os.system"}},
    ),
    "of another kind": (("init_args", "decoder"), {"class_path": "ConvHead"}),
    "no list": (("init_args",), 3),
}


@pytest.mark.parametrize(("place", "value"), HOSTILE.values(), ids=HOSTILE)
def test_only_settings_of_architecture_are_taken(place, value):
    with pytest.raises(ZooError, match="weights of a stranger"):
        checked(changed(place, value), "weights of a stranger")


@pytest.mark.parametrize("name", ["os.system", "", shared(60), 3, "x" * 10**6])
def test_classes_are_those_of_the_registries(name):
    for place in (("class_path",), ("init_args", "head", "class_path")):
        with pytest.raises(UnknownNameError) as refused:
            checked(changed(place, name), "a file")
        assert len(str(refused.value)) < 2000


def test_parts_of_ones_own_are_to_be_imported():
    for name, is_own in (("my_parts.MyHead", True), ("probseg.heads.MyHead", False)):
        with pytest.raises(UnknownNameError) as refused:
            checked(changed(("init_args", "head", "class_path"), name), "a file")
        assert ("once they are imported" in str(refused.value)) == is_own


def test_pretrained_weights_are_neither_fetched_nor_read():
    arguments = checked(changed((*BACKBONE, "pretrained"), True), "a file")["init_args"]
    assert not arguments["backbone"]["init_args"].get("pretrained")
    other = checked(changed((*BACKBONE, "weights"), "/etc/passwd"), "a file")
    assert "weights" not in other["init_args"]["backbone"]["init_args"]


def test_all_presets_and_small_networks_are_within_the_schema():
    for task in ("interactive", "semantic"):
        for name in list_presets(task):
            checked(read_preset(name, task), name)
    for name in MICRO:
        assert checked(described(name), name) == described(name)


def places(node, start=()):
    for key, value in node.items():
        yield (*start, key)
        if isinstance(value, dict):
            yield from places(value, (*start, key))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**9, 10**400)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["hf-hub:a/b", "/etc/passwd", "http://127.0.0.1/", "\0", "os.system"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
PLACES = [*places(read_preset("micro_csa")), ("init_args", "x"), (*BACKBONE, "options", "x")]


@given(st.sampled_from(PLACES), ANYTHING)
def test_any_change_is_a_network_or_an_error_of_ours(tmp_path_factory, place, value):
    folder = tmp_path_factory.mktemp("model")
    (folder / CONFIG).write_text(json.dumps(changed(place, value)))
    with contextlib.suppress(*USER_ERRORS):
        create_model(f"{folder}/")


@pytest.mark.parametrize("text", ["[" * 200_000, "", "{}", "\0", '{"class_path": ' * 5000, "NaN"])
def test_files_that_are_no_description(tmp_path, text):
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(ZooError, match=CONFIG):
        create_model(f"{tmp_path}/")


def write(path, state, model=None, **more):
    """Write a checkpoint as Lightning does."""
    node = model or {"class_path": "probseg.models.variant", "init_args": {"of": "micro_csa"}}
    content = {"state_dict": state, "hyper_parameters": {"model": node}, **more}
    torch.save(content, path)
    return path


def variant(**changes):
    return {"class_path": "variant", "init_args": {"of": "micro_csa", "changes": changes}}


def named(name):
    return {"class_path": "create_model", "init_args": {"name": name, "pretrained": True}}


ONE = {"model.x": torch.zeros(1)}
ALIASES = dict.fromkeys((f"model.{number}" for number in range(2000)), torch.zeros(100_000))
CHECKPOINTS = {
    "strides of 0": ({"state": {"model.x": torch.zeros(1).expand(2**31)}}, "too few bytes"),
    "one storage often": ({"state": ALIASES}, "too few bytes"),
    "averages of strides 0": (
        {"state": ONE, "current_model_state": {"model.x": torch.zeros(1).expand(2**31)}},
        "too few bytes",
    ),
    "a list": ({"state": [torch.zeros(1)]}, "no training state"),
    "numbers": ({"state": {"model.x": 1}}, "no training state"),
    "sections": ({"state": ONE, "callbacks": [1]}, "no training state"),
    "a name of lists": ({"state": ONE, "model": named(shared(60))}, "network"),
    "a path": ({"state": ONE, "model": named("/etc/")}, "network"),
    "the hub": ({"state": ONE, "model": named("hf-hub:a/b")}, "network"),
    "a cache": (
        {"state": ONE, "model": variant(backbone={"options": {"cache_dir": "/tmp"}})},
        "cache_dir",
    ),
    "another class": ({"state": ONE, "model": variant(head=shared(60))}, "network"),
    "a network of gigabytes": (
        {"state": ONE, "model": variant(backbone={"name": "vit_giant_patch14_dinov2"})},
        "numbers",
    ),
    "sparse": ({"state": {"model.x": torch.zeros(3).to_sparse()}}, "plain tensors|no training"),
}


@pytest.mark.parametrize(("content", "told"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_checkpoints_that_claim_more_than_they_hold(tmp_path, content, told):
    path = write(tmp_path / "a.ckpt", **content)
    with pytest.raises((WeightsError, ZooError), match=told):
        create_model(str(path), pretrained=True)


@pytest.mark.parametrize("attack", ["compressed", "bytearray", "twice", "long pickle"])
def test_pickles_that_unpack_to_more(tmp_path, attack):
    path, other = write(tmp_path / "a.ckpt", ONE), tmp_path / "b.ckpt"
    size = struct.pack("<Q", 2**35)[:5]
    content = {
        "bytearray": b"\x80\x02c__builtin__\nbytearray\n\x8a\x05" + size + b"\x85R.",
        "long pickle": b"\x80\x02" + b"]" * (17 * 2**20),
    }.get(attack)
    kind = zipfile.ZIP_DEFLATED if attack == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(path) as file, zipfile.ZipFile(other, "w", kind) as changed_file:
        for entry in file.infolist():
            is_pickle = entry.filename.endswith("data.pkl")
            data = content if content and is_pickle else file.read(entry)
            for _ in range(1 + (attack == "twice" and is_pickle)):
                changed_file.writestr(entry.filename, data)
    with pytest.raises(WeightsError, match=r"b\.ckpt"):
        read_pickled(other, "a checkpoint")
    if attack == "bytearray":
        (tmp_path / "c.pth").write_bytes(content)
        with pytest.raises(WeightsError, match=r"c\.pth: holds a bytearray"):
            read_pickled(tmp_path / "c.pth", "a checkpoint", legacy=True)


def test_nothing_is_written_asked_or_run_outside(tmp_path):
    save(micro_model("micro_csa"), read_preset("micro_csa"), tmp_path / "base")
    paths = []
    for number, (place, value) in enumerate(HOSTILE.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        if isinstance(value, list):
            continue  # JSON has no shared lists
        for file in (tmp_path / "base").iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        (folder / CONFIG).write_text(json.dumps(changed(place, value)))
        paths.append(f"{folder}/")
    for number, (content, _) in enumerate(CHECKPOINTS.values()):
        paths.append(str(write(tmp_path / f"{number}.ckpt", **content)))

    def load():
        for path in paths:
            with pytest.raises(USER_ERRORS):
                create_model(path, pretrained=True)

    seen = confined(load, allowed=[])
    assert (seen.status, seen.outside) == (0, []), seen.text
    assert seen.peak < 500
