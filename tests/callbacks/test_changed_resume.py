"""A training that goes on from a checkpoint with something changed."""

import lightning as L
import pytest
import torch
from fakes import FakeObjects, micro_model
from lightning.pytorch.callbacks import Callback

from probseg.callbacks import LastCheckpoint
from probseg.callbacks.atomic import AtomicCheckpointIO
from probseg.clicks import Curriculum
from probseg.data import InteractiveDataModule
from probseg.tasks import InteractiveSegmentation

OBJECTS = 16
EPOCHS = 3


class Killed(BaseException):
    """Ends a training at once, as SIGKILL does: nothing is saved."""


class Watch(Callback):
    """Remembers epoch, number and objects of each batch; kills a training before a step."""

    def __init__(self, killed_at=None):
        self.killed_at = killed_at
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.killed_at:
            raise Killed
        self.seen.append((trainer.current_epoch, batch_idx, batch.names))

    def batches(self, epoch):
        """Numbers of the batches of an epoch, and all their objects."""
        own = [(number, names) for of, number, names in self.seen if of == epoch]
        return [number for number, _ in own], [name for _, names in own for name in names]


def fit(place, *, batch_size=2, objects=OBJECTS, workers=0, killed_at=None, resume=None):
    """Train three epochs; return what was seen and the weights."""
    L.seed_everything(0, verbose=False)
    data = InteractiveDataModule(
        FakeObjects(objects, size=(32, 32)),
        batch_size=batch_size,
        crop_size=32,
        num_workers=workers,
    )
    curriculum = Curriculum(1, 1, box_dropout=0.3, rounds=(0, 2))
    task = InteractiveSegmentation(micro_model("micro_csa"), curriculum=curriculum)
    watch = Watch(killed_at)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        default_root_dir=place,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch, LastCheckpoint(every_steps=1)],
        plugins=[AtomicCheckpointIO()],
    )
    trainer.fit(task, data, ckpt_path=resume, weights_only=True)
    return watch, task.state_dict()


def killed(place, step, **options):
    """A checkpoint from the middle of a training."""
    with pytest.raises(Killed):
        fit(place, killed_at=step, **options)
    return place / "checkpoints" / "last.ckpt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed training with batches of two: what was seen and the weights."""
    return fit(tmp_path_factory.mktemp("whole"))


def test_another_number_of_workers_changes_nothing(whole, tmp_path):
    watch, weights = whole
    rest, again = fit(tmp_path, workers=2, resume=killed(tmp_path, 11))
    assert rest.seen == watch.seen[11:]
    assert all(torch.equal(again[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize(("before", "done", "rest"), [(4, 1, range(2, 8)), (1, 7, range(3, 8))])
def test_another_batch_size_goes_on_with_the_same_crops(before, done, rest, whole, tmp_path):
    """A batch that was seen in part is seen again."""
    last = killed(tmp_path, OBJECTS // before + done, batch_size=before)
    resumed, _ = fit(tmp_path, resume=last)
    assert resumed.batches(0) == ([], [])
    assert resumed.batches(1) == (list(rest), whole[0].batches(1)[1][2 * rest[0] :])
    assert resumed.batches(2) == whole[0].batches(2), "the epoch after it is whole again"


@pytest.mark.parametrize(("objects", "rest"), [(10, []), (30, list(range(5, 15)))])
def test_other_data_are_trained_on_from_the_same_place(objects, rest, tmp_path):
    last = killed(tmp_path, OBJECTS // 2 + 5)
    resumed, _ = fit(tmp_path, objects=objects, resume=last)
    assert resumed.batches(1)[0] == rest
    numbers, names = resumed.batches(2)
    assert numbers == list(range(objects // 2))
    assert sorted(names) == sorted(f"object{number}" for number in range(objects))
