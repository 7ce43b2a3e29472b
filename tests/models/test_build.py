"""Networks from plain data."""

import copy
import importlib
import math

import pytest
import torch
import yaml

from probseg.errors import UnknownNameError
from probseg.heads import CorrectiveSelfAttention
from probseg.models import (
    Segmenter,
    build,
    list_presets,
    override,
    read_preset,
    resolved,
    variant,
    without_downloads,
)
from probseg.types import Prompts
from probseg.zoo import create_model

PRESETS = list_presets()


def micro(**changes):
    return override(read_preset("micro_csa"), changes)


def message(error, action):
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


def test_the_documented_presets_exist():
    assert {"micro_conv", "micro_csa", "resnet18_conv", "resnet18_csa"} <= set(PRESETS)
    assert sorted(PRESETS) == PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_and_segments(name):
    model = build(without_downloads(read_preset(name)))
    assert isinstance(model, Segmenter)
    assert model.training
    empty = Prompts(
        torch.zeros(2, 0, 2), torch.zeros(2, 0, dtype=torch.long), torch.full((2, 4), math.nan)
    )
    with torch.no_grad():
        logits = model.eval()(torch.rand(2, 3, 37, 53), empty)
    assert logits.shape == (2, 1, 37, 53)
    assert logits.dtype == torch.float32


@pytest.mark.parametrize("name", PRESETS)
def test_no_preset_downloads_by_itself(name):
    backbone = read_preset(name)["init_args"]["backbone"]["init_args"]
    assert backbone.get("pretrained", False) is False


def test_without_downloads_switches_the_weights_off():
    wanted = micro(backbone={"pretrained": True})
    assert without_downloads(wanted)["init_args"]["backbone"]["init_args"]["pretrained"] is False
    assert wanted["init_args"]["backbone"]["init_args"]["pretrained"] is True  # a copy


def test_without_downloads_names_no_weights_of_this_machine():
    wanted = micro(backbone={"weights": "/somewhere/weights.pth"})
    assert without_downloads(wanted) == micro()
    assert wanted["init_args"]["backbone"]["init_args"]["weights"] == "/somewhere/weights.pth"


def test_changes_reach_any_depth():
    model = build(micro(head={"layout": "full", "options": {"key_iterations": 2}}, working_size=99))
    assert isinstance(model.head, CorrectiveSelfAttention)
    assert model.head.height is None
    assert model.head.last.settings.key_adaptation.iterations == 2
    assert model.working_size == 99


def test_a_part_can_be_replaced_as_a_whole():
    whole = {"class_path": "probseg.heads.ConvHead"}
    assert type(build(micro(head=whole)).head).__name__ == "ConvHead"


def test_a_part_can_be_added():
    maps = {"class_path": "probseg.clicks.ClickMaps", "init_args": {"radius": 3}}
    assert build(micro(click_maps=maps)).click_maps.radius == 3


def test_override_leaves_the_description_alone():
    description = read_preset("micro_csa")
    before = copy.deepcopy(description)
    override(description, {"head": {"channels": 16}, "working_size": 5})
    assert description == before


def test_short_and_long_class_paths_mean_the_same():
    for path in ("ConvHead", "probseg.heads.ConvHead", "probseg.heads.conv.ConvHead"):
        assert type(build(micro(head={"class_path": path})).head).__name__ == "ConvHead"


def test_an_unknown_preset_gives_the_nearest():
    text = message(UnknownNameError, lambda: read_preset("resnet18_cas"))
    assert "'resnet18_cas'" in text
    assert "'resnet18_csa'" in text


@pytest.mark.parametrize("path", ["../../pyproject", "/etc/passwd", "", "micro_csa.yaml"])
def test_a_preset_is_a_name_and_no_path(path):
    assert repr(path) in message(UnknownNameError, lambda: read_preset(path))


@pytest.mark.parametrize(
    "path", ["os.system", "subprocess.Popen", "torch.nn.Linear", "builtins.eval"]
)
def test_foreign_classes_are_refused(path):
    changes = {"class_path": path, "init_args": {}}
    assert path in message(UnknownNameError, lambda: build(micro(head=changes)))


@pytest.mark.parametrize(
    ("part", "wrong", "right"),
    [
        ("head", "probseg.heads.ConvHeadd", "ConvHead"),
        ("backbone", "probseg.backbones.TimBackbone", "TimmBackbone"),
        ("decoder", "FPNDecode", "FPNDecoder"),
    ],
)
def test_an_unknown_part_gives_the_nearest(part, wrong, right):
    text = message(UnknownNameError, lambda: build(micro(**{part: {"class_path": wrong}})))
    assert wrong in text
    assert repr(right) in text


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"head": {"chanels": 8}}, ["CorrectiveSelfAttention", "'chanels'", "'channels'"]),
        ({"backbone": {"pretraned": True}}, ["TimmBackbone", "'pretraned'", "'pretrained'"]),
        ({"decoder": {"stirde": 8}}, ["FPNDecoder", "'stirde'", "'stride'"]),
        ({"worksize": 8}, ["Segmenter", "'worksize'", "'working_size'"]),
        ({"haed": {"channels": 8}}, ["Segmenter", "'haed'", "'head'"]),
    ],
)
def test_an_unknown_argument_gives_the_nearest(changes, parts):
    text = message(TypeError, lambda: build(micro(**changes)))
    for part in parts:
        assert part in text


def test_an_unknown_option_of_the_attention_is_named():
    wrong = {"options": {"key_iteration": 1}}
    assert "'key_iteration'" in message(TypeError, lambda: build(micro(head=wrong)))


@pytest.mark.parametrize("wrong", ["ConvHead", 5])
def test_a_part_is_changed_by_a_dictionary(wrong):
    text = message(ValueError, lambda: micro(head=wrong))
    for part in ("head must be a dictionary", "head={", repr(wrong)):
        assert part in text


def test_a_part_can_be_left_out_if_the_network_does_without():
    maps = {"class_path": "probseg.clicks.ClickMaps", "init_args": {"radius": 3}}
    with_maps = micro(click_maps=maps)
    assert build(override(with_maps, {"click_maps": None})).click_maps.radius == 8
    for part in ("backbone", "decoder", "head"):
        text = message(ValueError, lambda part=part: build(micro(**{part: None})))
        assert f"{part} must be a part of the network, got None" in text


def test_arguments_for_a_part_that_is_not_there_are_refused():
    text = message(ValueError, lambda: build(micro(click_maps={"radius": 3})))
    for part in ("click_maps", "class_path", "init_args", "'radius': 3"):
        assert part in text


def test_a_description_names_a_class():
    assert "class_path" in message(ValueError, lambda: build({}))
    assert "class_path" in message(ValueError, lambda: build({"init_args": {}}))


def test_the_outermost_part_is_a_segmenter():
    text = message(ValueError, lambda: build({"class_path": "probseg.clicks.ClickMaps"}))
    assert "Segmenter" in text
    assert "ClickMaps" in text


# --- variants -----------------------------------------------------------------------------------

CHANGES = {"head": {"layout": "full", "options": {"key_iterations": 2}}, "working_size": 99}


def same(one, other):
    """Say whether two networks are built alike and, with the same weights, answer alike."""
    assert repr(one) == repr(other)
    other.load_state_dict(one.state_dict())
    image = torch.rand(1, 3, 120, 110)
    clicks = Prompts(torch.tensor([[[7.0, 9.0]]]), torch.tensor([[1]]), torch.zeros(1, 4) / 0)
    with torch.no_grad():
        return torch.equal(one.eval()(image, clicks), other.eval()(image, clicks))


def test_a_variant_is_the_model_with_these_changes():
    varied = variant("micro_csa", CHANGES)
    assert same(varied, create_model("micro_csa", **CHANGES))
    assert varied.working_size == 99
    assert not same(varied, create_model("micro_csa", **{**CHANGES, "working_size": None}))
    assert same(variant("micro_csa"), create_model("micro_csa"))


@pytest.fixture
def presets(tmp_path, monkeypatch):
    """Presets of this test only: a network, a variant of it, and a variant of the variant."""
    folder = tmp_path / "model"
    folder.mkdir()
    first = {"of": "base", "changes": {"head": {"channels": 16}, "working_size": 50}}
    second = {"of": "wide", "changes": {"head": {"layout": "full"}, "working_size": 70}}
    written = {
        "base": read_preset("micro_csa"),
        "wide": {"class_path": "probseg.models.variant", "init_args": first},
        "full": {"class_path": "probseg.models.variant", "init_args": second},
        "copy": {"class_path": "variant", "init_args": {"of": "full"}},
        "lost": {"class_path": "probseg.models.variant", "init_args": {"of": "wid"}},
    }
    for name, description in written.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(description))
    module = importlib.import_module("probseg.models.build")  # its name is a function's, too
    monkeypatch.setattr(module, "configs_dir", lambda: tmp_path)
    return written


def test_presets_that_are_variants_are_resolved(presets):
    wide, full = read_preset("wide"), read_preset("full")
    assert wide["class_path"] == full["class_path"] == "probseg.models.Segmenter"
    assert wide == override(presets["base"], presets["wide"]["init_args"]["changes"])
    arguments = full["init_args"]["head"]["init_args"]
    assert (arguments["channels"], arguments["layout"]) == (16, "full")
    assert full["init_args"]["working_size"] == 70
    assert read_preset("copy") == full
    assert resolved(presets["full"]) == full
    assert resolved(presets["base"]) is presets["base"]


def test_variants_of_variants_are_built(presets):
    model = build(presets["full"])
    assert same(model, variant("wide", {"head": {"layout": "full"}, "working_size": 70}))
    assert same(model, create_model("copy"))
    assert model.head.height is None
    assert model.head.bottleneck[0].out_channels == 16


def test_unknown_names_in_variants_give_the_nearest(presets):
    for action in (
        lambda: variant("wid"),
        lambda: read_preset("lost"),
        lambda: build(presets["lost"]),
    ):
        text = message(UnknownNameError, action)
        assert "'wid'" in text
        assert "'wide'" in text
    assert "'chanels'" in message(TypeError, lambda: variant("wide", {"head": {"chanels": 8}}))
    assert "head must be" in message(ValueError, lambda: variant("wide", {"head": 8}))


@pytest.mark.parametrize(
    ("part", "argument"),
    [("decoder", "inputs"), ("head", "value_channels"), ("fusion", "prompt_channels")],
)
def test_what_the_parts_before_say_cannot_be_described(part, argument):
    fusion = {"class_path": "PromptFusion", "init_args": {"channels": 8}}
    changes = {"prompts": "head", "fusion": fusion}
    assert build(micro(**changes)).fusion.channels == 8
    wrong = override(micro(**changes), {part: {argument: 3}})
    assert repr(argument) in message(TypeError, lambda: build(wrong))


def test_dictionaries_of_options_keep_what_is_not_changed():
    head = {"options": {"key_iterations": 3, "head_channels": 8}}
    description = override(micro(head=head), {"head": {"options": {"key_iterations": 2}}})
    options = description["init_args"]["head"]["init_args"]["options"]
    assert options == {"key_iterations": 2, "head_channels": 8}
