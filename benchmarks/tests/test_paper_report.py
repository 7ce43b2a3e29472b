"""Plans and reports of `benchmarks.paper`: known effects are found, and nothing else is."""

import shutil

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from benchmarks.paper import emanet
from benchmarks.paper.__main__ import ALL, main
from benchmarks.paper.claims import POOLED, by_seeds, examine, examine_all, score, verdict
from benchmarks.paper.plan import PLANS, RESULTS, Claim, Figure, Plan, Row, read_plan
from benchmarks.paper.results import Result, read, write
from probseg.attention import Adaptation
from probseg.errors import DataError, UnknownNameError
from probseg.evaluation import PROTOCOLS
from probseg.metrics.statistics import signed_rank
from probseg.models import build, list_presets, override, read_preset

OBJECTS = 40
PAPER = [path.stem for path in PLANS.glob("paper*.yaml")]


def curves(shift=0.0, seed=0):
    """IoUs of 10 clicks that rise, those of each object by its own; noise differs by seed."""
    ease = np.random.default_rng(99).uniform(0.4, 0.7, (OBJECTS, 1, 1))
    noise = np.random.default_rng(seed).normal(0, 0.01, (OBJECTS, 2, 11))
    return ease + 0.02 * np.arange(11) + noise + shift


def result(row, ious, seed=0, photos=None, dataset="GrabCut"):
    names = tuple(f"{number:02d}" for number in range(len(ious)))
    return Result(row, seed, dataset, names, photos or names, ious, {})


def plan_of(*claims, pooled=False):
    rows = {name: Row(name, name, ("a",), Adaptation()) for of in claims for name in of[:2]}
    read_claims = tuple(Claim(f"{one} beats {other}.", one, other, k) for one, other, k in claims)
    figures = (Figure("fig", "Figure", [*rows], read_claims),)
    sets = dict.fromkeys(("GrabCut", "objects"))
    return Plan("toy", "", "", PROTOCOLS["gabbur2021"], sets, rows, figures, pooled, None)


@pytest.mark.parametrize("name", PAPER)
def test_the_rows_of_a_plan_can_be_trained_and_evaluated(name):
    """Their networks can be built, have what is switched in them, and are all evaluated."""
    plan = read_plan(name)
    training, networks = plan.training, {}
    for network in training.networks if training else ():
        changed = override(read_preset(training.of), training.networks[network])
        networks[str(training.place(network, 0))] = build(changed)
    for row in plan.rows.values():
        if training is None:
            preset = row.models[0].split(".")[0]
            assert preset in list_presets()
            networks.setdefault(row.models[0], build(read_preset(preset)))
        networks[row.models[0]].adapt(row.adaptation)
    assert {row.models[0] for row in plan.rows.values()} <= set(networks)


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        ("protocol: gabbur2021", "protocol: nobody", UnknownNameError, "unknown protocol 'nobody'"),
        ("network: prob}", "network: none}", UnknownNameError, "network 'none'"),
        ("rows: [conv, ", "rows: [none, ", UnknownNameError, "row 'none'"),
        ("better: prob,", "better: prob_tied,", UnknownNameError, "of figure fig1"),
        ("clicks: [0, 5]", "clicks: [0, 11]", DataError, "at most 10"),
        ("label: convolutions", "labl: convolutions", KeyError, "label"),
    ],
)
def test_plans_that_cannot_be_followed_are_refused(tmp_path, old, new, error, words):
    text = (PLANS / "paper_frozen.yaml").read_text()
    assert old in text
    (tmp_path / "plan.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(error, match=words):
        read_plan(tmp_path / "plan.yaml")


def test_the_committed_reports_follow_from_the_committed_results(tmp_path, monkeypatch):
    monkeypatch.setattr(emanet, "_draw", lambda *_: None)
    monkeypatch.setattr("benchmarks.paper.__main__.draw", lambda *_: None)
    kept = ("_objects.csv.gz", "_sources.json")
    for path in RESULTS.iterdir():
        if path.name.endswith(kept) or path.stem == "emanet_blocks.csv":
            shutil.copy(path, tmp_path)
    assert main(["report", "--results", str(tmp_path), "--folder", str(tmp_path)]) == 0
    made = {path.name for path in tmp_path.iterdir()}
    assert made >= {f"{name}.md" for name in ALL}
    for name in made:
        assert (tmp_path / name).read_bytes() == (RESULTS / name).read_bytes(), name


def test_true_effects_are_found_with_their_sign_and_nothing_else_is():
    plan = plan_of(("up", "base", (0, 5)), ("same", "base", (0,)), ("down", "base", (0,)))
    shifts = {"base": 0, "up": 0.03, "same": 0, "down": -0.03}
    results = [result(of, curves(shifts[of], n)) for n, of in enumerate(shifts)]
    found = examine_all(plan, score(plan, results))
    verdicts = [(one.better, one.clicks, one.verdict) for one in found]
    holds = [("up", 0, "holds"), ("up", 5, "holds")]
    assert verdicts == [*holds, ("same", 0, "not shown"), ("down", 0, "contradicted")]
    gains = 100 * (results[1].ious - results[0].ious).mean(axis=1)[:, 0]
    assert found[0].low < 3 < found[0].high
    assert found[0].effect_size == pytest.approx(gains.mean() / gains.std(ddof=1))
    assert found[0].ahead == (gains > 0).sum() > 30
    assert found[0].sentence.startswith("Holds on GrabCut after 0 clicks: +")


def test_nothing_is_shown_where_ranks_and_mean_disagree():
    plan = plan_of(("up", "base", (0,)))
    base = np.full((OBJECTS, 2, 11), 0.8)
    better = base + 0.01
    better[:4] = 0.1  # most are better, and the mean is worse
    (finding,) = examine(plan.figures, score(plan, [result("base", base), result("up", better)]))
    assert finding.p < 0.05
    assert (finding.ahead, finding.behind, finding.verdict) == (36, 4, "not shown")


def test_objects_of_one_photograph_are_one_piece_of_evidence():
    plan = plan_of(("up", "base", (0,)))
    photos = tuple(f"photo{number // 4}" for number in range(OBJECTS))
    pair = [result("base", curves(), 0, photos), result("up", curves(0.02, 1), 0, photos)]
    (finding,) = examine(plan.figures, score(plan, pair))
    gains = 100 * (pair[1].ious - pair[0].ious).mean(axis=1)[:, 0]
    assert (finding.objects, finding.photos) == (OBJECTS, 10)
    assert finding.p == pytest.approx(signed_rank(gains, photos).p)


def test_a_pooled_plan_tests_all_photographs_and_seeds_together():
    plan = plan_of(("up", "base", (0,)), pooled=True)
    photos = tuple(f"photo{number}" for number in range(OBJECTS))
    results = []
    for number, dataset in enumerate(("GrabCut", "objects")):
        for seed in range(2):
            results.append(result("base", curves(0, number), seed, photos, dataset))
            up = curves(0.02, 5 + number + 2 * seed)
            results.append(result("up", up, seed, photos, dataset))
    (finding,) = examine_all(plan, score(plan, results))
    assert (finding.dataset, finding.seeds) == (POOLED, 2)
    assert (finding.objects, finding.photos) == (2 * OBJECTS, OBJECTS), "of the same name"
    assert finding.low < 2 < finding.high
    assert finding.verdict == "holds"


def test_a_test_over_seeds_is_about_other_trainings():
    """Without an effect, trainings that differ make the test over photographs alone reject."""
    random = np.random.default_rng(0)
    seeds, photos, repeats = 3, 30, 1000
    of_seeds = random.normal(0, 1, (repeats, seeds, 1))
    noise = random.normal(0, 1, (repeats, 1, photos)) + random.normal(
        0, 1, (repeats, seeds, photos)
    )
    null = of_seeds + noise
    assert np.mean([by_seeds(gains).p <= 0.05 for gains in null]) < 0.08
    assert np.mean([ttest_1samp(gains.mean(axis=0), 0).pvalue <= 0.05 for gains in null]) > 0.3
    found = [by_seeds(gains) for gains in 1.2 + 0.1 * of_seeds + noise]
    assert np.mean([of.p <= 0.05 for of in found]) > 0.9
    assert np.mean([of.low <= 1.2 <= of.high for of in found]) > 0.95


@pytest.mark.parametrize("share", [0, 0.5, 0.9, 1])
def test_the_size_holds_in_the_tail_of_a_correction(share):
    """A Satterthwaite approximation rejects 140 of 5,000 at a level of 0.01 and a share of 0.9."""
    random = np.random.default_rng(2)
    seeds, photos, repeats = 3, 30, 5000
    of_seeds = random.normal(0, (share * seeds) ** 0.5, (repeats, seeds, 1))
    of_photos = random.normal(0, ((1 - share) * photos) ** 0.5, (repeats, 1, photos))
    rejected = [by_seeds(gains).p <= 0.01 for gains in of_seeds + of_photos]
    assert np.mean(rejected) < 0.01 + 3 * (0.01 / repeats) ** 0.5


def test_seeds_that_agree_are_one_test_of_photographs():
    random = np.random.default_rng(1)
    gains = random.normal(0.3, 1, 40) + np.array([[1e-9], [-1e-9]])
    found, expected = by_seeds(gains), ttest_1samp(gains.mean(axis=0), 0)
    interval = expected.confidence_interval()
    assert found.p == pytest.approx(expected.pvalue, rel=1e-4)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-4)
    nothing = by_seeds(np.zeros((3, 8)))
    assert (nothing.p, nothing.low, nothing.high) == (1, 0, 0)
    assert verdict(nothing.p, nothing.direction) == "not shown"


def test_results_survive_their_files_which_belong_together(tmp_path):
    source = {"protocol": {**vars(PROTOCOLS["gabbur2021"])}}
    made = [result("base", curves().round(4), seed) for seed in range(2)]
    write(
        tmp_path,
        "toy",
        [Result(*one.key, one.objects, one.photos, one.ious, source) for one in made],
    )
    for one, other in zip(read(tmp_path, "toy"), made, strict=True):
        assert (one.key, one.objects, one.photos) == (other.key, other.objects, other.photos)
        np.testing.assert_allclose(one.ious, other.ious, atol=1e-9)
    (tmp_path / "toy_sources.json").write_text("[]")
    with pytest.raises((DataError, ValueError)):
        read(tmp_path, "toy")
