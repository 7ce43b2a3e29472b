import json

import pytest
from result_folders import rising, write_result
from runs import command

from probseg.cli.compare import EXAMPLES
from probseg.reports.comparison_inputs import read_result
from probseg.reports.comparison_report import LEADING, LEGEND
from probseg.reports.comparison_scores import object_scores


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Three results, of which the second is much better, as runs lie on the disk."""
    root = tmp_path_factory.mktemp("runs")
    ious = {"csa": rising(24), "conv": rising(24) * 0.9, "third": rising(24, 1, seed=1)}
    better = ious["conv"] + (1 - ious["conv"]) / 3
    return [
        write_result(root / name / "version_0" / "test" / "toy", {"Toy": values, "More": values})
        for name, values in (("conv", ious["conv"]), ("csa", better), ("third", ious["third"]))
    ]


def test_compare(folders, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert command("compare", *folders[:2], "--output", out) == 0
    told = capsys.readouterr().out
    assert "Toy: csa against conv, 24 objects" in told
    assert "csa is better than conv on Toy: +" in told
    assert "corrected p < 0.001" in told
    written = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert [result["name"] for result in written["results"]] == ["conv", "csa"]
    assert written["results"][1]["weights_sha256"] == "sha of toy"
    assert written["results"][1]["protocol"]["corner_noise"] == 0.1
    assert written["results"][1]["seed"] == 0
    assert written["settings"]["tests"] == len(written["rows"]) == 2 * 17
    row = next(row for row in written["rows"] if row["metric"] == "miou@5")
    assert row["dataset"] == "More"
    assert row["significant"]
    assert 0 < row["low"] < row["difference"] < row["high"]
    page = (out / "comparison.md").read_text(encoding="utf-8")
    assert page.count("| mIoU@5 |") == 2
    assert all(verdict["text"] in page for verdict in written["verdicts"])
    assert LEGEND in page
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in out.iterdir()} == {
        "comparison.md",
        "comparison.json",
        "curves.png",
    }
    assert command("compare", *folders[:2], "--output", out) == 0
    assert json.loads((out / "comparison.json").read_text(encoding="utf-8")) == written


def test_output_lies_in_the_working_folder_by_default(folders, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = ["--names", "[red]first[/red]", "second", "third"]
    assert command("compare", *folders, "--metric", "miou@5", *names) == 0
    told = capsys.readouterr().out
    assert "third against [red]first[/red]" in told
    assert "Mean rank on Toy" in told
    rows = json.loads((tmp_path / "comparison" / "comparison.json").read_text(encoding="utf-8"))
    assert [(row["other"], row["metric"]) for row in rows["rows"]] == [
        ("second", "miou@5"),
        ("third", "miou@5"),
    ] * 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (lambda f: [], "required: FOLDER; see probseg compare --help"),
        (lambda f: [*f, "--bogus"], "unrecognized arguments: --bogus; see probseg compare --help"),
        (lambda f: [f[0]], "expected at least two, the reference first, got 1"),
        (lambda f: [f[0], f[0]], "expected different ones"),
        (lambda f: [f[0], f[1].parent], "no such file; expected a folder that `probseg test` wr"),
        (lambda f: [f[0], f[1], "--names", "one"], "a different name for each of 2 folders"),
        (lambda f: [f[0], f[1], "--names", "one", "one"], "a different name for each of 2"),
        (lambda f: [f[0], f[1], "--metric", "noc@91"], "unknown metric 'noc@91': did you mean"),
        (lambda f: [f[0], f[1], "--output", f[0] / "results.json"], "cannot be written"),
    ],
)
def test_wrong_usage(folders, arguments, told, capsys):
    assert command("compare", *arguments(folders)) == 2
    error = capsys.readouterr().err
    assert error.startswith("probseg: error: ")
    assert told in error


def test_what_does_not_fit_together(folders, tmp_path, capsys):
    fewer = write_result(tmp_path / "fewer", {"Toy": rising(20), "More": rising(24)})
    out = ["--output", tmp_path / "out"]
    assert command("compare", folders[0], fewer, *out) == 2
    assert "fewer lacks o20, o21, o22, o23 of Toy" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert command("compare", folders[0], fewer, *out, "--common-objects") == 0
    assert "Left out: fewer lacks o20, o21, o22, o23 of Toy." in capsys.readouterr().out


def test_other_protocols_have_to_be_allowed(folders, tmp_path, capsys):
    other = write_result(tmp_path / "other", {"Toy": rising(24), "More": rising(24)})
    results = json.loads((other / "results.json").read_text(encoding="utf-8"))
    results["protocol"]["mistakes"] = {"wrong_sign": 0.1}
    (other / "results.json").write_text(json.dumps(results), encoding="utf-8")
    arguments = ["compare", folders[0], other, "--output", tmp_path / "out"]
    assert command(*arguments) == 2
    assert 'mistakes: null in toy, {"wrong_sign": 0.1} in other' in capsys.readouterr().err
    assert command(*arguments, "--allow-different-protocols") == 0
    assert "The protocols differ in mistakes: null in toy" in capsys.readouterr().out


def test_help_names_every_metric(folders, capsys):
    with pytest.raises(SystemExit, match="0"):
        command("compare", "--help")
    told = capsys.readouterr().out
    assert EXAMPLES in told
    known = object_scores(read_result(folders[0], "conv").scores["Toy"], 0)
    assert set(known) | set(LEADING) <= set(told.split())
    assert command("--help") == 0
    assert "probseg compare" in capsys.readouterr().out
