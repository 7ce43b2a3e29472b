"""Training with iterated clicks: what the network is asked and handed, and how it learns."""

import math

import pytest
import torch
from torch.nn.functional import interpolate

from probseg.backbones import TimmBackbone
from probseg.clicks import Curriculum, IteratedClicks
from probseg.data import InteractiveDataModule
from probseg.data.datamodule import TrainBatch
from probseg.heads import ConvHead, GraphCut
from probseg.losses import BinaryCrossEntropy, NormalizedFocalLoss
from probseg.models import Segmenter
from probseg.tasks import InteractiveSegmentation
from support.fakes import Coarse, FakeObjects, micro_model
from support.trainings import quiet_trainer

SIZE = (32, 64)


def crops(batch=3, seed=0):
    """Images of noise with a rectangle each, and seeds."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(batch, 3, *SIZE, generator=generator)
    masks = torch.zeros(batch, *SIZE, dtype=torch.uint8)
    masks[:, 8:24, 6:30] = 1
    return images, masks, torch.arange(batch) + 1000 * seed


def micro_task(previous_mask=True, curriculum=None, prompts="stem", **options):
    torch.manual_seed(0)
    model = micro_model("micro_conv", previous_mask=previous_mask, prompts=prompts).train()
    task = InteractiveSegmentation(model, curriculum=curriculum or IteratedClicks(), **options)
    task.log = lambda *arguments, **keywords: None  # there is no trainer
    return task


def clicks(rounds):
    return IteratedClicks(fewest_rounds=rounds, most_rounds=rounds)


def drawn(task):
    return task.draw_prompts(*crops(), epoch=0, batch_seed=0)


@pytest.fixture
def asked(monkeypatch):
    """How the network was asked: prompts, modes and gradients of each call."""
    seen = []
    raw_logits = Segmenter.raw_logits

    def spied(model, encoded, prompts, refine=True):
        modes = {module.training for module in model.modules()}
        result = raw_logits(model, encoded, prompts, refine)
        seen.append((prompts, modes, torch.is_grad_enabled(), result.main.detach()))
        return result

    monkeypatch.setattr(Segmenter, "raw_logits", spied)
    return seen


def test_without_rounds_or_previous_mask_nothing_is_handed_on(asked):
    given = drawn(micro_task(curriculum=clicks(0)))
    assert not asked
    assert given.previous is None
    assert (given.labels == 1).any(dim=1).all()
    given = drawn(micro_task(previous_mask=False, curriculum=clicks(2)))
    assert [one[0].previous for one in asked] == [None, None]
    assert given.previous is None


@pytest.mark.parametrize(
    ("curriculum", "prompts"), [(clicks(3), "head"), (Curriculum(0, 0, rounds=(3, 3)), "stem")]
)
def test_each_answer_is_handed_on(curriculum, prompts, asked):
    task = micro_task(curriculum=curriculum, prompts=prompts)
    given = drawn(task)
    assert len(asked) == 3
    assert asked[0][0].previous is None
    later = [one[0].previous for one in asked[1:]] + [given.previous]
    for (_, modes, grad, logits), previous in zip(asked, later, strict=True):
        assert modes == {False}
        assert not grad
        assert torch.equal(previous, logits.sigmoid())
    assert not given.previous.requires_grad
    assert given.boxes.isnan().all() == isinstance(curriculum, IteratedClicks)
    counts = [one[0].labels.shape[1] for one in asked]
    added = {b - a for a, b in zip(counts, [*counts[1:], given.labels.shape[1]], strict=True)}
    assert added == ({1} if isinstance(curriculum, IteratedClicks) else {6})


def test_rounds_see_no_refinement_and_evaluations_do(monkeypatch):
    calls, cut = [], GraphCut.forward
    monkeypatch.setattr(GraphCut, "forward", lambda *given: calls.append(1) or cut(*given))
    task = micro_task(curriculum=clicks(3))
    task.model.refinement = GraphCut(units=4)
    images, masks, seeds = crops()
    pixels = (255 * images).to(torch.uint8)
    drawn(task)
    result = task.training_step(TrainBatch(pixels, masks, seeds, ["a", "b", "c"], []), 0)
    assert not calls
    result["loss"].backward()
    task.eval()
    with torch.no_grad():
        task(images, result["prompts"])
    assert len(calls) == 1


def test_rounds_leave_no_trace():
    task = micro_task(curriculum=clicks(3))
    buffers = {name: buffer.clone() for name, buffer in task.model.named_buffers()}
    assert any("running_mean" in name for name in buffers)
    drawn(task)
    assert all(torch.equal(b, buffers[name]) for name, b in task.model.named_buffers())
    assert all(module.training for module in task.model.modules())
    assert all(parameter.grad is None for parameter in task.parameters())


def test_prompts_are_a_function_of_the_seeds():
    task = micro_task(curriculum=clicks(2))
    torch.manual_seed(1)
    first = drawn(task)
    torch.manual_seed(2)
    for mine, same in zip(first, drawn(task), strict=True):
        torch.testing.assert_close(mine, same, rtol=0, atol=0, equal_nan=True)
    images, masks, seeds = crops()
    other = task.draw_prompts(images, masks, seeds + 1, epoch=0, batch_seed=0)
    assert not torch.equal(first.points, other.points)
    # Crop 0 has the seed now that crop 1 had before: the same clicks on the same mask.
    start = 2 * task.curriculum.most_clicks
    assert torch.equal(first.points[1, :start], other.points[0, :start])


def fit(place, task, epochs=2):
    trainer = quiet_trainer(place, max_epochs=epochs, num_sanity_val_steps=0, limit_val_batches=0)
    del task.log  # there is a trainer
    data = InteractiveDataModule(FakeObjects(4), batch_size=2, crop_size=32, num_workers=0)
    trainer.fit(task, datamodule=data)
    return trainer


def test_a_run_trains_all_parts_and_repeats(tmp_path):
    weights = []
    for _ in range(2):
        task = micro_task(
            curriculum=IteratedClicks(most_rounds=3),
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        )
        before = {name: p.detach().clone() for name, p in task.named_parameters()}
        torch.manual_seed(3)
        trainer = fit(tmp_path, task)
        assert math.isfinite(trainer.callback_metrics["train/loss"])
        after = {name: p.detach().clone() for name, p in task.named_parameters()}
        assert not any(torch.equal(after[name], before[name]) for name in before)
        weights.append(after)
        # The weights for the previous mask, too: it was not zero all the time.
        (stem,) = [name for name in after if name.endswith("prompts.weight")]
        assert (after[stem][:, 3] != before[stem][:, 3]).any()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


# --- losses and rates ---------------------------------------------------------------------------


@pytest.mark.parametrize("own", [None, BinaryCrossEntropy()])
def test_auxiliary_logits_may_have_a_loss_of_their_own(own, asked, monkeypatch):
    torch.manual_seed(0)
    model = Segmenter(TimmBackbone("test_resnet.r160_in1k"), Coarse, ConvHead)
    task = InteractiveSegmentation(model, NormalizedFocalLoss(), auxiliary_loss=own)
    logged = {}
    monkeypatch.setattr(task, "log", lambda name, value, **_: logged.update({name: value.item()}))
    coarse = []
    model.decoder.coarse.register_forward_hook(lambda *given: coarse.append(given[-1].detach()))
    images, masks, seeds = crops()
    batch = TrainBatch((images * 255).byte(), masks, seeds, [""] * 3, [])
    loss = task.training_step(batch, 0)["loss"]
    auxiliary = interpolate(coarse[-1], SIZE, mode="bilinear", align_corners=False)
    main = NormalizedFocalLoss()(asked[-1][3], masks).item()
    aside = (BinaryCrossEntropy() if own else NormalizedFocalLoss())(auxiliary, masks).item()
    assert logged["train/loss"] == pytest.approx(main)
    assert logged["train/auxiliary_loss"] == pytest.approx(aside)
    assert loss.item() == pytest.approx(main + 0.4 * aside)


@pytest.mark.parametrize("prompts", ["stem", "head"])
def test_the_backbone_may_learn_more_slowly(prompts):
    options = {
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=5e-4),
        "lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]),
    }
    task = micro_task(prompts=prompts, backbone_rate=0.1, **options)
    made = task.configure_optimizers()
    optimizer, scheduler = made["optimizer"], made["lr_scheduler"]["scheduler"]
    others, backbone = (set(group["params"]) for group in optimizer.param_groups)
    assert others | backbone == set(task.parameters())
    assert not others & backbone
    # What prompts enter through is new, and no part of a backbone that was trained before.
    named = dict(task.model.backbone.named_parameters())
    fresh = {p for name, p in named.items() if ".prompts." in f".{name}"}
    assert len(fresh) == (1 if prompts == "stem" else 0)
    assert backbone == set(named.values()) - fresh
    seen = []
    for _ in range(5):
        seen.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    rates = [5e-4, 5e-4, 5e-5, 5e-5, 5e-6]
    assert seen == [pytest.approx([rate, 0.1 * rate]) for rate in rates]
    assert len(micro_task().configure_optimizers()["optimizer"].param_groups) == 1
    for rate in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="backbone_rate"):
            InteractiveSegmentation(micro_model(), backbone_rate=rate)
