"""A loss that is not finite: the training stops at once, and its last step is saved."""

import math
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

from probseg.callbacks.finite_loss import FiniteLoss
from probseg.clicks import Curriculum
from probseg.data import InteractiveDataModule, TrainBatch
from probseg.errors import NonFiniteLossError
from probseg.losses import BinaryCrossEntropy
from probseg.semantic import SemanticDataModule, SemanticSegmentation, semantic_variant
from probseg.semantic import task as semantic_task
from probseg.tasks import InteractiveSegmentation
from support.drawn_semantic import FakeStreets
from support.fakes import FakeObjects, micro_model
from support.runs import assert_identical
from support.trainings import quiet_trainer

LOADING = {"batch_size": 2, "crop_size": 32, "num_workers": 0}
LATE = 4
"""Number of the step that goes wrong: the second of the second epoch of three."""


class Wrong:
    """Multiplies the loss of one step by a factor."""

    def __init__(self, loss, factor):
        self.loss, self.factor = loss, factor
        self.count = -1

    def __call__(self, *inputs, **options):
        self.count += 1
        return self.loss(*inputs, **options) * (self.factor if self.count == LATE else 1)


class Snapshots(L.Callback):
    """Keeps the last batch that began, and the state before it."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batch = batch
        self.state = {name: x.clone() for name, x in pl_module.state_dict().items()}


def trainer(place, *callbacks, **options):
    options = {"max_epochs": 4, "limit_val_batches": 0, **options}
    return quiet_trainer(place, *callbacks, FiniteLoss(), **options)


def interactive(loss=None):
    stages = Curriculum(box_epochs=1, random_epochs=0, rounds=(1, 8))  # clicks on mistakes
    return InteractiveSegmentation(micro_model("micro_csa"), loss=loss, curriculum=stages)


def semantic():
    # Bases that follow the batches, and dropout.
    return SemanticSegmentation(semantic_variant("micro_emanet", {"head": {"num_classes": 3}}))


def objects():
    return InteractiveDataModule(FakeObjects(6), **LOADING)


@pytest.fixture(params=["interactive", "semantic"])
def stopped(request, tmp_path, monkeypatch):
    """A training that was stopped: its error, the state before the step, and the saved step."""
    torch.manual_seed(3)
    if request.param == "interactive":
        loss = nn.Module()
        loss.forward = Wrong(BinaryCrossEntropy(), math.nan)
        task, data = interactive(loss), objects()
    else:
        wrong = Wrong(semantic_task.pixel_cross_entropy, -math.inf)
        monkeypatch.setattr(semantic_task, "pixel_cross_entropy", wrong)
        task, data = semantic(), SemanticDataModule(FakeStreets(6), **LOADING)
    before = Snapshots()
    with pytest.raises(NonFiniteLossError) as error:
        trainer(tmp_path, before).fit(task, data)
    (path,) = tmp_path.glob("*.pt")
    return SimpleNamespace(
        error=str(error.value), before=before.state, batch=before.batch, task=task, path=path,
        saved=torch.load(path, weights_only=True), kind=request.param,
    )  # fmt: skip


def test_weights_and_batch_are_saved_as_they_were_before_the_step(stopped):
    saved = stopped.saved
    assert stopped.path.name == f"nonfinite_step{LATE}.pt"
    assert (saved["global_step"], saved["epoch"]) == (LATE, 1)
    assert saved["batch_seed"] == stopped.task.batch_seed
    assert str(saved["loss"]) == {"interactive": "nan", "semantic": "-inf"}[stopped.kind]
    assert_identical(saved["weights"], stopped.before)
    assert_identical(dict(stopped.task.state_dict()), stopped.before)
    assert saved["batch"].keys() == stopped.batch._asdict().keys()
    assert saved["batch"]["names"] == stopped.batch.names
    for name in ("images", "seeds"):
        assert torch.equal(saved["batch"][name], getattr(stopped.batch, name))
    (optimizer,) = stopped.task.trainer.optimizers
    for part in (
        f"step {LATE} (epoch 1, batch seed {stopped.task.batch_seed}",
        f"learning rate {optimizer.param_groups[0]['lr']:g}",
        f"is {saved['loss']} on the images {', '.join(saved['batch']['names'])}",
        str(stopped.path),
    ):
        assert part in stopped.error


class Large(nn.Module):
    """Cross-entropy times a factor."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.loss = BinaryCrossEntropy()

    def forward(self, logits, mask):
        return self.loss(logits, mask) * self.factor


def half_precision():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    return MixedPrecision("16-mixed", "cpu", scaler=scaler)


def test_a_loss_that_overflows_by_its_scale_alone_does_not_stop(tmp_path):
    """Lightning hands the scaled loss to callbacks; the scaler leaves out the step by itself."""
    task, plugin, before = interactive(Large(1e9)), half_precision(), Snapshots()
    fit = trainer(tmp_path, before, plugins=[plugin], max_steps=1)
    fit.fit(task, objects())
    assert fit.global_step == 1
    assert plugin.scaler.get_scale() == 2.0**99, "the step was left out"
    assert not list(tmp_path.glob("*.pt"))
    for name, parameter in task.named_parameters():
        assert torch.equal(parameter, before.state[name]), name


@pytest.mark.parametrize("factor", [math.inf, math.nan])
def test_half_precision_does_not_hide_a_loss_that_is_not_finite(tmp_path, factor):
    fit = trainer(tmp_path, plugins=[half_precision()], max_steps=1)
    with pytest.raises(NonFiniteLossError, match=f"is {factor}"):
        fit.fit(interactive(Large(factor)), objects())
    assert [path.name for path in tmp_path.glob("*.pt")] == ["nonfinite_step0.pt"]


@pytest.mark.parametrize("fault", ["no folder", "full disk"])
def test_the_error_says_that_nothing_could_be_written(fault, tmp_path, monkeypatch):
    place = tmp_path / "run"
    if fault == "no folder":
        place.write_text("a file")
    else:
        place.mkdir()

        def full(content, path):
            path.write_bytes(b"half")
            raise RuntimeError("PytorchStreamWriter failed writing file")

        monkeypatch.setattr(torch, "save", full)
    with pytest.raises(NonFiniteLossError, match=f"could not be saved in {place}"):
        trainer(place).fit(interactive(Large(math.nan)), objects())
    assert not list(place.glob("*"))


def test_each_process_writes_a_file_of_its_own(tmp_path):
    batch = TrainBatch(torch.zeros(9, 3, 4, 4, dtype=torch.uint8), torch.zeros(9, 4, 4),
                       torch.arange(9), [f"photo{i}" for i in range(9)], [])  # fmt: skip
    task = interactive()
    process = SimpleNamespace(
        logger=None, default_root_dir=tmp_path, strategy=SimpleNamespace(broadcast=lambda x: x),
        precision_plugin=None, global_rank=1, world_size=2, global_step=7, current_epoch=0,
        optimizers=[],
    )  # fmt: skip
    callback = FiniteLoss()
    callback.setup(process, task, "fit")
    callback.on_train_start(process, task)
    callback.on_train_batch_start(process, task, batch, 7)
    callback.on_before_backward(process, task, torch.tensor(1e38))
    with pytest.raises(NonFiniteLossError, match=r"images photo0.*photo7 and 1 more"):
        callback.on_before_backward(process, task, torch.tensor(math.inf))
    assert [path.name for path in tmp_path.iterdir()] == ["nonfinite_step7_rank1.pt"]
