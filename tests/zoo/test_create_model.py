import re

import pytest
import torch

import probseg
import probseg.zoo.store as store
from probseg.attention import StandardAttention2d
from probseg.errors import (
    UnknownNameError,
    UsageError,
    WeightsError,
)
from probseg.models import Segmenter, list_presets
from probseg.semantic import SemanticSegmenter
from probseg.types import Prompts
from probseg.zoo import create_interactive, create_model, list_models
from probseg.zoo.index import WEIGHTS
from support.fakes import micro_model
from support.rows import each
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
    assert list_models("micro*", exclude_filters="*") == []
    some = list_models(["micro_csa", "micro_c*"], exclude_filters=["*conv"])
    assert some == [name for name in micro if name[:7] == "micro_c" and name[-4:] != "conv"]
    assert {"resnet18_conv", "resnet18_csa", "emanet_resnet50"} <= set(list_models())
    for task in ("interactive", "semantic"):
        listed = list_models(task=task), list_models("micro_*", task=task)
        assert sorted([*listed[0], *listed[1]]) == list_presets(task)
    assert list_models(pretrained=True, task="semantic") == ["micro_emanet.fakes"]
    with pytest.raises(UnknownNameError, match="unknown task 'clicks'"):
        list_models(task="clicks")


def test_semantic_models_are_created_by_name_too(zoo):
    fresh = create_model("micro_emanet", head={"num_classes": 4})
    assert isinstance(fresh, SemanticSegmenter)
    assert (fresh.training, fresh.num_classes) == (True, 4)
    loaded = create_model("micro_emanet", pretrained=True)
    assert isinstance(loaded, SemanticSegmenter)
    assert not loaded.training
    assert loaded.num_classes == create_model("micro_emanet.fakes").num_classes == 3
    for create in (create_interactive, probseg.Predictor.from_pretrained):
        with pytest.raises(UsageError, match="'micro_emanet' is a model for semantic segmentation"):
            create("micro_emanet")


@pytest.mark.parametrize("name", ["micro_csa", "micro_csa.fakes", "{zoo}/micro_csa.fakes"])
def test_weights_are_those_that_were_saved(zoo, name):
    name = name.format(zoo=zoo)
    model = create_interactive(name, pretrained=True)
    assert not model.training
    reference = micro_model("micro_csa")
    store.load_into(reference, zoo / "micro_csa.fakes" / WEIGHTS)
    torch.testing.assert_close(answer(model), answer(reference), rtol=0, atol=0)
    assert create_model(name).training
    assert create_model(name, pretrained=True, working_size=20).working_size == 20
    with pytest.raises(WeightsError, match="another architecture"):
        create_model(name, pretrained=True, head={"channels": 16})


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


@each(
    ("arguments", "error", "message"),
    [
        ({"name": "micro_cas"}, UnknownNameError, "'micro_cas'.*did you mean 'micro_csa"),
        (
            {"name": "micro_cas", "pretrained": True},
            UnknownNameError,
            "'micro_cas'.*did you mean 'micro_csa",
        ),
        ({"name": "./nowhere", "pretrained": True}, FileNotFoundError, "hf-hub:owner/name"),
        ({"name": "owner/name", "pretrained": True}, FileNotFoundError, "hf-hub:owner/name"),
        ({"name": "levit_128s"}, UsageError, "no preset takes: .* any size, got 'levit_128s"),
        ({"name": "micro_csa", "head": {"chanels": 16}}, TypeError, "'chanels'.*'channels'"),
        ({"name": "micro_csa", "hed": {"channels": 16}}, TypeError, "'hed'.*'head'"),
    ],
)
def test_wrong_names_list_the_nearest(zoo, arguments, error, message):
    with pytest.raises(error, match=message):
        create_model(**arguments)


def test_changes_reach_the_network():
    model = create_model("micro_csa", head={"attention": "standard"}, working_size=64)
    assert isinstance(model.head.last, StandardAttention2d)
    assert model.working_size == 64
    assert not isinstance(create_model("micro_csa").head.last, StandardAttention2d)
    assert create_model("micro_csa", head={"layout": "full"}).head.height is None
