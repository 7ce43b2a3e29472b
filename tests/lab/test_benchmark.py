import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import probseg.lab.benchmark as benchmark
import probseg.zoo.store as store
from probseg.lab.benchmark import Record, Settings, measure, measure_elsewhere
from probseg.lab.gauges import count_multiply_adds, timed, timed_with_peak
from probseg.models import build, override, read_preset
from probseg.ops import assign, attend
from probseg.zoo import list_models
from support.fakes import micro_model
from support.micro import described
from support.rows import each
from support.runs import command, usage_error
from support.zoos import write_run

TINY = Settings(size=(48, 64), repeats=2, warmup=1, train_size=32, train_batch=2)


def without_training(**changes):
    return Settings(**{**vars(TINY), "train": False, **changes})


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
def test_multiply_adds_of_a_convolution_net_by_hand(mode):
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),  # to 10 x 8
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.Upsample(scale_factor=2.0, mode="bilinear"),  # to 20 x 16
        nn.Conv2d(8, 4, 1),
        nn.Flatten(),
        nn.Linear(4 * 20 * 16, 5),
    ).eval()
    image = torch.rand(2, 3, 20, 16)
    with mode():
        counted = count_multiply_adds(lambda: net(image))
    one = 10 * 8 * 8 * 27 + 10 * 8 * 8 * 9 + 20 * 16 * 4 * 8 + 4 * 20 * 16 * 5
    assert counted == 2 * one


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa"])
def test_multiply_adds_of_both_primitives(backend):
    batch, heads, n, m, d = 2, 3, 300, 200, 16
    queries, keys = torch.randn(batch, heads, n, d), torch.randn(batch, heads, m, d)
    pairs = batch * heads * n * m
    read = count_multiply_adds(lambda: attend(queries, keys, keys, backend=backend))
    written = count_multiply_adds(lambda: assign(queries, keys, queries, backend=backend))
    assert 2 * read == 2 * pairs * (d + d)
    assert written >= pairs * (d + d)
    if backend == "reference":
        assert written == pairs * (d + d)


def test_seconds_and_peak():
    def call():
        return torch.ones(16 * 2**20).sum()  # 64 MiB

    assert timed(call, "cpu") > 0
    seconds, peak = timed_with_peak(call, "cpu")
    assert seconds > 0
    if not Path("/proc/self/clear_refs").exists():
        assert peak is None
    else:
        assert peak is None or 60 < peak < 80


def test_prompts_can_enter_elsewhere_and_a_folder_or_a_run_works_at_its_own_size(tmp_path):
    store.save(micro_model("micro_fast"), described("micro_fast"), tmp_path / "fast")
    stem = measure(str(tmp_path / "fast"), without_training(prompts="stem"))
    assert (stem.error, stem.prompts) == (None, "stem")
    description = override(read_preset("micro_conv"), {"working_size": 32})
    write_run(tmp_path / "run", build(description).state_dict(), description)
    own = measure(str(tmp_path / "run"), without_training(working_size="own", precision="bf16"))
    equal = measure(str(tmp_path / "run"), without_training())
    preset = measure("micro_conv", without_training())
    assert (own.error, own.trained, own.working_size) == (None, True, 32)
    assert (equal.error, equal.working_size) == (None, None)
    assert own.first_multiply_adds_g < 0.5 * equal.first_multiply_adds_g
    assert equal.first_multiply_adds_g == preset.first_multiply_adds_g


def test_failures_are_recorded(monkeypatch):
    record = measure("micro_conv", without_training(key_iterations=1))
    assert "key_iterations=1" in record.error
    assert record.first_ms is None

    def short_of_memory(model, settings):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(benchmark, "_train", short_of_memory)
    record = measure("micro_conv", TINY)
    assert record.error == "in training: OutOfMemoryError: CUDA out of memory"
    assert record.first_ms > 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
@pytest.mark.parametrize(
    ("script", "told"), [("kill -9 $$", "ended by signal 9"), ("echo broken >&2; exit 3", "broken")]
)
def test_a_process_that_ends_early(script, told, tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert told in measure_elsewhere("micro_conv", TINY).error


QUICK = ("--device=cpu", "--size=32x48", "--repeats=2", "--warmup=1")


def test_a_model_that_cannot_be_measured_and_one_that_can(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch.py").write_text("raise ImportError('a file of the working directory')")
    training = ("--train-size=32", "--train-batch=2", "--threads=1")
    network = ("--prompts=head", "--key-iterations=1", "--json=costs.json")
    with pytest.raises(SystemExit, match=r"^1$"):
        command("bench", "model", "micro_conv", "micro_csa", *QUICK, *training, *network)
    captured = capsys.readouterr()
    assert "measuring micro_csa (2 of 2)" in captured.err
    rows = [line.split() for line in captured.out.splitlines() if line.startswith(" micro_")]
    assert [row[:2] for row in rows] == [["micro_conv", "failed"], ["micro_csa", "head"]]
    assert rows[1][2] == "32x48"
    text = " ".join(captured.out.split())
    for part in ("32 x 48 pixels", "1 multiply-add = 2 FLOPs", "micro_conv failed: UsageError"):
        assert part in text
    written = json.loads((tmp_path / "costs.json").read_text(encoding="utf-8"))
    assert "1 multiply-add = 2 FLOPs" in written["conventions"]["multiply_adds"]
    assert written["environment"]["threads"] == 1
    assert (written["options"]["size"], written["options"]["train_batch"]) == ([32, 48], 2)
    failed, values = written["records"]
    assert "no probabilistic attention" in failed["error"]
    record = Record(**values)
    missing = {name for name, value in values.items() if value is None}
    assert "error" in missing
    assert missing <= {"error", "working_size", "zoomed_ms", "peak_mib"}
    assert not record.trained
    assert record.parameters_m > 0
    assert 0 < record.next_multiply_adds_g < 0.3 * record.first_multiply_adds_g
    assert 0 < record.first_ms <= record.first_ms_p95
    assert 0 < record.undo_ms < record.next_ms <= record.next_ms_p95
    assert record.train_images_per_second > 0


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
    monkeypatch.setattr(benchmark, "measure_elsewhere", lambda *given: pytest.fail("measured"))
    message = usage_error(capsys, "bench", "model", "micro_conv", *arguments)
    assert all(part in message for part in parts)


def test_names_and_patterns(tmp_path, monkeypatch):
    run = str(write_run(tmp_path / "run", micro_model().state_dict(), read_preset("micro_conv")))
    asked = []
    monkeypatch.setattr(
        benchmark, "measure_elsewhere", lambda name, _: asked.append(name) or Record(name)
    )
    others = [name for name in list_models("micro_c*") if name != "micro_conv"]
    every = list_models(pretrained=True, task="interactive")
    for names, expected in (
        ([run], [run]),
        (["micro_conv", "micro_c*"], ["micro_conv", *others]),
        (["*.*"], every),
    ):
        benchmark.run(["model", *names])
        assert asked == expected
        asked.clear()
