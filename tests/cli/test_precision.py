"""Half precision on processors that are slower with it."""

import pytest
from jsonargparse import Namespace

from probseg.cli import precision
from probseg.cli.precision import bfloat16_gain, without_slow_bfloat16
from support.fakes import write_folder
from support.rows import each
from support.runs import folder_fit, only_made


@pytest.fixture
def cpu(monkeypatch):
    """Sets the gain of bfloat16 on a machine that has no accelerator."""
    for name in ("XLAAccelerator", "MPSAccelerator", "CUDAAccelerator"):
        monkeypatch.setattr(getattr(precision, name), "is_available", lambda: False)
    return lambda gain: monkeypatch.setattr(precision, "bfloat16_gain", lambda: gain)


def test_the_gain_is_measured():
    assert 0.001 < bfloat16_gain() < 1000


@each(
    ("asked", "accelerator", "gain", "chosen"),
    [
        ("bf16", "cpu", 0.1, "32-true"),
        ("bf16-mixed", "auto", 0.9, "32-true"),
        ("bf16-true", None, 0.1, "32-true"),
        ("bf16-mixed", "cpu", 2.0, "bf16-mixed"),
        ("bf16-mixed", "gpu", 0.1, "bf16-mixed"),
        ("32-true", "cpu", 2.0, "32-true"),
        ("16-mixed", "cpu", 0.1, "16-mixed"),
        (None, "cpu", 2.0, None),
    ],
)
def test_bfloat16_gives_way_where_it_is_slow(asked, accelerator, gain, chosen, cpu, capsys):
    cpu(gain)
    trainer = Namespace(precision=asked, accelerator=accelerator)
    without_slow_bfloat16(trainer)
    assert trainer.precision == chosen
    measured = asked in precision.BFLOAT16 and accelerator != "gpu"
    assert (f"{gain:.2g} times as fast" in capsys.readouterr().err) == measured


def test_an_accelerator_that_is_found_keeps_it(cpu, monkeypatch):
    cpu(0.1)
    monkeypatch.setattr(precision.CUDAAccelerator, "is_available", lambda: True)
    trainer = Namespace(precision="bf16-mixed", accelerator="auto")
    without_slow_bfloat16(trainer)
    assert trainer.precision == "bf16-mixed"


@pytest.mark.parametrize(("gain", "ran"), [(0.2, "32-true"), (2.0, "bf16-mixed")])
def test_a_run_notes_the_precision_that_it_had(gain, ran, cpu, tmp_path, monkeypatch):
    cpu(gain)
    monkeypatch.chdir(tmp_path)
    root = write_folder(tmp_path / "photos")
    cli = only_made(*folder_fit(root, "--trainer.precision=bf16-mixed"))
    assert cli.trainer.precision == cli.config.fit.trainer.precision == ran
