"""Half precision that a processor cannot do itself."""

import pytest
import yaml
from fakes import write_folder
from jsonargparse import Namespace
from runs import finished, folder_fit

from probseg.cli import precision
from probseg.cli.precision import multiplies_bfloat16, without_slow_bfloat16

X86 = "processor\t: 0\nvmx flags\t: avx512_bf16\nflags\t\t: fpu sse4_2 avx2 {}\nbugs\t\t:\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd fphp {}\nCPU part\t: 0xd40\n"


@pytest.fixture
def cpu(tmp_path, monkeypatch):
    """Says what the processor is."""
    place = tmp_path / "cpuinfo"
    monkeypatch.setattr(precision, "CPUINFO", place)
    return place.write_text


@pytest.fixture
def alone(monkeypatch):
    """A machine with a processor and nothing else."""
    for name in ("XLAAccelerator", "MPSAccelerator", "CUDAAccelerator"):
        monkeypatch.setattr(getattr(precision, name), "is_available", lambda: False)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (X86.format("avx512f avx512_bf16"), True),
        (X86.format("amx_bf16 amx_tile"), True),
        (X86.format("avx512f avx512_vnni"), False),
        (ARM.format("i8mm bf16"), True),
        (ARM.format("asimdhp svebf16"), False),
        ("processor\t: 0\nfeatures\t: esan3 zarch\n", None),
        ("", None),
    ],
)
def test_what_a_processor_says_of_itself(text, known, cpu):
    cpu(text)
    assert multiplies_bfloat16() is known


def test_systems_that_do_not_tell(cpu):
    assert multiplies_bfloat16() is None


@pytest.mark.parametrize("asked", ["bf16", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("accelerator", ["cpu", "auto", None])
@pytest.mark.usefixtures("alone")
def test_bfloat16_gives_way_with_a_notice(asked, accelerator, cpu, capsys):
    cpu(X86.format(""))
    trainer = Namespace(precision=asked, accelerator=accelerator)
    without_slow_bfloat16(trainer)
    assert trainer.precision == "32-true"
    told = capsys.readouterr().err
    assert told.startswith(f"probseg: --trainer.precision {asked} is many times slower")
    assert "32-true is taken instead" in told
    assert "use an accelerator" in told


@pytest.mark.parametrize(
    ("asked", "accelerator", "text"),
    [
        ("bf16-mixed", "cpu", X86.format("avx512_bf16")),
        ("bf16-mixed", "cpu", "of another kind"),
        ("bf16-mixed", "gpu", X86.format("")),
        ("32-true", "cpu", X86.format("")),
        ("16-mixed", "cpu", X86.format("")),
        (None, "cpu", X86.format("")),
    ],
)
@pytest.mark.usefixtures("alone")
def test_everything_else_stays_as_asked(asked, accelerator, text, cpu, capsys):
    cpu(text)
    trainer = Namespace(precision=asked, accelerator=accelerator)
    without_slow_bfloat16(trainer)
    assert trainer.precision == asked
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("alone")
def test_an_accelerator_that_is_found_keeps_it(cpu, monkeypatch):
    cpu(X86.format(""))
    monkeypatch.setattr(precision.CUDAAccelerator, "is_available", lambda: True)
    trainer = Namespace(precision="bf16-mixed", accelerator="auto")
    without_slow_bfloat16(trainer)
    assert trainer.precision == "bf16-mixed"


@pytest.mark.parametrize(("flag", "ran"), [("avx2", "32-true"), ("avx512_bf16", "bf16-mixed")])
def test_a_run_notes_the_precision_that_it_had(flag, ran, cpu, tmp_path, monkeypatch, capsys):
    cpu(X86.format(flag))
    monkeypatch.chdir(tmp_path)
    root = write_folder(tmp_path / "photos")
    short = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--evaluation.trials=1")
    done = finished(*folder_fit(root, "--trainer.precision=bf16-mixed", *short))
    assert done.trainer.precision == ran
    saved = yaml.safe_load((tmp_path / "runs/probseg/version_0/config.yaml").read_text())
    assert saved["trainer"]["precision"] == ran
    assert ("is many times slower" in capsys.readouterr().err) == (ran == "32-true")
