import pytest

from probseg.errors import UsageError
from probseg.models import override, read_preset
from probseg.release.presets import as_variant
from support.rows import each

VARIANTS = {
    "nothing": {},
    "number": {"working_size": 50},
    "argument of a part": {"head": {"channels": 16}},
    "new argument of a part": {"head": {"options": {"learn_priors": True}}},
    "several": {"prompts": "head", "backbone": {"output_stride": 16}, "head": {"span": 8}},
    "part left out": {"click_maps": None},
    "another part": {"head": {"class_path": "probseg.heads.ConvHead"}},
}


@each("changes", VARIANTS.values())
def test_changes_are_found_again(changes):
    description = override(read_preset("micro_csa"), changes)
    found = as_variant(description, "micro_csa")
    assert override(read_preset("micro_csa"), found) == description
    assert found == changes or "click_maps" in changes


def test_a_part_that_lost_an_argument_is_given_whole():
    description = read_preset("micro_csa")
    head = dict(description["init_args"]["head"])
    head["init_args"] = {"channels": 8}
    description["init_args"]["head"] = head
    assert as_variant(description, "micro_csa") == {"head": head}


def test_what_only_another_preset_gives_is_refused():
    description = read_preset("micro_csa")
    del description["init_args"]["head"]
    with pytest.raises(UsageError, match="`preset` 'micro_csa'"):
        as_variant(description, "micro_csa")
    with pytest.raises(UsageError, match="`preset` 'mine': there is none of this name for inter"):
        as_variant(read_preset("micro_csa"), "mine")
    with pytest.raises(UsageError, match=r"'micro_csa': there is none .* semantic"):
        as_variant(read_preset("micro_emanet", "semantic"), "micro_csa")
