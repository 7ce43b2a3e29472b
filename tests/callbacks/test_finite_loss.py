"""A loss that is not finite: the training stops at once, and its last step can be repeated."""

import math
import re
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from drawn_semantic import FakeStreets
from fakes import FakeObjects, micro_model
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

import probseg
from probseg.callbacks.finite_loss import FiniteLoss
from probseg.callbacks.replay_file import FORMAT, HEADER, Replay, read_replay, write_replay
from probseg.cli.replay import Repetition
from probseg.clicks import Curriculum
from probseg.data import InteractiveDataModule, SemanticBatch, SemanticDataModule, TrainBatch
from probseg.errors import NonFiniteLossError, WeightsError
from probseg.losses import BinaryCrossEntropy
from probseg.models import semantic_variant
from probseg.tasks import InteractiveSegmentation, SemanticSegmentation
from probseg.tasks import semantic as semantic_task

LOADING = {"batch_size": 2, "crop_size": 32, "num_workers": 0}
LATE = 4
"""Number of the step that goes wrong: the second of the second epoch of three."""


class Wrong:
    """Makes the loss of one step wrong and keeps the right one."""

    def __init__(self, loss, factor, step=LATE):
        self.loss, self.factor, self.step = loss, factor, step
        self.count = -1
        self.right = None

    def __call__(self, *inputs):
        value = self.loss(*inputs)
        self.count += 1
        if self.count != self.step:
            return value
        self.right = float(value.detach())
        return value * self.factor


class Snapshots(L.Callback):
    """Keeps the state before the last step that began."""

    def on_train_batch_start(self, trainer, pl_module, *_):
        self.state = {name: x.clone() for name, x in pl_module.state_dict().items()}


def trainer(place, *callbacks, **options):
    parts = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    options = {"max_epochs": 4, "limit_val_batches": 0, **dict.fromkeys(parts, False), **options}
    callbacks = [*callbacks, FiniteLoss()]
    return L.Trainer(accelerator="cpu", callbacks=callbacks, default_root_dir=place, **options)


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
    """A training that was stopped: its error, state, right loss and replay; and a task like its."""
    torch.manual_seed(3)
    if request.param == "interactive":
        wrong = Wrong(BinaryCrossEntropy(), math.nan)
        loss = nn.Module()
        loss.forward = wrong
        task, data, fresh = interactive(loss), objects(), interactive()
    else:
        wrong = Wrong(semantic_task.pixel_cross_entropy, -math.inf)
        monkeypatch.setattr(semantic_task, "pixel_cross_entropy", wrong)
        task, data, fresh = semantic(), SemanticDataModule(FakeStreets(6), **LOADING), semantic()
    before = Snapshots()
    with pytest.raises(NonFiniteLossError) as error:
        trainer(tmp_path, before).fit(task, data)
    (path,) = tmp_path.glob("*.pt")
    wrong.step = None
    return SimpleNamespace(
        error=str(error.value), before=before.state, task=task, fresh=fresh, right=wrong.right,
        path=path, replay=read_replay(path), kind=request.param,
    )  # fmt: skip


def test_the_step_is_stored_as_it_was_and_repeats_exactly(stopped):
    replay = stopped.replay
    assert stopped.path.name == f"replay_step{LATE}.pt"
    assert (replay.epoch, replay.batch_idx, replay.global_step) == (1, 1, LATE)
    assert (replay.rank, replay.world_size, replay.precision) == (0, 1, "32-true")
    assert (replay.device, replay.version) == ("cpu", probseg.__version__)
    assert str(replay.loss) == {"interactive": "nan", "semantic": "-inf"}[stopped.kind]
    for state in (replay.weights, stopped.task.state_dict()):
        assert state.keys() == stopped.before.keys()
        for name, tensor in state.items():
            assert torch.equal(tensor, stopped.before[name]), name
    repetition = Repetition(replay, stopped.fresh, "cpu")
    torch.rand(7)
    for _ in range(2):
        step = repetition.run(replay.batch, backward=True)
        assert step.loss == step.parts["train/loss"] == stopped.right
        assert step.suspect is step.gradient is None


def test_the_error_says_what_to_do(stopped):
    assert f"step {LATE} (epoch 1, batch 1) is {stopped.replay.loss}" in stopped.error
    assert all(name in stopped.error for name in stopped.replay.batch.names)
    assert stopped.error.endswith(f"probseg debug replay {stopped.path}")


def test_the_file_is_read_without_running_code(stopped):
    content = torch.load(stopped.path, weights_only=True)
    assert content[HEADER] == FORMAT
    kind = {"interactive": TrainBatch, "semantic": SemanticBatch}[stopped.kind]
    assert type(stopped.replay.batch) is kind
    assert stopped.replay.batch.images.dtype == torch.uint8
    assert stopped.replay.batch.seeds.shape == (2,)


def test_dropout_is_that_of_the_process():
    streets = SemanticDataModule(FakeStreets(2), **LOADING)
    (batch,) = streets.train_dataloader()
    task = semantic()
    weights = {name: x.clone() for name, x in task.state_dict().items()}
    losses = []
    for rank in (0, 1, 0):
        step = Replay(weights, batch, 0.0, 0, 0, 0, 5, rank, 2, "32-true", "cpu", "")
        losses.append(Repetition(step, task, "cpu").run(batch).loss)
    assert losses[0] == losses[2] != losses[1]


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
    (path,) = tmp_path.glob("*.pt")
    assert read_replay(path).precision == "16-mixed"


def test_what_cannot_be_written_is_said(tmp_path):
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(NonFiniteLossError, match=f"could not be kept in {place}/replay_step0.pt"):
        trainer(place).fit(interactive(Large(math.nan)), objects())


def test_each_process_writes_a_file_of_its_own(tmp_path):
    batch = TrainBatch(torch.zeros(9, 3, 4, 4, dtype=torch.uint8), torch.zeros(9, 4, 4),
                       torch.arange(9), [f"photo{i}" for i in range(9)], [])  # fmt: skip
    task = interactive()
    process = SimpleNamespace(
        logger=None, default_root_dir=tmp_path, strategy=SimpleNamespace(broadcast=lambda x: x),
        precision_plugin=None, precision="32-true", global_rank=1, world_size=2, global_step=7,
        current_epoch=0,
    )  # fmt: skip
    callback = FiniteLoss()
    callback.setup(process, task, "fit")
    callback.on_train_start(process, task)
    callback.on_train_batch_start(process, task, batch, 7)
    callback.on_before_backward(process, task, torch.tensor(1e38))
    told = r"of process 1 is inf, on the images photo0.*photo7 and 1 more\. .*"
    with pytest.raises(NonFiniteLossError, match=told):
        callback.on_before_backward(process, task, torch.tensor(math.inf))
    assert [path.name for path in tmp_path.iterdir()] == ["replay_step7_rank1.pt"]


def stored(**changes):
    batch = TrainBatch(*(torch.zeros(1) for _ in range(3)), ["a"], [])
    given = (batch, math.nan, 0, 0, 0, 0, 0, 1, "32-true", "cpu")
    return Replay({"x": torch.ones(2)}, *given, **changes)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "replay.pt"
    with pytest.raises(WeightsError, match="no such file"):
        read_replay(path)
    write_replay(stored(version="9.9"), path)
    assert read_replay(path).version == "9.9"
    good = torch.load(path, weights_only=True)
    wrong = [
        ({"state_dict": {}}, "holds no training step"),
        ([1], "holds no training step"),
        (Wrong(None, 0), "cannot be read"),
        ({**good, HEADER: FORMAT + 1}, r"format 2, written by probseg 9\.9"),
        ({**good, "epoch": "1"}, "damaged, as for epoch"),
        ({**good, "weights": None}, "damaged, as for weights"),
        ({**good, "batch": {"kind": "Popen"}}, "damaged, as for 'Popen'"),
        ({key: value for key, value in good.items() if key != "rank"}, "damaged.*'rank'"),
    ]
    for content, told in wrong:
        torch.save(content, path)
        with pytest.raises(WeightsError, match=told) as error:
            read_replay(path)
        assert re.match(re.escape(str(path)), str(error.value))
    for content in (b"", b"text", path.read_bytes()[:100]):
        path.write_bytes(content)
        with pytest.raises(WeightsError, match="damaged, or of another kind"):
            read_replay(path)
    with pytest.raises(WeightsError, match="damaged, or of another kind"):
        read_replay(tmp_path)


def test_a_file_is_there_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(content, path):
        path.write_bytes(b"half")
        msg = "PytorchStreamWriter failed writing file"
        raise RuntimeError(msg)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="failed writing"):
        write_replay(stored(), tmp_path / "replay.pt")
    assert not list(tmp_path.iterdir())
