"""Semantic segmentation as a user runs it: files, resuming, and several processes."""

import csv
import json

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from probseg.paths import configs_dir
from probseg.semantic import SemanticSegmentation
from support.drawn_semantic import write_camvid
from support.runs import QUIET, camvid_fit, command, separately, working_in

FILES = {"results.json", "classes.csv", "confusion.csv", "overlays.png"}
FIVE = 5
"""Photographs of each split: an odd number, which two processes cannot share evenly."""

PLAIN = ("--semantic_evaluation.pictures=0",)  # drawing them takes longest
FEW_SCORES = ("--trainer.limit_val_batches=1", *PLAIN)

NO_NORM = """
class_path: probseg.semantic.semantic_variant
init_args:
  of: micro_emanet
  changes:
    head:
      num_classes: 11
      normalisation: null
"""


def run_in_two_processes(place, *arguments):
    """Run a command line in two processes."""
    two = ("--trainer.strategy=ddp", "--trainer.devices=2")
    assert "MEMBER: 2/2" in separately(place, *arguments, *two)


def read(path):
    return torch.load(path, weights_only=True, map_location="cpu")


def confusion(folder):
    return list(csv.reader((folder / "test" / "CamVid" / "confusion.csv").open()))


def scores(folder):
    """Scores of a test, without what tells of the run."""
    stored = json.loads((folder / "test" / "CamVid" / "results.json").read_text())
    return {**stored, "metadata": stored["metadata"]["photographs"]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of all runs after a training."""
    place = tmp_path_factory.mktemp("semantic")
    write_camvid(place / "camvid", images=FIVE)
    ablation = place / "no_norm.yaml"
    ablation.write_text(NO_NORM)
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
    steps = ("--trainer.max_epochs=2", "--trainer.log_every_n_steps=1", *FEW_SCORES)
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


def shipped(name):
    return yaml.safe_load((configs_dir() / "trainer" / f"{name}.yaml").read_text())


def test_the_shorter_schedule_is_the_long_one_in_short():
    numbers = {"max_steps": 15000, "val_check_interval": 1000}
    assert shipped("semantic_15k") == shipped("semantic") | numbers


def test_long_epochs_lose_few_iterations(tmp_path, monkeypatch):
    """The shipped settings, with small numbers: killed inside an epoch of five iterations."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    write_camvid(tmp_path / "camvid", images=10)
    settings = shipped("semantic")
    assert settings["devices"] == 1, "more would multiply the batch"
    (last,) = (c for c in settings["callbacks"] if c["class_path"].endswith("LastCheckpoint"))
    last["init_args"] = {"every_steps": 3}
    settings.update(max_steps=11, val_check_interval=4, log_every_n_steps=1)
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(settings))
    fit = camvid_fit("--model.optimizer.lr=0.02", "--trainer=few.yaml", *FEW_SCORES)

    def killed(task, *_):
        if task.global_step == 8:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SemanticSegmentation, "on_train_batch_start", killed)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            command(*fit)
    run_folder = tmp_path / "runs" / "semantic" / "version_0"
    before = read(run_folder / "checkpoints" / "last.ckpt")
    assert (before["epoch"], before["global_step"]) == (1, 8), "that of the validation"
    assert command(*fit, "--ckpt_path", "last") == 0
    assert [path.name for path in run_folder.parent.iterdir()] == ["version_0"]
    after = read(run_folder / "checkpoints" / "last.ckpt")
    assert (after["epoch"], after["global_step"]) == (2, 11), "the end of the training is kept too"
    names = [path.name for path in (run_folder / "checkpoints").iterdir()]
    assert sum(name.startswith("last") for name in names) == 1
    rates, scored = {}, set()
    for file in sorted(run_folder.glob("events.*")):
        events = EventAccumulator(str(file)).Reload()
        rates |= {event.step: event.value for event in events.Scalars("lr-SGD")}
        scored |= {event.step for event in events.Scalars("val/miou")}
    assert rates == {
        step: pytest.approx(0.02 * (1 - step / 11) ** 0.9, rel=1e-5) for step in range(11)
    }
    assert scored == {3, 7}


@pytest.fixture(scope="module")
def tested(trained):
    """Folders of the same test by one process and by two."""
    place = trained.parents[1]
    weights = ("--ckpt_path", trained / "version_0" / "checkpoints" / "last.ckpt")
    test = ("test", "--config", trained / "version_0" / "config.yaml", *weights, *QUIET)
    with working_in(place):
        assert command(*test) == 0
    alone = newest(trained)
    run_in_two_processes(place, *test)
    return alone, newest(trained)


def test_two_processes_count_every_photograph_once(tested):
    alone, shared = tested
    assert alone != shared
    assert confusion(shared) == confusion(alone)
    assert scores(shared) == scores(alone)
    assert scores(shared)["metadata"] == FIVE
    counts = [[int(cell) for cell in row[1:]] for row in confusion(alone)[1:]]
    assert sum(map(any, counts)) > 3, "the matrix must say something"


def test_two_processes_show_the_same_pictures(tested):
    alone, shared = ((of / "test" / "CamVid" / "overlays.png").read_bytes() for of in tested)
    assert shared == alone


@pytest.mark.slow
def test_two_processes_train(tmp_path):
    """What they learn is compared in tests/semantic/test_semantic_processes.py."""
    write_camvid(tmp_path / "camvid", images=FIVE)
    fit = camvid_fit("--trainer.max_epochs=1", "--trainer.sync_batchnorm=false")
    run_in_two_processes(tmp_path, *fit)
    stored = read(tmp_path / "runs" / "semantic" / "version_0" / "checkpoints" / "last.ckpt")
    assert stored["global_step"] == 1
    results = tmp_path / "runs" / "semantic" / "version_0" / "val" / "CamVid" / "results.json"
    assert json.loads(results.read_text())["metadata"]["photographs"] == FIVE
