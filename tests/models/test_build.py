"""Networks from plain data."""

import copy
import importlib
import sys
from functools import partial

import pytest
import torch
import yaml

from probseg.attention import ATTENTIONS, StandardAttention2d, build_attention, register_attention
from probseg.backbones import BACKBONES, ResNet, register_backbone
from probseg.errors import UnknownNameError
from probseg.heads import HEADS, ConvHead, register_head
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
from probseg.models.build import PARTS
from probseg.models.schema import checked
from probseg.zoo import create_model
from support.micro import described
from support.network_cases import prompts
from support.refusals import refused
from support.rows import each

MAPS = {"class_path": "probseg.clicks.ClickMaps", "init_args": {"radius": 3}}


def micro(**changes):
    return override(read_preset("micro_csa"), changes)


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_builds_and_segments(name):
    description = read_preset(name)
    backbone = description["init_args"]["backbone"]["init_args"]
    assert backbone.get("pretrained", False) is False, "none downloads by itself"
    model = build(description)
    assert isinstance(model, Segmenter)
    assert model.training
    with torch.no_grad():
        logits = model.eval()(torch.rand(2, 3, 37, 53), prompts(batch=2))
    assert logits.shape == (2, 1, 37, 53)
    assert logits.dtype == torch.float32


def test_without_downloads_no_weights_are_fetched_or_named():
    for name, value in (("pretrained", True), ("weights", "/somewhere/weights.pth")):
        wanted = micro(backbone={name: value})
        before = copy.deepcopy(wanted)
        assert without_downloads(wanted) == micro(backbone={"pretrained": False})
        assert wanted == before


def test_changes_reach_any_depth():
    description = read_preset("micro_csa")
    before = copy.deepcopy(description)
    first = override(description, {"head": {"options": {"key_iterations": 3, "head_channels": 8}}})
    second = {"head": {"layout": "full", "options": {"key_iterations": 2}}, "working_size": 99}
    model = build(override(first, second))
    assert description == before
    assert model.head.height is None
    assert model.head.last.settings.key_adaptation.iterations == 2
    assert model.head.last.query.out_channels == 8, "what is not changed stays"
    assert model.working_size == 99


def test_parts_can_be_replaced_and_added():
    for path in ("ConvHead", "probseg.heads.ConvHead", "probseg.heads.conv.ConvHead"):
        assert type(build(micro(head={"class_path": path})).head).__name__ == "ConvHead"
    assert build(micro(click_maps=MAPS)).click_maps.radius == 3
    assert build(override(micro(click_maps=MAPS), {"click_maps": None})).click_maps.radius == 8


NO_PRESETS = ["../../pyproject", "/etc/passwd", "", "micro_csa.yaml"]
FOREIGN = ["os.system", "subprocess.Popen", "torch.nn.Linear", "builtins.eval"]


def test_only_the_projects_own_names_are_known():
    refused(
        UnknownNameError, lambda: read_preset("resnet18_cas"), "'resnet18_cas'", "'resnet18_csa'"
    )
    for path in NO_PRESETS:
        refused(UnknownNameError, partial(read_preset, path), repr(path))
    for path in FOREIGN:
        description = micro(head={"class_path": path, "init_args": {}})
        refused(UnknownNameError, partial(build, description), path)


@each(
    ("error", "changes", "parts"),
    [
        (UnknownNameError, {"head": {"class_path": "heads.ConvHeadd"}}, ["'ConvHead'"]),
        (UnknownNameError, {"backbone": {"class_path": "TimBackbone"}}, ["'TimmBackbone'"]),
        (UnknownNameError, {"decoder": {"class_path": "FPNDecode"}}, ["'FPNDecoder'"]),
        (TypeError, {"head": {"chanels": 8}}, ["CorrectiveSelfAttention", "'channels'"]),
        (TypeError, {"backbone": {"pretraned": True}}, ["TimmBackbone", "'pretrained'"]),
        (TypeError, {"worksize": 8}, ["Segmenter", "'worksize'", "'working_size'"]),
        *(
            (TypeError, {of_timm: 4}, ["known: ['backbone'"])
            for of_timm in ("in_chans", "features_only")
        ),
        (TypeError, {"haed": {"channels": 8}}, ["Segmenter", "'haed'", "'head'"]),
        (TypeError, {"head": {"options": {"key_iteration": 1}}}, ["mean 'key_iterations'"]),
        (ValueError, {"head": "ConvHead"}, ["`head`", "'ConvHead'"]),
        (ValueError, {"head": None}, ["`head`", None]),
        (ValueError, {"click_maps": {"radius": 3}}, ["`click_maps`", "class_path"]),
    ],
)
def test_wrong_changes_are_named(error, changes, parts):
    refused(error, lambda: build(micro(**changes)), *parts)


def test_a_description_names_a_network():
    for wrong in ({}, {"class_path": "probseg.clicks.ClickMaps"}):
        refused(ValueError, partial(build, wrong), "class_path")


# --- variants -----------------------------------------------------------------------------------

CHANGES = {"head": {"layout": "full", "options": {"key_iterations": 2}}, "working_size": 99}


def same(one, other):
    """Say whether two networks are built alike and, with the same weights, answer alike."""
    assert repr(one) == repr(other)
    other.load_state_dict(one.state_dict())
    image = torch.rand(1, 3, 120, 110)
    clicks = prompts((7, 9, 1))
    with torch.no_grad():
        return torch.equal(one.eval()(image, clicks), other.eval()(image, clicks))


def test_a_variant_is_the_model_with_these_changes():
    varied = variant("micro_csa", CHANGES)
    assert same(varied, create_model("micro_csa", **CHANGES))
    assert not same(varied, create_model("micro_csa", **{**CHANGES, "working_size": None}))


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


def test_variants_of_variants_are_resolved_and_built(presets):
    full = read_preset("full")
    assert full["class_path"] == "probseg.models.Segmenter"
    arguments = full["init_args"]["head"]["init_args"]
    assert (arguments["channels"], arguments["layout"]) == (16, "full")
    assert full["init_args"]["working_size"] == 70
    assert read_preset("copy") == resolved(presets["full"]) == full
    model = build(presets["full"])
    assert same(model, variant("wide", {"head": {"layout": "full"}, "working_size": 70}))
    assert model.head.bottleneck[0].out_channels == 16


def test_unknown_names_in_variants_give_the_nearest(presets):
    for action in (
        lambda: variant("wid"),
        lambda: read_preset("lost"),
        lambda: build(presets["lost"]),
    ):
        refused(UnknownNameError, action, "'wid'", "'wide'")
    refused(TypeError, lambda: variant("wide", {"head": {"chanels": 8}}), "'chanels'")


@each(
    ("part", "argument"),
    [("decoder", "inputs"), ("head", "value_channels"), ("fusion", "prompt_channels")],
)
def test_what_the_parts_before_say_cannot_be_described(part, argument):
    fusion = {"class_path": "PromptFusion", "init_args": {"channels": 8}}
    changes = {"prompts": "head", "fusion": fusion}
    assert build(micro(**changes)).fusion.channels == 8
    wrong = override(micro(**changes), {part: {argument: 3}})
    refused(TypeError, lambda: build(wrong), repr(argument))


@pytest.fixture(autouse=True)
def unregistered(monkeypatch):
    for table in (ATTENTIONS, BACKBONES, HEADS):
        monkeypatch.setattr(table, "_own", dict(table._own))


class Cosine(StandardAttention2d):
    """Somebody's attention."""


def test_a_network_with_registered_parts_is_built_and_loaded_by_name():
    register_attention("cosine")(Cosine)
    register_head()(type("MyHead", (ConvHead,), {}))
    with pytest.raises(TypeError, match="is called"):
        register_head(ConvHead)
    register_backbone()(type("MyNet", (ResNet,), {}))
    assert isinstance(build_attention("cosine", 8, 6), Cosine)
    assert isinstance(build_attention(Cosine, 8, 6), Cosine), "a class needs no name"
    assert {"MyHead", "MyNet"} <= set(PARTS), "whatever was merged before"
    description = described("micro_csa", head={"attention": "cosine"})
    stored = checked(description, "a checkpoint")  # as of a run
    model = build(stored)
    assert any(isinstance(part, Cosine) for part in model.modules())


def test_a_class_of_an_imported_module_has_a_dotted_path(monkeypatch):
    path = f"{Cosine.__module__}.Cosine"
    assert isinstance(build_attention(path, 8, 6), Cosine)
    description = checked(described("micro_csa", head={"attention": path}), "a checkpoint")
    assert any(isinstance(part, Cosine) for part in build(description).modules())
    monkeypatch.delitem(sys.modules, Cosine.__module__)
    for wrong in (path, "torch.nn.Linear", "os.system"):  # descriptions come from other people
        refused(KeyError, lambda wrong=wrong: build_attention(wrong, 8, 6), "import its module")


def test_names_are_given_once_and_others_are_unknown():
    refused(ValueError, lambda: register_attention("standard")(Cosine), "standard")
    refused(KeyError, lambda: build_attention("cosine", 8, 6), "cosine")
