"""The crossed factors of key adaptation: networks, resumption, and tests against SciPy."""

import csv
import itertools
from dataclasses import replace

import numpy as np
import paper_factors as factors
import paper_factors_report as report
import pytest
import torch
import yaml
from paper_plans import plan_of, training_of
from paper_rows import read_plan
from paper_train import initial_networks
from scipy.stats import t, ttest_1samp

from probseg.attention import probabilistic_layers
from probseg.clicks.rounds import without_clicks
from probseg.data import ImageMaskFolder
from probseg.semantic.camvid import CamVid
from support.fakes import write_folder


def plan_in(folder, networks, seeds=1, **changes):
    """The plan of the experiment with some of its networks, on drawn objects."""
    full = read_plan(factors.PLAN).training
    chosen = {name: full.networks[name] for name in networks}
    content = plan_of([], prob=["prob"])
    root = write_folder(folder / "data", images=30, size=(24, 32))
    content["training"] = {
        **training_of(root, folder / "runs", chosen, seeds=seeds, steps=1, batch_size=2),
        "tied": list(full.tied),
        "normalised": list(full.normalised),
        **changes,
    }
    own = {"kind": "ImageMaskFolder", "arguments": {"root": str(root)}, "most": 2}
    content["datasets"] = {"own": own}
    (folder / "plan.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return read_plan(folder / "plan.yaml")


def test_the_plan_crosses_all_levels():
    training = read_plan(factors.PLAN).training
    crossed = [factors.levels(training, name) for name in training.networks]
    assert sorted(crossed) == sorted(itertools.product(*report.LEVELS.values()))
    assert training.seeds == report.SEEDS


def test_factors_are_what_they_say_in_float64(tmp_path):
    names = ["two", "one", "norm_two", "norm_one", "path_two"]
    networks = initial_networks(plan_in(tmp_path, names).training, 0)
    random = torch.Generator().manual_seed(0)
    maps = 3 + 2 * torch.randn(3, 64, 4, 5, generator=random, dtype=torch.float64)
    weights = None
    for name, model in networks.items():
        layer = probabilistic_layers(model.fusion)[0].double().train()
        state = {of: value.numpy() for of, value in layer.state_dict().items()}
        suffix = ".0.weight" if "norm" in name else ".weight"
        matrices = [state[of + suffix][..., 0, 0] for of in ("query", "key", "value")]
        if weights is None:
            weights = matrices
        if "one" in name:
            np.testing.assert_array_equal(matrices[1], matrices[0])
            assert layer.key is layer.query
        np.testing.assert_array_equal(matrices[0], weights[0], "all begin alike")
        with torch.no_grad():
            found = layer.projected(maps, None)
        for matrix, projected in zip(matrices, found, strict=True):
            expected = np.einsum("oc,bchw->bohw", matrix, maps.numpy())
            if "norm" in name:
                mean, variance = (getattr(expected, of)((0, 2, 3)) for of in ("mean", "var"))
                centred = expected - mean[:, None, None]
                expected = centred / np.sqrt(variance + 1e-5)[:, None, None]
            np.testing.assert_allclose(projected.flatten(1, 2).numpy(), expected, atol=1e-12)


def test_finer_features_reach_the_answer_by_the_path_alone(tmp_path):
    networks = initial_networks(plan_in(tmp_path, ["two", "path_two"]).training, 0)
    boxes = torch.tensor([[8.0, 8.0, 40.0, 40.0]])
    for name, model in networks.items():
        model.eval()
        with torch.no_grad():
            encoded = model.encode(torch.rand(1, 3, 64, 64))
            maps = encoded.decoder_maps
            other = encoded._replace(decoder_maps=maps._replace(features=maps.features + 1))
            answers = [model.decode(of, without_clicks(boxes)) for of in (encoded, other)]
        assert torch.equal(*answers) == (name == "two")


def test_measures_of_keys():
    random = np.random.default_rng(0)
    queries, before, after = random.normal(size=(3, 1, 2, 6, 4)) * 2
    queries += 1
    expected = []
    for head in range(2):
        old, new = before[0, head], after[0, head]
        spreads = [np.sqrt(((of - of.mean(0)) ** 2).sum(1).mean()) for of in (old, new)]
        offset = np.linalg.norm(queries[0, head].mean(0) - old.mean(0)) / spreads[0]
        moved = np.linalg.norm(new - old) / np.linalg.norm(old)
        expected.append([offset, moved, spreads[1] / spreads[0]])
    found = factors.of_keys(*map(torch.from_numpy, (queries, before, after)))
    np.testing.assert_allclose(found, np.mean(expected, axis=0))


def test_the_largest_thing_is_one_connected_part():
    car, bicyclist = CamVid.classes.index("car"), CamVid.classes.index("bicyclist")
    labels = np.zeros((8, 9), np.uint8)
    labels[:2, :3] = labels[5:7, :2] = car
    labels[4:, 6:] = bicyclist
    labels[:4, 4:] = CamVid.classes.index("road")  # the largest part, but no thing
    np.testing.assert_array_equal(factors.largest_thing(labels), labels == bicyclist)
    assert not factors.largest_thing(np.zeros((3, 3), np.uint8)).any()


def test_what_is_there_is_not_made_again(tmp_path, monkeypatch):
    plan = plan_in(tmp_path, ["two", "norm_one"], seeds=2)
    own = ImageMaskFolder(root=tmp_path / "data")
    monkeypatch.setattr(factors, "things_of_camvid", lambda most: [own[n] for n in range(most)])
    trainings = []

    def trained(training, seed, names):
        trainings.append((seed, names))
        return original(training, seed, names)

    original = factors.trained
    monkeypatch.setattr(factors, "trained", trained)
    path = tmp_path / "plan.csv"
    factors.run(plan, None, path)
    header, *lines = path.read_text().splitlines()
    assert len(lines) == 2 * 2 * len(report.SHIFTS)
    assert trainings == [(0, ["two", "norm_one"]), (1, ["two", "norm_one"])]
    trainings.clear()
    removed = lines[5]  # norm_one of seed 0
    path.write_text("\n".join([header, *(line for line in lines if line != removed)]) + "\n")
    factors.run(plan, None, path)
    assert trainings == [(0, ["norm_one"])]
    assert path.read_text().splitlines()[-1] == removed
    factors.run(plan, None, path)
    assert len(trainings) == 1
    longer = replace(plan, training=replace(plan.training, steps=2))
    with pytest.raises(factors.DataError, match=r"steps: expected 2 .* got 1; move the file away"):
        factors.run(longer, None, path)


def write(path, gains, noise):
    """Write lines whose gains are these of the factors' levels, plus noise `(seeds, 8, 4)`."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(report.COLUMNS)
        for seed, of_seed in enumerate(noise):
            cells = itertools.product(*report.LEVELS.values())
            for cell, of_cell in zip(cells, of_seed, strict=True):
                for shift, more in zip(report.SHIFTS, of_cell, strict=True):
                    gain = gains(*cell, shift) + more
                    writer.writerow([seed, *cell, shift, 1, 70, 70 + gain, 0, 0, 0])


def test_effects_are_those_that_were_put_in_and_tested_at_ten_seeds_only(tmp_path):
    def gains(normalised, projections, path, shift):
        return -8 + 3 * normalised + 2 * (projections == 1) + path + 5 * (shift == "camvid")

    path = tmp_path / "paper_factors.csv"
    noise = np.random.default_rng(0).normal(0, 0.5, (10, 8, 4))
    write(path, gains, np.zeros((2, 8, 4)))
    exact = report.gains(report.table(report.read(path)))
    for factor, effect in {"normalised": 3, "projections": 2, "path": 1}.items():
        np.testing.assert_allclose(report.effect(exact, factor), effect, atol=1e-9)

    write(path, gains, noise)
    of_seeds = 3 + (noise[:, 4:, 0] - noise[:, :4, 0]).mean(axis=1)
    test = ttest_1samp(of_seeds, 0)
    low, high = test.confidence_interval()
    (told,) = report.report(tmp_path)
    assert f"{of_seeds.mean():+.2f} ({low:+.2f} to {high:+.2f}) points, 10 seeds" in told
    assert told.endswith(f"p = {test.pvalue:.2g}: different from 0.")
    error = of_seeds.std(ddof=1) / np.sqrt(10)
    assert f"Detectable: {error * (t.ppf(0.975, 9) + t.ppf(0.8, 9)):.2f}." in told
    assert told in (tmp_path / "paper_factors.md").read_text()

    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n")  # the last seed is not complete
    (told,) = report.report(tmp_path)
    assert "9 seeds" in told
    assert told.endswith("Incomplete: 1 of 10 seeds are missing, so it is not tested.")
    assert "p =" not in told
    path.write_text("\n".join(lines[: 1 + 32 + 5]) + "\n")
    assert report.report(tmp_path) == [], "one seed has no interval"
