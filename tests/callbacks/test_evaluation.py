import csv
import json
from dataclasses import asdict

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from probseg.attention import Adaptation, probabilistic_layers
from probseg.callbacks import InteractiveEvaluation
from probseg.errors import UnknownNameError
from probseg.interact import OneStep
from probseg.tasks import InteractiveSegmentation
from support.fakes import FakeObjects, micro_model
from support.rows import each
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
    for number, (seed, step) in enumerate([(0, 1), (0, -1), (1, 1)]):
        objects = FakeObjects(3)
        objects.samples = objects.samples[::step]
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
