"""A training that goes on from a checkpoint with something changed."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from probseg.callbacks import LastCheckpoint
from support.trainings import Killed, train

OBJECTS = 16


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


def fit(place, killed_at=None, objects=OBJECTS, **options):
    """Train; return what was seen and the weights."""
    watch = Watch(killed_at)
    trainer = train(place, watch, LastCheckpoint(every_steps=1), objects=objects, **options)
    return watch, trainer.lightning_module.state_dict()


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


@pytest.mark.parametrize(("before", "done", "rest"), [(4, 1, range(2, 8)), (3, 3, range(4, 8))])
def test_another_batch_size_goes_on_with_the_same_crops(before, done, rest, whole, tmp_path):
    """A batch that was seen in part is seen again."""
    last = killed(tmp_path, OBJECTS // before + done, batch_size=before)
    resumed, _ = fit(tmp_path, resume=last)
    assert resumed.batches(0) == ([], [])
    assert resumed.batches(1) == (list(rest), whole[0].batches(1)[1][2 * rest[0] :])
    assert resumed.batches(2) == whole[0].batches(2), "the epoch after it is whole again"


@pytest.mark.parametrize(("objects", "rest"), [(10, []), (20, list(range(5, 10)))])
def test_other_data_are_trained_on_from_the_same_place(objects, rest, tmp_path):
    last = killed(tmp_path, OBJECTS // 2 + 5)
    resumed, _ = fit(tmp_path, objects=objects, resume=last)
    assert resumed.batches(1)[0] == rest
    numbers, names = resumed.batches(2)
    assert numbers == list(range(objects // 2))
    assert sorted(names) == sorted(f"object{number}" for number in range(objects))
