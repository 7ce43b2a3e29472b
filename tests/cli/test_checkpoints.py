"""Which checkpoints are refused, and that none of them runs code."""

import json
import os
import sys
import zipfile

import pytest
import torch
import yaml
from runs import finished, train_two_epochs
from tested import FACTS

import probseg
from probseg.cli.checkpoints import check_readable, find_last
from probseg.errors import UnknownNameError, UsageError, WeightsError
from probseg.models import read_preset
from probseg.tasks.migration import FORMAT
from probseg.zoo import create_model
from probseg.zoo.facts import Facts
from probseg.zoo.publish import publish
from probseg.zoo.trained import read_trained

pytestmark = pytest.mark.usefixtures("undrawn")

SHORT = ("--evaluation.trials=1", "--evaluation.max_clicks=1", "--evaluation.pictures=0")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Data folder and folder of the run."""
    return train_two_epochs(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def stored(trained, tmp_path, monkeypatch):
    """The content of a checkpoint; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    return torch.load(trained[1] / "checkpoints" / "last.ckpt", weights_only=True)


def saved(content, path):
    torch.save(content, path)
    return path


def refused(path, kind=WeightsError):
    with pytest.raises(kind) as raised:
        check_readable(path)
    assert str(path) in str(raised.value)
    return str(raised.value)


def test_a_good_checkpoint(stored, tmp_path):
    check_readable(saved(stored, tmp_path / "a.ckpt"))
    del stored["probseg"]
    check_readable(saved(stored, tmp_path / "b.ckpt"))


def test_no_such_file(tmp_path):
    assert "no such file" in refused(tmp_path / "a.ckpt", UsageError)


def test_a_newer_format(stored, tmp_path):
    stored["probseg"] = {"format": FORMAT + 1, "version": "9.0"}
    told = refused(saved(stored, tmp_path / "a.ckpt"))
    assert "written by probseg 9.0" in told
    assert f"this is probseg {probseg.__version__}" in told


def test_a_file_that_was_cut_off(stored, tmp_path):
    path = saved(stored, tmp_path / "a.ckpt")
    whole = path.read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        told = refused(path)
        assert "the file is damaged" in told
        assert "can be read" not in told, "there is no other one"


def test_a_flipped_bit(stored, tmp_path):
    """torch itself would take the changed weight."""
    stored["state_dict"] = {"x": torch.zeros(10_000)}
    path = saved(stored, tmp_path / "a.ckpt")
    content = bytearray(path.read_bytes())
    place = content.index(bytes(5000))
    content[place + 2500] ^= 64
    path.write_bytes(content)
    assert torch.load(path, weights_only=True)["state_dict"]["x"].any()
    assert "another checksum" in refused(path)


def test_the_newest_that_can_be_read_is_named(stored, tmp_path):
    for age, name in enumerate(("last", "epoch003", "epoch002", "epoch001")):
        path = saved(stored, tmp_path / f"{name}.ckpt")
        os.utime(path, (1e9 - age, 1e9 - age))
    (tmp_path / "last.ckpt").write_bytes(b"")
    (tmp_path / "epoch003.ckpt").write_bytes(b"PK")
    told = refused(tmp_path / "last.ckpt")
    assert told.endswith(f"; --ckpt_path {tmp_path / 'epoch002.ckpt'} can be read")


def test_other_files(tmp_path):
    (tmp_path / "text.ckpt").write_text("weights")
    refused(tmp_path / "text.ckpt")
    with zipfile.ZipFile(tmp_path / "zip.ckpt", "w") as file:
        file.writestr("a", "b")
    refused(tmp_path / "zip.ckpt")
    assert "no training state" in refused(saved([1], tmp_path / "list.ckpt"))
    assert "could run code" in refused(saved({"state_dict": Exploding()}, tmp_path / "code.ckpt"))
    assert not (tmp_path / "ran").exists()


class Exploding:
    """An object whose pickle runs a command."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


EVIL = "evil_module.Loss"


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that leaves a trace when it is imported."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil_module.py").write_text(
        "import pathlib\n"
        "from probseg.losses import BinaryCrossEntropy\n"
        f"pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        "class Loss(BinaryCrossEntropy):\n"
        "    pass\n"
        "def make(*given):\n"
        "    pass\n",
    )
    yield tmp_path / "ran"
    sys.modules.pop("evil_module", None)


def test_a_checkpoint_brings_weights_and_no_settings(stored, trained, evil):
    """Those of the configuration hold, and no class that the checkpoint names is imported."""
    stored["hyper_parameters"]["loss"] = {"class_path": EVIL, "init_args": {}}
    path = saved(stored, evil.parent / "a.ckpt")
    config = ("--config", trained[1] / "config.yaml", "--ckpt_path", path)
    cli = finished("validate", *config, *SHORT, "--model.corner_noise=0.25")
    assert cli.model.corner_noise == 0.25
    assert stored["hyper_parameters"]["corner_noise"] == 0.1
    assert not evil.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"class_path": "evil_module.Network"},
        {"class_path": "evil_module.Segmenter", "init_args": {"head": EVIL}},
        {"init_args": {"backbone": {"class_path": EVIL}}},
        {"init_args": {"head": EVIL}},
        {"init_args": {"head": {"class_path": "probseg.losses.BinaryCrossEntropy"}}},
        {"init_args": {"head": {"class_path": "torch.hub.load"}}},
        {"init_args": {"backbone": {"class_path": "TimmBackbone", "init_args": {"name": EVIL}}}},
        {
            "init_args": {
                "backbone": {"class_path": "TimmBackbone", "init_args": {"name": "hf-hub:a/b"}}
            }
        },
    ],
    ids=str,
)
def test_a_model_folder_cannot_name_a_class(changes, evil):
    """Models of the zoo and of local folders are built of the project's own parts."""
    network = read_preset("micro_csa")
    network = {
        **network,
        **changes,
        "init_args": {**network["init_args"], **changes.get("init_args", {})},
    }
    (evil.parent / "config.json").write_text(json.dumps(network))
    with pytest.raises((UnknownNameError, ValueError, TypeError)):
        create_model(f"{evil.parent}/")
    assert not evil.exists()
    assert "evil_module" not in sys.modules


def test_the_network_of_a_checkpoint_that_is_published_neither(stored, evil):
    stored["hyper_parameters"]["model"]["init_args"]["head"] = {"class_path": EVIL}
    path = saved(stored, evil.parent / "a.ckpt")
    with pytest.raises(UnknownNameError, match=EVIL):
        publish(read_trained(path), "micro_csa.evil", evil.parent / "zoo", Facts(**FACTS))
    assert not evil.exists()


def test_how_the_data_are_read_does_not_count(tmp_path):
    """What to do without memory is to change these, and to go on."""
    logger = {"class_path": "CSVLogger", "init_args": {"save_dir": str(tmp_path), "name": "mine"}}
    last = tmp_path / "mine" / "version_0" / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    last.touch()
    arguments = {"root": "cats", "batch_size": 16, "crop_size": 256, "num_workers": 4}
    config = {"data": {"class_path": "probseg.data.FolderDataModule", "init_args": arguments}}
    (last.parent.parent / "config.yaml").write_text(yaml.safe_dump(config))
    arguments = {**arguments, "batch_size": 8, "crop_size": 192, "num_workers": 0}
    now = {"class_path": "probseg.data.FolderDataModule", "init_args": arguments}
    assert find_last({"logger": logger}, now) == last
    with pytest.raises(UsageError, match="on these data"):
        find_last({"logger": logger}, {**now, "init_args": {**arguments, "root": "dogs"}})
