import json
import os
import subprocess
import sys
from dataclasses import fields

import pytest
from runs import command

import probseg.cli.bench as bench
from probseg.evaluation.benchmark import Record
from probseg.zoo import list_models

QUICK = ("--device", "cpu", "--size", "32x48", "--repeats", "2", "--warmup", "1")


@pytest.fixture(scope="module")
def measured(repository, tmp_path_factory):
    """Table and file of two models, made by a real command from another folder."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "torch.py").write_text("raise ImportError('a file of the working directory')")
    program = [sys.executable, str(repository / "cli.py"), "bench", "model"]
    training = ["--train-size", "32", "--train-batch", "2", "--threads", "1"]
    done = subprocess.run(
        [*program, "micro_conv", "micro_csa", *QUICK, *training, "--json", "costs.json"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["costs.json", "torch.py"]
    return done, json.loads((folder / "costs.json").read_text(encoding="utf-8"))


def test_table(measured):
    done, _ = measured
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("  micro_")]
    assert [row[0] for row in rows] == ["micro_conv", "micro_csa"]
    assert all("-" not in row and len(row) == 12 for row in rows)
    told = " ".join(done.stdout.split())
    assert "32 x 48 pixels (H x W), cpu" in told
    assert "1 multiply-add = 2 FLOPs" in told
    assert "measuring micro_csa (2 of 2)" in done.stderr


def test_file(measured):
    _, written = measured
    assert "1 multiply-add = 2 FLOPs" in written["conventions"]["multiply_adds"]
    assert written["environment"]["threads"] == 1
    assert written["environment"]["versions"]["torch"]
    assert written["options"]["size"] == [32, 48]
    assert written["options"]["train_batch"] == 2
    for record in written["records"]:
        assert set(record) == {field.name for field in fields(Record)}
        missing = {name for name, value in record.items() if value is None}
        assert missing <= {"error", "working_size", "peak_mib"}


def test_a_click_at_the_stem_costs_a_whole_prediction(measured):
    for record in measured[1]["records"]:
        assert record["prompts"] == "stem"
        assert record["next_multiply_adds_g"] == record["first_multiply_adds_g"]


def test_a_failing_model_does_not_stop_the_others(tmp_path, capsys):
    path = tmp_path / "costs.json"
    options = (*QUICK, "--no-train", "--prompts", "head", "--key-iterations", "1", "--json", path)
    with pytest.raises(SystemExit, match=r"^1$"):
        command("bench", "model", "micro_conv", "micro_csa", *options)
    told = " ".join(capsys.readouterr().out.split())
    assert "micro_conv failed: ValueError: key_iterations=1" in told
    failed, other = json.loads(path.read_text(encoding="utf-8"))["records"]
    assert "no probabilistic attention" in failed["error"]
    assert other["error"] is None
    assert other["prompts"] == "head"
    assert 0 < other["next_multiply_adds_g"] < 0.3 * other["first_multiply_adds_g"]
    assert other["train_images_per_second"] is None


def refused(capsys, *arguments):
    assert command("bench", *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("probseg: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_unknown_models_are_refused_before_any_is_measured(capsys, tmp_path):
    told = refused(capsys, "model", "micro_conv", "micro_cas", *QUICK)
    assert "unknown model 'micro_cas': did you mean 'micro_csa'" in told
    assert "micro_conv" in refused(capsys, "model", "micro_cnov*")
    assert "resnet16_csa.objects" in refused(capsys, "model", "resnet16_csa.objcts")
    assert "nowhere" in refused(capsys, "model", f"{tmp_path}/nowhere")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--size", "0", "a side in pixels such as 512"),
        ("--size", "3x4x5", "HxW such as 384x512"),
        ("--repeats", "0", "at least 1"),
        ("--warmup", "-1", "at least 0"),
        ("--device", "tpu", "cpu, cuda or cuda:N"),
        ("--device", "cuda:99", "CUDA devices"),
        ("--precision", "16", "bf16"),
        ("--prompts", "neck", "head"),
        ("--json", "nowhere/costs.json", "make nowhere first"),
    ],
)
def test_wrong_options_are_named(option, value, expected, capsys):
    told = refused(capsys, "model", "micro_conv", f"{option}={value}")
    assert option in told
    assert value in told
    assert expected in told


def test_patterns():
    assert bench._expand(["micro_conv", "micro_c*"]) == [
        "micro_conv",
        *(name for name in list_models("micro_c*") if name != "micro_conv"),
    ]
    assert bench._expand(["*.*"]) == list_models(pretrained=True, task="interactive")
