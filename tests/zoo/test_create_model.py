import dataclasses
import json
import pickle
import re
import sys

import pytest
import torch

import probseg
import probseg.zoo.store as store
from probseg.attention import StandardAttention2d
from probseg.errors import (
    UnknownNameError,
    UsageError,
    WeightsError,
    ZooError,
)
from probseg.models import Segmenter, list_presets
from probseg.semantic import SemanticSegmenter
from probseg.types import Prompts
from probseg.zoo import create_interactive, create_model, list_models
from probseg.zoo.index import CHECKSUMS, CONFIG, WEIGHTS, read_index, write_index
from support.fakes import micro_model
from support.zoos import add_model, ship


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """A zoo in place of the shipped one."""
    root = tmp_path / "zoo"
    for name in ("micro_conv.fakes", "micro_csa.fakes", "micro_emanet.fakes"):
        add_model(root, name)
    ship(monkeypatch, root)
    return root


def answer(model):
    image = torch.rand(1, 3, 40, 56, generator=torch.Generator().manual_seed(0))
    prompts = Prompts(torch.tensor([[[20.0, 10.0]]]), torch.tensor([[1]]), torch.zeros(1, 4) / 0)
    with torch.no_grad():
        return model.eval()(image, prompts)


def test_lists_presets_and_models_with_weights(zoo):
    micro = list_models("micro_*")
    assert {"micro_conv", "micro_csa"} <= set(micro)
    assert micro == sorted(micro)
    assert not any(name.startswith("micro_") for name in list_models()), "they are for tests"
    assert list_models("*csa*", pretrained=True) == ["micro_csa.fakes"]
    all_three = ["micro_conv.fakes", "micro_csa.fakes", "micro_emanet.fakes"]
    assert list_models(pretrained=True) == all_three
    assert list_models("nothing*") == []
    assert {"resnet18_conv", "resnet18_csa", "emanet_resnet50"} <= set(list_models())


def test_lists_the_models_for_one_task(zoo):
    for task in ("interactive", "semantic"):
        listed = list_models(task=task), list_models("micro_*", task=task)
        assert sorted([*listed[0], *listed[1]]) == list_presets(task)
    assert list_models(pretrained=True, task="semantic") == ["micro_emanet.fakes"]
    assert list_models("*conv*", True, "semantic") == []


def test_semantic_models_are_created_by_name_too(zoo):
    fresh = create_model("micro_emanet", head={"num_classes": 4})
    assert isinstance(fresh, SemanticSegmenter)
    assert fresh.training
    assert fresh.num_classes == 4
    loaded = create_model("micro_emanet", pretrained=True)
    assert isinstance(loaded, SemanticSegmenter)
    assert not loaded.training
    assert loaded.num_classes == create_model("micro_emanet.fakes").num_classes == 3
    again = create_model(str(zoo / "micro_emanet.fakes"), pretrained=True)
    image = torch.rand(1, 3, 24, 32)
    torch.testing.assert_close(again(image), loaded(image), rtol=0, atol=0)
    with pytest.raises(WeightsError, match="another architecture"):
        create_model("micro_emanet", pretrained=True, head={"num_classes": 4})


def test_where_clicks_are_wanted_semantic_models_are_refused(zoo):
    assert isinstance(create_interactive("micro_csa", pretrained=True), Segmenter)
    for create in (create_interactive, probseg.Predictor.from_pretrained):
        with pytest.raises(UsageError, match="'micro_emanet' is a model for semantic segmentation"):
            create("micro_emanet")
    assert probseg.Predictor.from_pretrained("micro_csa").clicks == ()


def test_without_weights_a_model_is_fresh_and_trains():
    torch.manual_seed(1)
    one = create_model("micro_csa")
    two = create_model("micro_csa")
    assert one.training
    assert not torch.equal(one.head.bottleneck[0].weight, two.head.bottleneck[0].weight)


@pytest.mark.parametrize("name", ["micro_csa", "micro_csa.fakes"])
def test_weights_are_those_that_were_saved(zoo, name):
    model = create_model(name, pretrained=True)
    assert not model.training
    reference = micro_model("micro_csa")
    store.load_into(reference, zoo / "micro_csa.fakes" / WEIGHTS)
    torch.testing.assert_close(answer(model), answer(reference), rtol=0, atol=0)
    assert model.working_size is None
    assert create_model(name, pretrained=True, working_size=20).working_size == 20
    with pytest.raises(WeightsError, match="another architecture"):
        create_model(name, pretrained=True, head={"channels": 16})


def test_local_folder(zoo):
    folder = str(zoo / "micro_csa.fakes")
    expected = answer(create_model("micro_csa", pretrained=True))
    torch.testing.assert_close(answer(create_model(folder, pretrained=True)), expected)
    assert create_model(folder).training
    for name in ("./nowhere", "owner/name"):
        with pytest.raises(FileNotFoundError, match="hf-hub:owner/name"):
            create_model(name, pretrained=True)


@pytest.mark.parametrize("pretrained", [False, True])
def test_unknown_names(zoo, pretrained):
    with pytest.raises(UnknownNameError, match=r"'micro_cas'.*did you mean 'micro_csa"):
        create_model("micro_cas", pretrained=pretrained)


@pytest.mark.parametrize(
    ("name", "preset", "tag"),
    [
        ("vit_small_patch14_dinov2", "vits_unet_prop", "vit_small_patch14_dinov2.lvd142m"),
        ("sam2_hiera_tiny.fb_r896", "sam2t_unet_prop", "sam2_hiera_tiny.fb_r896"),
        ("resnet10t", "sam2t_unet_prop", "resnet10t.c3_in1k"),
    ],
)
def test_names_of_backbones_get_the_line_that_uses_them(name, preset, tag):
    for pretrained in (False, True):
        with pytest.raises(UsageError, match="is a backbone of timm") as caught:
            create_model(name, pretrained=pretrained)
        line = re.search(r"probseg\.create_model\(.*\)$", str(caught.value))[0]
        assert repr(preset) in line
        assert f"'name': {tag!r}, 'pretrained': True" in line
    with torch.device("meta"):
        model = eval(line.replace("True", "False"), {"probseg": probseg})
    assert isinstance(model, Segmenter)


def test_backbones_for_one_size_have_no_line():
    with pytest.raises(UsageError, match=r"no preset takes: .* any size, got 'levit_128s"):
        create_model("levit_128s")


def test_changes_reach_the_network():
    model = create_model("micro_csa", head={"attention": "standard"}, working_size=64)
    assert isinstance(model.head.last, StandardAttention2d)
    assert model.working_size == 64
    assert not isinstance(create_model("micro_csa").head.last, StandardAttention2d)
    assert create_model("micro_csa", head={"layout": "full"}).head.height is None


def test_unknown_arguments_list_the_nearest():
    with pytest.raises(TypeError, match=r"'chanels'.*'channels'"):
        create_model("micro_csa", head={"chanels": 16})
    with pytest.raises(TypeError, match=r"'hed'.*'head'"):
        create_model("micro_csa", hed={"channels": 16})


def test_a_description_cannot_name_foreign_code(zoo, tmp_path, monkeypatch):
    (tmp_path / "foreign_code.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    folder = zoo / "micro_csa.fakes"
    config = json.loads((folder / CONFIG).read_text())
    config["init_args"]["head"]["class_path"] = "foreign_code.Head"
    (folder / CONFIG).write_text(json.dumps(config))
    listed = read_index(zoo)["micro_csa.fakes"]
    files = {**listed.files, CONFIG: store.file_of(folder / CONFIG)}  # its author lists it, too
    write_index({listed.name: dataclasses.replace(listed, files=files)}, zoo)
    with pytest.raises(UnknownNameError, match=r"part of a network 'foreign_code\.Head'"):
        create_model("micro_csa", pretrained=True)
    assert "foreign_code" not in sys.modules


@pytest.mark.parametrize("content", ["{", "[1]", '{"init_args": 3}'])
def test_damaged_descriptions_are_refused(zoo, content):
    (zoo / "micro_csa.fakes" / CONFIG).write_text(content)
    with pytest.raises(ZooError, match=r"config\.json: .*expected the description of a network"):
        create_model(str(zoo / "micro_csa.fakes"))


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('it was unpickled')",)


def test_nothing_is_unpickled(zoo):
    path = zoo / "micro_csa.fakes" / WEIGHTS
    path.write_bytes(pickle.dumps(Bomb()))
    files = {name: store.file_of(path.parent / name) for name in (WEIGHTS, CONFIG)}
    (path.parent / CHECKSUMS).write_text(store.checksum_lines(files))  # its author lists it, too
    with pytest.raises(WeightsError, match=r"model\.safetensors: cannot be read"):
        create_model(str(zoo / "micro_csa.fakes"), pretrained=True)
