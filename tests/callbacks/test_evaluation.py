import csv
import json

import lightning as L
import pytest
import torch
from fakes import FakeObjects, micro_model
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from probseg.attention import Adaptation, probabilistic_layers
from probseg.callbacks import InteractiveEvaluation
from probseg.errors import UnknownNameError
from probseg.interact import OneStep
from probseg.tasks import InteractiveSegmentation

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
    return L.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        logger=Numbers(folder, name="toy"),
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
        log_every_n_steps=1,
        **options,
    )


def scores(folder, *sets, **options):
    runner = trainer(folder, InteractiveEvaluation(**options))
    figures = runner.test(Disks(), loaders(*sets), verbose=False)
    return {key.split("/dataloader")[0]: value for row in figures for key, value in row.items()}


def read(path):
    return json.loads(path.read_text())


def test_validation_logs_its_figures_and_writes_its_report(tmp_path):
    runner = trainer(tmp_path, InteractiveEvaluation(protocols=["ritm"]))
    figures = runner.validate(Disks(), loaders(FakeObjects(2, name="A")), verbose=False)[0]
    assert set(figures) == {"val/miou@5", *(f"val/A/{name}" for name in MIOU + NOC)}
    assert figures["val/A/miou@0"] == 0
    assert 0.1 < figures["val/A/miou@1"] < figures["val/A/miou@5"]
    folder = tmp_path / "toy" / "version_0" / "val"
    assert {path.name for path in folder.iterdir()} == {
        "results.json",
        "objects.csv",
        "report.md",
        "curve.png",
        "overlays.png",
    }
    assert read(folder / "results.json")["datasets"]["A"]["miou"] == pytest.approx(
        [figures[f"val/A/{name}"] for name in MIOU], abs=1e-6
    )


def test_validation_over_two_sets_gives_the_mean_of_their_means(tmp_path):
    sets = (FakeObjects(3, name="A"), FakeObjects(1, size=(80, 90), name="B"))
    runner = trainer(tmp_path, InteractiveEvaluation(protocols=["ritm"]))
    rows = runner.validate(Disks(), loaders(*sets), verbose=False)
    figures = {key: value for row in rows for key, value in row.items()}
    a, b = figures["val/A/miou@5"], figures["val/B/miou@5"]
    assert a != b
    assert figures["val/miou@5"] == pytest.approx((a + b) / 2)
    assert set(read(tmp_path / "toy/version_0/val/results.json")["datasets"]) == {"A", "B"}


def test_test_logs_all_clicks_of_the_protocol(tmp_path):
    figures = scores(tmp_path, FakeObjects(2, name="A"), protocols=["ritm"], max_clicks=8)
    assert set(figures) == {f"test/A/miou@{k}" for k in range(9)} | {f"test/A/{n}" for n in NOC}
    assert figures["test/A/noc@90"] <= 8
    results = read(tmp_path / "toy/version_0/test/ritm/results.json")
    assert results["protocol"]["max_clicks"] == 8
    assert results["datasets"]["A"]["noc"]["90"] == pytest.approx(figures["test/A/noc@90"])
    assert results["metadata"]["environment"]["versions"]["torch"]


def test_several_protocols_have_their_names_in_the_log(tmp_path):
    figures = scores(
        tmp_path,
        FakeObjects(2, name="A"),
        protocols=["gabbur2021", "ritm"],
        max_clicks=2,
        trials=3,
    )
    both = {f"test/A/{p}/miou@{k}" for p in ("gabbur2021", "ritm") for k in range(3)}
    both |= {f"test/A/{p}/{n}" for p in ("gabbur2021", "ritm") for n in NOC}
    assert set(figures) == both
    rows = {}
    for protocol in ("gabbur2021", "ritm"):
        path = tmp_path / "toy/version_0/test" / protocol / "objects.csv"
        rows[protocol] = list(csv.DictReader(path.open()))
    assert len(rows["gabbur2021"]) == 2 * 3 * 3, "objects x trials x (clicks + 1)"
    assert len(rows["ritm"]) == 2 * 1 * 3, "without noise all trials would be equal"


def test_two_test_sets_keep_apart(tmp_path):
    sets = (FakeObjects(2, name="A"), FakeObjects(2, size=(80, 90), name="B"))
    together = scores(tmp_path / "1", *sets, protocols=["ritm"], max_clicks=3)
    for objects in sets:
        alone = scores(tmp_path / objects.name, objects, protocols=["ritm"], max_clicks=3)
        for name, value in alone.items():
            assert together[name] == pytest.approx(value), name


def test_order_of_the_objects_does_not_matter(tmp_path):
    forwards, backwards = FakeObjects(4), FakeObjects(4)
    backwards.samples.reverse()
    options = {"protocols": ["gabbur2021"], "max_clicks": 3, "trials": 2}
    assert scores(tmp_path / "1", forwards, **options) == scores(
        tmp_path / "2", backwards, **options
    )
    tables = []
    for n in "12":
        path = tmp_path / n / "toy/version_0/test/gabbur2021/objects.csv"
        rows = list(csv.DictReader(path.open()))
        tables.append([{k: v for k, v in row.items() if k != "seconds"} for row in rows])
    assert tables[0] == tables[1]


def test_the_seed_moves_the_boxes(tmp_path):
    options = {"protocols": ["gabbur2021"], "max_clicks": 1, "trials": 1}
    path = "toy/version_0/test/gabbur2021/objects.csv"
    tables = []
    for seed in (0, 0, 1):
        folder = tmp_path / str(len(tables))
        scores(folder, FakeObjects(3), seed=seed, **options)
        tables.append([row["iou"] for row in csv.DictReader((folder / path).open())])
    assert tables[0] == tables[1]
    assert tables[0] != tables[2]
    assert (
        read(tmp_path / "2" / "toy/version_0/test/gabbur2021/results.json")["metadata"]["seed"] == 1
    )


def test_number_of_pictures(tmp_path):
    scores(tmp_path, FakeObjects(2), protocols=["ritm"], max_clicks=1, pictures=0)
    runner = trainer(tmp_path, InteractiveEvaluation(protocols=["ritm"], pictures=0))
    runner.validate(Disks(), loaders(FakeObjects(2)), verbose=False)
    assert not (tmp_path / "toy/version_1/val/overlays.png").exists()
    assert (tmp_path / "toy/version_1/val/curve.png").exists()
    assert (tmp_path / "toy/version_0/test/ritm/overlays.png").exists(), "the best and worst"


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
    report = read(tmp_path / "toy/version_0/val/results.json")
    reported = report["datasets"]["fakes"]["miou"][5]
    assert keep.best_model_score > reported
    last = runner.callback_metrics["val/miou@5"]
    assert reported == pytest.approx(float(last)), "the report is that of the last epoch"
    assert report["metadata"]["epoch"] == 2


def test_predictions_are_made_in_evaluation_mode(tmp_path):
    model = Disks()
    runner = trainer(tmp_path, InteractiveEvaluation(protocols=["ritm"]), max_epochs=2)
    runner.fit(model, DataLoader(torch.zeros(1, 1)), loaders(FakeObjects(1)))
    assert len(model.modes) >= 10
    assert not any(model.modes)
    assert model.training


def test_without_a_logger_the_report_goes_to_the_root(tmp_path):
    runner = L.Trainer(
        accelerator="cpu",
        logger=False,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        callbacks=[InteractiveEvaluation(protocols=["ritm"], max_clicks=1)],
    )
    runner.test(Disks(), loaders(FakeObjects(1)), verbose=False)
    assert (tmp_path / "test" / "ritm" / "results.json").is_file()


def test_tables_are_printed(tmp_path, capsys):
    scores(tmp_path, FakeObjects(2, name="Drawn"), protocols=["ritm"], max_clicks=5)
    told = capsys.readouterr().out
    assert "mIoU@5" in told
    assert "NoC@90" in told
    assert "Drawn" in told
    assert str(tmp_path / "toy/version_0/test/ritm/report.html") in told.replace("\n", "")


def test_unusable_arguments():
    with pytest.raises(ValueError, match="at least one protocol"):
        InteractiveEvaluation(protocols=[])
    with pytest.raises(ValueError, match="val_clicks must be at least 5"):
        InteractiveEvaluation(val_clicks=4)
    with pytest.raises(ValueError, match="`max_clicks` must be at least 1"):
        InteractiveEvaluation(protocols=["ritm"], max_clicks=0)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        InteractiveEvaluation(batch_size=0)
    with pytest.raises(ValueError, match="changes: a protocol has no field 'zooom'"):
        InteractiveEvaluation(changes={"zooom": "ritm"})
    with pytest.raises(ValueError, match=r"protocol gabbur2021 .*`zoom` must be None with a box"):
        InteractiveEvaluation(changes={"zoom": "ritm"})
    with pytest.raises(ValueError, match=r"protocol ritm .*unexpected keyword argument 'jiter'"):
        InteractiveEvaluation(protocols=["ritm"], changes={"mistakes": {"jiter": 2}})
    with pytest.raises(ValueError, match=r"protocol ritm .*threshold abc"):
        InteractiveEvaluation(protocols=["ritm"], changes={"threshold": "abc"})
    with pytest.raises(ValueError, match="expected each name once, got ritm, ritm"):
        InteractiveEvaluation(protocols=["ritm", "ritm"])
    with pytest.raises(UnknownNameError, match="did you mean 'gabbur2021'"):
        InteractiveEvaluation(protocols=["gabbur"])


def test_the_report_tells_weights_apart(tmp_path):
    digests = []
    for number, weight in enumerate((0.0, 0.0, 1.0)):
        model = Disks()
        torch.nn.init.constant_(model.weight, weight)
        folder = tmp_path / str(number)
        evaluation = InteractiveEvaluation(protocols=["ritm"], max_clicks=1)
        trainer(folder, evaluation).test(model, loaders(FakeObjects(1)), verbose=False)
        metadata = read(folder / "toy/version_0/test/ritm/results.json")["metadata"]
        assert metadata["checkpoint"] is None
        digests.append(metadata["weights_sha256"])
    assert digests[0] == digests[1] != digests[2]


def test_fields_of_the_protocol_can_be_changed(tmp_path):
    changes = {"zoom": "fixed", "flip": True, "mistakes": {"jitter": 1.5}, "target_iou": 0.6}
    scores(tmp_path, FakeObjects(2), protocols=["ritm"], changes=changes, trials=2, max_clicks=4)
    protocol = read(tmp_path / "toy/version_0/test/ritm/results.json")["protocol"]
    assert (protocol["zoom"], protocol["flip"], protocol["target_iou"]) == ("fixed", True, 0.6)
    assert protocol["mistakes"]["jitter"] == 1.5
    assert protocol["trials"] == 2, "clicks with mistakes differ between trials"
    assert "Changed: zoom fixed, flip True" in protocol["description"]


def test_the_number_of_clicks_is_not_forced_on_a_box_alone():
    evaluation = InteractiveEvaluation(protocols=["box", "ritm"], max_clicks=3)
    assert [protocol.max_clicks for protocol in evaluation.test_protocols] == [0, 3]


def test_the_report_tells_settings_apart(tmp_path):
    digests = []
    for number, size in enumerate((None, None, 24)):
        task = InteractiveSegmentation(micro_model("micro_conv"))
        task.model.working_size = size
        evaluation = InteractiveEvaluation(protocols=["ritm"], max_clicks=1, pictures=0)
        trainer(tmp_path / str(number), evaluation).test(
            task, loaders(FakeObjects(1)), verbose=False
        )
        results = read(tmp_path / str(number) / "toy/version_0/test/ritm/results.json")
        digests.append(results["metadata"]["settings_sha256"])
    assert digests[0] == digests[1] != digests[2]


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


@pytest.mark.parametrize("logger", ["Numbers", None])
def test_a_test_that_was_killed_goes_on(tmp_path, capsys, logger):
    def run(folder, task, **options):
        evaluation = InteractiveEvaluation(max_clicks=3, trials=2, pictures=0, **options)
        runner = L.Trainer(
            accelerator="cpu",
            default_root_dir=folder,
            logger=Numbers(folder, name="toy") if logger else False,
            callbacks=[evaluation],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        runner.test(task, loaders(FakeObjects(30)), verbose=False)
        return runner

    def result(folder):
        rows = list(csv.DictReader((folder / "objects.csv").open()))
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    def place(folder, version):
        run_folder = folder / "toy" / f"version_{version}" if logger else folder
        return run_folder / "test" / "gabbur2021"

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole, Disks())
    with pytest.raises(Killed):
        run(broken, Mortal(lives=20 * 8 + 3))
    assert len(result(place(broken, 0))) == 20 * 8, "objects x trials x (clicks + 1)"
    capsys.readouterr()
    task = Disks()
    run(broken, task)
    assert f"40 runs are taken over from {place(broken, 0)}" in capsys.readouterr().out
    assert result(place(broken, 1)) == result(place(whole, 0))
    assert len(task.modes) < 30 * 8, "some objects were not asked about again"
    assert not (place(broken, 1) / "evaluation.json").exists()
    assert not list(place(broken, 1).glob("objects.*.*"))
    figures = [read(place(f, n) / "results.json")["datasets"] for f, n in ((whole, 0), (broken, 1))]
    for of_set in (figures[0]["fakes"], figures[1]["fakes"]):
        del of_set["first_seconds"], of_set["next_seconds"]
    assert figures[0] == figures[1]


def test_another_evaluation_takes_nothing_over(tmp_path, capsys):
    def run(lives, **options):
        evaluation = InteractiveEvaluation(protocols=["ritm"], max_clicks=2, **options)
        trainer(tmp_path, evaluation).test(Mortal(lives), loaders(FakeObjects(4)), verbose=False)

    with pytest.raises(Killed):
        run(6)
    run(100, seed=1)
    run(100, changes={"threshold": 0.5})
    assert "taken over" not in capsys.readouterr().out
    run(100)
    assert "3 runs are taken over" in capsys.readouterr().out
    run(100)
    assert "taken over" not in capsys.readouterr().out, "the last one came to its end"


# --- adaptation ---------------------------------------------------------------------------------

RESULTS = "toy/version_0/test/ritm/results.json"


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
        assert len(task.seen) == 4, "objects, one to a batch, x clicks"
        assert all(asked == [3, 3] for asked in task.seen)
        assert task.iterations() == [1, 1]


def test_an_adapted_test_is_that_of_the_network_built_so(tmp_path):
    def ious(folder):
        return read(folder / RESULTS)["datasets"]["fakes"]["miou"]

    head = {"options": {"key_iterations": 3, "key_prior": 0.5}}
    built = InteractiveSegmentation(micro_model("micro_csa", head=head))
    task = Watched()
    built.load_state_dict(task.state_dict())
    objects = loaders(FakeObjects(2))
    adapted(tmp_path / "1", key_iterations=3, key_prior=0.5).test(task, objects, verbose=False)
    adapted(tmp_path / "2").test(built, objects, verbose=False)
    adapted(tmp_path / "3").test(task, objects, verbose=False)
    assert ious(tmp_path / "1") == ious(tmp_path / "2")
    assert ious(tmp_path / "1") != ious(tmp_path / "3")


def test_the_report_tells_the_adaptation(tmp_path):
    objects = loaders(FakeObjects(1))
    adapted(tmp_path / "1", key_iterations=3).test(Watched(), objects, verbose=False)
    assert read(tmp_path / "1" / RESULTS)["metadata"]["adaptation"] == {
        "key_iterations": 3,
        "key_prior": None,
        "value_iterations": None,
        "value_prior": None,
    }
    scores(tmp_path / "2", FakeObjects(1), protocols=["ritm"], max_clicks=1)
    assert read(tmp_path / "2" / RESULTS)["metadata"]["adaptation"] is None


def test_after_an_error_the_network_is_what_it_was(tmp_path):
    class Interrupted(RuntimeError):
        pass

    def fail(*_):
        raise Interrupted

    task = Watched()
    task.model.decoder.register_forward_pre_hook(fail)
    runner = adapted(tmp_path, key_iterations=3)
    seen = []
    task.model.backbone.register_forward_pre_hook(lambda *_: seen.append(task.iterations()))
    with pytest.raises(Interrupted):
        runner.test(task, loaders(FakeObjects(1)), verbose=False)
    assert seen == [[3, 3]]
    assert task.iterations() == [1, 1]


def test_what_cannot_adapt_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"adaptation needs a Segmenter .*, got OneStep"):
        adapted(tmp_path, key_iterations=3).test(Disks(), loaders(FakeObjects(1)), verbose=False)
    task = InteractiveSegmentation(micro_model("micro_conv"))
    with pytest.raises(ValueError, match="no probabilistic attention"):
        adapted(tmp_path, key_iterations=3).test(task, loaders(FakeObjects(1)), verbose=False)
