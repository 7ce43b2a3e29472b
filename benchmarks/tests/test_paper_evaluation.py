"""Evaluations of the benchmark `paper.py`: done once, gone on with, and named if impossible."""

import paper
import paper_evaluate as evaluation
import pytest
import torch
import yaml
from paper_plans import plan_of

from probseg.evaluation.records import read_objects
from probseg.models import read_preset
from support.fakes import micro_model, write_folder


class Trials:
    """Evaluates a small network on a drawn folder, and counts the blocks that were clicked."""

    def __init__(self, tmp_path, monkeypatch):
        self.folder, self.blocks, self.patch = tmp_path / "runs" / "plan", [], monkeypatch
        content = plan_of([], base=["base"])
        root = write_folder(tmp_path / "data", images=3, size=(24, 32))
        arguments = {"root": str(root), "name": "drawn"}
        content["datasets"] = {"drawn": {"kind": "ImageMaskFolder", "arguments": arguments}}
        self.path = tmp_path / "plan.yaml"
        self.path.write_text(yaml.safe_dump(content))
        self.model = micro_model("micro_conv")
        monkeypatch.setattr(evaluation, "OBJECTS_AT_ONCE", 1)
        monkeypatch.setattr(evaluation, "load", lambda name: (self.model, {}))
        monkeypatch.setenv("PROBSEG_ZOO", str(tmp_path))  # else set by the command
        self.clicked = evaluation.run_objects
        monkeypatch.setattr(evaluation, "run_objects", self.run_objects)
        self.most = 99

    def run_objects(self, model, samples, protocol, **options):
        if len(self.blocks) == self.most:
            raise KeyboardInterrupt
        self.blocks.append([sample.name for sample in samples])
        return self.clicked(model, samples, protocol, **options)

    def keep(self, objects):
        content = yaml.safe_load(self.path.read_text())
        content["datasets"]["drawn"]["most"] = objects
        self.path.write_text(yaml.safe_dump(content))

    def evaluate(self, *more):
        self.blocks.clear()
        options = ("--plan", self.path, "--folder", self.folder.parent, *more)
        return paper.main(["evaluate", *map(str, options)])


@pytest.fixture
def trials(tmp_path, monkeypatch):
    return Trials(tmp_path, monkeypatch)


def test_what_is_there_is_not_evaluated_again(trials, capsys):
    place = trials.folder / "base" / "seed0" / "drawn"
    assert trials.evaluate() == 0
    assert trials.blocks == [["photo0#1"], ["photo1#1"], ["photo2#1"]]
    names = {path.name for path in place.iterdir()}
    assert names >= {"objects.csv", "results.json"}
    assert "evaluation.json" not in names
    assert len(read_objects(place / "objects.csv")) == 3 * 2
    assert trials.evaluate() == 0
    assert trials.blocks == []
    assert "is there" in capsys.readouterr().out
    with torch.no_grad():
        next(iter(trials.model.parameters())).add_(0.1)
    assert trials.evaluate("--only", "base") == 0
    assert len(trials.blocks) == 3, "other weights"


def test_of_a_large_set_some_objects_are_kept(trials):
    trials.keep(2)
    assert trials.evaluate() == 0
    assert trials.blocks == [["photo0#1"], ["photo1#1"]]


def test_an_interrupted_evaluation_goes_on(trials):
    trials.most = 2
    with pytest.raises(KeyboardInterrupt):
        trials.evaluate()
    trials.most = 99
    assert trials.evaluate() == 0
    assert trials.blocks == [["photo2#1"]]
    place = trials.folder / "base" / "seed0" / "drawn"
    assert len(read_objects(place / "objects.csv")) == 3 * 2


def test_networks_that_are_not_there_are_named_and_do_not_stop_the_others(trials, capsys):
    def absent(name):
        raise FileNotFoundError("nowhere/config.json: no such file")  # noqa: EM101

    trials.patch.setattr(evaluation, "load", absent)
    assert trials.evaluate() == 1
    assert "left out: base, base: nowhere/config.json: no such file" in capsys.readouterr().err
    assert trials.evaluate("--only", "bse") == 2
    assert "unknown row 'bse': did you mean 'base'?" in capsys.readouterr().err


def test_a_checkpoint_is_loaded_with_its_own_network(tmp_path):
    model = micro_model("micro_conv")
    path = tmp_path / "last.ckpt"
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    network = {"hyper_parameters": {"model": read_preset("micro_conv")}, "state_dict": state}
    torch.save(network, path)
    loaded, described = evaluation.load(str(path))
    assert not loaded.training
    assert all(torch.equal(t, state[f"model.{name}"]) for name, t in loaded.state_dict().items())
    assert described["class_path"] == "probseg.models.Segmenter"
