"""Training of semantic segmentation: loss, schedule, and what is refused before it starts."""

from functools import partial

import lightning as L
import numpy as np
import pytest
import torch

from probseg.data import InteractiveDataModule
from probseg.errors import UsageError, WeightsError
from probseg.semantic import SemanticDataModule, SemanticSegmentation
from probseg.semantic.task import pixel_cross_entropy
from probseg.tasks import PolynomialDecay
from support.drawn_semantic import FakeStreets, micro, semantic_batch
from support.fakes import FakeObjects
from support.rows import each
from support.trainings import quiet_trainer as trainer


def streets(length=6, **options):
    parts = {"batch_size": 2, "crop_size": 32, "num_workers": 0, **options}
    return SemanticDataModule(FakeStreets(length), **parts)


class Rates(L.Callback):
    """Remembers the learning rate of each iteration, and its crops."""

    def __init__(self):
        self.seen, self.crops = [], {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])
        self.crops[trainer.global_step] = batch.images


class Halt(L.Callback):
    """Ends a training after an iteration, as if it had been killed, and keeps its state."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def poly(step, total, power=0.9):
    return 0.009 * (1 - step / total) ** power


def test_the_loss_is_the_mean_over_the_pixels_that_count():
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (2, 4, 5, 6))
    labels = random.integers(0, 4, (2, 5, 6)).astype(np.uint8)
    labels[0, :3] = 255
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    b, y, x = np.nonzero(labels != 255)
    losses = -np.log(shares[b, labels[b, y, x], y, x])
    assert len(losses) == 60 - 18
    found = pixel_cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels))
    assert found.item() == pytest.approx(losses.mean(), abs=1e-12)
    found = pixel_cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels), over_all=True)
    assert found.item() == pytest.approx(losses.sum() / 60, abs=1e-12)  # as in the authors' code


def test_a_batch_without_labels_has_no_loss_and_no_gradients():
    task = SemanticSegmentation(micro())
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    batch = semantic_batch(images, torch.full((2, 32, 32), 255, dtype=torch.uint8))
    step = task.training_step(batch, 0)
    assert step["loss"].item() == 0
    step["loss"].backward()
    gradients = {name: p.grad for name, p in task.named_parameters()}
    assert all(g is not None and not g.any() for g in gradients.values()), "zero, not absent or NaN"
    labelled = batch._replace(labels=torch.ones_like(batch.labels))
    step = task.training_step(labelled, 0)
    assert set(step) == {"loss", "classes"}, "logits would lie in memory until the next step"
    step["loss"].backward()
    assert all(p.grad.any() for name, p in task.named_parameters() if "classify" in name)


def test_trained_as_released_biases_are_twice_as_fast_and_only_weights_decay(tmp_path):
    """One step of SGD by hand, from the gradients of another copy of the network."""
    torch.manual_seed(0)
    model = micro(of="micro_emanet", released=True)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    task = SemanticSegmentation(model, released=True)
    momenta = {m.momentum for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)}
    assert momenta == {3e-4}
    gradients = {}

    class Keep(L.Callback):
        def on_before_optimizer_step(self, *_):
            own = model.named_parameters()
            gradients.update((name, p.grad.clone()) for name, p in own if p.grad is not None)

    trainer(tmp_path, Keep(), max_steps=1).fit(task, streets())
    norms = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, torch.nn.BatchNorm2d)}
    assert len(gradients) > len(norms) > 3
    for name, now in model.named_parameters():
        if name not in gradients:
            continue
        rate = 0.009 * (2 if name.endswith("bias") else 1)
        decay = 0 if name.endswith("bias") or name in norms else 1e-4
        wanted = before[name] - rate * (gradients[name] + decay * before[name])
        torch.testing.assert_close(now.detach(), wanted, rtol=1e-5, atol=1e-7)


def test_a_step_hands_back_the_predicted_classes():
    task = SemanticSegmentation(micro(of="micro_fcn", dropout=0.0))
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    step = task.training_step(semantic_batch(images, torch.ones_like(images[:, 0])), 0)
    with torch.no_grad():
        expected = task(images.float() / 255).argmax(dim=1)
    assert step["classes"].dtype == torch.uint8
    assert len(expected.unique()) > 1
    assert torch.equal(step["classes"].long(), expected)


def test_training_learns_colours(tmp_path):
    torch.manual_seed(1)
    task = SemanticSegmentation(
        micro(of="micro_fcn"), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)
    )
    losses = []

    class Losses(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            losses.append(outputs["loss"].item())

    trainer(tmp_path, Losses(), max_steps=40).fit(task, streets(batch_size=3))
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])


@each(
    ("options", "rates"),
    [
        ({"max_epochs": 3}, [poly(step, 9) for step in range(9)]),
        ({"max_steps": 5}, [poly(step, 5) for step in range(5)]),
        ({"max_epochs": 2, "accumulate_grad_batches": 3}, [poly(0, 2)] * 3 + [poly(1, 2)] * 3),
    ],
)
def test_the_rate_is_the_published_one_in_every_iteration(options, rates, tmp_path):
    """A data module or its loader; gradients of several batches are one iteration."""
    seen, task = Rates(), SemanticSegmentation(micro())
    run, data = trainer(tmp_path, seen, **options), streets()
    run.fit(task, data.train_dataloader() if "max_steps" in options else data)
    assert seen.seen == pytest.approx(rates, rel=1e-12)
    (group,) = run.optimizers[0].param_groups
    assert type(run.optimizers[0]) is torch.optim.SGD
    assert (group["momentum"], group["weight_decay"], group["lr"]) == (0.9, 1e-4, 0)
    weights = [p for p in task.parameters() if p.ndim == 4 and p.shape[-1] == 3]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)


@each(("total", "power", "every"), [(10, 0.9, 1), (7, 2.0, 1), (1, 0.5, 1), (30, 0.9, 10)])
def test_the_schedule_is_the_formula(total, power, every):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = PolynomialDecay(optimizer, total, power, every)
    for step in range(total + 2):  # beyond the end the rate stays 0
        left = max(0.0, 1 - (step - step % every) / total)
        assert schedule.get_last_lr() == [pytest.approx(0.5 * left**power, abs=1e-15)]
        optimizer.step()
        schedule.step()


OPTIMIZER = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
OBJECTS = InteractiveDataModule(FakeObjects(4), batch_size=2, crop_size=32, num_workers=0)


def fit(data=None, **options):
    quiet = trainer("nowhere", **options)
    quiet.fit(SemanticSegmentation(micro()), data or streets())


@each(
    ("action", "message"),
    [
        (partial(PolynomialDecay, OPTIMIZER, 0), "`total_steps`"),
        (partial(PolynomialDecay, OPTIMIZER, 10, 0.0), "`power`"),
        (partial(PolynomialDecay, OPTIMIZER, 10, every=0), "`every`"),
        (lambda: SemanticSegmentation(micro(256)), r"`num_classes` .*got 256"),
        (partial(fit, max_epochs=-1), r"no end; set --trainer\.max_steps"),
        (partial(fit, OBJECTS, max_epochs=1), "InteractiveDataModule, as --folder has them; set"),
    ],
)
def test_trainings_that_cannot_be_are_refused(action, message):
    SemanticSegmentation(micro(255))
    with pytest.raises((ValueError, UsageError), match=message):
        action()


@pytest.mark.parametrize(("step", "workers"), [(2, 0), (5, 1)])
def test_a_resumed_training_ends_as_if_uninterrupted(step, workers, tmp_path):
    """Three iterations make an epoch."""

    def run(*callbacks, seed=0, **resume):
        L.seed_everything(seed, verbose=False)
        task, rates = SemanticSegmentation(micro()), Rates()
        of = trainer(tmp_path, rates, *callbacks, max_steps=9)
        of.fit(task, streets(num_workers=workers), **resume)
        return of, task.state_dict(), rates.seen, rates.crops

    path = tmp_path / "halted.ckpt"
    _, weights, rates, seen = run()
    _, _, before, _ = run(Halt(step, path))
    assert torch.load(path, weights_only=True)["global_step"] == step
    resumed, again, after, rest = run(seed=1, ckpt_path=path, weights_only=True)
    assert (resumed.global_step, resumed.current_epoch) == (9, 3)
    assert list(rest) == list(range(step, 9))
    assert all(torch.equal(rest[number], seen[number]) for number in rest)
    assert before + after == rates == pytest.approx([poly(s, 9) for s in range(9)], rel=1e-12)
    assert all(torch.equal(again[name], value) for name, value in weights.items())


def test_a_checkpoint_can_be_read_safely_and_fits_its_network_only(tmp_path):
    path = tmp_path / "one.ckpt"
    run = trainer(tmp_path, max_epochs=1)
    run.fit(SemanticSegmentation(micro()), streets())
    run.save_checkpoint(path)
    stored = torch.load(path, weights_only=True)
    assert stored["hyper_parameters"] == {}
    assert "model.head.emau.bases.initial" in stored["state_dict"]
    with pytest.raises(WeightsError, match="another architecture"):
        trainer(tmp_path, max_epochs=2).fit(
            SemanticSegmentation(micro(channels=24)), streets(), ckpt_path=path, weights_only=True
        )
