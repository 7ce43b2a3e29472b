"""Parts of other people: registered, they are found by name, and networks with them load again."""

import pytest

from probseg.attention import ATTENTIONS, StandardAttention2d, build_attention, register_attention
from probseg.backbones import BACKBONES, ResNet, register_backbone
from probseg.heads import HEADS, ConvHead, register_head
from probseg.models import build
from probseg.models.build import PARTS
from probseg.models.schema import checked
from support.micro import described
from support.refusals import refused


@pytest.fixture(autouse=True)
def unregistered(monkeypatch):
    for table in (ATTENTIONS, BACKBONES, HEADS):
        monkeypatch.setattr(table, "_own", dict(table._own))


class Cosine(StandardAttention2d):
    """Somebody's attention."""


def test_a_network_with_registered_parts_is_built_and_loaded_by_name():
    register_attention("cosine")(Cosine)
    register_head()(type("MyHead", (ConvHead,), {}))
    register_backbone()(type("MyNet", (ResNet,), {}))
    assert isinstance(build_attention("cosine", 8, 6), Cosine)
    assert isinstance(build_attention(Cosine, 8, 6), Cosine), "a class needs no name"
    assert {"MyHead", "MyNet"} <= set(PARTS), "whatever was merged before"
    description = described("micro_csa", head={"attention": "cosine"})
    stored = checked(description, "a checkpoint")  # as of a run
    model = build(stored)
    assert any(isinstance(part, Cosine) for part in model.modules())


def test_names_are_given_once_and_others_are_unknown():
    refused(ValueError, lambda: register_attention("standard")(Cosine), "standard")
    refused(KeyError, lambda: build_attention("cosine", 8, 6), "cosine")
