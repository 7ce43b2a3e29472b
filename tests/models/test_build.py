"""Networks from plain data."""

import copy
import math

import pytest
import torch

from probseg.errors import UnknownNameError
from probseg.heads import CorrectiveSelfAttention
from probseg.models import Segmenter, build, list_presets, override, read_preset, without_downloads
from probseg.types import Prompts

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


def test_changes_reach_any_depth():
    model = build(micro(head={"layout": "full", "options": {"key_iterations": 2}}, working_size=99))
    assert isinstance(model.head, CorrectiveSelfAttention)
    assert model.head.height is None
    assert model.head.last.key_adaptation.iterations == 2
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


@pytest.mark.parametrize("wrong", ["ConvHead", 5, None])
def test_a_part_is_changed_by_a_dictionary(wrong):
    text = message(ValueError, lambda: micro(head=wrong))
    for part in ("head must be a dictionary", "head={", repr(wrong)):
        assert part in text


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
