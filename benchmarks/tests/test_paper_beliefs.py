"""Evidence and entropy of the mixture: measurements, and tests that find known effects."""

import csv
import gzip
import math
from types import SimpleNamespace

import numpy as np
import paper_beliefs
import paper_beliefs_report as report
import pytest
import torch
import yaml
from paper_chain import computed
from paper_plans import plan_of, training_of
from paper_rows import read_plan
from paper_train import described, initial_networks

from probseg.attention import ProbabilisticAttention2d
from probseg.ops import probabilistic_attention
from probseg.ops.axial import to_lines
from probseg.zoo.store import save
from support.fakes import write_folder


def test_the_area_under_the_curve_counts_pairs():
    random = np.random.default_rng(0)
    scores, positive = random.integers(0, 5, 40).astype(float), random.random(40) < 0.3
    pairs = scores[positive][:, None] - scores[~positive]
    expected = ((pairs > 0) + 0.5 * (pairs == 0)).mean()
    assert report.auroc(scores, positive) == pytest.approx(expected)
    assert report.auroc(-scores, positive) == pytest.approx(1 - expected)
    assert math.isnan(report.auroc(scores, np.zeros(40, dtype=bool)))


def test_pseudo_values_are_those_of_the_jackknife():
    random = np.random.default_rng(1)
    usual, other = random.integers(0, 9, (2, 12)).astype(float)

    def area(kept):
        both = np.concatenate([usual[kept], other[kept]])
        return report.auroc(both, np.arange(len(both)) >= len(kept))

    everything = np.arange(12)
    expected = [12 * area(everything) - 11 * area(np.delete(everything, i)) for i in range(12)]
    np.testing.assert_allclose(report._pairs_area(usual, other), expected)
    line = np.arange(8.0)[None]
    np.testing.assert_allclose(report._correlations(line, line), -np.ones((1, 8)))


@pytest.mark.parametrize("axis", ["full", "height", "width"])
def test_maps_are_the_entropy_and_the_evidence_of_each_cell(axis):
    torch.manual_seed(0)
    layer = ProbabilisticAttention2d(6, 4, num_heads=2, head_channels=3, axis=axis).eval()
    features = torch.randn(2, 6, 4, 5)
    with torch.no_grad():
        entropy, evidence = paper_beliefs._maps(layer, (features,)).unbind(dim=1)
        queries, keys, values = (to_lines(of, axis) for of in layer.projected(features, None))
        inferred = probabilistic_attention(
            queries, keys, values, key_adaptation=layer.settings.key_adaptation
        )
        posterior = computed(layer, (features,)).posterior.double()
    assert entropy.shape == evidence.shape == (2, 4, 5)
    torch.testing.assert_close(evidence.mean(), inferred.log_evidence.mean())
    relative = -(posterior * posterior.log()).sum(-1) / math.log(posterior.shape[-1])
    torch.testing.assert_close(entropy.mean().double(), relative.mean(), atol=1e-6, rtol=1e-6)
    # A map that is the same in every cell has equal weights, and the same evidence everywhere.
    with torch.no_grad():
        entropy, evidence = paper_beliefs._maps(
            layer, (features[..., :1, :1].expand(-1, -1, 4, 5),)
        ).unbind(dim=1)
    torch.testing.assert_close(entropy, torch.ones(2, 4, 5))
    torch.testing.assert_close(evidence, evidence[:, :1, :1].expand(-1, 4, 5))


def write_lines(path, lines):
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def drawn(random, photos=30, seeds=3):
    """Measurements: evidence is low for noise, entropy follows errors, and adapted keys lose."""
    settings = {of for pair in (*report.GAINS, *report.VALUES) for of in pair}
    ease = random.uniform(0, 1, photos)
    beliefs, evidence = [], []
    for setting in sorted(settings | set(report.ERRORS_OF)):
        for seed, photo in np.ndindex(seeds, photos):
            lost = 0.05 if setting == "prob_ka1" else 0.0
            line = dict.fromkeys(report.MEASURES, 0.5) | {
                "entropy": ease[photo] + random.normal(0, 0.01),
                "iou": 1 - 0.5 * ease[photo] - lost + random.normal(0, 0.01),
                "output_entropy": random.random(),
                "auroc_posterior": 0.4 + random.normal(0, 0.02),
                "auroc_output": 0.9 + random.normal(0, 0.02),
            }
            key = {"setting": setting, "seed": seed, "dataset": "a", "object": photo}
            beliefs.append(key | {"photo": f"p{photo}"} | line)
    for network in ("prob", "csa"):
        for version in ("photograph", *report.VERSIONS):
            for seed, photo in np.ndindex(seeds, photos):
                line = {of: random.normal() for of in report.SCORES}
                line["evidence"] -= 3.0 * (version == "noise")
                key = {"network": network, "seed": seed, "photo": f"p{photo}", "version": version}
                evidence.append(key | line)
    return beliefs, evidence


def test_known_effects_are_found_with_their_sign_and_nothing_else_is(tmp_path):
    beliefs, evidence = drawn(np.random.default_rng(2))
    assert report.report(tmp_path, "toy") == []
    write_lines(tmp_path / report.BELIEFS.format("toy"), beliefs)
    write_lines(tmp_path / report.EVIDENCE.format("toy"), evidence)
    tests = report.report(tmp_path, "toy")
    verdicts = {(test.setting, test.claim): test.verdict for test in tests}
    assert verdicts["prob", "It is lower than for photographs: noise."] == "holds"
    assert verdicts["prob", "It is lower than for photographs: blurred."] == "not shown"
    assert verdicts["csa", "It detects wrong pixels."] == "contradicted"
    assert verdicts["csa", "It detects them better than the output's."] == "contradicted"
    assert verdicts["csa", "Its mean predicts bad masks (rank correlation)."] == "holds"
    better = "The first mask is better (points of IoU)."
    assert verdicts["prob_ka1", better] == "contradicted"
    assert verdicts["csa_ka1", better] == "not shown"
    with (tmp_path / "toy_beliefs_claims.csv").open(newline="") as file:
        lines = [*csv.DictReader(file)]
    assert [line["verdict"] for line in lines] == [test.verdict for test in tests]
    assert "toy_beliefs.png" in (tmp_path / "toy_beliefs.md").read_text()
    assert (tmp_path / "toy_beliefs.png").stat().st_size > 10_000


def test_all_is_measured_of_networks_that_were_trained(tmp_path, monkeypatch):
    root = write_folder(tmp_path / "data", images=40, size=(72, 80))
    content = plan_of([], prob=["prob"])
    networks = {"prob": {"fusion": {"attention": "probabilistic"}}}
    content["training"] = training_of(
        root, tmp_path / "runs", networks, seeds=2, steps=1, batch_size=3
    )
    objects = {"kind": "ImageMaskFolder", "arguments": {"root": str(root)}, "most": 3}
    content["datasets"] = {"objects": objects}
    path = tmp_path / "drawn.yaml"
    path.write_text(yaml.safe_dump(content))
    training = read_plan(path).training
    for seed in range(2):
        for name, network in initial_networks(training, seed).items():
            save(network, described(training, name), training.place(name, seed))
    settings = {name: paper_beliefs.SETTINGS[name] for name in ("prob", "prob_ka1")}
    monkeypatch.setattr(paper_beliefs, "SETTINGS", settings)
    monkeypatch.setattr(paper_beliefs, "FITTED", ("prob",))
    monkeypatch.setattr(paper_beliefs, "FACTORS", (1.0, 2.0))
    monkeypatch.setattr(paper_beliefs, "NETWORKS", ("prob",))
    frames = [SimpleNamespace(image=np.full((60, 80, 3), shade, np.uint8)) for shade in (9, 99)]
    monkeypatch.setattr(paper_beliefs, "CamVid", lambda split: frames)
    options = ["--plan", str(path), "--batches", "1", "--most", "3", "--results", str(tmp_path)]
    assert paper_beliefs.main(options) == 0
    with (tmp_path / "drawn_precisions.csv").open(newline="") as file:
        assert len([*csv.DictReader(file)]) == 2 * (1 + len(paper_beliefs.PRIORS))
    lines = report._read(tmp_path / report.BELIEFS.format("drawn"))
    assert len(lines) == 4 * 2 * 3  # settings, two of them fitted; seeds; objects
    of = {(line["setting"], line["seed"], line["object"]): line for line in lines}
    off, on = ([line for key, line in of.items() if key[0] == name] for name in settings)
    assert {line["evidence"] for line in off}.isdisjoint(line["evidence"] for line in on)
    assert all(0 <= float(line["entropy"]) <= 1 for line in lines)
    lines = report._read(tmp_path / report.EVIDENCE.format("drawn"))
    assert len(lines) == 2 * 3 * (2 + len(paper_beliefs.CHANGES))
