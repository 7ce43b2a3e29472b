import json
from dataclasses import fields

import pytest

import probseg.lab.bench_verb as bench
from probseg.lab.benchmark import Record
from probseg.zoo import list_models
from support.rows import each
from support.runs import command, usage_error

QUICK = ("--device=cpu", "--size=32x48", "--repeats=2", "--warmup=1")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Folder of a command that measures a model which cannot be measured, and one that can."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "torch.py").write_text("raise ImportError('a file of the working directory')")
    training = ("--train-size=32", "--train-batch=2", "--threads=1")
    network = ("--prompts=head", "--key-iterations=1")
    names = ("micro_conv", "micro_csa")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.raises(SystemExit, match=r"^1$"):
            command("bench", "model", *names, *QUICK, *training, *network, "--json=costs.json")
    return folder


def test_file(measured):
    assert sorted(path.name for path in measured.iterdir()) == ["costs.json", "torch.py"]
    written = json.loads((measured / "costs.json").read_text(encoding="utf-8"))
    assert "1 multiply-add = 2 FLOPs" in written["conventions"]["multiply_adds"]
    assert written["environment"]["threads"] == 1
    assert written["environment"]["versions"]["torch"]
    assert (written["options"]["size"], written["options"]["train_batch"]) == ([32, 48], 2)
    failed, record = written["records"]
    assert "no probabilistic attention" in failed["error"]
    assert set(record) == {field.name for field in fields(Record)}
    missing = {name for name, value in record.items() if value is None}
    assert "error" in missing
    assert missing <= {"error", "working_size", "zoomed_ms", "peak_mib"}
    assert record["prompts"] == "head"
    assert 0 < record["next_multiply_adds_g"] < 0.3 * record["first_multiply_adds_g"]


def test_table(measured, monkeypatch, capsys):
    """Of what was measured before."""
    written = json.loads((measured / "costs.json").read_text(encoding="utf-8"))
    records = {record["model"]: Record(**record) for record in written["records"]}
    monkeypatch.setattr(bench, "measure_elsewhere", lambda name, settings: records[name])
    with pytest.raises(SystemExit, match=r"^1$"):
        command("bench", "model", "micro_conv", "micro_csa", *QUICK)
    captured = capsys.readouterr()
    assert "measuring micro_csa (2 of 2)" in captured.err
    rows = [line.split() for line in captured.out.splitlines() if line.startswith(" micro_")]
    assert [row[:2] for row in rows] == [["micro_conv", "failed"], ["micro_csa", "head"]]
    assert rows[1][2] == "32x48"
    text = " ".join(captured.out.split())
    for part in ("32 x 48 pixels", "1 multiply-add = 2 FLOPs", "micro_conv failed: ValueError"):
        assert part in text


@each(
    ("arguments", "parts"),
    [
        (["micro_cas"], ["unknown model 'micro_cas'", "'micro_csa'"]),
        (["micro_cnov*"], ["micro_cnov*", "micro_conv"]),
        (["lite0_unet_prop.objcts"], ["lite0_unet_prop.objects"]),
        (["nowhere/"], ["nowhere"]),
        (["micro_emanet"], ["semantic"]),
        (["--size=0"], ["--size", "'0'"]),
        (["--size=3x4x5"], ["--size", "HxW"]),
        (["--repeats=0"], ["--repeats", "at least 1"]),
        (["--warmup=-1"], ["--warmup", "at least 0"]),
        (["--device=tpu"], ["--device", "cuda:N or mps"]),
        (["--device=cuda:99"], ["--device", "cuda:99"]),
        (["--precision=16"], ["--precision", "bf16"]),
        (["--json=nowhere/costs.json"], ["--json", "nowhere"]),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_measured(arguments, parts, monkeypatch, capsys):
    monkeypatch.setattr(bench, "measure_elsewhere", lambda *given: pytest.fail("measured"))
    message = usage_error(capsys, "bench", "model", "micro_conv", *arguments)
    assert all(part in message for part in parts)


def test_patterns():
    assert bench._expand(["micro_conv", "micro_c*"]) == [
        "micro_conv",
        *(name for name in list_models("micro_c*") if name != "micro_conv"),
    ]
    assert bench._expand(["*.*"]) == list_models(pretrained=True, task="interactive")
