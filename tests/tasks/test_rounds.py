"""Trainings by rounds of clicks: what is asked, what is learnt, by whom it is clicked."""

import math
from itertools import pairwise

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from torch import nn
from torch.nn.functional import interpolate

from probseg.backbones import TimmBackbone
from probseg.clicks import Curriculum, IteratedClicks
from probseg.clicks.rounds import without_clicks
from probseg.data import InteractiveDataModule
from probseg.data.datamodule import TrainBatch
from probseg.errors import UsageError
from probseg.heads import ConvHead, GraphCut
from probseg.losses import BinaryCrossEntropy, NormalizedFocalLoss, clicked_loss, iou_cross_entropy
from probseg.models import Segmenter
from probseg.tasks import InteractiveSegmentation
from probseg.types import Prompts
from support.fakes import Coarse, FakeObjects, micro_model
from support.rows import each
from support.trainings import quiet_trainer

SIZE = (32, 40)
CLICKS = IteratedClicks(most_clicks=4, fewest_rounds=2, most_rounds=2)
BOXES = Curriculum(0, 0, box_dropout=0.5, rounds=(2, 2))


def crops(batch=3, seed=0, size=SIZE):
    random = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (batch, 3, *size), generator=random, dtype=torch.uint8)
    masks = torch.zeros(batch, *size, dtype=torch.uint8)
    masks[:, 8:24, 6:30] = 1
    masks[:, :3] = 255
    return TrainBatch(images, masks, torch.arange(batch) + 1000 * seed, ["?"] * batch, [])


def micro_task(curriculum=CLICKS, prompts="head", previous_mask=True, **options):
    torch.manual_seed(0)
    model = micro_model("micro_conv", previous_mask=previous_mask, prompts=prompts).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # timm begins some at 0, which stops the gradient
            nn.init.ones_(module.weight)
    task = InteractiveSegmentation(model, curriculum=curriculum, **options)
    task.log = lambda *arguments, **keywords: None  # there is no trainer
    return task


@pytest.fixture
def calls(monkeypatch):
    """Modes, gradients, prompts and main logits of each call of the network."""
    seen = []
    raw_logits = Segmenter.raw_logits

    def spied(model, encoded, prompts, refine=True):
        result = raw_logits(model, encoded, prompts, refine)
        modes = {module.training for module in model.modules()}
        seen.append((modes, torch.is_grad_enabled(), prompts, result.main))
        return result

    monkeypatch.setattr(Segmenter, "raw_logits", spied)
    return seen


def trained(calls):
    """Prompts and logits of the calls in training mode."""
    return [(prompts, logits) for modes, _, prompts, logits in calls if modes == {True}]


@pytest.fixture
def encoded(monkeypatch):
    """Sizes of the batches that are encoded."""
    seen = []
    encode = Segmenter.encode
    monkeypatch.setattr(Segmenter, "encode", lambda m, x: seen.append(len(x)) or encode(m, x))
    return seen


# --- the loss -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompts", "curriculum"), [("stem", CLICKS), ("head", BOXES)])
def test_the_loss_is_the_mean_of_those_of_all_answers(curriculum, prompts, calls):
    loss = NormalizedFocalLoss()
    task = micro_task(curriculum, prompts, loss=loss, every_round=True)
    data = crops(8)
    result = task.training_step(data, 0)
    asked = trained(calls)
    assert len(asked) == 3
    losses, without = [], 0
    for given, logits in asked:
        assert logits.requires_grad, "each answer is learnt from"
        truth = data.masks.clone()
        for n in range(8):
            if given.boxes[n].isnan().any() and not (given.labels[n] >= 0).any():
                truth[n] = 255
                without += 1
        losses.append(loss(logits, truth).item())
    assert (without > 0) == (curriculum is BOXES), "some rows begin with neither click nor box"
    assert result["loss"].item() == pytest.approx(sum(losses) / 3)
    assert len({round(value, 6) for value in losses}) == 3
    assert torch.equal(result["logits"], asked[-1][1])
    assert not result["logits"].requires_grad
    for mine, last in zip(result["prompts"], asked[-1][0], strict=True):
        torch.testing.assert_close(mine, last, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("curriculum", [CLICKS, BOXES])
def test_each_round_is_handed_the_answer_of_the_one_before(curriculum, calls):
    task = micro_task(curriculum, every_round=True)
    task.training_step(crops(8), 0)
    asked = trained(calls)
    assert asked[0][0].previous is None
    for (before, logits), (given, _) in pairwise(asked):
        said = before.has_prompt[:, None, None, None]
        torch.testing.assert_close(given.previous, torch.where(said, logits.sigmoid(), 0.0))
        assert not given.previous.requires_grad
        count = before.labels.shape[1]
        assert given.labels.shape[1] > count
        assert torch.equal(given.points[:, :count], before.points)


def test_images_are_encoded_once_for_all_rounds_and_annotators(encoded):
    micro_task(every_round=True, annotators=2).training_step(crops(), 0)
    assert encoded == [3]
    micro_task(annotators=2).training_step(crops(), 0)
    assert encoded == [3, 3, 3], "once to click and once to learn"


# --- answers between ---


@pytest.mark.parametrize("prompts", ["stem", "head"])
def test_answers_between_the_first_and_the_last_are_those_at_test_time(prompts, calls):
    clicks = IteratedClicks(most_clicks=4, fewest_rounds=5, most_rounds=5)
    loss = NormalizedFocalLoss()
    task = micro_task(
        clicks, prompts, loss=loss, every_round=True, trained_answers=(2, 1), clicked_weight=0.5
    )
    data = crops(4)
    result = task.training_step(data, 0)
    expected = [True, True, False, False, False, True]
    assert [modes for modes, *_ in calls] == [{training} for training in expected]
    assert [logits.requires_grad for *_, logits in calls] == expected
    for (*_, logits), (_, _, given, _) in pairwise(calls):
        torch.testing.assert_close(given.previous, logits.sigmoid())
    learnt = trained(calls)
    of_masks = torch.stack([loss(logits, data.masks) for _, logits in learnt]).mean()
    of_clicks = torch.stack([clicked_loss(logits, given) for given, logits in learnt]).mean()
    torch.testing.assert_close(result["loss"], of_masks + 0.5 * of_clicks)
    result["loss"].backward()
    assert all(module.training for module in task.model.modules())


# --- annotators ---------------------------------------------------------------------------------


@pytest.mark.parametrize("every_round", [False, True])
def test_annotators_click_differently_on_the_same_object(every_round, calls):
    task = micro_task(every_round=every_round, annotators=2)
    data = crops()
    result = task.training_step(data, 0)
    *_, given, logits = calls[-1]
    assert logits.shape == (6, 1, *SIZE)
    for n in range(3):
        seen = []
        for row in (2 * n, 2 * n + 1):
            for label in (0, 1):
                x, y = given.points[row, given.labels[row] == label].long().unbind(dim=1)
                assert (data.masks[n, y, x] == label).all()
            seen.append(given.points[row, given.labels[row] >= 0].tolist())
        assert seen[0] != seen[1]
    assert torch.equal(result["logits"], logits[::2])
    assert torch.equal(result["prompts"].points, given.points[::2])
    assert torch.equal(result["prompts"].labels, given.labels[::2])
    if not every_round:
        truth = data.masks.repeat_interleave(2, dim=0)
        assert result["loss"].item() == pytest.approx(task.loss(logits, truth).item())


def test_annotators_are_a_function_of_the_seeds(calls):
    for noise in (1, 2):
        task = micro_task(every_round=True, annotators=2)
        torch.manual_seed(noise)
        task.training_step(crops(), 0)
    asked = trained(calls)
    first, again = asked[:3], asked[3:]
    for (one, logits), (other, same) in zip(first, again, strict=True):
        assert torch.equal(one.points, other.points)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(logits, same)
    calls.clear()
    data = crops()
    micro_task(every_round=True, annotators=2).training_step(data._replace(seeds=data.seeds + 1), 0)
    asked = trained(calls)
    assert not torch.equal(asked[0][0].points, first[0][0].points)
    # The seed moves to the crop before, and with it both annotators.
    assert torch.equal(asked[0][0].points[:4], first[0][0].points[2:])


# --- what stays ---------------------------------------------------------------------------------


def test_frozen_weights_stay_and_others_change():
    patterns = ["backbone.network.conv1.*", "head.[!b]*"]
    task = micro_task(
        every_round=True,
        frozen=patterns,
        optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.5),
    )
    slow = micro_task(frozen=patterns, backbone_rate=0.2)
    groups = slow.configure_optimizers()["optimizer"].param_groups
    given = {parameter for group in groups for parameter in group["params"]}
    assert given == {parameter for parameter in slow.parameters() if parameter.requires_grad}
    frozen = {name for name, p in task.model.named_parameters() if not p.requires_grad}
    assert any(name.startswith("backbone.network.conv1.") for name in frozen)
    assert all(name.startswith(("backbone.network.conv1.", "head.")) for name in frozen)
    before = {name: p.detach().clone() for name, p in task.model.named_parameters()}
    optimizer = task.configure_optimizers()["optimizer"]
    task.training_step(crops(), 0)["loss"].backward()
    optimizer.step()
    for name, parameter in task.model.named_parameters():
        assert name in frozen or parameter.grad.any(), name
    same = {name for name, p in task.model.named_parameters() if torch.equal(p, before[name])}
    assert same == frozen
    learnt = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    assert learnt == sum(p.numel() for name, p in before.items() if name not in frozen)


@each(
    ("fixed", "parts"),
    [(False, ()), (True, ("backbone.",)), ("all", ("backbone.", "decoder.", "fusion."))],
)
def test_averages_may_be_fixed(fixed, parts, tmp_path):
    task = micro_task(every_round=True, fixed_statistics=fixed)
    del task.log  # there is a trainer
    before = {name: buffer.clone() for name, buffer in task.model.named_buffers()}
    trainer = quiet_trainer(tmp_path, max_epochs=2, limit_train_batches=1, limit_val_batches=1)
    data = InteractiveDataModule(
        FakeObjects(4), FakeObjects(1), batch_size=2, crop_size=32, num_workers=0
    )
    trainer.fit(task, datamodule=data)
    changed = {
        name: not torch.equal(buffer, before[name]) for name, buffer in task.model.named_buffers()
    }
    averages = {name for name in changed if "running" in name or "num_batches" in name}
    for part in ("backbone.", "decoder.", "fusion."):
        names = [name for name in averages if name.startswith(part)]
        assert names
        assert all(changed[name] != (part in parts) for name in names), part
    assert math.isfinite(trainer.callback_metrics["train/loss"])


# --- prompts ------------------------------------------------------------------------------------


def test_prompts_know_which_images_have_some():
    boxes = torch.full((4, 4), math.nan)
    boxes[1] = torch.tensor([0.0, 0, 4, 4])
    labels = torch.tensor([[-1, -1], [-1, -1], [-1, 0], [1, -1]])
    given = Prompts(torch.rand(4, 2, 2), labels, boxes, torch.rand(4, 1, 3, 3))
    assert given.has_prompt.tolist() == [False, True, True, True]
    assert without_clicks(boxes).has_prompt.tolist() == [False, True, False, False]
    some = given.at(slice(1, None, 2))
    assert torch.equal(some.labels, labels[1::2])
    assert torch.equal(some.points, given.points[1::2])
    assert torch.equal(some.previous, given.previous[1::2])
    torch.testing.assert_close(some.boxes, boxes[1::2], equal_nan=True)
    assert given._replace(previous=None).at(slice(1)).previous is None


# --- second looks -------------------------------------------------------------------------------


@pytest.mark.parametrize("repeated", [False, True])
def test_second_looks_train_two_answers_of_a_window(repeated, calls, encoded):
    task = micro_task(every_round=True, second_looks=True, annotators=2)
    task.batch_seed = int(repeated)
    result = task.training_step(crops(3), 0)
    assert encoded == [3, 3], "crops at half their size, and a window of each first annotator"
    asked = trained(calls)
    sizes = [tuple(logits.shape) for _, logits in asked]
    assert sizes == [(6, 1, 16, 20)] * 3 + [(3, 1, 16, 20)] * 2
    shown = [prompts.previous is not None for prompts, _ in asked]
    assert shown == [repeated, True, True, True, True]
    first, second = (prompts for prompts, _ in asked[-2:])
    assert second.labels.shape[1] == first.labels.shape[1] + 1
    assert torch.equal(second.previous, asked[-2][1].detach().sigmoid())
    assert result["logits"].shape == (3, 1, *SIZE)
    assert result["prompts"].points.max() > 20, "prompts are those of the whole crop"
    result["loss"].backward()
    assert all(p.grad is not None for p in task.parameters())


# --- rounds before the answer that is trained ---


def clicks(rounds):
    return IteratedClicks(fewest_rounds=rounds, most_rounds=rounds)


def drawn(task):
    images, masks, seeds, *_ = crops()
    return task.draw_prompts(images.float() / 255, masks, seeds, epoch=0, batch_seed=0)


def test_without_rounds_or_previous_mask_nothing_is_handed_on(calls):
    given = drawn(micro_task(clicks(0)))
    assert not calls
    assert given.previous is None
    assert (given.labels == 1).any(dim=1).all()
    given = drawn(micro_task(previous_mask=False, curriculum=clicks(2)))
    assert [prompts.previous for _, _, prompts, _ in calls] == [None, None]
    assert given.previous is None


@pytest.mark.parametrize(
    ("curriculum", "prompts"), [(clicks(3), "head"), (Curriculum(0, 0, rounds=(3, 3)), "stem")]
)
def test_each_answer_is_handed_on(curriculum, prompts, calls):
    task = micro_task(curriculum, prompts=prompts)
    given = drawn(task)
    assert len(calls) == 3
    assert calls[0][2].previous is None
    later = [prompts.previous for _, _, prompts, _ in calls[1:]] + [given.previous]
    for (modes, grad, _, logits), previous in zip(calls, later, strict=True):
        assert (modes, grad) == ({False}, False)
        torch.testing.assert_close(previous, logits.sigmoid())
    assert not given.previous.requires_grad
    assert given.boxes.isnan().all() == isinstance(curriculum, IteratedClicks)
    counts = [prompts.labels.shape[1] for _, _, prompts, _ in calls]
    added = {b - a for a, b in zip(counts, [*counts[1:], given.labels.shape[1]], strict=True)}
    assert added == ({1} if isinstance(curriculum, IteratedClicks) else {6})


def test_rounds_see_no_refinement_and_evaluations_do(monkeypatch):
    calls, cut = [], GraphCut.forward
    monkeypatch.setattr(GraphCut, "forward", lambda *given: calls.append(1) or cut(*given))
    task = micro_task(clicks(3))
    task.model.refinement = GraphCut(units=4)
    drawn(task)
    result = task.training_step(crops(), 0)
    assert not calls
    result["loss"].backward()
    task.eval()
    with torch.no_grad():
        task(crops().images.float() / 255, result["prompts"])
    assert len(calls) == 1


def test_rounds_leave_no_trace():
    task = micro_task(clicks(3))
    buffers = {name: buffer.clone() for name, buffer in task.model.named_buffers()}
    assert any("running_mean" in name for name in buffers)
    drawn(task)
    assert all(torch.equal(b, buffers[name]) for name, b in task.model.named_buffers())
    assert all(module.training for module in task.model.modules())
    assert all(parameter.grad is None for parameter in task.parameters())


# --- losses and rates ---


@pytest.mark.parametrize(("own", "weight"), [(None, 0.0), (BinaryCrossEntropy(), 0.4)])
def test_auxiliary_logits_may_have_a_loss_of_their_own(own, weight, calls, monkeypatch):
    torch.manual_seed(0)
    model = Segmenter(TimmBackbone("test_resnet.r160_in1k"), Coarse, ConvHead)
    losses = {"auxiliary_loss": own, "auxiliary_weight": weight}
    task = InteractiveSegmentation(model, NormalizedFocalLoss(), **losses)
    logged = {}
    monkeypatch.setattr(task, "log", lambda name, value, **_: logged.update({name: value.item()}))
    coarse = []
    model.decoder.coarse.register_forward_hook(lambda *given: coarse.append(given[-1].detach()))
    size = (32, 64)  # of whole cells
    batch = crops(size=size)
    loss = task.training_step(batch, 0)["loss"]
    auxiliary = interpolate(coarse[-1], size, mode="bilinear", align_corners=False)
    main = NormalizedFocalLoss()(calls[-1][3], batch.masks).item()
    aside = (BinaryCrossEntropy() if own else NormalizedFocalLoss())(auxiliary, batch.masks).item()
    assert logged["train/loss"] == pytest.approx(main)
    assert logged["train/auxiliary_loss"] == pytest.approx(aside)
    assert loss.item() == pytest.approx(main + weight * aside)
    loss.backward()
    assert bool(model.decoder.coarse.weight.grad.any()) == (weight > 0)


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


# --- a teacher ---


@pytest.mark.parametrize("previous_mask", [True, False])
def test_a_network_learns_the_answers_of_its_teacher(previous_mask):
    torch.manual_seed(1)
    teacher = micro_model("micro_conv", previous_mask=previous_mask)
    task = micro_task(
        every_round=True,
        annotators=2,
        teacher=teacher,
        teacher_share=1.0,
        optimizer=lambda p: torch.optim.Adam(p, lr=0.02),
    )
    del task.log
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    assert not [name for name in task.state_dict() if "teacher" in name], "of checkpoints"
    optimizer, batch, losses = task.configure_optimizers()["optimizer"], crops(4), []
    for _ in range(12):
        learnt = task.learn(batch, None, epoch=0, batch_seed=0)
        assert learnt.total.item() == pytest.approx(learnt.losses["taught_loss"].item())
        losses.append(learnt.total.item())
        optimizer.zero_grad()
        learnt.total.backward()
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]
    after = teacher.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_options_that_a_teacher_cannot_have_are_refused():
    looks = {"every_round": True, "second_looks": True}
    for options, words in (
        ({"teacher": micro_model("micro_conv"), **looks}, "second_looks"),
        ({"teacher_share": 0.0}, "teacher_share"),
    ):
        with pytest.raises(ValueError, match=words):
            micro_task(**options)


# --- the quality of answers ---

QUALITY = {"class_path": "probseg.heads.MaskQuality", "init_args": {"channels": 4, "hidden": 8}}
OTHERS = ["backbone.*", "decoder.*", "fusion.*", "head.*"]


def judging(**options):
    torch.manual_seed(0)
    model = micro_model("micro_fast", quality=QUALITY, previous_mask=True)
    clicks = IteratedClicks(most_clicks=4, fewest_rounds=2, most_rounds=2)
    rate = {"optimizer": lambda p: torch.optim.Adam(p, lr=0.1)}
    return InteractiveSegmentation(model, curriculum=clicks, every_round=True, **rate, **options)


def test_with_all_else_frozen_only_the_part_changes(tmp_path):
    training = judging(frozen=OTHERS, annotators=2)
    before = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    trainer = quiet_trainer(tmp_path, max_epochs=2, limit_train_batches=2, limit_val_batches=1)
    objects = FakeObjects(4), FakeObjects(1)
    data = InteractiveDataModule(*objects, batch_size=2, crop_size=32, num_workers=0)
    trainer.fit(training, datamodule=data)
    after = training.model.state_dict()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if name.startswith("quality.")}
    assert {"train/quality_loss", "train/quality_error"} <= trainer.callback_metrics.keys()


def test_the_loss_of_the_quality_is_that_of_all_rounds(monkeypatch):
    training, logged = judging(), {}
    training.log = lambda name, value, **keywords: logged.update({name: value.item()})
    raw_logits, asked = training.model.raw_logits, []
    keep = lambda *given, **options: asked.append(raw_logits(*given, **options)) or asked[-1]  # noqa: E731
    monkeypatch.setattr(training.model, "raw_logits", keep)
    batch = crops(4)
    total = training.training_step(batch, 0)["loss"].item()
    assert len(asked) == 3
    terms = [iou_cross_entropy(one.quality, one.main, batch.masks) for one in asked]
    loss, error = (sum(term[n].item() for term in terms) / 3 for n in (0, 1))
    assert logged["train/quality_loss"] == pytest.approx(loss)
    assert logged["train/quality_error"] == pytest.approx(error)
    assert total == pytest.approx(logged["train/loss"] + loss)


@each(("options", "words"), [({"fixed_statistics": True}, "EMAWeightAveraging"), ({}, None)])
def test_weights_are_not_averaged_over_fixed_statistics(options, words):
    """Lightning would set the statistics to 0, and never fill them."""
    task = micro_task(every_round=True, **options)
    averaging = StochasticWeightAveraging(swa_lrs=1e-4)
    task.trainer = L.Trainer(callbacks=[averaging], logger=False, accelerator="cpu")
    task.setup("fit")
    if words is None:
        task.on_fit_start()
    else:
        with pytest.raises(UsageError, match=words):
            task.on_fit_start()


def test_a_schedule_of_accumulation_counts_from_the_middle_of_an_epoch_on():
    task = micro_task(every_round=True)
    schedule = GradientAccumulationScheduler({0: 1, 1: 2})
    task.trainer = trainer = L.Trainer(callbacks=[schedule], logger=False, accelerator="cpu")
    trainer.fit_loop.epoch_progress.current.completed = 1
    task.on_train_start()
    assert trainer.accumulate_grad_batches == 2
