"""A training that meets a loss which is not finite, and `probseg debug replay` after it."""

import dataclasses
import json
import re

import pytest
import torch
from drawn_semantic import write_camvid
from fakes import write_folder
from fragile import whiten
from runs import camvid_fit, command, folder_fit, working_in

from probseg.callbacks.replay_file import read_replay, write_replay
from probseg.cli import main

SEMANTIC = """
class_path: probseg.models.SemanticSegmenter
init_args:
  backbone: fragile.Fragile
  head:
    class_path: probseg.heads.EMAHead
    init_args: {channels: 16, num_bases: 4, num_classes: 11}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder of a stopped run of each kind; the second photograph of either is white."""
    place = tmp_path_factory.mktemp("debug")
    root = write_folder(place / "data", images=5, size=(24, 32), suffix=".png")
    whiten(root / "images" / "photo1.png")
    write_camvid(place / "camvid", images=4)
    whiten(place / "camvid" / "train" / "0000TP_000001.png")
    network = place / "network.yaml"
    network.write_text(SEMANTIC)
    semantic = ("--model.model", network, "--semantic_evaluation.output_stride=null")
    with working_in(place):
        assert command(*folder_fit(root, "--model.model.backbone=fragile.Fragile")) == 2
        assert command(*camvid_fit(*semantic)) == 2
    return {
        "interactive": place / "runs" / "probseg" / "version_0",
        "semantic": place / "runs" / "semantic" / "version_0",
    }


def the_file(run):
    (path,) = run.glob("replay_step*.pt")
    return path


def replayed(*arguments):
    """Run the verb; return the exit status."""
    try:
        return command("debug", "replay", *arguments)
    except SystemExit as stopped:
        return stopped.code


@pytest.mark.parametrize(
    ("kind", "white"), [("interactive", "photo1#1"), ("semantic", "0000TP_000001")]
)
def test_the_step_is_repeated_and_the_module_found(runs, kind, white, tmp_path, capsys):
    path = the_file(runs[kind])
    assert replayed(path, "--json", tmp_path / "found.json") == 1
    told = capsys.readouterr().out
    assert f"configuration: {runs[kind] / 'config.yaml'}" in told
    assert re.search(
        r"first output not finite +model\.backbone\.divide \(Divide\): \(2, 96, ", told
    )
    assert re.search(rf"{white} +(nan|inf|-inf) *\n", told)
    assert "reproduced: the loss is not finite" in told
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["reproduced"] is True
    assert found["weights"] == found["inputs"] == []
    assert found["step"]["loss"] == found["step"]["parts"]["train/loss"] == "nan"
    suspect = found["step"]["suspect"]
    assert (suspect["name"], suspect["inputs_finite"]) == ("model.backbone.divide", True)
    assert found["step"]["gradient"].startswith("model.head.")
    losses = {image["name"]: image["loss"] for image in found["images"]}
    assert list(losses) == read_replay(path).batch.names
    assert losses.pop(white) == "nan"
    assert all(0 < loss < 10 for loss in losses.values())


def test_a_step_without_fault_is_not_reproduced(runs, tmp_path, capsys):
    """The same step of a network without the fault."""
    config = tmp_path / "mended.yaml"
    text = (runs["interactive"] / "config.yaml").read_text()
    config.write_text(text.replace("fragile.Fragile", "fragile.Cautious"))
    replay = dataclasses.replace(read_replay(the_file(runs["interactive"])), world_size=2)
    write_replay(replay, tmp_path / "replay.pt")
    assert replayed(tmp_path / "replay.pt", "--config", config, "--device", "cpu") == 0
    told = capsys.readouterr().out
    assert str(config) in told
    assert re.search(r"first output not finite +none", told)
    assert re.search(r"first gradient not finite +none", told)
    assert "not reproduced: the loss is finite; what differs from the training: the number" in told


def test_weights_that_are_not_finite_are_named(runs, tmp_path, capsys):
    replay = read_replay(the_file(runs["interactive"]))
    name = next(name for name in replay.weights if name.endswith("conv1.weight"))
    replay.weights[name][0, 0, 1, 1] = torch.nan
    write_replay(replay, tmp_path / "replay.pt")
    config = runs["interactive"] / "config.yaml"
    assert replayed(tmp_path / "replay.pt", "--config", config) == 1
    told = capsys.readouterr().out
    assert re.search(rf"weights before the step +not finite: {re.escape(name)} *\n", told)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("none.pt",), r"none\.pt: no such file; expected a file replay_step\*\.pt"),
        (("FILE", "--config", "none.yaml"), r"give it as --config: .*none\.yaml"),
        (("FILE", "--config", "list.yaml"), r"list\.yaml: has no section `model`"),
        (("FILE", "--config", "null.yaml"), r"null\.yaml: .*model"),
        (("FILE", "--config", "odd.yaml"), r"odd\.yaml: .*no_such_module"),
        (("FILE", "--config", "OTHER"), r"replay file: the weights are those of another archi"),
        (("FILE", "--device", "tpu"), r"expected cpu, cuda or cuda:N, got 'tpu'"),
        (("FILE", "--json", "none/found.json"), r"make none first"),
        ((), r"arguments are required: file; see probseg debug replay --help"),
    ],
)
def test_what_cannot_be_used_is_said(runs, tmp_path, monkeypatch, capsys, given, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.yaml").write_text("[1]")
    (tmp_path / "null.yaml").write_text("model: null")
    (tmp_path / "odd.yaml").write_text("model: no_such_module.Task")
    names = {"FILE": the_file(runs["interactive"]), "OTHER": runs["semantic"] / "config.yaml"}
    assert main(["debug", "replay", *(str(names.get(name, name)) for name in given)]) == 2
    assert re.search(told, capsys.readouterr().err, re.DOTALL)
