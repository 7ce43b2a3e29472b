"""The steps from an adaptation to the mask, each against the layer or the network itself."""

import csv

import paper_chain
import pytest
import torch
import yaml
from paper_plans import plan_of, training_of
from paper_rows import read_plan
from paper_train import described, initial_networks

from probseg.attention import ProbabilisticAttention2d
from probseg.attention.probabilistic import LayerSettings
from probseg.zoo.store import save
from support.fakes import write_folder

CSA = {
    "class_path": "probseg.heads.CorrectiveSelfAttention",
    "init_args": {"stride": 8, "span": None, "channels": 8, "propagation_iterations": 5},
}


def layer(axis, **options):
    torch.manual_seed(0)
    shared = {"num_heads": 1, "head_channels": 4, "axis": axis}
    return ProbabilisticAttention2d(6, 2, **shared, **options).eval()


@pytest.mark.parametrize("axis", ["full", "height", "width"])
def test_a_layer_step_by_step_is_the_layer(axis):
    features, known = torch.randn(3, 6, 4, 5), torch.randn(3, 2, 4, 5)
    where = torch.rand(3, 4, 5) < 0.3
    adapting = layer(axis, position="factored", position_size=(4, 5), key_prior=0.1)
    propagating = layer(axis, key_iterations=0, value_precision=0.1, propagation_iterations=2)
    cases = [(adapting, (features,)), (propagating, (features, None, known, where))]
    for attention, given in cases:
        with torch.no_grad():
            found, expected = paper_chain.computed(attention, given), attention(*given)
        lines = paper_chain.to_lines(expected.unflatten(1, (1, 2)), axis)
        torch.testing.assert_close(found.read_out, lines)
        torch.testing.assert_close(found.posterior @ found.values, lines)


def test_changes_are_nothing_for_equal_layers_and_relative_for_others():
    features = torch.randn(3, 6, 4, 5)
    with torch.no_grad():
        plain = paper_chain.computed(layer("full", key_iterations=0), (features,))
        moved = paper_chain.computed(layer("full"), (features,))
    assert not paper_chain._changes(plain, plain, 3).any()
    keys, values, posterior, read_out = paper_chain._changes(plain, moved, 3).unbind(dim=1)
    old, new = (of.keys.flatten(1) for of in (plain, moved))
    expected = (new - old).norm(dim=1) / old.norm(dim=1)
    torch.testing.assert_close(keys, expected)
    assert not values.any()
    assert (posterior > 0).all()
    assert (posterior < 1).all()
    assert (read_out > 0).all()


def test_each_network_and_change_has_a_line(tmp_path, monkeypatch, capsys):
    root = write_folder(tmp_path / "data", images=40, size=(24, 32))
    content = plan_of([], prob=["prob"])
    networks = {"prob": {"fusion": {"attention": "probabilistic"}}, "csa": {"head": CSA}}
    content["training"] = training_of(
        root, tmp_path / "runs", networks, seeds=2, steps=1, batch_size=3
    )
    path = tmp_path / "drawn.yaml"
    path.write_text(yaml.safe_dump(content))
    training = read_plan(path).training
    for seed in range(2):
        for name, network in initial_networks(training, seed).items():
            save(network, described(training, name), training.place(name, seed))

    def nothing(settings: LayerSettings) -> LayerSettings:
        return settings

    keys = {"nothing": nothing, "KA1": paper_chain.KEYS["KA1, prior 0"]}
    monkeypatch.setattr(paper_chain, "VALUES", {"BP5": paper_chain.VALUES["BP5, prior 0.1"]})
    monkeypatch.setattr(paper_chain, "EXPERIMENTS", {"prob": keys, "csa": paper_chain.VALUES})
    options = ["--plan", str(path), "--batches", "1", "--results", str(tmp_path)]
    assert paper_chain.main(options) == 0
    with (tmp_path / "drawn_chain.csv").open(newline="") as file:
        off, ka, bp = csv.DictReader(file)
    assert [row["network"] for row in (off, ka, bp)] == ["prob", "prob", "csa"]
    assert {off[step] for step in paper_chain.STEPS} == {"0"}
    assert float(ka["keys"]) > 0 == float(ka["values"])
    assert float(bp["values"]) > 0 == float(bp["keys"])
    assert min(float(row["logits"]) for row in (ka, bp)) > 0
    path.write_text(yaml.safe_dump({**content, "training": None} | {"training": {}}))
    assert paper_chain.main(options) == 2
    assert "training" in capsys.readouterr().err
