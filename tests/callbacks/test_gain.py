"""What a training gained over the network that it began with, and a training against the clock."""

import json

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from probseg.callbacks import Budget, Gain, InteractiveEvaluation, LastCheckpoint
from probseg.callbacks import gain as module
from probseg.callbacks.run_folder import StartScore
from probseg.cli.checkpoints import next_commands
from probseg.evaluation import run_objects
from probseg.tasks import InteractiveSegmentation
from probseg.zoo.trained import Run, best_checkpoint, read_checkpoint
from support.fakes import FakeObjects
from support.rows import each
from support.trainings import train

pytestmark = pytest.mark.usefixtures("undrawn")

SCORE = "val/miou@5"


def trained(place, *callbacks, objects=4, **options):
    """Train with a validation after each epoch, and keep the best checkpoint."""
    evaluation = InteractiveEvaluation(protocols=["ritm"], pictures=0)
    keep = ModelCheckpoint(place / "checkpoints", monitor=SCORE, mode="max", filename="{epoch}")
    own = (*callbacks, evaluation, keep, StartScore(), LastCheckpoint())
    val = FakeObjects(3, size=(32, 32))
    return train(place, *own, objects=objects, val=val, num_sanity_val_steps=-1, **options)


def scored(monkeypatch, start, *epochs):
    """Let validations have these scores."""
    scores = iter([start, *epochs])

    def log(self, trainer, pl_module):
        pl_module.log(SCORE, next(scores))

    monkeypatch.setattr(InteractiveEvaluation, "on_validation_epoch_end", log)


@each(
    ("scores", "ious", "enough", "kept", "told"),
    [
        ((0.2, 0.3, 0.4), (0.7, 0.95), 3, "mean", "saves 19.00 of 20.00 clicks to 90 % on 3 photo"),
        ((0.09, 0.08, 0.07), (0.7, 0.95), 3, "mean", "saves 19.00 of 20.00 clicks to 90 %"),
        ((0.2, 0.3, 0.4), (0.7, 0.7), 3, "start", "began with: validation was still rising"),
        ((0.2, 0.4, 0.3), (0.95, 0.7), 3, "start", "20.00 clicks to 90 % where 1.00 were taken"),
        ((0.09, 0.08, 0.07), (0.7, 0.7), 3, "start", "began with: validation fell"),
        ((0.2, 0.3, 0.4), (0.7, 0.95), 20, "mean", "3 photographs held out; 20 (some 70 in all)"),
        ((0.2, 0.4, 0.3), (0.95, 0.7), 20, "start", "3 photographs held out; 20 (some 70 in all)"),
    ],
)
def test_the_network_that_saves_clicks_is_the_best_checkpoint(
    tmp_path, monkeypatch, caplog, scores, ious, enough, kept, told
):
    caplog.set_level("INFO", "probseg")
    monkeypatch.setattr(module, "ENOUGH", enough)
    place = tmp_path / f"{scores} {ious} {enough}"
    scored(monkeypatch, 0.1, *scores)
    of_objects = iter([ious[0]] * 3 + [ious[1]] * 3)

    def evaluate(model, *given, **options):
        iou = next(of_objects)
        records = run_objects(model, *given, **options)
        for record in records:
            for step in record.steps[1:]:
                step.scores["iou"] = iou
        return records

    monkeypatch.setattr(module, "run_objects", evaluate)
    share = 0.5 if enough == 3 else 0.75
    trainer = trained(place, Gain("ritm", share=share))
    assert best_checkpoint(place) == place / f"{kept}.ckpt"
    assert json.loads((place / "gain" / "comparison.json").read_text())
    for stage in ("before", "after"):
        title = f", {stage} the training, protocol ritm</title>"
        assert title in (place / "gain" / stage / "report.html").read_text()
    newest = place / "checkpoints" / "last.ckpt"
    best = newest if max(scores) < 0.1 else next((place / "checkpoints").glob("epoch=*"))
    files = (place / "start.ckpt", place / "mean.ckpt", best)
    start, mean, best = (read_checkpoint(path)["state_dict"] for path in files)
    for name, value in mean.items():
        whole = not value.is_floating_point()  # number of batches
        expected = best[name] if whole else (1 - share) * start[name] + share * best[name]
        torch.testing.assert_close(value, expected)
    assert any(not torch.equal(start[name], best[name]) for name in start)
    assert "no checkpoint is better" not in next_commands(trainer), "the clicks count"
    run, clicks = Run(place), {0.7: 20, 0.95: 1}
    assert told in run.sentence
    assert run.sentence in caplog.text
    assert ("saves" in run.sentence) == (enough == 3 and ious[1] > ious[0])
    assert ("the run keeps" in run.sentence) == (kept == "start")
    assert (run.before, run.after) == (clicks[ious[0]], clicks[ious[1]])
    assert run.better == (kept == "mean")
    saved = run.before - run.after
    assert run.saved == (None if enough == 20 else (saved, saved, saved))
    minutes, validated = zip(*run.curve, strict=True)
    assert validated == pytest.approx((0.1, *scores))
    assert minutes[0] == 0
    assert sorted(minutes) == list(minutes)
    moved = place.rename(place.with_name("moved"))
    assert best_checkpoint(moved) == moved / f"{kept}.ckpt"
    moved.rename(place)


@each("share", [0, 1.1, float("nan")])
def test_a_mean_has_a_share_of_the_new_weights(share):
    with pytest.raises(ValueError, match="`share` must be above 0, at most 1"):
        Gain(share=share)


def test_a_training_that_goes_on_keeps_what_the_first_network_took(tmp_path, monkeypatch):
    scored(monkeypatch, 0.1, 0.2, 0.3, 0.1, 0.4, 0.5)  # the second start validates, too
    clicked = []
    click = Gain._click

    def count(self, trainer, pl_module, name, path):
        clicked.append((name, path.name))
        click(self, trainer, pl_module, name, path)

    monkeypatch.setattr(Gain, "_click", count)
    trained(tmp_path, Gain("ritm"), max_epochs=2)
    best, last = best_checkpoint(tmp_path), tmp_path / "checkpoints" / "last.ckpt"
    trained(tmp_path, Gain("ritm"), max_epochs=4, resume=last)
    assert clicked == [("before", "start.ckpt"), ("after", "mean.ckpt"), ("after", "mean.ckpt")]
    assert [score for _, score in Run(tmp_path).curve] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert {best, best_checkpoint(tmp_path)} <= {tmp_path / "mean.ckpt", tmp_path / "start.ckpt"}
    assert Run(tmp_path).sentence


class Clock:
    """Seconds that pass as a test says."""

    now = 0.0

    def __call__(self):
        return self.now


@each(
    ("minutes", "validation", "comparison", "epochs", "every", "objects"),
    [
        (0.001, 0, 0, 1, 1, 24),
        (5, 0, 0, 2, 1, 24),
        (12, 0, 0, 6, 1, 24),
        (40, 60, 0, 14, 2, 24),
        (40, 60, 300, 10, 2, 24),
        (22, 600, 0, 1, 1, 24),
        (15, 0, 300, 30, 1, 2),
    ],
)
def test_the_epochs_fit_into_the_minutes(
    tmp_path, monkeypatch, minutes, validation, comparison, epochs, every, objects
):
    """An epoch of 12 batches takes 120 s, as a batch takes 10 s."""
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    step = Budget.on_train_batch_end

    def tick(self, *given):
        clock.now += 10
        step(self, *given)

    def log(self, trainer, pl_module):
        clock.now += validation
        pl_module.log(SCORE, 0.5)
        validated.append(trainer.current_epoch)

    def click(self, trainer, pl_module):
        clock.now += comparison

    validated = []
    monkeypatch.setattr(StartScore, "on_train_start", click)
    nothing = lambda task, *_: 0 * sum(map(torch.sum, task.parameters()))  # noqa: E731
    monkeypatch.setattr(InteractiveSegmentation, "training_step", nothing)
    monkeypatch.setattr(Budget, "on_train_batch_end", tick)
    monkeypatch.setattr(InteractiveEvaluation, "on_validation_epoch_end", log)
    budget = Budget(minutes)
    trainer = trained(tmp_path / f"{epochs} {every}", budget, objects=objects, max_epochs=99)
    assert epochs == 1 or clock.now + comparison <= 60 * minutes
    assert trainer.current_epoch == epochs == budget.epochs
    assert validated[1:] == [*range(every - 1, epochs, every)]
    (schedule,) = trainer.lr_scheduler_configs
    assert schedule.scheduler.decay_epochs == epochs


@each("minutes", [0, -1, float("nan"), float("inf")])
def test_no_budget_without_time(minutes):
    with pytest.raises(ValueError, match="`minutes` must be finite, above 0"):
        Budget(minutes)
