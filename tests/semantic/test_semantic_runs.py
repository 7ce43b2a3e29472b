"""Semantic segmentation as a user runs it: files, resuming, and several processes."""

import csv
import json

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from probseg.semantic import SemanticSegmentation
from support.drawn_semantic import write_camvid
from support.runs import QUIET, camvid_fit, command, separately, working_in

FILES = {"results.json", "classes.csv", "confusion.csv", "overlays.png"}
FIVE = 5
"""Photographs of each split: an odd number, which two processes cannot share evenly."""

PLAIN = ("--semantic_evaluation.pictures=0",)  # drawing them takes longest


def read(path):
    return torch.load(path, weights_only=True, map_location="cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of all runs after a training."""
    place = tmp_path_factory.mktemp("semantic")
    write_camvid(place / "camvid", images=FIVE)
    changes = {"head": {"num_classes": 11, "normalisation": None}}
    variant = {"of": "micro_emanet", "changes": changes}
    ablation = place / "no_norm.yaml"
    ablation.write_text(
        yaml.safe_dump({"class_path": "probseg.semantic.semantic_variant", "init_args": variant})
    )
    steps = ("--trainer.max_epochs=2", "--trainer.log_every_n_steps=1")
    steps += ("--semantic_evaluation.output_stride=8", "--semantic_evaluation.pictures=3")
    with working_in(place):
        assert command(*camvid_fit(*steps, "--model.model", ablation)) == 0
    return place / "runs" / "semantic"


@pytest.fixture
def here(trained):
    with working_in(trained.parents[1]):
        yield trained


def newest(folder):
    return max(folder.glob("version_*"), key=lambda path: int(path.name.split("_")[1]))


def test_training_leaves_checkpoints_configuration_and_scores(here):
    first = here / "version_0"
    last = read(first / "checkpoints" / "last.ckpt")
    assert (last["epoch"], last["global_step"]) == (1, 4)
    assert last["hyper_parameters"]["model"]["class_path"] == "probseg.semantic.semantic_variant"
    assert len(list((first / "checkpoints").iterdir())) == 2, "the best and the last"
    assert {path.name for path in (first / "val" / "CamVid").iterdir()} == FILES
    events = EventAccumulator(str(first), size_guidance={"images": 0}).Reload()
    assert {"val/miou", "val/CamVid/miou"} <= set(events.Tags()["scalars"])
    assert any(name.startswith("lr-SGD") for name in events.Tags()["scalars"])
    assert {"train/crops", "val/CamVid/overlays"} <= set(events.Tags()["images"])
    config = yaml.safe_load((first / "config.yaml").read_text())
    head = config["model"]["init_args"]["model"]["init_args"]["changes"]["head"]
    assert head == {"num_classes": 11, "normalisation": None}, "null says something here"
    assert config["semantic_evaluation"]["output_stride"] == 8


def test_the_configuration_of_a_run_tests_its_checkpoint(here, capsys):
    checkpoint = here / "version_0" / "checkpoints" / "last.ckpt"
    test = ("test", "--config", here / "version_0" / "config.yaml", "--ckpt_path", checkpoint)
    asked = ("--semantic_evaluation.iterations=6", "--semantic_evaluation.flip=true")
    assert command(*test, *asked) == 0
    told = capsys.readouterr().out
    folder = newest(here)
    for words in ("CamVid, in percent", "bicyclist", "mIoU", "overlays.png"):
        assert words in told
    assert {path.name for path in (folder / "test" / "CamVid").iterdir()} == FILES
    metadata = json.loads((folder / "test" / "CamVid" / "results.json").read_text())["metadata"]
    assert (metadata["iterations"], metadata["output_stride"]) == (6, 8)
    assert (metadata["scales"], metadata["flip"]) == ([1.0], True)
    assert metadata["photographs"] == FIVE
    assert metadata["checkpoint"] == str(checkpoint)
    assert metadata["data"]["test"]["init_args"]["split"] == "test"
    assert metadata["environment"]["versions"]["torch"] == torch.__version__


def test_validating_a_checkpoint_gives_the_score_of_its_training(here):
    events = EventAccumulator(str(here / "version_0")).Reload()
    config = ("--config", here / "version_0" / "config.yaml")
    assert command("validate", *config, "--ckpt_path", "last", *PLAIN) == 0
    results = json.loads((newest(here) / "val" / "CamVid" / "results.json").read_text())
    assert results["miou"] == pytest.approx(events.Scalars("val/miou")[-1].value, abs=1e-6)


def test_a_killed_training_goes_on_where_its_rate_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    write_camvid(tmp_path / "camvid", images=4)
    steps = ("--trainer.max_epochs=2", "--trainer.log_every_n_steps=1", *PLAIN)
    fit = camvid_fit(*steps, "--model.optimizer.lr=0.02")

    def killed(task):
        if task.current_epoch == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SemanticSegmentation, "on_train_epoch_start", killed)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            command(*fit)
    run_folder = tmp_path / "runs" / "semantic" / "version_0"
    before = read(run_folder / "checkpoints" / "last.ckpt")
    assert (before["epoch"], before["global_step"]) == (0, 2)
    assert command(*fit, "--ckpt_path", "last") == 0
    assert [path.name for path in run_folder.parent.iterdir()] == ["version_0"]
    after = read(run_folder / "checkpoints" / "last.ckpt")
    assert (after["epoch"], after["global_step"]) == (1, 4)
    rates = {}
    for file in sorted(run_folder.glob("events.*")):
        for event in EventAccumulator(str(file)).Reload().Scalars("lr-SGD"):
            rates[event.step] = event.value
    assert rates == {
        step: pytest.approx(0.02 * (1 - step / 4) ** 0.9, rel=1e-5) for step in range(4)
    }


def test_two_processes_count_every_photograph_once(trained):
    place = trained.parents[1]
    weights = ("--ckpt_path", trained / "version_0" / "checkpoints" / "last.ckpt")
    test = ("test", "--config", trained / "version_0" / "config.yaml", *weights, *QUIET)
    with working_in(place):
        assert command(*test) == 0
    alone = newest(trained) / "test" / "CamVid"
    two = ("--trainer.strategy=ddp", "--trainer.devices=2")
    assert "MEMBER: 2/2" in separately(place, *test, *two)
    shared = newest(trained) / "test" / "CamVid"
    assert alone != shared
    for name in ("confusion.csv", "classes.csv", "overlays.png"):
        assert (shared / name).read_bytes() == (alone / name).read_bytes()
    stored = [json.loads((folder / "results.json").read_text()) for folder in (alone, shared)]
    assert [results.pop("metadata")["photographs"] for results in stored] == [FIVE, FIVE]
    assert stored[0] == stored[1]
    counts = [row[1:] for row in list(csv.reader((alone / "confusion.csv").open()))[1:]]
    assert sum(any(map(int, row)) for row in counts) > 3, "the matrix must say something"
