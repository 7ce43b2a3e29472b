"""The ablations of EMANet: networks that can be compared, and tests that find true differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from benchmarks.paper import emanet
from benchmarks.paper.__main__ import main
from benchmarks.paper.emanet import Block, blocks, compare, contributions, read_plan
from probseg.semantic import CamVid
from probseg.semantic.scores import Confusion, semantic_scores
from support.drawn_semantic import write_camvid

SMALL = {
    "title": "Small",
    "folder": "",
    "seeds": 2,
    "rate": 0.1,
    "iterations": [1],
    "backbone": {},
    "networks": {
        "fcn": {"label": "without", "of": "micro_fcn"},
        "ema": {"label": "with", "of": "micro_emanet", "last_norm": 1.0},
    },
    "trainings": {
        name: {
            "about": "Briefly.",
            "epochs": 2,
            "frozen": name == "frozen",
            "data": {"batch_size": 2, "crop_size": 32},
            "networks": ["fcn", "ema"],
            "swept": ["ema"],
            "claims": [{"text": "It helps.", "better": "ema", "than": "fcn"}],
        }
        for name in ("frozen", "end_to_end")
    },
}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A plan of two micro networks on drawn frames."""
    write_camvid(tmp_path / "camvid", images=16)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "folder": str(tmp_path / "runs")}))
    return path


def heads_of(plan, seed=0):
    plan = replace(plan, backbone={})
    return {
        name: emanet.initial_network(plan, name, seed).head.state_dict() for name in plan.networks
    }


def test_networks_of_one_seed_begin_with_the_same_weights_where_they_share_parts():
    heads = heads_of(read_plan())
    own = {  # what defines the row, or has another shape
        "ema_zero": {"emau.leave.1.weight"},
        "released": {"emau.bases.initial", "classify.weight", "classify.bias"},
    }
    for name, weights in heads.items():
        for key in weights.keys() & heads["ema"].keys():
            alike = torch.equal(weights[key], heads["ema"][key])
            assert alike != (key in own.get(name, ())), (name, key)
    assert (heads["ema"]["emau.leave.1.weight"] == 1).all()
    assert (heads["ema_zero"]["emau.leave.1.weight"] == 0).all()
    other = heads_of(read_plan(), seed=1)["ema"]["reduce.0.weight"]
    assert not torch.equal(other, heads["ema"]["reduce.0.weight"])


@pytest.mark.parametrize("name", ["frozen", "end_to_end"])
def test_a_network_learns_alike_alone_and_with_others(small, name):
    plan = read_plan(small)
    training = plan.trainings[name]
    emanet.train(plan, training, 0, ["fcn", "ema"])
    together = emanet.trained_network(plan, training, "ema", 0).state_dict()
    emanet.train(plan, training, 0, ["ema"])
    alone = emanet.trained_network(plan, training, "ema", 0).state_dict()
    initial = emanet.initial_network(plan, "ema", 0).state_dict()
    for key, value in together.items():
        assert torch.equal(value, alone[key]), key
        if key.startswith("backbone.") and training.frozen:
            assert torch.equal(value, initial[key]), key
    learnt = "head." if training.frozen else "backbone."
    changed = [key for key in initial if not torch.equal(together[key], initial[key])]
    assert any(key.startswith(learnt) and key.endswith("weight") for key in changed)


@pytest.mark.parametrize("name", ["frozen", "end_to_end"])
def test_counts_are_those_of_the_whole_network(small, name):
    plan = read_plan(small)
    training = plan.trainings[name]
    emanet.train(plan, training, 0, training.networks)
    counts = emanet.evaluate(plan, training, [0], training.networks)
    for row in training.rows:
        model = emanet.trained_network(plan, training, row.network, 0)
        if row.iterations:
            model.head.emau.bases.eval_iterations = row.iterations
        confusion = Confusion(11)
        for sample in CamVid("test"):
            image = torch.tensor(sample.image).permute(2, 0, 1)[None].float() / 255
            with torch.no_grad():
                confusion.add(sample, model(image).argmax(dim=1)[0])
        miou = contributions(counts, name, row.name).mean()
        scores = semantic_scores(confusion.matrix())
        assert not np.isnan(scores.iou).any()
        assert miou == pytest.approx(100 * scores.miou, abs=1e-9), row


def test_blocks_are_stretches_of_one_drive(tmp_path):
    write_camvid(tmp_path, images=24, size=(8, 8))
    for number in range(5):
        for folder, suffix in (("test", ".png"), ("testannot", ".png")):
            source = tmp_path / folder / f"0002TP_{number:06d}{suffix}"
            source.rename(source.with_name(f"Seq05VD_f{number:05d}{suffix}"))
    found = {
        name: [of.name for of in samples] for name, samples in blocks(CamVid("test", tmp_path))
    }
    assert {name: len(of) for name, of in found.items()} == {
        "0002TP/0": 10,
        "0002TP/1": 9,
        "Seq05VD/0": 5,
    }
    assert found["0002TP/1"] == [f"0002TP_{number:06d}" for number in range(15, 24)]


def drawn_counts(shift=0.0, row=0, seeds=3, n_blocks=12):
    """Counts in which each class has another IoU, raised by `shift`; noise differs by row."""
    random = np.random.default_rng(1)
    union = random.integers(1000, 9000, (n_blocks, 11))
    ease = random.uniform(0.2, 0.6, 11) + random.uniform(-0.1, 0.1, (n_blocks, 1))
    counts = {}
    for seed in range(seeds):
        noise = np.random.default_rng([seed, row]).normal(0, 0.004, (n_blocks, 11))
        for block in range(n_blocks):
            found = (union[block] * (ease[block] + shift + noise[block])).astype(int)
            counts[seed, f"drive/{block}"] = Block(10, found, union[block])
    return counts


def test_contributions_are_the_derivative_of_the_miou():
    counts = {("t", "row", *key): of for key, of in drawn_counts().items()}
    parts = contributions(counts, "t", "row")
    mine = [counts["t", "row", 0, f"drive/{n}"] for n in (0, 1, 10, 11, *range(2, 10))]  # as sorted

    def miou(weights):
        found = sum(weight * of.found for weight, of in zip(weights, mine, strict=True))
        union = sum(weight * of.union for weight, of in zip(weights, mine, strict=True))
        return 100 * (found / union).mean()

    for number in range(12):
        step = 1e-6 * np.eye(12)[number]
        slope = (miou(1 + step) - miou(1 - step)) / 2e-6
        assert parts[0, number] == pytest.approx(miou(np.ones(12)) + 12 * slope, abs=1e-4)


def test_a_true_difference_is_found_with_its_size_and_sign():
    shifts = {"fcn": 0.0, "same": 0.0, "up": 0.02}
    counts = {
        ("t", name, *key): of
        for row, (name, shift) in enumerate(shifts.items())
        for key, of in drawn_counts(shift, row).items()
    }
    points, up = compare(counts, "t", "up", "fcn")
    assert up.low < 2 < up.high
    assert points == pytest.approx(2, abs=0.2)
    assert up.p < 0.01
    assert (up.direction, compare(counts, "t", "fcn", "up")[1].direction) == (1, -1)
    assert compare(counts, "t", "same", "fcn")[1].p > 0.05


def test_train_evaluate_and_report_are_one_command(small, tmp_path, capsys):
    results = tmp_path / "results"
    results.mkdir()
    path = small.rename(tmp_path / "emanet.yaml")
    options = ["--plan", str(path), "--results", str(results)]
    assert main(["evaluate", *options]) == 2
    assert "train --plan emanet" in capsys.readouterr().err
    assert main(["repeat", *options]) == 0
    first = {path.name: path.read_bytes() for path in results.iterdir()}
    assert set(first) == {
        *("emanet_blocks.csv.gz", "emanet_rows.csv", "emanet_claims.csv"),
        *("emanet.md", "emanet.png"),
    }
    assert main(["repeat", "--training", "frozen", "--only", "ema", *options]) == 0
    assert {path.name: path.read_bytes() for path in results.iterdir()} == first
    assert main(["train", "--only", "emma", *options]) == 2
    assert "emma" in capsys.readouterr().err
