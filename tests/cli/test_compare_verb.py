import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from probseg.cli.compare import EXAMPLES
from probseg.errors import DataError
from probseg.reports.comparison import object_scores
from probseg.reports.comparison_inputs import read_result
from probseg.reports.comparison_report import LEADING, LEGEND
from probseg.reports.settings import over_seeds
from support.result_folders import METRICS, result, rising, write_result
from support.rows import each
from support.runs import command, usage_error


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


def written(folder):
    return json.loads((folder / "comparison.json").read_text(encoding="utf-8"))


def test_compare(folders, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert command("compare", *folders[:2], "--output", out) == 0
    printed = capsys.readouterr().out
    assert "Toy: csa against conv, 24 objects" in printed
    assert "csa is better than conv on Toy: +" in printed
    comparison = written(out)
    assert [result["name"] for result in comparison["results"]] == ["conv", "csa"]
    assert comparison["settings"]["tests"] == len(comparison["rows"]) == 2 * len(METRICS)
    row = next(row for row in comparison["rows"] if row["metric"] == "miou@5")
    assert (row["dataset"], row["significant"]) == ("More", True)
    assert 0 < row["low"] < row["difference"] < row["high"]
    page = (out / "comparison.md").read_text(encoding="utf-8")
    assert page.count("| mIoU@5 |") == 2
    assert LEGEND in page
    assert all(verdict["text"] in page for verdict in comparison["verdicts"])
    files = {path.name for path in out.iterdir()}
    assert files == {"comparison.md", "comparison.json", "curves.png"}


def test_output_lies_in_the_working_folder_by_default(folders, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = ["--names", "[red]first[/red]", "second", "third"]
    assert command("compare", *folders, "--metric", "miou@5", *names) == 0
    assert "third against [red]first[/red]" in capsys.readouterr().out
    rows = written(tmp_path / "comparison")["rows"]
    expected = [("second", "miou@5"), ("third", "miou@5")] * 2
    assert [(row["other"], row["metric"]) for row in rows] == expected


ZOO = {"class_path": "probseg.zoo.create_interactive", "init_args": {"name": "micro_csa"}}


@pytest.fixture(params=["checkpoints/epoch003.ckpt", "mean.ckpt", "start.ckpt"])
def tested_runs(request, tmp_path, monkeypatch):
    """A trained run without results of its own, its tests, and tests of the shipped model."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs" / "probseg"
    trained = runs / "version_0"
    (trained / "checkpoints").mkdir(parents=True)
    (trained / "config.yaml").write_text("data: mine\n", encoding="utf-8")
    checkpoint = f"runs/probseg/version_0/{request.param}"
    shipped = {"model": ZOO, "checkpoint": None, "weights_sha256": "s"}
    mine = {"model": ZOO, "checkpoint": checkpoint, "weights_sha256": "m"}
    for protocol in ("one", "two"):
        write_result(runs / "version_1" / "test" / protocol, {"Toy": rising(9)}, **shipped)
    write_result(runs / "version_2" / "test" / "two", {"Toy": rising(9, seed=1)}, **mine)
    return runs


@pytest.mark.parametrize("mine", ["version_0", "version_2", "version_2/test/two"])
def test_runs_are_compared_by_the_names_of_their_models(tested_runs, mine, capsys):
    assert command("compare", tested_runs / "version_1", tested_runs / mine) == 0
    assert "Toy: probseg/version_0 against micro_csa, 9 objects" in capsys.readouterr().out
    results = written(tested_runs.parents[1] / "comparison")["results"]
    assert [result["name"] for result in results] == ["micro_csa", "probseg/version_0"]
    assert [result["folder"].split("/")[-3:] for result in results] == [
        ["version_1", "test", "two"],
        ["version_2", "test", "two"],
    ]


def test_each_protocol_in_common_is_compared(tested_runs, capsys):
    mine = tested_runs / "version_2" / "test" / "one"
    write_result(mine, {"Toy": rising(9, seed=2)}, model=ZOO, checkpoint=None)
    assert command("compare", tested_runs / "version_1", tested_runs / "version_2") == 0
    assert "micro_csa (version_2) against micro_csa (version_1)" in capsys.readouterr().out
    for protocol in ("one", "two"):
        folders = [x["folder"] for x in written(Path("comparison") / protocol)["results"]]
        assert all(folder.endswith(f"test/{protocol}") for folder in folders)


@pytest.mark.parametrize("name", ["./version_0", "runs/probseg/version_0"])
def test_tests_of_a_run_in_place_of_a_model_are_tests_of_the_run(tested_runs, name, capsys):
    shutil.rmtree(tested_runs / "version_2")
    model = {"class_path": "probseg.zoo.create_interactive", "init_args": {"name": name}}
    place = tested_runs.parent / "other" / "version_0" / "test" / "one"
    write_result(place, {"Toy": rising(9, seed=2)}, model=model, checkpoint=None)
    both = tested_runs / "version_1", tested_runs / "version_0"
    assert command("compare", *both) == 0
    assert "version_0 against micro_csa, 9 objects" in capsys.readouterr().out
    shutil.rmtree(place)
    write_result(place, {"Toy": rising(9, seed=2)}, model=ZOO, checkpoint=None)
    assert "has no results" in usage_error(capsys, "compare", *both)


def test_runs_without_results_or_a_common_protocol_are_refused(tested_runs, capsys):
    shutil.rmtree(tested_runs / "version_1" / "test" / "two")
    both = tested_runs / "version_1", tested_runs / "version_0"
    assert "version_0: two" in usage_error(capsys, "compare", *both)
    shutil.rmtree(tested_runs / "version_2")
    assert "probseg test --config" in usage_error(capsys, "compare", *both)


@each(
    ("arguments", "part"),
    [
        (lambda f: [], "FOLDER; see probseg compare --help"),
        (lambda f: [*f, "--bogus"], "unknown probseg compare option '--bogus'"),
        (lambda f: [f[0]], "at least twice"),
        (lambda f: [f[0], f[0]], "different"),
        (lambda f: [f[0], f[1].parent], "no such file"),
        (lambda f: [f[0], f[1], "--names", "one"], "--names"),
        (lambda f: [f[0], f[1], "--names", "one", "one"], "--names"),
        (lambda f: [f[0], f[1], "--metric", "noc@91"], "unknown metric 'noc@91'"),
        (lambda f: [f[0], f[1], "--output", f[0] / "results.json"], "--output"),
    ],
)
def test_wrong_usage(folders, arguments, part, capsys):
    assert part in usage_error(capsys, "compare", *arguments(folders))


def test_different_objects_and_protocols_have_to_be_allowed(folders, tmp_path, capsys):
    out = ["--output", tmp_path / "out"]
    fewer = write_result(tmp_path / "fewer", {"Toy": rising(20), "More": rising(24)})
    other = write_result(tmp_path / "other", {"Toy": rising(24), "More": rising(24)})
    results = json.loads((other / "results.json").read_text(encoding="utf-8"))
    results["protocol"]["mistakes"] = {"wrong_sign": 0.1}
    (other / "results.json").write_text(json.dumps(results), encoding="utf-8")
    for folder, flag, difference in (
        (fewer, "--common-objects", "fewer lacks o20, o21, o22, o23 of Toy"),
        (other, "--allow-different-protocols", "mistakes: null in toy"),
    ):
        assert difference in usage_error(capsys, "compare", folders[0], folder, *out)
        assert not (tmp_path / "out").exists()
        assert command("compare", folders[0], folder, *out, flag) == 0
        assert difference in capsys.readouterr().out
        (tmp_path / "out").rename(tmp_path / flag)


def test_help_names_every_metric(folders):
    known = object_scores(read_result(folders[0], "conv").scores["Toy"], 0)
    assert set(known) | set(LEADING) <= set(EXAMPLES.split())


def seeds(place, quality):
    """Results of three runs of a setting, and the mean IoU after five clicks of each."""
    means = []
    for seed in range(3):
        ious = rising(24, seed=seed) * quality
        write_result(place / f"seed_{seed}" / "test" / "toy", {"Toy": ious})
        means.append(ious[:, :, 5].mean())
    return means


def test_settings_are_compared_over_their_seeds(tmp_path, capsys):
    means = {name: seeds(tmp_path / name, q) for name, q in (("a_b", 1.0), ("mine", 0.9))}
    out, metrics = tmp_path / "out", ("--metric", "miou@5", "noc@90")
    settings = [tmp_path / name for name in means]
    assert command("compare", *settings, "--output", out, "--latex", *metrics) == 0
    mean, error = np.mean(means["mine"]), np.std(means["mine"], ddof=1) / 3**0.5
    assert f"{100 * mean:.2f} ± {100 * error:.2f}" in capsys.readouterr().out
    cells = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    assert [(cell["setting"], cell["metric"]) for cell in cells] == [
        (name, metric) for name in means for metric in metrics[1:]
    ]
    assert cells[2]["seeds"] == pytest.approx(means["mine"])
    assert cells[2]["error"] == pytest.approx(error)
    assert rf"{100 * mean:.2f} $\pm$ {100 * error:.2f}" in (out / "settings.tex").read_text("utf-8")
    assert r"a\_b & 3 &" in (out / "settings.tex").read_text("utf-8")
    lacking = result("one", rising(9))
    lacking.scores["Toy"].values["brier"][0] = np.nan
    with pytest.raises(DataError, match=r"^brier of a has no value for some objects of Toy; leave"):
        over_seeds({"a": [lacking]}, ["brier"])
    run = settings[0] / "seed_0"
    assert "no setting" in usage_error(capsys, "compare", run, run, "--latex")


PLAN = """
fit: {config: mine.yaml, trainer.max_epochs: 2}
settings: {plain: {model.model.temperature: 3}, mine: {model.model.temperature: [1, 2]}}
seeds: [0, 1, 2]
test: {evaluation.trials: 1}
"""


def test_an_ablation_trains_and_tests_what_has_no_results(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_text(PLAN)
    seeds(Path("ablation", "plain"), 1.0)
    last = Path("ablation", "mine", "seed_1", "checkpoints", "last.ckpt")
    last.parent.mkdir(parents=True)
    last.touch()
    calls, interrupted = [], []

    def fake(words, **_):
        calls.append(words[3:])
        if words[3] == "fit":
            place = Path(*(word.partition("=")[2] for word in words if "logger" in word))
            place.mkdir(parents=True, exist_ok=True)
        else:
            place = Path(words[4].removeprefix("--config=")).parent
            shutil.rmtree(place / "test", ignore_errors=True)
            write_result(place / "test" / "toy", {"Toy": rising(24)})
            if not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt  # after the first protocol
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", fake)
    assert command("ablate", "plan.yaml") == 130
    calls.clear()
    assert command("ablate", "plan.yaml") == 0
    assert [call[0] for call in calls] == ["fit", "test"] * 3
    logger = [
        f"--trainer.logger.{of}" for of in ("save_dir=ablation", "name=mine", "version=seed_2")
    ]
    first = ["--config=mine.yaml", "--trainer.max_epochs=2", "--model.model.temperature=[1, 2]"]
    assert calls[4] == ["fit", *first, "--seed_everything=2", *logger]
    assert calls[2][-1] == f"--ckpt_path={last}", "of the training that was stopped"
    assert calls[5] == [
        "test",
        "--config=ablation/mine/seed_2/config.yaml",
        "--evaluation.trials=1",
    ]
    assert "mine" in capsys.readouterr().out
    assert command("ablate", "plan.yaml") == 0, "with nothing left to do"
    assert len(calls) == 6
    Path("plan.yaml").write_text(PLAN.replace("[0, 1, 2]", "[0, 2]"))
    capsys.readouterr()
    assert command("ablate", "plan.yaml") == 0
    assert re.search(r"mine +│? *2 ", capsys.readouterr().out), "seeds of the plan alone count"
    for wrong, part in (
        (PLAN.replace("[1, 2]", "3"), "mine/seed_0 was made with other options than the plan"),
        (PLAN.replace("[1, 2]", "3"), "(fit: model.model.temperature); choose another --output"),
        (PLAN.replace("trials: 1", "trials: 2"), "(test: evaluation.trials)"),
        ("settings: {}", "fit"),
        ("fit: {}\nsettings: {a: {}}\nsedes: [1]", "sedes"),
    ):
        Path("plan.yaml").write_text(wrong)
        assert part in usage_error(capsys, "ablate", "plan.yaml")
