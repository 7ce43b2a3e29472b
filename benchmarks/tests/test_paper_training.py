"""Networks of the benchmark `paper.py` that are trained side by side."""

import shutil
from dataclasses import replace

import paper
import paper_train
import pytest
import torch
import yaml
from paper_evaluate import load
from paper_plans import plan_of, training_of
from paper_rows import read_plan

from probseg import create_model
from support.fakes import write_folder

NETWORKS = {
    "conv": {},
    "standard": {"fusion": {"attention": "standard", "options": {"position_keys": False}}},
    "prob": {"fusion": {"attention": "probabilistic"}},
}


@pytest.fixture
def training(tmp_path):
    root = write_folder(tmp_path / "data", images=30, size=(24, 32))
    content = plan_of([], prob=["prob"])
    content["training"] = training_of(
        root, tmp_path / "runs", NETWORKS, seeds=1, steps=2, batch_size=2
    )
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(content))
    return read_plan(tmp_path / "plan.yaml").training


def test_networks_of_one_seed_differ_by_their_mechanism_alone(training):
    networks = paper_train.initial_networks(training, 0)
    weights = {name: network.state_dict() for name, network in networks.items()}
    zoo = create_model(training.trunk, pretrained=True).state_dict()
    for key, value in weights["prob"].items():
        if key.startswith(("backbone.", "decoder.")):
            assert torch.equal(value, zoo[key])
        for other in (weights["conv"], weights["standard"]):
            if key in other and other[key].shape == value.shape:
                assert torch.equal(value, other[key]), key
    key = "fusion.blocks.0.layers.3.query.weight"
    assert torch.equal(weights["prob"][key], weights["standard"][key])
    assert not torch.equal(
        paper_train.initial_networks(training, 1)["prob"].state_dict()[key], weights["prob"][key]
    )


def test_a_network_learns_alike_alone_and_with_others_and_leaves_the_trunk(training):
    paper_train.train(training, 0, ["conv", "prob"])
    place = training.place("prob", 0)
    together = create_model(str(place), pretrained=True)
    assert not together.training
    assert len((place / "losses.csv").read_text().splitlines()) == 1 + training.steps
    paper_train.train(training, 0, ["prob"])
    alone = load(str(place))[0].state_dict()
    first = paper_train.initial_networks(training, 0)["prob"].state_dict()
    for name, value in together.state_dict().items():
        assert torch.equal(value, alone[name]), name
        frozen = name.startswith(("backbone.", "decoder."))
        if frozen:
            assert torch.equal(value, first[name]), name
    changed = "fusion.blocks.0.layers.3.query.weight"
    assert not torch.equal(together.state_dict()[changed], first[changed].half().float())


def test_one_command_repeats_a_row_from_training_to_comparison(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PROBSEG_ZOO", "")  # else set by the command
    root = write_folder(tmp_path / "data", images=30, size=(24, 32))
    content = plan_of([], prob=["prob"])
    content["training"] = training_of(root, tmp_path / "nets", NETWORKS, 2, steps=1, batch_size=2)
    arguments = {"root": str(write_folder(tmp_path / "test", images=2, size=(24, 32)))}
    content["datasets"] = {"drawn": {"kind": "ImageMaskFolder", "arguments": arguments}}
    content["rows"] = {"prob": {"label": "PROB", "network": "prob"}}
    plan, results = tmp_path / "plan.yaml", tmp_path / "results"
    plan.write_text(yaml.safe_dump(content))

    def lines(*verb):
        folders = ("--folder", str(tmp_path / "runs"), "--results", str(results))
        assert paper.main([*verb, "--plan", str(plan), *folders]) == 0
        return capsys.readouterr().out.splitlines()

    assert paper.main(["repeat", "--plan", str(plan)]) == 2, "without rows"
    first = lines("repeat", "--only", "prob", "--seed", "1")
    assert first[0] == "seed 1: prob"
    assert first[-1] == "prob, seed 1, drawn: there is no stored result of these runs"
    assert [path.name for path in (tmp_path / "nets").iterdir()] == ["prob"]
    lines("repeat", "--only", "prob")
    lines()  # stores the results
    shutil.rmtree(tmp_path / "nets" / "prob" / "seed0")
    shutil.rmtree(tmp_path / "runs")
    again = lines("repeat", "--only", "prob")
    assert again[0] == "seed 0: prob"
    assert "seed 1: prob" not in again
    for seed, line in enumerate(again[-2:]):
        assert line.startswith(f"prob, seed {seed}, drawn: mIoU@0 ")
        assert line.endswith("largest difference 0.00")


def test_networks_start_from_an_earlier_training_and_learn_with_their_trunk(training, tmp_path):
    paper_train.train(training, 0, ["conv", "prob"])
    later = replace(
        training,
        start={of: f"{training.folder}/{of[:4]}" for of in ("prob", "conv", "prob_tied")},
        folder=str(tmp_path / "later"),
        networks={of: NETWORKS[of[:4]] for of in ("prob", "conv", "prob_tied")},
        tied=["prob_tied"],
    )
    first = paper_train.initial_networks(later, 0)
    for name in ("prob", "conv"):
        earlier = load(str(training.place(name, 0)))[0].state_dict()
        for key, value in first[name].state_dict().items():
            assert torch.equal(value, earlier[key]), key
    paper_train.train(later, 0, [*first])
    tied = load(str(later.place("prob_tied", 0)))[0].state_dict()
    started = load(str(training.place("prob", 0)))[0].state_dict()
    query, key = (f"fusion.blocks.0.layers.3.{of}.weight" for of in ("query", "key"))
    assert torch.equal(tied[query], tied[key])
    assert not torch.equal(tied[query], started[query])
    assert not torch.equal(started[query], started[key])
    before = first["prob"].state_dict()
    after = load(str(later.place("prob", 0)))[0].state_dict()
    changed = {
        key.split(".")[0] for key in after if not after[key].equal(before[key].half().float())
    }
    assert changed == {"backbone", "decoder", "fusion", "head"}
    averages = [key for key in after if key.startswith("backbone.") and "running_mean" in key]
    assert averages
    for key in averages:
        assert torch.equal(after[key], before[key].half().float()), key
    assert not torch.equal(
        after["backbone.network.conv_stem.weight"],
        load(str(later.place("conv", 0)))[0].state_dict()["backbone.network.conv_stem.weight"],
    )
