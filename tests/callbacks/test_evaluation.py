"""Evaluation by clicks, and what is kept in memory and written down while it goes on."""

import csv
import json
import os
from dataclasses import asdict, replace

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from probseg.attention import Adaptation, probabilistic_layers
from probseg.callbacks import InteractiveEvaluation
from probseg.callbacks.evaluation import Collection
from probseg.errors import UnknownNameError
from probseg.evaluation import (
    PROTOCOLS,
    ObjectRecord,
    Picture,
    best_and_worst,
    checksum,
)
from probseg.interact import OneStep
from probseg.metrics import MeanIoUAtK, NumberOfClicks
from probseg.tasks import InteractiveSegmentation
from support.fakes import FakeObjects, micro_model
from support.result_folders import step
from support.rows import each
from support.toy_models import toy_sample
from support.trainings import quiet_trainer

pytestmark = pytest.mark.usefixtures("undrawn")

MIOU = [f"miou@{k}" for k in range(6)]
NOC = [f"noc@{percent}" for percent in (80, 85, 90, 95)]


class Disks(L.LightningModule):
    """Predicts the box and disks around the clicks, whose radius may follow the epoch."""

    def __init__(self, radii=(6.0,)):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.radii = radii
        self.modes = []
        self.model = OneStep(self.forward)

    def forward(self, image, prompts):
        self.modes.append(self.training)
        y, x = torch.meshgrid(*map(torch.arange, image.shape[2:]), indexing="ij")
        inside = torch.zeros(image.shape[2:], dtype=torch.bool)
        if not prompts.boxes.isnan().any():
            x0, y0, x1, y1 = prompts.boxes[0].int().tolist()
            inside[y0:y1, x0:x1] = True
        radius = self.radii[min(self.current_epoch, len(self.radii) - 1)]
        for (column, row), label in zip(prompts.points[0], prompts.labels[0], strict=True):
            inside[(x - column) ** 2 + (y - row) ** 2 <= radius**2] = bool(label)
        return torch.where(inside, 9.0, -9.0)[None, None] + 0 * self.weight

    def training_step(self, batch, batch_idx):
        assert self.training, "left in evaluation mode by the callback"
        return self.weight.sum()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Numbers(CSVLogger):
    """Leaves out the arguments of a task, of which a network would become megabytes of text."""

    def log_hyperparams(self, *arguments):
        pass


def loaders(*sets):
    return [DataLoader(objects, batch_size=1, collate_fn=list) for objects in sets]


def trainer(folder, *callbacks, **options):
    options = {"logger": Numbers(folder, name="toy"), "log_every_n_steps": 1, **options}
    return quiet_trainer(folder, *callbacks, **options)


def scores(folder, *sets, **options):
    runner = trainer(folder, InteractiveEvaluation(**options))
    figures = runner.test(Disks(), loaders(*sets), verbose=False)
    return {key.split("/dataloader")[0]: value for row in figures for key, value in row.items()}


def results(folder, version=0, part="test/ritm"):
    """Folder of a run's report, and its `results.json`."""
    place = folder / "toy" / f"version_{version}" / part
    return place, json.loads((place / "results.json").read_text())


def rows(place):
    """Rows of `objects.csv` without their times."""
    with (place / "objects.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def test_figures_of_several_sets_protocols_and_clicks(tmp_path, capsys):
    sets = (FakeObjects(3, name="A"), FakeObjects(1, size=(80, 90), name="B"))
    protocols = ["gabbur2021", "ritm", "box"]
    options = {"protocols": protocols, "max_clicks": 2, "trials": 3, "pictures": 0}
    logged = trainer(tmp_path, InteractiveEvaluation(**options)).validate(
        Disks(), loaders(*sets), verbose=False
    )
    figures = {key: value for row in logged for key, value in row.items()}
    assert set(figures) == {"val/miou@5", *(f"val/{s}/{name}" for s in "AB" for name in MIOU + NOC)}
    a, b = (figures[f"val/{name}/miou@5"] for name in "AB")
    assert figures["val/miou@5"] == pytest.approx((a + b) / 2)
    place, content = results(tmp_path, part="val")
    names = {path.name for path in place.iterdir()}
    assert names == {"results.json", "objects.csv", "report.md", "curve.png"}
    for name in "AB":
        expected = [figures[f"val/{name}/{click}"] for click in MIOU]
        assert content["datasets"][name]["miou"] == pytest.approx(expected, abs=1e-6)

    figures = scores(tmp_path, *sets, **options)
    output = capsys.readouterr().out
    # Trials without noise are equal, and a box has no clicks.
    for protocol, trials, clicks in (("gabbur2021", 3, 2), ("ritm", 1, 2), ("box", 3, 0)):
        place, content = results(tmp_path, 1, f"test/{protocol}")
        assert len(rows(place)) == 4 * trials * (clicks + 1), "objects x trials x (clicks + 1)"
        assert content["protocol"]["max_clicks"] == clicks
        for name in "AB":
            noc = content["datasets"][name]["noc"]["90"]
            assert noc == pytest.approx(figures[f"test/{name}/{protocol}/noc@90"])
        assert str(place / "report.html") in output.replace("\n", "")
    assert "mIoU@2" in output
    alone = scores(tmp_path, sets[1], protocols=["ritm"], max_clicks=2, pictures=0)
    for name, value in alone.items():
        assert figures[name.replace("B/", "B/ritm/")] == pytest.approx(value), name
    assert (results(tmp_path, 2)[0] / "overlays.png").exists(), "of the best and the worst"


class Accumulated(L.Callback):
    """Feeds metrics with what the evaluation found, object by object and in another order."""

    def __init__(self, evaluation):
        self.evaluation = evaluation

    def on_validation_epoch_end(self, trainer, pl_module):
        (collection,) = self.evaluation._collections
        metrics = [*map(MeanIoUAtK, range(6)), *map(NumberOfClicks, (0.8, 0.85, 0.9, 0.95))]
        for metric in metrics:
            for record in reversed(collection.records):
                curve = np.array([[step.iou for step in record.steps]])
                metric.update(curve, index=[NUMBERED[record.name]])
            found = metric.compute()[metric.title]
            pl_module.log(f"mine/{metric.title}", found, sync_dist=True)


NUMBERED = {name: i for i, name in enumerate(sorted(s.name for s in FakeObjects(11).samples))}


@pytest.mark.parametrize("processes", [1, 2])
def test_metrics_of_other_peoples_loops_are_the_figures_to_the_last_bit(tmp_path, processes):
    """Two processes click through one of 11 objects both, as `DistributedSampler` fills up."""
    if processes > 1 and (not hasattr(os, "fork") or torch.cuda.is_initialized()):
        pytest.skip("needs processes that are quick to start")
    evaluation = InteractiveEvaluation(protocols=["ritm"], pictures=0)
    two = {"devices": 2, "strategy": "ddp_fork"} if processes > 1 else {}
    runner = trainer(tmp_path, evaluation, Accumulated(evaluation), **two)
    runner.validate(Disks(), loaders(FakeObjects(11)), verbose=False)
    figures = {key: float(value) for key, value in runner.callback_metrics.items()}
    for name in MIOU + NOC:
        assert figures[f"mine/{name}"] == figures[f"val/fakes/{name}"], name


@pytest.mark.parametrize("options", [{"fast_dev_run": True}, {"logger": False, "max_epochs": 1}])
def test_a_dry_run_and_one_without_a_logger_leave_no_files(tmp_path, capsys, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    objects = FakeObjects(1, name="A")
    sets = loaders(objects)
    for verb in ("fit", "validate", "test"):
        evaluation = InteractiveEvaluation(protocols=["ritm"], max_clicks=1, pictures=1)
        runner = trainer(tmp_path / "runs", evaluation, **options)
        runner.fit(Disks(), sets, sets) if verb == "fit" else getattr(runner, verb)(Disks(), sets)
        metric = "test/A/miou@1" if verb == "test" else "val/miou@5"
        assert runner.callback_metrics[metric] > 0
    assert "objects.csv" not in capsys.readouterr().out
    assert not [*tmp_path.rglob("*")]


def test_the_seed_and_not_the_order_of_the_objects_matters(tmp_path):
    tables = []
    for number, (seed, stride) in enumerate([(0, 1), (0, -1), (1, 1)]):
        objects = FakeObjects(3)
        objects.samples = objects.samples[::stride]
        folder = tmp_path / str(number)
        scores(folder, objects, seed=seed, max_clicks=2, trials=2)
        place, content = results(folder, part="test/gabbur2021")
        assert content["metadata"]["seed"] == seed
        tables.append(rows(place))
    assert tables[0] == tables[1]
    assert tables[0] != tables[2]


def test_training_picks_the_checkpoint_with_the_best_validation(tmp_path):
    """The disks fit best in the second of three epochs."""
    model = Disks(radii=(1.0, 6.0, 2.0))
    keep = ModelCheckpoint(monitor="val/miou@5", mode="max", filename="{epoch}", save_last=True)
    runner = trainer(
        tmp_path,
        InteractiveEvaluation(protocols=["ritm"]),
        keep,
        max_epochs=3,
        num_sanity_val_steps=1,
    )
    runner.fit(model, DataLoader(torch.zeros(2, 1)), loaders(FakeObjects(2)))
    assert keep.best_model_path.endswith("epoch=1.ckpt")
    _, report = results(tmp_path, part="val")
    reported = report["datasets"]["fakes"]["miou"][5]
    assert keep.best_model_score > reported
    last = runner.callback_metrics["val/miou@5"]
    assert reported == pytest.approx(float(last)), "the report is that of the last epoch"
    assert report["metadata"]["epoch"] == 2
    assert not any(model.modes), "predictions are made in evaluation mode"
    assert model.training


@each(
    ("options", "error", "part"),
    [
        ({"protocols": []}, ValueError, "protocols"),
        ({"protocols": ["ritm", "ritm"]}, ValueError, "protocols"),
        ({"protocols": ["gabbur"]}, UnknownNameError, "'gabbur2021'"),
        ({"val_clicks": 4}, ValueError, "val_clicks"),
        ({"protocols": ["ritm"], "max_clicks": 0}, ValueError, "max_clicks"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"changes": {"zooom": "ritm"}}, ValueError, "changes.*'zooom'"),
        ({"changes": {"zoom": "ritm"}}, ValueError, "changes.*gabbur2021.*zoom"),
        ({"changes": {"threshold": "abc"}}, ValueError, "changes.*threshold abc"),
    ],
)
def test_unusable_arguments(options, error, part):
    with pytest.raises(error, match=part):
        InteractiveEvaluation(**options)


def test_the_report_tells_weights_and_settings_apart(tmp_path):
    digests = []
    task = InteractiveSegmentation(micro_model("micro_conv"))
    for number, change in enumerate(("none", "weight", "setting")):
        if change == "weight":
            with torch.no_grad():
                next(task.parameters()).add_(1)
        elif change == "setting":
            task.model.working_size = 24
        options = {"protocols": ["ritm"], "max_clicks": 1, "pictures": 0}
        runner = trainer(tmp_path / str(number), InteractiveEvaluation(**options))
        for _ in range(2):
            runner.test(task, loaders(FakeObjects(1)), verbose=False)
            metadata = results(tmp_path / str(number))[1]["metadata"]
            assert metadata["checkpoint"] is None
            digests.append((metadata["weights_sha256"], metadata["settings_sha256"]))
    first, weight, setting = digests[::2]
    assert digests[1::2] == [first, weight, setting]
    assert weight[0] == setting[0] != first[0]
    assert weight[1] == first[1] != setting[1]


def test_fields_of_the_protocol_can_be_changed(tmp_path):
    changes = {"zoom": "fixed", "flip": True, "mistakes": {"jitter": 1.5}, "target_iou": 0.6}
    scores(tmp_path, FakeObjects(2), protocols=["ritm"], changes=changes, trials=2, max_clicks=4)
    protocol = results(tmp_path)[1]["protocol"]
    assert (protocol["zoom"], protocol["flip"], protocol["target_iou"]) == ("fixed", True, 0.6)
    assert protocol["mistakes"]["jitter"] == 1.5
    assert protocol["trials"] == 2, "clicks with mistakes differ between trials"
    assert "Changed: zoom fixed, flip True" in protocol["description"]


class Killed(RuntimeError):
    pass


class Mortal(Disks):
    """Dies when it is asked about an object too many."""

    def __init__(self, lives):
        super().__init__()
        self.lives = lives

    def forward(self, image, prompts):
        self.lives -= 1
        if self.lives < 0:
            raise Killed
        return super().forward(image, prompts)


@pytest.mark.parametrize("version", [None, "shared"])
def test_only_the_same_evaluation_takes_over_what_was_done(tmp_path, caplog, version):
    caplog.set_level("INFO", "probseg")

    def run(lives, **options):
        evaluation = InteractiveEvaluation(protocols=["ritm"], max_clicks=2, **options)
        logger = Numbers(tmp_path, name="toy", version=version)
        runner = trainer(tmp_path, evaluation, logger=logger)
        runner.test(Mortal(lives), loaders(FakeObjects(4)), verbose=False)
        return runner

    with pytest.raises(Killed):
        run(6)
    if version is None:  # else, they would have the same folder
        run(100, seed=1)
        run(100, changes={"threshold": 0.5})
    assert "taken over" not in caplog.text
    run(100)
    assert "3 runs taken over" in caplog.text
    caplog.clear()
    run(100)
    assert "taken over" not in caplog.text, "the last one came to its end"
    if version == "shared":
        place = tmp_path / "toy" / version / "test" / "ritm"
        finished = {path: path.read_bytes() for path in place.iterdir()}
        with pytest.raises(Killed):
            run(6, seed=1)
        assert {path: path.read_bytes() for path in finished} == finished


class Watched(InteractiveSegmentation):
    """Notes the iterations of the keys whenever the network is asked."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(micro_model("micro_csa"))
        self.seen = []
        self.model.head.register_forward_pre_hook(lambda *_: self.seen.append(self.iterations()))

    def iterations(self):
        return [
            layer.settings.key_adaptation.iterations for layer in probabilistic_layers(self.model)
        ]


def adapted(folder, **changes):
    evaluation = InteractiveEvaluation(
        protocols=["ritm"], max_clicks=2, val_clicks=5, adaptation=Adaptation(**changes)
    )
    return trainer(folder, evaluation)


def test_an_adaptation_holds_during_the_test_only(tmp_path):
    task, objects = Watched(), loaders(FakeObjects(2))
    runner = adapted(tmp_path, key_iterations=3)
    runner.validate(task, objects, verbose=False)
    assert task.seen
    assert all(asked == [1, 1] for asked in task.seen)
    for _ in range(2):
        task.seen.clear()
        runner.test(task, objects, verbose=False)
        assert len(task.seen) == 4 + 1, "objects, one to a batch, x clicks, and one for folding"
        assert all(asked == [3, 3] for asked in task.seen)
        assert task.iterations() == [1, 1]


def test_after_an_error_the_network_is_what_it_was(tmp_path):
    def fail(*_):
        raise Killed

    task = Watched()
    task.model.head.register_forward_hook(fail)
    with pytest.raises(Killed):
        adapted(tmp_path, key_iterations=3).test(task, loaders(FakeObjects(1)), verbose=False)
    assert task.seen == [[3, 3]]
    assert task.iterations() == [1, 1]
    with pytest.raises(TypeError, match=r"adaptation.*OneStep"):
        adapted(tmp_path, key_iterations=3).test(Disks(), loaders(FakeObjects(1)), verbose=False)


def test_an_adapted_test_is_that_of_the_network_built_so(tmp_path):
    head = {"options": {"key_iterations": 3, "key_prior": 0.5}}
    built = InteractiveSegmentation(micro_model("micro_csa", head=head))
    task = Watched()
    built.load_state_dict(task.state_dict())
    ious = []
    for number, (network, changes) in enumerate(
        [(task, {"key_iterations": 3, "key_prior": 0.5}), (built, {}), (task, {})]
    ):
        folder = tmp_path / str(number)
        adapted(folder, **changes).test(network, loaders(FakeObjects(2)), verbose=False)
        content = results(folder)[1]
        ious.append(content["datasets"]["fakes"]["miou"])
        assert content["metadata"]["adaptation"] == asdict(Adaptation(**changes))
    assert ious[0] == ious[1]
    assert ious[0] != ious[2]


PROTOCOL = replace(PROTOCOLS["gabbur2021"], max_clicks=1, trials=2)
PICTURE = Picture(np.zeros((1, 1, 3), np.uint8), np.ones((1, 1), np.uint8), None, (), ())


class Notes:
    """A journal that keeps its records in memory."""

    def __init__(self):
        self.records, self.closed = [], False

    def add(self, records):
        self.records += records

    def close(self):
        self.closed = True


def objects(count, dataset="Toy"):
    """Samples, of which a collection only needs the names."""
    return [toy_sample((3, 4))._replace(name=f"{n:02}", dataset=dataset) for n in range(count)]


def ran(samples, ious, pictured):
    """The runs of some objects, all trials, with pictures of the first ones if asked for."""
    return [
        ObjectRecord(
            sample.dataset,
            sample.name,
            trial,
            tuple(step(k, iou=iou, boundary_iou=iou) for k in range(2)),
            sample.name,
            checksum(sample),
            PICTURE if pictured and trial == 0 else None,
        )
        for sample, iou in zip(samples, ious, strict=True)
        for trial in range(2)
    ]


def feed(collection, samples, ious, size=3):
    """Do what an evaluation does; return the names of the objects that were run."""
    done = []
    for first in range(0, len(samples), size):
        batch = slice(first, first + size)
        if not collection.take_over(samples[batch]):
            pictured = collection.wants_pictures(samples[batch])
            collection.add(ran(samples[batch], ious[batch], pictured))
            done += [sample.name for sample in samples[batch]]
    return done


def pictured(collection):
    return {record.key for record in collection.records if record.picture is not None}


def firsts(samples, count):
    return {(sample.dataset, sample.name, 0) for sample in samples[:count]}


IOUS = np.random.default_rng(0).permutation(30) / 30


def test_a_validation_keeps_the_first_pictures_of_each_set():
    collection = Collection(PROTOCOL, 4)
    one, other = objects(10), objects(2, "other")
    assert collection.wants_pictures(one[:3])
    assert len(feed(collection, one, IOUS[:10])) == 10
    assert not collection.wants_pictures(one[6:])
    feed(collection, other, IOUS[:2])
    assert pictured(collection) == firsts(one, 4) | firsts(other, 2)
    assert len(collection.records) == 24
    assert not Collection(PROTOCOL, 0).wants_pictures(one)


def test_what_was_taken_over_is_run_again_for_a_picture_only():
    samples, notes = objects(30), Notes()
    before = ran(samples[:21], IOUS[:21], pictured=False)
    collection = Collection(PROTOCOL, 2, notes, before)
    done = feed(collection, samples, IOUS)
    telling = {name for _, name, _ in best_and_worst(before)}
    in_batch = {f"{n // 3 * 3 + i:02}" for n in map(int, telling) for i in range(3)}
    new = {sample.name for sample in samples[21:]}
    assert set(done) == in_batch | {"00", "01", "02"} | new
    assert len(done) < 30, "some were not run again"
    assert pictured(collection) == best_and_worst(collection.records) | firsts(samples, 2)
    assert [record.key for record in notes.records] == [
        record.key for record in ran(samples[21:], IOUS[21:], pictured=False)
    ]
    assert len(collection.records) == 60


def test_a_trial_that_is_missing_is_run():
    samples, notes = objects(30), Notes()
    middle, other = np.argsort(IOUS)[[14, 15]]  # neither among the best nor the worst
    known = ran(samples, IOUS, pictured=False)
    missing = known.pop(2 * middle + 1)
    collection = Collection(PROTOCOL, 0, notes, known)
    assert collection.take_over([samples[other]])
    assert {record.name for record in collection.records} == {samples[other].name}
    assert not collection.take_over([samples[middle], samples[other]])
    collection.add(ran([samples[middle]], IOUS[[middle]], pictured=True))
    assert notes.records == [missing]
    assert len(collection.records) == 4


@pytest.mark.parametrize("what", ["image", "mask", "scribbles", "initial"])
def test_a_sample_that_changed_is_run_again(what):
    samples, notes = objects(30), Notes()
    middle = int(np.argsort(IOUS)[14])
    collection = Collection(PROTOCOL, 0, notes, ran(samples, IOUS, pictured=False))
    before = samples[middle]
    pixels = {
        "image": before.image ^ 1,
        "mask": 1 - before.mask,
        "scribbles": before.mask,
        "initial": before.mask > 0,
    }
    changed = before._replace(**{what: pixels[what]})
    assert not collection.take_over([changed])
    collection.add(ran([changed], IOUS[[middle]], pictured=False))
    assert len(notes.records) == 2, "written down, although there were runs of this name"


@given(
    count=st.integers(1, 25),
    size=st.integers(1, 7),
    first=st.integers(0, 5),
    known=st.integers(0, 25),
    seed=st.integers(0, 99),
)
def test_killed_or_not_the_outcome_is_the_same(count, size, first, known, seed):
    samples = objects(count)
    ious = np.random.default_rng(seed).integers(0, 6, count) / 5  # with ties
    whole, resumed, notes = Notes(), Collection(PROTOCOL, first, Notes()), Notes()
    feed(resumed, samples[:known], ious[:known], size)
    taken_over = [replace(record, picture=None) for record in resumed.records]
    straight = Collection(PROTOCOL, first, whole)
    again = Collection(PROTOCOL, first, notes, taken_over)
    feed(straight, samples, ious, size)
    feed(again, samples, ious, size)
    assert (
        pictured(again)
        == pictured(straight)
        == best_and_worst(straight.records) | firsts(samples, first)
    )
    assert {record.key for record in again.records} == {record.key for record in straight.records}
    written = [record.key for record in (*taken_over, *notes.records)]
    assert sorted(written) == sorted(record.key for record in whole.records)
    assert len(set(written)) == len(written), "each run once"
