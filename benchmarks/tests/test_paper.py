"""The counterparts of the paper's figures: known effects are found, and nothing else is."""

import csv
from dataclasses import replace

import numpy as np
import paper
import paper_rows as rows
import paper_scores as scores
import pytest
import yaml
from paper_claims import POOLED, by_seeds, examine, examine_all, score
from paper_plans import claim, plan_of
from scipy.stats import ttest_1samp

from probseg.errors import DataError, UnknownNameError
from probseg.evaluation import PROTOCOLS
from probseg.evaluation.records import read_objects
from probseg.metrics.statistics import holm, signed_rank
from probseg.models import build, list_presets, override, read_preset
from support.result_folders import write_result

PROTOCOL = replace(PROTOCOLS["gabbur2021"], trials=2)
OBJECTS = 40


def curves(shift=0.0, seed=0, objects=OBJECTS):
    """IoUs of 10 clicks that rise, those of each object by its own; noise differs by seed."""
    ease = np.random.default_rng(99).uniform(0.4, 0.7, (objects, 1, 1))
    rising = ease + 0.02 * np.arange(11)
    noise = np.random.default_rng(seed).normal(0, 0.01, (objects, 2, 11))
    return rising + noise + shift


@pytest.fixture
def place(tmp_path):
    """Writes a plan and toy results, and runs the report."""

    class Place:
        folder, results = tmp_path / "runs" / "paper", tmp_path / "results"

        def plan(self, content):
            (tmp_path / "paper.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
            return rows.read_plan(tmp_path / "paper.yaml")

        def result(self, row, ious, seed=0, photos=None, model=None, datasets=("GrabCut",)):
            about = {
                "model": model or row,
                "adaptation": dict.fromkeys(
                    ("key_iterations", "key_prior", "value_iterations", "value_prior")
                ),
                "environment": {
                    "commit": "0123456789",
                    "dirty": True,
                    "versions": {"torch": "2"},
                    "device": "cpu",
                },
            }
            for name in datasets:
                of_set = {name: photos} if photos else None
                folder = self.folder / row / f"seed{seed}" / name
                write_result(folder, {name: ious}, PROTOCOL, of_set, **about)

        def report(self, folder=None):
            options = ["--plan", tmp_path / "paper.yaml", "--folder", folder or self.folder.parent]
            return paper.main([*map(str, options), "--results", str(self.results)])

        def findings(self):
            with (self.results / "paper_claims.csv").open(newline="") as file:
                return list(csv.DictReader(file))

        def files(self):
            return {path.name: path.read_bytes() for path in self.results.iterdir()}

    return Place()


def test_the_rows_of_the_first_plan_can_be_evaluated():
    """Their presets exist, and have what is switched in them."""
    plan = rows.read_plan(rows.PLANS[0])
    assert {figure.name for figure in plan.figures} >= {f"fig{n}" for n in (1, 2, 4, 5, 7, 8)}
    assert set(plan.rows) == {name for figure in plan.figures for name in figure.rows}
    networks = {}
    for row in plan.rows.values():
        (preset,) = {model.split(".")[0] for model in row.models}
        assert preset in list_presets()
        if preset not in networks:
            networks[preset] = build(read_preset(preset))
        networks[preset].adapt(row.adaptation)


PROPAGATION = rows.PLANS[0].with_name("paper_propagation.yaml")


@pytest.mark.parametrize("path", [*rows.PLANS[1:], PROPAGATION], ids=lambda path: path.stem)
def test_the_rows_of_other_plans_can_be_trained_and_evaluated(path):
    """Their networks can be built, have what is switched in them, and are all evaluated."""
    plan = rows.read_plan(path)
    training = plan.training
    assert set(plan.rows) == {name for figure in plan.figures for name in figure.rows}
    networks = {
        str(training.place(name, 0)): build(override(read_preset(training.of), changes))
        for name, changes in training.networks.items()
    }
    assert {row.models[0] for row in plan.rows.values()} == set(networks)
    for row in plan.rows.values():
        assert len(row.models) == training.seeds
        networks[row.models[0]].adapt(row.adaptation)


def test_true_effects_are_found_with_their_sign_and_nothing_else_is(place):
    claims = [claim("up", "base", (0, 5)), claim("same", "base"), claim("down", "base")]
    place.plan(plan_of(claims, base=["base"], up=["up"], same=["same"], down=["down"]))
    for seed, (name, shift) in enumerate([("base", 0), ("up", 0.03), ("same", 0), ("down", -0.03)]):
        place.result(name, curves(shift, seed), datasets=("GrabCut", "objects"))
    assert place.report() == 0
    found = place.findings()
    verdicts = {(row["better"], row["dataset"], row["clicks"]): row["verdict"] for row in found}
    assert verdicts == {
        (name, dataset, k): verdict
        for dataset in ("GrabCut", "objects")
        for name, k, verdict in (
            ("up", "0", "holds"),
            ("up", "5", "holds"),
            ("same", "0", "not shown"),
            ("down", "0", "contradicted"),
        )
    }
    up = found[0]
    assert float(up["low"]) < 3 < float(up["high"])
    assert float(up["difference"]) == pytest.approx(3, abs=0.6)
    gains = 100 * (curves(0.03, 1) - curves(0, 0)).mean(axis=1)[:, 0]
    assert float(up["effect_size"]) == pytest.approx(gains.mean() / gains.std(ddof=1), rel=0.01)
    assert int(up["ahead"]) == (gains > 0).sum() > 30
    assert up["sentence"].startswith("Holds on GrabCut after 0 clicks: +")
    text = (place.results / "paper.md").read_text()
    assert "- **up beats base.** Holds on GrabCut after 0 clicks: +" in text
    assert "Contradicted on objects after 0 clicks: -" in text
    assert "What is missing" not in text
    corrected = holm([float(row["p"]) for row in found])
    assert [float(row["corrected_p"]) for row in found] == pytest.approx(corrected, rel=1e-3)


def test_nothing_is_shown_where_ranks_and_mean_disagree(place):
    content = plan_of([claim("up", "base")], base=["base"], up=["up"])
    plan = place.plan(content)
    base = np.full((OBJECTS, 2, 11), 0.8)
    better = base + 0.01
    better[:4] = 0.1  # most are better, and the mean is worse
    place.result("base", base)
    place.result("up", better)
    results, _ = scores.gather(plan, place.folder, place.results)
    (finding,) = examine(plan.figures, score(plan, results))
    assert finding.p < 0.05
    assert (finding.ahead, finding.behind) == (36, 4)
    assert finding.difference < 0
    assert (finding.direction, finding.verdict) == (0, "not shown")


def test_objects_of_one_photograph_are_one_piece_of_evidence(place):
    plan = place.plan(plan_of([claim("up", "base")], base=["base"], up=["up"]))
    photos = [f"photo{number // 4}" for number in range(OBJECTS)]
    place.result("base", curves(), photos=photos)
    place.result("up", curves(0.02, 1), photos=photos)
    results, _ = scores.gather(plan, place.folder, place.results)
    (finding,) = examine(plan.figures, score(plan, results))
    gains = 100 * (results[1].ious - results[0].ious).mean(axis=1)[:, 0]
    assert (finding.objects, finding.photos) == (OBJECTS, 10)
    assert finding.p == pytest.approx(signed_rank(gains, photos).p)
    assert finding.p == 2 * 0.5**10, "the least that ten photographs can give"


def test_several_seeds_count_together_and_have_an_error_of_their_own(place):
    plan = place.plan(plan_of([claim("up", "base")], base=["a", "b"], up=["c"]))
    place.result("base", curves(-0.05, 1), model="a")
    place.result("base", curves(0.05, 2), seed=1, model="b")
    place.result("up", curves(0.03, 3), model="c")
    assert place.report() == 0
    results, _ = scores.gather(plan, place.folder, place.results)
    base = score(plan, results)["GrabCut"]["base"]
    assert base.ious.shape == (2, OBJECTS, 2, 11)
    pair = np.stack([curves(-0.05, 1), curves(0.05, 2)])
    np.testing.assert_allclose(base.of_objects, pair.mean(axis=(0, 2)), atol=1e-4)
    (found,) = place.findings()
    assert float(found["than_miou"]) == pytest.approx(100 * pair[..., 0].mean(), abs=0.01)
    means = pair[..., 0].mean(axis=(1, 2))
    line = next(
        line
        for line in (place.results / "paper.md").read_text().splitlines()
        if line.startswith("| BASE (`base`) | 2 |")
    )
    first = line.split("|")[3].split("±")
    assert len(first) == 4, "objects, trials and seeds"
    assert float(first[3]) == pytest.approx(100 * means.std(ddof=1) / 2**0.5, abs=0.06)


def test_a_test_over_seeds_is_about_other_trainings():
    """Without an effect, trainings that differ make the test over photographs alone reject."""
    random = np.random.default_rng(0)
    seeds, photos, repeats = 3, 30, 1000
    of_seeds = random.normal(0, 1, (repeats, seeds, 1))
    noise = random.normal(0, 1, (repeats, 1, photos)) + random.normal(
        0, 1, (repeats, seeds, photos)
    )
    rejected = [by_seeds(gains).p <= 0.05 for gains in of_seeds + noise]
    assert np.mean(rejected) < 0.08
    assert (
        np.mean([ttest_1samp(gains.mean(axis=0), 0).pvalue <= 0.05 for gains in of_seeds + noise])
        > 0.3
    )
    found = [by_seeds(gains) for gains in 1.2 + 0.1 * of_seeds + noise]
    power = np.mean([of.p <= 0.05 for of in found])
    assert power > 0.9
    covered = [of.low <= 1.2 <= of.high for of in found]
    assert np.mean(covered) > 0.95
    assert all((of.p <= 0.05) == (of.low > 0 or of.high < 0) for of in found)


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
    assert found.high - found.low < 2 * found.detectable


def test_equal_rows_differ_by_nothing():
    found = by_seeds(np.zeros((3, 8)))
    assert (found.p, found.direction, found.low, found.high) == (1, 0, 0, 0)


def test_a_pooled_plan_tests_all_photographs_together(place):
    content = plan_of([claim("up", "base")], base=["a", "b"], up=["c", "d"])
    plan = place.plan({**content, "pooled": True})
    photos = [f"photo{number}" for number in range(OBJECTS)]
    for seed, (base, up) in enumerate([("a", "c"), ("b", "d")]):
        for number, name in enumerate(("GrabCut", "objects")):
            shared = {"photos": photos, "datasets": (name,), "seed": seed}
            place.result("base", curves(0, number), model=base, **shared)
            place.result("up", curves(0.02, 5 + number + 2 * seed), model=up, **shared)
    results, missing = scores.gather(plan, place.folder, place.results)
    assert not missing
    (finding,) = examine_all(plan, score(plan, results))
    assert (finding.dataset, finding.seeds) == (POOLED, 2)
    assert (finding.objects, finding.photos) == (2 * OBJECTS, OBJECTS), "of the same name"
    assert finding.low < 2 < finding.high
    assert finding.verdict == "holds"


def test_the_small_file_says_all_that_the_folders_say(place, tmp_path):
    place.plan(plan_of([claim("up", "base")], base=["base"], up=["up"]))
    place.result("base", curves(), datasets=("GrabCut", "objects"))
    place.result("up", curves(0.03, 1), datasets=("GrabCut", "objects"))
    assert place.report() == 0
    files = place.files()
    assert set(files) == {
        "paper.md",
        "paper_claims.csv",
        "paper_fig2.png",
        "paper_objects.csv.gz",
        "paper_sources.json",
    }
    assert place.report(folder=tmp_path / "nowhere") == 0
    assert place.files() == files
    (kept, *_) = scores.read(place.results, "paper")
    (run, *_) = read_objects(place.folder / "base" / "seed0" / "GrabCut" / "objects.csv")
    np.testing.assert_allclose(kept.ious[0, 0], [step.iou for step in run.steps], atol=0.5e-4)
    assert kept.source["commit"] == "0123456+"


def test_results_of_other_settings_are_left_out_and_named(place):
    content = plan_of([claim("up", "base")], base=["base"], up=["up"])
    place.plan(content)
    place.result("base", curves())
    place.result("up", curves(0.03, 1))
    assert place.report() == 0
    content["rows"]["up"]["adaptation"] = {"key_iterations": 1}
    place.plan(content)
    assert place.report() == 0
    assert place.findings() == []
    text = (place.results / "paper.md").read_text()
    assert "- up: up has other settings on GrabCut." in text
    assert "- up: up was not evaluated on objects." in text
    assert "- **up beats base.** Not tested: a row is missing." in text
    assert {result.row for result in scores.read(place.results, "paper")} == {"base"}


def test_without_comparable_results_there_is_no_report(place, capsys):
    place.plan(plan_of([claim("up", "base")], base=["base"], up=["up"]))
    assert place.report() == 2
    assert "nothing was evaluated yet" in capsys.readouterr().err
    place.result("base", curves())
    place.result("up", curves(objects=OBJECTS - 1))
    assert place.report() == 2
    assert "GrabCut: up has 39 objects" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda c: c.update(protocol="nobody"), UnknownNameError, "unknown protocol 'nobody'"),
        (lambda c: c["rows"]["base"].update(models="base"), DataError, "rows: base: models"),
        (lambda c: c["rows"]["base"].update(model="base"), DataError, "rows: base: .*'model'"),
        (
            lambda c: c["rows"]["base"].update(adaptation={"key_prior": -1}),
            DataError,
            "rows: base: `key_prior`",
        ),
        (lambda c: c["datasets"]["objects"].update(kind="nobody"), UnknownNameError, "data set"),
        (lambda c: c["figures"]["fig2"]["rows"].append("none"), UnknownNameError, "row 'none'"),
        (lambda c: c["figures"]["fig2"]["rows"].remove("up"), UnknownNameError, "of figure fig2"),
        (
            lambda c: c["figures"]["fig2"]["claims"][0].update(clicks=[11]),
            DataError,
            r"fig2: clicks: expected numbers in 0 \.\.\. 10, got 11",
        ),
    ],
)
def test_plans_that_cannot_be_followed_are_refused(place, change, error, words):
    content = plan_of([claim("up", "base")], base=["base"], up=["up"])
    change(content)
    with pytest.raises(error, match=words):
        place.plan(content)
