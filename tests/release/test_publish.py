"""Publishing a network in Python: the folder, the line in the index, and what is refused."""

import copy
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from probseg.errors import DataError, UsageError, WeightsError
from probseg.models import override, read_preset
from probseg.release.evaluations import Evaluation, read_evaluations
from probseg.release.publish import PARITY, Facts, as_variant, facts_of, publish
from probseg.zoo import create_model
from probseg.zoo.index import CARD, CHECKSUMS, CONFIG, WEIGHTS, Metric, description_of, read_index
from probseg.zoo.lookup import find_verified
from probseg.zoo.store import read_config
from probseg.zoo.trained import Trained
from support.fakes import micro_model
from support.hubs import hub_on_this_machine
from support.refusals import refused
from support.rows import each
from support.tested import FACTS
from support.zoos import add_model

MEASURED = Evaluation(
    key="Toy/ritm",
    dataset="Toy",
    protocol={"name": "ritm", "version": 1, "description": "Clicks.", "box": False},
    options={"seed": 0, "adaptation": None},
    data=None,
    count={"objects": 4, "trials": 1},
    figures={"miou@1": Metric(0.51234, 0.0123), "noc@90": Metric(7.5, None)},
)


def trained_of(model, description, preset=None, **more):
    return Trained(Path("run"), description, preset, model.state_dict(), frozenset({"ab"}), **more)


@pytest.fixture
def trained():
    return trained_of(micro_model("micro_csa"), read_preset("micro_csa"))


def facts(**more):
    return Facts(**{**FACTS, **more})


def test_a_model_folder_and_its_line(trained, tmp_path):
    model = micro_model("micro_csa")
    entry = publish(trained, "micro_csa.mine", tmp_path, facts(), [MEASURED])
    assert read_index(tmp_path) == {"micro_csa.mine": entry}
    folder = find_verified("micro_csa.mine", tmp_path).folder
    assert {path.name for path in folder.iterdir()} == {*entry.files, CARD, CHECKSUMS}
    listed = [line.split() for line in (folder / CHECKSUMS).read_text().splitlines()]
    assert listed == [[file.sha256, name] for name, file in entry.files.items()]
    assert set(entry.files) == {WEIGHTS, CONFIG, "evaluations.json"}
    assert (entry.task, entry.preset, entry.arguments) == ("interactive", "micro_csa", {})
    assert entry.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert entry.input == {"working_size": None, "prompts_enter": "stem", "previous_mask": False}
    assert entry.metrics == {
        f"Toy/ritm/{name}": figure for name, figure in MEASURED.figures.items()
    }
    assert facts_of(entry) == facts()
    assert publish(trained, "mine.one", tmp_path, facts(), preset="micro_csa").preset == "micro_csa"
    again = publish(trained, "micro_csa.mine", tmp_path, facts(description="Another."))
    assert next(iter(read_index(tmp_path).values())) == again, "the others and the order are kept"
    assert not (folder / "evaluations.json").exists()
    assert {path.name for path in tmp_path.iterdir()} == {
        "micro_csa.mine",
        "mine.one",
        "index.json",
    }
    publish(trained, "micro_csa.mine", tmp_path, facts(), [MEASURED])
    assert read_evaluations(folder) == [MEASURED]
    assert "was not checked" in (folder / CARD).read_text()
    assert not list(tmp_path.glob(".*")), "nothing is left of the making"


PLACES = "data:\n  root: /home/me/photos\n"
VARIED = {"head": {"channels": 16}, "working_size": 50, "previous_mask": True}


def test_a_variant_is_published_as_the_network_itself(tmp_path):
    description = override(read_preset("micro_csa"), VARIED)
    trained = trained_of(micro_model("micro_csa", **VARIED), description, "micro_csa")
    for name in ("micro_csa.varied", "mine.varied"):
        entry = publish(trained, name, tmp_path, facts())
        assert entry.preset == "micro_csa"
        assert entry.arguments == VARIED
        assert read_config(tmp_path / name) == description == description_of(entry)
        assert entry.input == {"working_size": 50, "prompts_enter": "stem", "previous_mask": True}
        assert create_model(str(tmp_path / name), pretrained=True).working_size == 50
    entry = publish(trained, "micro_csa.wide", tmp_path, facts(), changes={"working_size": 96})
    assert entry.arguments == {**VARIED, "working_size": 96}


def test_a_published_backbone_needs_neither_downloads_nor_files(tmp_path):
    changes = {"backbone": {"weights": str(tmp_path / "weights.pth"), "pretrained": True}}
    trained = trained_of(micro_model("micro_csa"), override(read_preset("micro_csa"), changes))
    entry = publish(trained, "micro_csa.mine", tmp_path, facts())
    assert entry.arguments == {}
    assert read_config(tmp_path / "micro_csa.mine") == read_preset("micro_csa")


@pytest.mark.parametrize(
    ("moved", "told"),
    [
        ({"miou_1": PARITY.share / 2, "noc_90": -PARITY.clicks / 2}, None),
        ({"miou_1": 1.5 * PARITY.share}, "miou@1 from 0.5123 to 0.5153"),
        ({"miou_1": -1.5 * PARITY.share}, "miou@1 from 0.5123 to 0.5093"),
        ({"noc_90": 1.5 * PARITY.clicks}, "noc@90 from 7.5000 to 7.6500"),
    ],
)
def test_half_precision_must_keep_the_figures(trained, tmp_path, moved, told):
    publish(trained, "micro_csa.one", tmp_path, facts())
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}

    rounded = {n: t.half().float() for n, t in trained.weights.items() if t.is_floating_point()}

    def measure(model, evaluation):
        assert not model.training
        weights = model.state_dict()
        assert all(torch.equal(weights[name], tensor) for name, tensor in rounded.items())
        figures = evaluation.figures.items()
        return {name: of.value + moved.get(name.replace("@", "_"), 0.0) for name, of in figures}

    def try_it():
        return publish(trained, "micro_csa.one", tmp_path, facts(), [MEASURED], measure=measure)

    if told is not None:
        with pytest.raises(UsageError, match="Toy/ritm: the float16 weights do not keep") as error:
            try_it()
        assert told in str(error.value)
        assert before == {path: path.read_bytes() for path in tmp_path.glob("*/*")}
        assert not list(tmp_path.glob(".*"))
        return
    entry = try_it()
    assert entry.metrics["Toy/ritm/miou@1"].value == 0.51234, "the recorded figure"
    (evaluation,) = read_evaluations(tmp_path / "micro_csa.one")
    assert evaluation.parity == {"miou@1": 0.001, "noc@90": -0.05}
    card = (tmp_path / "micro_csa.one" / CARD).read_text()
    assert "no figure moved by more than 0.10 points or 0.050 clicks" in card


def test_weights_tested_in_half_precision_need_no_second_test(trained, tmp_path):
    rounded = {n: t.half() if t.is_floating_point() else t for n, t in trained.weights.items()}
    tested = dataclasses.replace(trained, weights=rounded)
    publish(tested, "micro_csa.one", tmp_path, facts(), [MEASURED], measure=None)
    (evaluation,) = read_evaluations(tmp_path / "micro_csa.one")
    assert evaluation.parity == {"miou@1": 0.0, "noc@90": 0.0}
    changed = {"working_size": 64}
    publish(tested, "micro_csa.one", tmp_path, facts(), [MEASURED], changes=changed, measure=None)
    (evaluation,) = read_evaluations(tmp_path / "micro_csa.one")
    assert evaluation.parity is None, "another working size was not tested"


def test_facts_of_the_run_count_and_are_not_contradicted(trained, tmp_path):
    known = dataclasses.replace(
        trained, seed=3, commit="abcdef123456", config="seed_everything: 3\n"
    )
    bare = facts(recipe=None, seed=None, commit=None)
    entry = publish(known, "micro_csa.one", tmp_path, bare)
    assert (entry.seed, entry.commit) == (3, "abcdef123456")
    assert entry.recipe == "probseg fit --config training.yaml"
    assert (tmp_path / "micro_csa.one" / "training.yaml").read_text() == "seed_everything: 3\n"
    assert "training.yaml" in entry.files
    short = facts(seed=3)
    entry = publish(known, "micro_csa.one", tmp_path, short)
    assert entry.recipe == FACTS["recipe"]
    assert not (tmp_path / "micro_csa.one" / "training.yaml").exists(), "the command says it all"
    for wrong in ({"seed": 0}, {"seed": 3, "commit": "ffff"}):
        name, value = list(wrong.items())[-1]
        refused(
            UsageError,
            lambda wrong=wrong: publish(known, "micro_csa.one", tmp_path, facts(**wrong)),
            f"`{name}`",
            repr(value),
        )


EMANET = read_preset("micro_emanet", "semantic")
HEADLESS = copy.deepcopy(read_preset("micro_csa"))
del HEADLESS["init_args"]["head"]


@each(
    ("error", "part", "changes"),
    [
        (UsageError, "`seed`", {"facts": facts(seed=None)}),
        (UsageError, "`commit`", {"facts": facts(commit=None)}),
        (UsageError, "recipe", {"facts": facts(recipe=None)}),
        (UsageError, "data.root is /home/me", {"facts": facts(recipe=None), "config": PLACES}),
        (UsageError, "`preset` 'mine': no preset of this name for inter", {"name": "mine.a"}),
        (UsageError, "`preset` 'micro_csa'", {"name": "micro_csa.a", "description": HEADLESS}),
        (UsageError, "'micro_csa': no preset", {"name": "micro_csa.a", "description": EMANET}),
        (UsageError, "architecture.tag", {"name": "micro_csa"}),
        (UsageError, "architecture.tag", {"name": "micro_csa.a.b"}),
        (UsageError, "architecture.tag", {"name": "../micro_csa.a"}),
        (WeightsError, "another architecture", {"description": read_preset("micro_conv")}),
        (DataError, "two results for Toy/ritm", {"evaluations": [MEASURED, MEASURED]}),
        (DataError, "noc@90", {"measure": lambda model, evaluation: {"miou@1": 0.5}}),
    ],
)
def test_wrong_input_leaves_no_folder(trained, tmp_path, error, part, changes):
    of_run = {key: changes[key] for key in ("description", "config") if key in changes}
    name = changes.get("name", "micro_conv.one" if "description" in changes else "micro_csa.one")

    def try_it():
        publish(
            dataclasses.replace(trained, **of_run),
            name,
            tmp_path,
            changes.get("facts", facts()),
            changes.get("evaluations", [MEASURED]),
            measure=changes.get("measure"),
        )

    refused(error, try_it, part)
    assert list(tmp_path.iterdir()) == []


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
    description = read_preset("micro_csa")
    head = {**description["init_args"]["head"], "init_args": {"channels": 8}}
    description["init_args"]["head"] = head
    assert as_variant(description, "micro_csa") == {"head": head}, "it lost arguments"


PROGRAM = """
import contextlib, io, json, os, sys
from probseg.cli import main
told = []
for arguments, variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            status = main(["zoo", "push", *arguments])
    told.append([status, out.getvalue(), err.getvalue()])
if len(sys.argv) > 2:
    import torch
    import probseg
    loaded = probseg.create_model("hf-hub:someone/mine", pretrained=True).state_dict()
    own = probseg.create_model(sys.argv[2], pretrained=True).state_dict()
    assert loaded.keys() == own.keys()
    assert all(torch.equal(loaded[name], own[name]) for name in own)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    root = tmp_path_factory.mktemp("zoo")
    add_model(root, "micro_csa.mine")
    card = 'Use: from_pretrained("micro_csa.mine"), or probseg zoo verify micro_csa.mine\n'
    (root / "micro_csa.mine" / CARD).write_text(card)
    return root


@pytest.fixture
def push(zoo, tmp_path):
    """Run `probseg zoo push` several times, and load what was pushed if that is asked for."""

    def run(hub, *pushes, load=None):
        home = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub"), "HF_TOKEN": hub.token}
        # Files in blocks go to servers of their own, which there are none of here.
        quiet = {"HF_HUB_OFFLINE": "", "PROBSEG_OFFLINE": "", "HF_HUB_DISABLE_XET": "1"}
        wanted = [
            [[*arguments, *(() if "--zoo" in arguments else ("--zoo", str(zoo)))], variables]
            for arguments, variables in pushes
        ]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(wanted), *([load] if load else [])],
            env={**os.environ, **home, **quiet, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


MINE = ("micro_csa.mine", "someone/mine")


def test_a_model_is_pushed_in_one_commit_and_loads_from_there(zoo, push):
    folder = zoo / "micro_csa.mine"
    with hub_on_this_machine() as hub:
        once, again = push(hub, ((*MINE, "--private"), {}), (MINE, {}), load=str(folder))
        assert once[0] == again[0] == 0, (once, again)
        assert f"pushed micro_csa.mine: {hub.url}/someone/mine/commit/" in once[1]
        assert hub.private == {"someone/mine": True}, "which the second push does not change"
        names = sorted(path.name for path in folder.iterdir())
        assert hub.commits == [("Publish micro_csa.mine", names)] * 2
        there = hub.files["someone/mine"]
        for name in set(names) - {CARD}:
            assert there[name] == (folder / name).read_bytes(), name
        card = there[CARD].decode()
        assert 'from_pretrained("hf-hub:someone/mine")' in card
        assert "zoo verify micro_csa.mine" in card, "which is what a zoo calls it"


def test_refusals_are_told_in_words(push, tmp_path):
    add_model(tmp_path / "damaged", "micro_csa.mine")
    weights = tmp_path / "damaged" / "micro_csa.mine" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with hub_on_this_machine() as hub:
        told = push(
            hub,
            (("micro_csa.mine", "a/b/c"), {}),
            ((*MINE, "--zoo", str(tmp_path / "damaged")), {}),
            (MINE, {"HF_TOKEN": "hf_wrong"}),
            (MINE, {"HF_HUB_OFFLINE": "1"}),
            (MINE, {"HF_HUB_OFFLINE": "", "PROBSEG_OFFLINE": "1"}),
        )
        assert hub.files == {}
    for (status, _, err), expected in zip(
        told,
        (
            "could not be pushed to a/b/c (",
            "model.safetensors: sha256 must be",
            "micro_csa.mine could not be pushed to someone/mine (",
            "PROBSEG_OFFLINE or HF_HUB_OFFLINE is set",
            "PROBSEG_OFFLINE or HF_HUB_OFFLINE is set",
        ),
        strict=True,
    ):
        assert status == 2
        assert expected in err
