import dataclasses
import json

import numpy as np
import pytest

from probseg.errors import DataError, UnknownNameError
from probseg.metrics.statistics import holm
from probseg.reports.comparison import compare
from probseg.reports.comparison_inputs import default_names, read_result
from probseg.reports.comparison_report import as_json, verdicts
from support.result_folders import BOXED, COMPARED, UNBOXED, result, rising, rows_of, write_result
from support.rows import each

QUICK = {"draws": 200}


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
