"""Half precision that a processor cannot do itself."""

import pytest
from fakes import write_folder
from jsonargparse import Namespace
from runs import folder_fit, only_made

from probseg.cli import precision
from probseg.cli.precision import multiplies_bfloat16, without_slow_bfloat16

X86 = "processor\t: 0\nvmx flags\t: avx512_bf16\nflags\t\t: fpu sse4_2 avx2 {}\nbugs\t\t:\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd fphp {}\nCPU part\t: 0xd40\n"


@pytest.fixture
def cpu(tmp_path, monkeypatch):
    """Describes the processor of a machine that has no other."""
    place = tmp_path / "cpuinfo"
    monkeypatch.setattr(precision, "CPUINFO", place)
    for name in ("XLAAccelerator", "MPSAccelerator", "CUDAAccelerator"):
        monkeypatch.setattr(getattr(precision, name), "is_available", lambda: False)
    return place.write_text


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (X86.format("avx512f avx512_bf16"), True),
        (X86.format("amx_bf16 amx_tile"), True),
        (X86.format("avx512f avx512_vnni"), False),
        (ARM.format("i8mm bf16"), True),
        (ARM.format("asimdhp svebf16"), False),
        ("processor\t: 0\nfeatures\t: esan3 zarch\n", None),
        (None, None),
    ],
)
def test_instructions_of_a_processor(text, known, cpu):
    if text is not None:
        cpu(text)
    assert multiplies_bfloat16() is known


@pytest.mark.parametrize(
    ("asked", "accelerator", "text", "given"),
    [
        ("bf16", "cpu", X86.format(""), "32-true"),
        ("bf16-mixed", "auto", X86.format(""), "32-true"),
        ("bf16-true", None, X86.format(""), "32-true"),
        ("bf16-mixed", "cpu", X86.format("avx512_bf16"), "bf16-mixed"),
        ("bf16-mixed", "cpu", "of another kind", "bf16-mixed"),
        ("bf16-mixed", "gpu", X86.format(""), "bf16-mixed"),
        ("32-true", "cpu", X86.format(""), "32-true"),
        ("16-mixed", "cpu", X86.format(""), "16-mixed"),
        (None, "cpu", X86.format(""), None),
    ],
)
def test_bfloat16_gives_way_where_it_is_slow(asked, accelerator, text, given, cpu, capsys):
    cpu(text)
    trainer = Namespace(precision=asked, accelerator=accelerator)
    without_slow_bfloat16(trainer)
    assert trainer.precision == given
    notice = capsys.readouterr().err
    assert (f"--trainer.precision {asked}" in notice) == (given != asked)


def test_an_accelerator_that_is_found_keeps_it(cpu, monkeypatch):
    cpu(X86.format(""))
    monkeypatch.setattr(precision.CUDAAccelerator, "is_available", lambda: True)
    trainer = Namespace(precision="bf16-mixed", accelerator="auto")
    without_slow_bfloat16(trainer)
    assert trainer.precision == "bf16-mixed"


@pytest.mark.parametrize(("flag", "ran"), [("avx2", "32-true"), ("avx512_bf16", "bf16-mixed")])
def test_a_run_notes_the_precision_that_it_had(flag, ran, cpu, tmp_path, monkeypatch):
    cpu(X86.format(flag))
    monkeypatch.chdir(tmp_path)
    root = write_folder(tmp_path / "photos")
    cli = only_made(*folder_fit(root, "--trainer.precision=bf16-mixed"))
    assert cli.trainer.precision == cli.config.fit.trainer.precision == ran
