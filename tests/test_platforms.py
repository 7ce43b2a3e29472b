"""What differs between Linux, macOS and Windows: devices, paths, and how processes start.

`make smoke` runs these tests on all three.
"""

import argparse

import pytest
import torch

from probseg.cli.arguments import device
from probseg.data import FolderDataModule
from probseg.masks import read_labels
from support.fakes import draw_scene, save, write_folder
from support.rows import each
from support.runs import command, usage_error

pytestmark = pytest.mark.process


def machine(monkeypatch, kind, count):
    """Let PyTorch see some accelerators of a kind; for None it is built for the CPU alone."""
    accelerator = None if kind is None else torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: accelerator)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("kind", "count", "names"),
    [
        (None, 0, ["cpu"]),
        ("cuda", 0, ["cpu"]),
        ("cuda", 2, ["cpu", "cuda", "cuda:0", "cuda:1"]),
        ("mps", 1, ["cpu", "mps", "mps:0"]),
    ],
)
def test_a_device_is_one_that_pytorch_sees(kind, count, names, monkeypatch):
    machine(monkeypatch, kind, count)
    assert [device(name) for name in names] == names
    for other in {"cuda", "cuda:0", "cuda:1", "cuda:2", "mps", "mps:0", "mps:1"} - set(names):
        with pytest.raises(argparse.ArgumentTypeError, match=rf"sees .*\(cpu.*, got '{other}'"):
            device(other)


@each("name", ["", "gpu", "cuda:", "cuda:x", "cpu:0", "mps:-1", "MPS", "meta"])
def test_other_names_of_devices_are_refused(name):
    with pytest.raises(argparse.ArgumentTypeError, match=f"cuda:N or mps, got '{name}'"):
        device(name)


@each(
    "arguments",
    [
        ("predict", "photo.jpg", "--click=1,1", "--output=mask.png"),
        ("annotate", "."),
        ("serve", "label-studio", "--images=."),
        ("tune", "lite2_unet_prop", "--data=."),
        ("bench", "model", "micro_conv"),
        ("zoo", "verify"),
        ("zoo", "publish", "run", "micro_conv.mine", "--facts=facts.yaml"),
    ],
)
def test_every_verb_with_a_device_takes_mps_where_there_is_one(arguments, monkeypatch, capsys):
    machine(monkeypatch, None, 0)
    message = usage_error(capsys, *arguments, "--device=mps")
    assert "argument --device: must be a device that PyTorch sees" in message
    assert "got 'mps'" in message


def test_paths_with_spaces_and_letters_of_other_languages(tmp_path):
    folder = tmp_path / "my photographs ü"
    save(draw_scene(48, 64, seed=0)[0], folder / "Löwe 1.png")
    mask = folder / "Maske 1.png"
    assert command("predict", folder / "Löwe 1.png", "--click=30,20", "--output", mask) == 0
    assert read_labels(mask).shape == (48, 64)


def test_a_spawned_process_reads_the_same_crops(tmp_path):
    """On macOS and Windows, a process that reads data begins without the state of its parent."""

    def first_batch(workers):
        data = FolderDataModule(
            write_folder(tmp_path, images=4), batch_size=2, crop_size=32, num_workers=workers
        )
        loader = data.train_dataloader()
        if workers:
            loader.multiprocessing_context = "spawn"
        torch.manual_seed(0)
        return next(iter(loader))

    here, elsewhere = first_batch(0), first_batch(1)
    assert here.names == elsewhere.names
    assert torch.equal(here.images, elsewhere.images)
    assert torch.equal(here.masks, elsewhere.masks)
