"""The network that a training begins with is validated first, and later scores are compared."""

import json
import os
import re
import signal

import pytest
from lightning import seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from probseg.callbacks import InteractiveEvaluation, LastCheckpoint
from probseg.callbacks.run_folder import START, StartScore, start_score
from probseg.cli.checkpoints import next_commands
from probseg.data import InteractiveDataModule
from probseg.tasks import InteractiveSegmentation
from support.fakes import FakeObjects, micro_model
from support.trainings import quiet_trainer, train

pytestmark = pytest.mark.usefixtures("undrawn")

SCORE = "val/miou@5"


def trained(place, *callbacks, **options):
    """Train with a validation of two objects, of which each is a batch, after each epoch."""
    evaluation = InteractiveEvaluation(protocols=["ritm"], pictures=0)
    keep = ModelCheckpoint(monitor=SCORE, mode="max", save_top_k=-1, filename="{epoch}")
    val = FakeObjects(3, size=(32, 32))
    own = (*callbacks, evaluation, keep, StartScore())
    return train(place, *own, objects=4, val=val, **options)


def differences(text):
    """Epochs and differences in the printed lines."""
    pattern = rf"epoch (\d): {SCORE} (\S+) \((\S+) against the start\)"
    return {int(e): (float(score), float(more)) for e, score, more in re.findall(pattern, text)}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("start")


@pytest.fixture(scope="module")
def whole(place):
    """A training with a score at its start; its logger has no folder for the run."""
    logger = CSVLogger(place, name="run", version="a")
    return trained(place, num_sanity_val_steps=-1, logger=logger, log_every_n_steps=1)


def test_the_first_score_is_of_the_untrained_network(whole, place):
    seed_everything(0, verbose=False)
    task = InteractiveSegmentation(micro_model("micro_csa"))
    data = InteractiveDataModule(val=FakeObjects(3, size=(32, 32)), eval_batch_size=1)
    evaluation = InteractiveEvaluation(protocols=["ritm"], pictures=0)
    (figures,) = quiet_trainer(place / "alone", evaluation).validate(task, data, verbose=False)
    run = place / "run" / "a"
    assert start_score(run, SCORE) == pytest.approx(figures[SCORE], abs=1e-6)
    header, first, *_ = (run / "metrics.csv").read_text().splitlines()
    logged = dict(zip(header.split(","), first.split(","), strict=True))
    assert (logged["step"], float(logged[SCORE])) == ("0", pytest.approx(figures[SCORE], abs=1e-6))


def test_each_validation_is_compared_also_after_an_interruption(tmp_path, caplog):
    caplog.set_level("INFO", "probseg")
    trained(tmp_path, num_sanity_val_steps=-1)
    text = caplog.text
    start = start_score(tmp_path, SCORE)
    assert f"before the training: {SCORE} {start:.4f}" in text
    found = differences(text)
    assert list(found) == [0, 1, 2]
    for score, more in found.values():
        assert more == pytest.approx(score - start, abs=2e-4)
    (first,) = tmp_path.rglob("epoch=0*.ckpt")
    caplog.clear()
    trained(tmp_path, resume=first)
    assert differences(caplog.text).keys() == {1, 2}
    caplog.clear()
    trained(tmp_path)
    assert differences(caplog.text) == {}, "another training in the same folder"


class AskedToEnd(Callback):
    """Sends SIGTERM during the validation at the start, and counts its batches."""

    batches = 0

    def on_validation_batch_start(self, trainer, *arguments):
        self.batches += 1
        os.kill(os.getpid(), signal.SIGTERM)


def test_it_ends_when_asked_to(tmp_path):
    asked = AskedToEnd()
    with pytest.raises(SIGTERMException):
        trained(tmp_path, asked, LastCheckpoint(), num_sanity_val_steps=-1)
    assert asked.batches == 1
    assert not (tmp_path / START).exists()


@pytest.mark.parametrize(("start", "is_better"), [(0.0, True), (1.0, False)])
def test_the_end_says_whether_the_training_helped(start, is_better, whole, place):
    path = place / "run" / "a" / START
    before = path.read_text()
    path.write_text(json.dumps({SCORE: start}))
    text = next_commands(whole)
    path.write_text(before)
    worse = f"no checkpoint is better: {SCORE} was {start:.4g} before the training"
    assert (worse in text) == (not is_better)
    assert f"{SCORE} {start:.4g}" in text or not is_better
    assert "`test` for `fit`" in text
