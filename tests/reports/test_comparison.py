"""Comparisons: rows, verdicts and curves, and the results that fit together."""

import dataclasses
import json
import re

import numpy as np
import pytest

from probseg.errors import DataError, UnknownNameError
from probseg.metrics import clustered_bootstrap
from probseg.metrics.statistics import holm, signed_rank
from probseg.reports.comparison import Row, compare, style_of
from probseg.reports.comparison_inputs import default_names, read_result
from probseg.reports.comparison_report import (
    as_json,
    comparison_tables,
    markdown,
    remarks,
    verdicts,
)
from support.result_folders import (
    BOXED,
    COMPARED,
    METRICS,
    UNBOXED,
    result,
    rising,
    rows_of,
    write_result,
)
from support.rows import each

QUICK = {"draws": 200}


@pytest.fixture(scope="module")
def two():
    """Twelve objects in eight photographs, and a second result that is somewhat better."""
    photos = tuple(f"p{number % 8}" for number in range(12))
    a = rising(12)
    b = np.clip(a + rising(12, 2, seed=5) / 20, 0, 1)
    return photos, a, b, compare([result("a", a, photos), result("b", b, photos)], **QUICK)


def test_a_row_is_what_its_parts_say(two):
    photos, a, b, comparison = two
    turned = [result("a", a, photos), result("b", b[:, ::-1], photos)]
    for one, other in zip(comparison.rows, compare(turned, **QUICK).rows, strict=True):
        assert dataclasses.astuple(other) == pytest.approx(dataclasses.astuple(one))
    row = rows_of(comparison)["miou@3"]
    of_a, of_b = a[:, :, 3].mean(axis=1), b[:, :, 3].mean(axis=1)
    assert row.reference_mean == pytest.approx(of_a.mean())
    assert row.difference == pytest.approx(of_b.mean() - of_a.mean())
    bounds = clustered_bootstrap((of_b - of_a)[:, None], photos, **QUICK)
    assert (row.low, row.high) == pytest.approx((bounds.low[0], bounds.high[0]))
    assert row.p == signed_rank(of_b - of_a, photos).p
    assert (row.ahead, row.level, row.behind) == ((of_b > of_a).sum(), 0, (of_b < of_a).sum())
    assert row.test == "Wilcoxon"
    assert [row.metric for row in comparison.rows] == METRICS
    assert [row.corrected_p for row in comparison.rows] == holm([r.p for r in comparison.rows])
    curves = comparison.curves[0]
    assert curves.clicks == (0, 1, 2, 3, 4, 5)
    assert curves.means == pytest.approx(np.stack([a.mean(axis=(0, 1)), b.mean(axis=(0, 1))]))
    assert curves.differences == pytest.approx(curves.means[1:] - curves.means[:1])
    assert (curves.bands[0] < curves.means).all()
    assert (curves.means < curves.bands[1]).all()
    assert curves.difference_bands[:, 0, 3] == pytest.approx([row.low, row.high])


def test_scores_of_objects_by_hand():
    ious = np.array([[[0.5, 0.8, 0.9], [0.7, 0.82, 0.84]], [[0.1, 0.2, 0.3], [0.1, 0.2, 0.96]]])
    rows = rows_of(compare([result("a", ious), result("b", ious)], **QUICK))
    expected = {
        "miou@2": (0.87 + 0.63) / 2,
        "auc": ((0.75 + 0.795) / 2 + (0.2 + 0.365) / 2) / 2,
        "noc@80": (1 + 2) / 2,
        "noc@90": 2,
        "boundary_iou": 0.375,
        "brier": 0.125,
        "ece": 0.125,
        "failures@80": 0,  # half of the trials of the second object: no majority
        "failures@90": 0,
        "failures@95": 0.5,
    }
    assert {name: rows[name].other_mean for name in expected} == pytest.approx(expected)


def test_failures_are_tested_by_mcnemar():
    a, b = np.full((9, 3, 2), 0.5), np.full((9, 3, 2), 0.9)
    b[7:, :2] = 0.2  # two objects fail in two of three trials
    rows = rows_of(compare([result("a", a), result("b", b)], **QUICK))
    row = rows["failures@85"]
    assert row.test == "McNemar"
    assert (row.reference_mean, row.other_mean) == (1, pytest.approx(2 / 9))
    assert row.p == pytest.approx(2 / 2**7)
    assert (row.ahead, row.level, row.behind, row.direction) == (7, 2, 0, 1)


def test_swapping_turns_all_signs(two):
    photos, a, b, there = two
    back = compare([result("b", b, photos), result("a", a, photos)], **QUICK)
    for row, other in zip(there.rows, back.rows, strict=True):
        better = 1 if style_of(row.metric).higher_is_better else -1
        assert row.direction in (0, np.sign(better * row.difference))
        assert other == dataclasses.replace(
            row,
            other="a",
            reference_mean=row.other_mean,
            other_mean=row.reference_mean,
            difference=-row.difference,
            low=pytest.approx(-row.high),
            high=pytest.approx(-row.low),
            ahead=row.behind,
            behind=row.ahead,
            direction=-row.direction,
        )


def test_with_itself_nothing_differs(two):
    photos, a, _, _ = two
    comparison = compare([result("a", a, photos), result("b", a, photos)], **QUICK)
    assert {(row.p, row.corrected_p, row.difference) for row in comparison.rows} == {(1, 1, 0)}
    assert {row.direction for row in comparison.rows} == {0}
    assert verdicts(comparison)[0].text.startswith(
        "No difference between a and b could be shown on Toy with 12 objects in 8 photographs; "
        "the interval of mIoU@5 is +0.00 to +0.00 points. By mIoU@5 b is ahead on 0, behind on 0 "
        f"and level on 12 of 12 objects; 0 of {len(METRICS)} tests are significant, corrected"
    )


def made_up(metric, corrected_p, direction, **more):
    numbers = {"reference_mean": 0.5, "other_mean": 0.6, "difference": 0.021 * direction}
    ends = {"low": 0.008, "high": 0.034, "ahead": 6, "behind": 4, "level": 2}
    test = {"test": "Wilcoxon", "zeros": 0, "ties": 0, "p": corrected_p / 9}
    row = numbers | ends | test | more
    return Row("Toy", "b", metric, corrected_p=corrected_p, direction=direction, **row)


BETTER, WORSE = made_up("miou@5", 0.003, 1), made_up("noc@90", 0.02, -1)


@each(
    ("rows", "told"),
    [
        (
            [BETTER, made_up("noc@90", 0.41, 1)],
            ["b is better than a on Toy: +2.10 points of mIoU@5", "no difference in NoC@90"],
        ),
        (
            [made_up("miou@5", 0.2, 1), WORSE, made_up("ece", 0.01, -1)],
            [
                "b is worse than a on Toy: -0.0210 of ECE (95 % interval +0.0080 to",
                "also in NoC@90",
            ],
        ),
        ([BETTER, WORSE], ["better by +2.10 points of mIoU@5", "worse by -0.02 clicks"]),
        (
            [made_up("miou@5", 0.01, 0, difference=-0.01)],
            ["b and a differ on Toy", "disagree: -1.00 points of mIoU@5"],
        ),
        ([made_up("miou@5", 0.06, 1)], ["No difference between a and b", "corrected (p = 0.007"]),
    ],
)
def test_verdicts(two, rows, told):
    text = verdicts(dataclasses.replace(two[3], rows=tuple(rows)))[0].text
    assert all(part in text for part in told), text


def test_means_that_contradict_the_ranks_favour_nobody():
    a = np.full((40, 1, 2), 0.5)
    b = a + 0.01 * np.arange(40)[:, None, None] / 40 + 0.01
    b[0] = 0.0  # one disaster outweighs 39 small gains
    b[1:4] -= 0.15
    row = rows_of(compare([result("a", a), result("b", b)], **QUICK))["miou@1"]
    assert row.significant
    assert row.difference < 0
    assert row.ahead > row.behind
    assert row.direction == 0


def test_metrics_can_be_chosen(two):
    photos, a, b, comparison = two
    results = [result("a", a, photos), result("b", b, photos)]
    few = compare(results, metrics=["noc@90", "auc", "auc"], **QUICK)
    assert [row.metric for row in few.rows] == ["noc@90", "auc"]
    assert rows_of(few)["auc"].p == rows_of(comparison)["auc"].p
    assert rows_of(few)["auc"].corrected_p < rows_of(comparison)["auc"].corrected_p
    with pytest.raises(UnknownNameError, match=r"'miou@7'.*did you mean 'miou@"):
        compare(results, metrics=["miou@7"])
    for wrong in (results[:1], [results[0]] * 2):
        with pytest.raises(DataError, match="at least two, with different names"):
            compare(wrong)


def test_what_some_object_lacks_is_left_out(two):
    photos, a, b, _ = two
    lacking = result("b", b, photos)
    lacking.scores["Toy"].values["brier"][3, 0, -1] = np.nan
    comparison = compare([result("a", a, photos), lacking], **QUICK)
    assert "brier" not in rows_of(comparison)
    assert "Brier score on Toy is left out; objects without it: 1 of b." in comparison.notes


def test_three_results_against_the_first(two):
    photos, a, b, alone = two
    results = [result("a", a, photos), result("b", b, photos), result("c", a / 2, photos)]
    comparison = compare(results, **QUICK)
    assert [verdict.other for verdict in verdicts(comparison)] == ["b", "c"]
    assert len(comparison.rows) == 2 * len(alone.rows)
    for name, row in rows_of(comparison, "b").items():
        old = rows_of(alone)[name]
        assert (row.p, row.low, row.difference) == pytest.approx((old.p, old.low, old.difference))
        assert row.corrected_p >= old.corrected_p
    curves = comparison.curves[0]
    assert curves.ranks[2] == 3
    assert sum(curves.ranks) == pytest.approx(6)
    assert any(note.startswith("Mean rank on Toy") for note in remarks(comparison))
    assert not any(note.startswith("Mean rank") for note in remarks(alone))


def test_one_photograph_gives_no_interval(two):
    _, a, b, _ = two
    photos = ("p",) * 12
    comparison = compare([result("a", a, photos), result("b", b, photos)], **QUICK)
    assert {(row.low, row.high, row.p) for row in comparison.rows} == {(None, None, 1.0)}
    assert "one photograph gives no interval" in verdicts(comparison)[0].text
    assert f"has too few photographs (1) for {len(METRICS)} tests" in comparison.notes[0]
    table = comparison_tables(comparison)[0]
    assert dict(zip(table.header, table.rows[0], strict=True))["95 % interval"] == "n/a"
    assert as_json(comparison)["curves"][0]["bands"][0][0] == [None] * 6


def test_names_in_markdown_are_neither_html_nor_cells(two):
    photos, a, b, _ = two
    results = [result(name, of, photos) for name, of in (("<b>", a), ("<i>&amp;|", b), ("c", b))]
    text = markdown(compare(results, **QUICK))
    written = re.sub(r"`[^`]*`", "", text)  # code is text anyway
    assert not re.search(r"<\S", written)
    assert "| metric | &lt;b> | &lt;i>&amp;amp;\\| | difference |" in text
    assert "# Comparison with &lt;b>" in text
    assert "\n- Mean rank on Toy" in text


def test_names_are_the_last_part_that_differs(tmp_path):
    folders = [tmp_path / name / "version_0" / "test" / "ritm" for name in ("csa", "conv")]
    assert default_names(folders) == ["csa", "conv"]
    folders.append(tmp_path / "csa" / "version_1" / "test" / "ritm")
    assert default_names(folders) == [
        f"{name}/test/ritm" for name in ("csa/version_0", "conv/version_0", "csa/version_1")
    ]
    with pytest.raises(DataError, match="different"):
        default_names([tmp_path / "x", tmp_path / "y" / ".." / "x"])


def damage(folder, **changes):
    """Replace or remove (None) parts of a results.json."""
    path = folder / "results.json"
    told = json.loads(path.read_text(encoding="utf-8")) | changes
    told = {key: value for key, value in told.items() if value is not None}
    path.write_text(json.dumps(told), encoding="utf-8")


def without_lines(number):
    def change(folder):
        path = folder / "objects.csv"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:-number]), encoding="utf-8")

    return change


def with_nan(folder):
    path = folder / "objects.csv"
    path.write_text(path.read_text(encoding="utf-8").replace(",0.25,", ",nan,"), encoding="utf-8")


@each(
    ("break_it", "told"),
    [
        (lambda folder: (folder / "objects.csv").unlink(), r"objects.csv: no such file"),
        (lambda folder: (folder / "results.json").write_text("{"), "is not JSON"),
        (lambda folder: damage(folder, protocol=None), "has no protocol"),
        (lambda folder: damage(folder, metadata=None), "has no metadata"),
        (lambda folder: damage(folder, datasets={"Toy": 4}), "has Toy 4, of another kind"),
        (lambda folder: damage(folder, protocol={"name": "x"}), "has no version"),
        (lambda folder: damage(folder, datasets={}), "has 0 objects of Toy, .* has 4"),
        (without_lines(1), "is it complete"),
        (without_lines(6), r"trials \[0, 1\] of every object of Toy, got \[0\] of o03"),
        (with_nan, r"objects.csv: `ious` must be in"),
    ],
)
def test_a_broken_folder_is_refused(tmp_path, break_it, told):
    ious = rising(4)
    ious[2, 1, 3] = 0.25
    folder = write_result(tmp_path / "a", {"Toy": ious})
    read = read_result(folder, "a")
    assert read.objects == {"Toy": ["o00", "o01", "o02", "o03"]}
    assert (read.scores["Toy"].ious == ious).all()
    assert read.metadata["weights_sha256"] == "sha of a"
    break_it(folder)
    with pytest.raises(DataError, match=told):
        read_result(folder, "a")


def test_other_folders_are_refused(tmp_path):
    folder = write_result(tmp_path / "run" / "test" / "toy", {"Toy": rising(2)})
    with pytest.raises(DataError, match=f"here {folder}"):
        read_result(tmp_path / "run", "run")
    folder = write_result(tmp_path / "a", {"Toy": rising(2, clicks=4)})
    with pytest.raises(DataError, match="0 to 5 clicks of each run, got 5"):
        read_result(folder, "a")


def test_results_that_do_not_fit_together_are_refused(tmp_path):
    results = pair_of(tmp_path / "1", {"Toy": rising(2)}, {"More": rising(2)})
    with pytest.raises(DataError, match="no object in common"):
        compare(results, common_only=True)
    at_once = {"protocol": dataclasses.replace(BOXED, max_clicks=0)}
    toys = {"Toy": rising(3, clicks=0)}, {"Toy": rising(3, 1)}
    results = pair_of(tmp_path / "2", *toys, at_once, {"protocol": UNBOXED})
    with pytest.raises(DataError, match="no number of clicks in common"):
        compare(results, allow_different_protocols=True)
    of_b = {"photos": {"Toy": ["o00", "x", "o02"]}}
    results = pair_of(tmp_path / "3", {"Toy": rising(3)}, {"Toy": rising(3)}, None, of_b)
    with pytest.raises(DataError, match=r"Toy/o01: .*same photograph.* o01 in a, x in b"):
        compare(results)


def pair_of(tmp_path, a, b, of_a=None, of_b=None):
    one = write_result(tmp_path / "a", a, **(of_a or {}))
    other = write_result(tmp_path / "b", b, **(of_b or {}))
    return [read_result(one, "a"), read_result(other, "b")]


def test_a_result_from_before_an_option_has_its_default(tmp_path):
    a = rising(8)
    older, newer = pair_of(tmp_path, {"Toy": a}, {"Toy": a})
    path = older.folder / "results.json"
    protocol = json.loads(path.read_text(encoding="utf-8"))["protocol"]
    without = {key: value for key, value in protocol.items() if key != "keep_clicks"}
    damage(older.folder, protocol=without)
    results = [read_result(older.folder, "a"), newer]
    assert compare(results, **QUICK).notes == compare([older, newer], **QUICK).notes
    damage(older.folder, protocol={**without, "keep_clicks": True})
    with pytest.raises(DataError, match="keep_clicks: true in a, false in b"):
        compare([read_result(older.folder, "a"), newer])


def test_different_protocols_are_refused_unless_allowed(tmp_path):
    other = dataclasses.replace(BOXED, max_clicks=3, corner_noise=0.05, trials=4)
    a, b = rising(8), rising(8, 4, 3)
    results = pair_of(tmp_path, {"Toy": a}, {"Toy": b}, None, {"protocol": other})
    with pytest.raises(DataError) as caught:
        compare(results)
    told = str(caught.value)
    assert "  corner_noise: 0.1 in a, 0.05 in b\n  max_clicks: 5 in a, 3 in b\n" in told
    assert "trials" not in told
    assert "--allow-different-protocols" in told
    comparison = compare(results, allow_different_protocols=True, **QUICK)
    assert "The protocols differ in max_clicks: 5 in a, 3 in b." in comparison.notes
    rows = rows_of(comparison)
    assert "miou@5" not in rows
    assert rows["miou@3"].reference_mean == pytest.approx(a[:, :, 3].mean())
    assert rows["brier"].reference_mean == pytest.approx((1 - a[:, :, 3].mean()) / 2)


@each(("masks", "first"), [((False, False), 1), ((True, False), 1), ((True, True), 0)])
def test_nothing_counts_before_the_first_click_without_a_box(tmp_path, masks, first):
    """A mask to correct is the first result."""
    a, b = rising(6, 1), rising(6, 1, seed=1)
    of = [{"protocol": dataclasses.replace(UNBOXED, initial_mask=mask)} for mask in masks]
    results = pair_of(tmp_path, {"Toy": a}, {"Toy": b}, *of)
    comparison = compare(results, allow_different_protocols=True, **QUICK)
    rows = rows_of(comparison)
    assert ("miou@0" in rows) == (first == 0)
    inner = a[:, 0, first + 1 : 5].sum(axis=1) + (a[:, 0, first] + a[:, 0, 5]) / 2
    assert rows["auc"].reference_mean == pytest.approx(inner.mean() / (5 - first))
    assert comparison.curves[0].clicks == (0, 1, 2, 3, 4, 5)[first:]


@each("ends", [(None, 0.9), (0.95, 0.9)])
def test_where_runs_end_higher_ious_are_not_compared(tmp_path, ends):
    of = [{"protocol": dataclasses.replace(BOXED, target_iou=target)} for target in ends]
    results = pair_of(tmp_path, {"Toy": rising(6)}, {"Toy": rising(6, seed=1)}, *of)
    comparison = compare(results, allow_different_protocols=True, **QUICK)
    names = {row.metric for row in comparison.rows}
    assert {"noc@90", "failures@90"} <= names
    assert not {"noc@95", "failures@95"} & names
    assert any(note.startswith("Runs ended at an IoU of 90 %") for note in comparison.notes)
    with pytest.raises(UnknownNameError, match="noc@95"):
        compare(results, metrics=["noc@95"], allow_different_protocols=True, **QUICK)


def test_all_data_sets_are_corrected_together(tmp_path):
    a = {"Toy": rising(14), "More": rising(16, seed=1)}
    b = {dataset: np.clip(ious + 0.05, 0, 1) for dataset, ious in a.items()}
    comparison = compare(pair_of(tmp_path, a, b), **QUICK)
    assert [row.corrected_p for row in comparison.rows] == holm([r.p for r in comparison.rows])
    assert {row.dataset for row in comparison.rows} == {"Toy", "More"}


def test_missing_objects_are_named_or_left_out(tmp_path):
    a, b = rising(9), rising(9, seed=1)
    results = pair_of(tmp_path, {"Toy": a, "More": a}, {"Toy": b[:2]})
    with pytest.raises(DataError) as caught:
        compare(results)
    assert "  b lacks o00, o01, o02, o03, o04 and 4 more of More\n" in str(caught.value)
    assert "  b lacks o02, o03, o04, o05, o06 and 2 more of Toy\n" in str(caught.value)
    comparison = compare(results, common_only=True, **QUICK)
    assert [curves.dataset for curves in comparison.curves] == ["Toy"]
    assert rows_of(comparison)["miou@1"].reference_mean == pytest.approx(a[:2, :, 1].mean())
    assert any(note.startswith("Left out: b lacks o02, o03,") for note in comparison.notes)


def test_what_is_left_is_paired_by_name():
    ious, names = rising(6), ["o001", "o003", "o004"]
    some = dataclasses.replace(result("b", ious[[1, 3, 4]], names), objects={"Toy": names})
    comparison = compare([result("a", ious), some], common_only=True, **QUICK)
    assert {row.level for row in comparison.rows} == {3}
    assert rows_of(comparison)["miou@1"].other_mean == pytest.approx(ious[[1, 3, 4], :, 1].mean())


def test_a_single_answer_has_neither_curve_nor_clicks(tmp_path):
    options = {"protocol": dataclasses.replace(BOXED, max_clicks=0)}
    a, b = {"Toy": rising(3, clicks=0)}, {"Toy": rising(3, clicks=0, seed=1)}
    comparison = compare(pair_of(tmp_path, a, b, options, options), **QUICK)
    kinds = [row.metric.partition("@")[0] for row in comparison.rows]
    assert kinds == ["miou", *COMPARED] + ["failures"] * 4
    assert "of mIoU@0" in verdicts(comparison)[0].text
    assert as_json(comparison)["curves"][0]["clicks"] == (0,)


def test_seeds_and_weights_are_looked_at(tmp_path):
    options = {"seed": 7, "weights_sha256": "sha of a"}
    results = pair_of(tmp_path, {"Toy": rising(3)}, {"Toy": rising(3)}, None, options)
    notes = compare(results, **QUICK).notes
    assert any("seeds differ (0 in a, 7 in b)" in note for note in notes)
    assert "a and b have the same weights." in notes
