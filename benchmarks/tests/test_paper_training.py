"""Networks of `benchmarks.paper` that are trained side by side, evaluated, and repeated."""

import shutil

import pytest
import torch
import yaml

from benchmarks.paper import evaluate as evaluation
from benchmarks.paper.__main__ import main
from benchmarks.paper.evaluate import load
from benchmarks.paper.plan import read_plan
from benchmarks.paper.train import initial_networks, train
from probseg import create_model
from probseg.attention import probabilistic_layers
from probseg.models import read_preset
from support.fakes import micro_model, write_folder

NETWORKS = {
    "conv": {},
    "standard": {"fusion": {"attention": "standard", "options": {"position_keys": False}}},
    "prob": {"fusion": {"attention": "probabilistic"}},
    "tied": {"fusion": {"attention": "probabilistic"}},
}


@pytest.fixture
def write_plan(tmp_path):
    """Write a plan of small networks on drawn objects; return its file."""
    root = str(write_folder(tmp_path / "data", images=30, size=(24, 32)))
    objects = {"kind": "ImageMaskFolder", "arguments": {"root": root}}

    def written(name="plan", **changes):
        training = {
            "of": "lite0_stage",
            "trunk": "lite0_unet_prop.objects",
            "folder": str(tmp_path / name),
            "seeds": 2,
            "steps": 2,
            "batch_size": 2,
            "crop_size": 64,
            "rate": 1e-3,
            "data": {"name": "drawn", **objects},
            "networks": NETWORKS,
            "tied": ["tied"],
            **changes,
        }
        content = {
            "protocol": "gabbur2021",
            "trials": 2,
            "training": training,
            "datasets": {"drawn": {**objects, "most": 2}},
            "rows": {of: {"label": of, "network": of} for of in ("conv", "prob")},
            "figures": {},
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    return written


def test_networks_of_one_seed_differ_by_their_mechanism_alone(write_plan):
    training = read_plan(write_plan(normalised=["prob"])).training
    networks = initial_networks(training, 0)
    weights = {name: network.state_dict() for name, network in networks.items()}
    zoo = create_model(training.trunk, pretrained=True).state_dict()
    for key, value in weights["tied"].items():
        if key.startswith(("backbone.", "decoder.")):
            assert torch.equal(value, zoo[key])
        for other in (weights["conv"], weights["standard"]):
            if key in other and other[key].shape == value.shape:
                assert torch.equal(value, other[key]) or ".key." in key, key
    key = "fusion.blocks.0.layers.3.query.weight"
    assert torch.equal(weights["tied"][key], weights["standard"][key])
    (tied, *_), (normalised, *_) = (
        probabilistic_layers(networks[of].fusion) for of in ("tied", "prob")
    )
    assert tied.key is tied.query
    maps = normalised.train().query(3 + 2 * torch.randn(4, 64, 5, 6))
    torch.testing.assert_close(maps.mean((0, 2, 3)), torch.zeros(len(maps[0])), atol=1e-4, rtol=0)
    assert not torch.equal(
        initial_networks(training, 1)["tied"].state_dict()[key], weights["tied"][key]
    )


def test_a_network_learns_alike_alone_and_with_others_and_leaves_the_trunk(write_plan):
    training = read_plan(write_plan()).training
    train(training, 0, ["conv", "prob"])
    place = training.place("prob", 0)
    together = load(str(place))[0].state_dict()
    assert len((place / "losses.csv").read_text().splitlines()) == 1 + training.steps
    shutil.rmtree(place)
    train(training, 0, ["conv", "prob"])  # the one that is missing
    alone = load(str(place))[0].state_dict()
    first = initial_networks(training, 0)["prob"].state_dict()
    for name, value in together.items():
        assert torch.equal(value, alone[name]), name
        if name.startswith(("backbone.", "decoder.")):
            assert torch.equal(value, first[name]), name
    changed = "fusion.blocks.0.layers.3.query.weight"
    assert not torch.equal(together[changed], first[changed].half().float())


def test_networks_start_from_an_earlier_training_and_learn_with_their_trunk(write_plan):
    training = read_plan(write_plan()).training
    train(training, 0, ["conv", "prob"])
    start = {"conv": f"{training.folder}/conv", "tied": f"{training.folder}/prob"}
    networks = {name: NETWORKS[name] for name in start}
    later = read_plan(write_plan("later", start=start, networks=networks | NETWORKS)).training
    later = type(later)(**{**vars(later), "networks": networks})
    first = initial_networks(later, 0)["tied"].state_dict()
    earlier = load(str(training.place("prob", 0)))[0].state_dict()
    assert all(torch.equal(first[of], earlier[of]) for of in first if ".key." not in of)
    train(later, 0, ["conv", "tied"])
    after = load(str(later.place("tied", 0)))[0].state_dict()
    changed = {of.split(".")[0] for of in after if not after[of].equal(first[of].half().float())}
    assert changed == {"backbone", "decoder", "fusion", "head"}
    for key in after:
        if key.startswith("backbone.") and "running_mean" in key:
            assert torch.equal(after[key], first[key].half().float()), key


def test_one_command_repeats_a_row_from_training_to_comparison(
    write_plan, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PROBSEG_ZOO", "")  # else set by the command
    plan = write_plan(steps=1)
    folders = ["--folder", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]

    def lines(*verb):
        assert main([*verb, "--plan", str(plan), *folders]) == 0
        return capsys.readouterr().out.splitlines()

    assert main(["repeat", "--plan", str(plan)]) == 2, "without rows"
    assert main(["report", "--plan", str(plan), *folders]) == 2, "nothing was evaluated"
    assert "nothing was evaluated yet" in capsys.readouterr().err
    first = lines("repeat", "--only", "prob", "--seed", "1")
    assert first[0] == "seed 1: prob"
    assert first[-1] == "prob, seed 1, drawn: there is no stored result of these runs"
    lines("repeat", "--only", "prob")
    lines("report")
    shutil.rmtree(tmp_path / "plan" / "prob" / "seed0")
    shutil.rmtree(tmp_path / "runs")
    again = lines("repeat", "--only", "prob")
    assert again[0] == "seed 0: prob"
    assert "seed 1: prob" not in again
    for seed, line in enumerate(again[-2:]):
        assert line.startswith(f"prob, seed {seed}, drawn: mIoU@0 ")
        assert line.endswith("largest difference 0.00")


def test_what_is_there_is_not_evaluated_again_and_what_is_absent_is_named(
    write_plan, tmp_path, monkeypatch, capsys
):
    model, blocks = micro_model("micro_conv"), []
    monkeypatch.setattr(evaluation, "load", lambda name: (model, {}))
    monkeypatch.setattr(evaluation, "OBJECTS_AT_ONCE", 1)
    monkeypatch.setenv("PROBSEG_ZOO", "")
    clicked = evaluation.run_objects

    def spied(model, samples, *arguments, **options):
        blocks.extend(samples)
        return clicked(model, samples, *arguments, **options)

    monkeypatch.setattr(evaluation, "run_objects", spied)
    options = ["--plan", str(write_plan()), "--folder", str(tmp_path / "runs"), "--seed", "0"]
    for expected in (2, 0):
        blocks.clear()
        assert main(["evaluate", *options, "--only", "conv"]) == 0
        assert len(blocks) == expected
    with torch.no_grad():
        next(iter(model.parameters())).add_(0.1)
    assert main(["evaluate", *options, "--only", "conv"]) == 0
    assert len(blocks) == 2, "other weights"

    def absent(name):
        raise FileNotFoundError("nowhere: no such file")

    monkeypatch.setattr(evaluation, "load", absent)
    assert main(["evaluate", *options]) == 1
    assert "left out: prob, " in capsys.readouterr().err
    assert main(["evaluate", *options, "--only", "cnv"]) == 2
    assert "unknown row 'cnv': did you mean 'conv'?" in capsys.readouterr().err


def test_a_checkpoint_is_loaded_with_its_own_network(tmp_path):
    model = micro_model("micro_conv")
    path = tmp_path / "last.ckpt"
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    network = {"hyper_parameters": {"model": read_preset("micro_conv")}, "state_dict": state}
    torch.save(network, path)
    loaded, _ = load(str(path))
    assert not loaded.training
    assert all(torch.equal(t, state[f"model.{name}"]) for name, t in loaded.state_dict().items())
