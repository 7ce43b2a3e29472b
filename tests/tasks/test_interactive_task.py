"""One training step: what the curriculum promises, gradients, and the schedule."""

import math
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from probseg.backbones import TimmBackbone, layer_numbers, recompute_activations
from probseg.clicks import Curriculum
from probseg.clicks.sampling import object_boxes
from probseg.data import InteractiveDataModule
from probseg.data.datamodule import TrainBatch
from probseg.models import Segmenter
from probseg.models.segmenter import Logits
from probseg.tasks import InteractiveSegmentation, PolynomialThenConstant
from probseg.zoo import create_model
from support.fakes import FakeObjects, draw_sample, ignore_border, micro_model
from support.refusals import refused
from support.rows import each
from support.trainings import quiet_trainer

BOXLESS = {"box_epochs": 0, "random_epochs": 0, "box_dropout": 1.0}


class Images(NamedTuple):
    """An encoding that is the images themselves."""

    pixels: torch.Tensor

    def repeat(self, times):
        return Images(self.pixels.repeat_interleave(times, dim=0))


class Answer(Segmenter):
    """Predicts what a function of images and prompts says, and remembers how it was asked."""

    def __init__(self, answer):
        nn.Module.__init__(self)
        self.previous_mask = False
        self.answer = answer
        self.scale = nn.Parameter(torch.ones(()))
        self.asked = []

    def encode(self, image):
        return Images(image)

    def raw_logits(self, encoded, prompts, refine=True):
        self.asked.append((prompts, self.training, torch.is_grad_enabled()))
        return Logits(self.answer(encoded.pixels, prompts).unsqueeze(1) * self.scale, None)


def nothing(image, prompts):
    return torch.full_like(image[:, 0], -1.0)


def everything(image, prompts):
    return torch.full_like(image[:, 0], 1.0)


def batch(size=4, ignored=True, seed=0):
    samples = [draw_sample(48, 48, seed=i) for i in range(size)]
    masks = [ignore_border(s.mask, 3) if ignored else s.mask for s in samples]
    images = np.stack([s.image for s in samples]).transpose(0, 3, 1, 2).copy()
    names = [sample.name for sample in samples]
    seeds = torch.arange(size) + 1000 * seed
    masks = torch.from_numpy(np.stack(masks))
    return TrainBatch(torch.from_numpy(images), masks, seeds, names, [])


def draw(stage, answer=nothing, curriculum=None, noise=0.1, data=None, seed=0):
    """Prompts of a batch, and the network that was asked on the way."""
    data = data if data is not None else batch(seed=seed)
    model = Answer(answer)
    task = InteractiveSegmentation(
        model, curriculum=Curriculum(**(curriculum or {})), corner_noise=noise
    )
    images = data.images.float() / 255
    epoch = next(n for n in range(100) if task.curriculum.stage(n) == stage)
    prompts = task.draw_prompts(images, data.masks, data.seeds, epoch=epoch, batch_seed=seed)
    assert prompts.points.shape == (*prompts.labels.shape, 2)
    assert prompts.boxes.shape == (len(data.masks), 4)
    return prompts, model, data.masks


def clicked_values(prompts, masks):
    """Mask values under the positive and the negative clicks of each image."""
    result = []
    for points, labels, mask in zip(prompts.points.long(), prompts.labels, masks, strict=True):
        values = mask[points[:, 1], points[:, 0]]
        result.append((values[labels == 1].tolist(), values[labels == 0].tolist()))
    return result


# --- the three stages ---------------------------------------------------------------------------


def test_first_task_shows_noisy_boxes_alone():
    prompts, model, masks = draw("box", curriculum={"box_dropout": 1.0}, noise=0)
    exact = object_boxes(masks)
    assert prompts.labels.shape == (4, 0)
    assert torch.equal(prompts.boxes, exact)
    assert not model.asked
    prompts, _, _ = draw("box", noise=0.2)
    assert not torch.equal(prompts.boxes, exact)
    sides = (exact[:, 2:] - exact[:, :2]).repeat(1, 2)
    assert ((prompts.boxes - exact).abs() <= 0.2 * sides + 0.5).all()


@pytest.mark.parametrize("seed", range(2))
def test_second_task_clicks_object_and_background(seed):
    prompts, model, masks = draw("random", seed=seed)
    assert not prompts.boxes.isnan().any()
    assert not model.asked
    for positive, negative in clicked_values(prompts, masks):
        assert positive == [1] * len(positive)
        assert negative == [0] * len(negative)
        assert 1 <= len(positive) <= 3
        assert len(negative) <= 3


def test_boxes_of_the_later_tasks_may_be_left_out():
    assert draw("random", curriculum={"box_dropout": 1.0})[0].boxes.isnan().all()
    assert draw("corrective", curriculum=BOXLESS)[0].boxes.isnan().all()
    some = draw("random", curriculum={"box_dropout": 0.5}, data=batch(40))[0].boxes.isnan()
    assert 8 < some.any(dim=1).sum() < 32


@each(("answer", "wrong"), [(nothing, 1), (everything, 0)])
@each("seed", range(2))
def test_third_task_clicks_the_errors(answer, wrong, seed):
    prompts, model, masks = draw("corrective", answer, {"negative_clicks": (1, 3)}, seed=seed)
    assert not prompts.boxes.isnan().any()
    ((asked, training, grad),) = model.asked  # one round as published, as at test time
    assert not training
    assert not grad
    assert asked.labels.shape == (4, 0)
    assert model.training
    for values in clicked_values(prompts, masks):
        clicked, other = values if wrong else values[::-1]
        assert clicked == [wrong] * len(clicked)
        assert len(clicked) >= 1
        assert not other  # no error of this kind, and never an ignored pixel


def test_rounds_build_on_each_other():
    curriculum = {"rounds": (3, 3), "positive_clicks": (2, 2), "negative_clicks": (1, 1)}
    prompts, model, _ = draw("corrective", curriculum=curriculum)
    assert [asked.labels.shape[1] for asked, _, _ in model.asked] == [0, 3, 6]
    assert prompts.labels.shape == (4, 9)
    last = model.asked[-1][0]
    assert torch.equal(prompts.points[:, :6], last.points)
    vary = {"rounds": (0, 2), "box_dropout": 1.0}
    drawn = [draw("corrective", curriculum=vary, seed=n) for n in range(12)]
    assert {len(model.asked) for _, model, _ in drawn} == {0, 1, 2}
    for prompts, model, _ in drawn:
        assert prompts.boxes.isnan().any() == bool(model.asked), "without a round the box stays"


def test_with_and_without_box_in_one_batch():
    curriculum = {"box_dropout": 0.5, "negative_clicks": (1, 3)}
    prompts, _, masks = draw("corrective", everything, curriculum, data=batch(20))
    for box, (positive, negative) in zip(
        prompts.boxes, clicked_values(prompts, masks), strict=True
    ):
        assert bool(positive) == bool(box.isnan().all())
        assert bool(negative) != bool(positive)
    # After a click the prediction counts, even without a box.
    curriculum = {**BOXLESS, "rounds": (2, 2), "negative_clicks": (1, 1)}
    prompts, _, masks = draw("corrective", everything, curriculum)
    for positive, negative in clicked_values(prompts, masks):
        assert positive
        assert negative == [0]


def test_clicks_keep_their_margin():
    data = batch(1, ignored=False)
    data.masks[:] = 0
    data.masks[0, 10:20, 5:30] = 1
    for seed in range(4):
        data = data._replace(seeds=torch.tensor([seed]))
        prompts, _, _ = draw("corrective", curriculum={"margin": 4}, data=data)
        x, y = prompts.points[prompts.labels == 1].unbind(dim=1)
        assert ((x >= 9) & (x < 26) & (y >= 14) & (y < 16)).all()


@each("stage", ["box", "random", "corrective"])
def test_crops_without_object_get_no_positive_prompt(stage):
    data = batch(2)
    data.masks[1] = 0
    prompts, _, _ = draw(stage, data=data)
    assert prompts.boxes.isnan().all(dim=1).tolist() == [False, True]
    assert not (prompts.labels[1] == 1).any()


# --- one step -----------------------------------------------------------------------------------


def micro_task(name="micro_csa", **options):
    torch.manual_seed(0)
    task = InteractiveSegmentation(micro_model(name).train(), **options)
    task.log = lambda *arguments, **keywords: None  # there is no trainer
    return task


def step(task, stage, data=None, autocast=False):
    lengths = {"box": (1, 0), "random": (0, 1), "corrective": (0, 0)}[stage]
    task.curriculum = Curriculum(*lengths, rounds=(2, 2))
    assert task.stage == stage
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = task.training_step(data if data is not None else batch(), 0)
    result["loss"].backward()
    return result


@pytest.mark.parametrize(
    ("stage", "autocast"), [("box", False), ("random", False), ("corrective", True)]
)
def test_gradients_reach_all_parts(stage, autocast):
    # Under autocast, weights cast by the prediction without gradient must not be used again.
    empty = batch(2)
    empty.masks[:] = 0
    assert step(micro_task(), stage, empty)["loss"].isfinite()
    task = micro_task()
    result = step(task, stage, autocast=autocast)
    assert result["loss"].dtype == torch.float32
    assert result["loss"].isfinite()
    assert not result["logits"].requires_grad
    assert result["logits"].shape == (4, 1, 48, 48)
    names = dict(task.model.named_parameters())
    stem = [n for n in names if ".prompts." in n or ".rgb." in n]
    attention = [n for n in names if n.startswith(("head.height", "head.last"))]
    assert len(stem) == 2
    assert len(attention) == 6
    for name in [*stem, *attention, "head.bias", "head.bottleneck.0.weight"]:
        gradient = names[name].grad
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        assert gradient.abs().sum() > 0, name
    assert all(p.grad is not None for p in names.values())


# --- optimiser and schedule ---------------------------------------------------------------------


def rates(task, epochs):
    made = task.configure_optimizers()
    optimizer, scheduler = made["optimizer"], made["lr_scheduler"]["scheduler"]
    result = []
    for _ in range(epochs):
        result.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return optimizer, result


def test_published_optimiser_and_schedule():
    optimizer, published = rates(micro_task("micro_conv"), 150)
    assert isinstance(optimizer, torch.optim.RAdam)
    assert len(optimizer.param_groups[0]["params"]) > 10
    assert published[0] == pytest.approx(1e-4)
    assert published[35] == pytest.approx(1e-5 + 9e-5 * 0.5**0.9)
    assert published[69] == pytest.approx(1e-5 + 9e-5 * (1 / 70) ** 0.9)
    assert published[70:] == pytest.approx([1e-5] * 80)
    assert all(a > b for a, b in pairwise(published[:71]))


ROUNDS = {"every_round": True}


@each(
    ("options", "parts"),
    [
        *(({"corner_noise": x}, ["`corner_noise`", x]) for x in (-0.1, 0.5, math.nan)),
        *(({"auxiliary_weight": x}, ["`auxiliary_weight`", x]) for x in (-0.1, math.inf)),
        *(({"backbone_rate": x}, ["`backbone_rate`", x]) for x in (0.0, math.inf, math.nan)),
        *(({"layer_decay": x}, ["`layer_decay`", x]) for x in (0.0, 1.1)),
        ({"layer_decay": 0.9}, ["`layer_decay`", "TimmBackbone", "backbone_rate"]),
        ({"annotators": 0}, ["`annotators`", 0]),
        ({"trained_answers": (1, 1)}, ["`trained_answers`", "`every_round: true`"]),
        ({"trained_answers": (0, 2), **ROUNDS}, ["`trained_answers`", (0, 2)]),
        ({"trained_answers": (2, 0), **ROUNDS}, ["`trained_answers`", (2, 0)]),
        ({"clicked_weight": -1.0}, ["`clicked_weight`", -1.0]),
        ({"clicked_weight": math.nan}, ["`clicked_weight`", math.nan]),
        ({"second_looks": True}, ["`second_looks`", "`every_round: true`"]),
        ({"second_looks": True, **ROUNDS}, ["`second_looks`", "previous_mask=True"]),
        ({"frozen": ["backbone.*", "model.backbone.*"]}, ["`frozen`", "'model.backbone.*'"]),
    ],
)
def test_wrong_arguments_are_refused(options, parts):
    make = partial(InteractiveSegmentation, micro_model("micro_conv"), **options)
    refused(ValueError, make, *parts)


def test_wrong_arguments_of_parts_are_refused():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    for name, value in {"decay_epochs": 0, "final_factor": 2}.items():
        wrong = partial(PolynomialThenConstant, optimizer, **{name: value})
        refused(ValueError, wrong, name, value)
    bare = nn.Conv2d(3, 3, 1)
    refused(ValueError, partial(recompute_activations, bare), "`gradient_checkpointing`", "Conv2d")


# --- with a trainer -----------------------------------------------------------------------------


def test_a_whole_run_passes_through_the_three_tasks(tmp_path):
    stages, logged = [], []

    class Recording(InteractiveSegmentation):
        def training_step(self, batch, batch_idx):
            result = super().training_step(batch, batch_idx)
            stages.append((self.stage, result["prompts"].labels.shape[1]))
            return result

        def on_train_epoch_end(self):
            logged.append(float(self.trainer.callback_metrics["train/stage"]))

    torch.manual_seed(0)
    curriculum = Curriculum(box_epochs=1, random_epochs=1)
    task = Recording(micro_model("micro_conv").train(), curriculum=curriculum)
    before = {n: p.clone() for n, p in task.named_parameters()}
    trainer = quiet_trainer(tmp_path, max_epochs=3, limit_train_batches=1, num_sanity_val_steps=0)
    data = InteractiveDataModule(
        FakeObjects(4), FakeObjects(1), batch_size=2, crop_size=32, num_workers=0
    )
    trainer.fit(task, datamodule=data)
    assert stages == [("box", 0), ("random", 6), ("corrective", 6)]
    assert logged == [0, 1, 2]
    assert math.isfinite(trainer.callback_metrics["train/loss"])
    assert any(not torch.equal(p, before[n]) for n, p in task.named_parameters())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    # Modules and data sets that Python code handed over are not in the file: it is safe to read.
    stored = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert stored["curriculum_stage"] == "corrective"
    assert stored["hyper_parameters"]["corner_noise"] == 0.1
    assert stored["datamodule_hyper_parameters"]["batch_size"] == 2
    again = InteractiveSegmentation.load_from_checkpoint(
        tmp_path / "last.ckpt", model=micro_model("micro_conv")
    )
    assert all(torch.equal(p, task.state_dict()[n]) for n, p in again.state_dict().items())


def test_a_model_in_evaluation_mode_is_trained_and_frozen_parts_stay_frozen(tmp_path):
    modes = []

    class Recording(InteractiveSegmentation):
        def on_train_start(self):
            super().on_train_start()
            modes.append(all(module.training for module in self.model.modules()))
            self.model.backbone.eval()  # as a callback that freezes the backbone does

        def training_step(self, batch, batch_idx):
            result = super().training_step(batch, batch_idx)
            parts = (self.model.backbone, self.model.decoder, self.model.head)
            modes.append([{m.training for m in part.modules()} for part in parts])
            return result

    task = Recording(
        micro_model("micro_conv").eval(), curriculum=Curriculum(box_epochs=0, random_epochs=0)
    )
    trainer = quiet_trainer(tmp_path, max_epochs=1, limit_train_batches=2, num_sanity_val_steps=0)
    trainer.fit(
        task, InteractiveDataModule(FakeObjects(4), batch_size=2, crop_size=32, num_workers=0)
    )
    assert modes == [True, [{False}, {True}, {True}], [{False}, {True}, {True}]]


@pytest.mark.parametrize(("precision", "entry"), [("bf16-mixed", "stem"), ("bf16-true", "head")])
def test_half_precision_trains(precision, entry, tmp_path):
    head = {"propagation_iterations": 1}
    model = micro_model("micro_csa", prompts=entry, head=head)
    task = InteractiveSegmentation(model, curriculum=Curriculum(0, 0))
    trainer = quiet_trainer(tmp_path, max_epochs=1, precision=precision, limit_train_batches=1)
    data = InteractiveDataModule(
        FakeObjects(4), FakeObjects(1), batch_size=2, crop_size=32, num_workers=0
    )
    trainer.fit(task, data)
    assert math.isfinite(trainer.callback_metrics["train/loss"])


def test_processes_share_the_seed_of_a_batch_and_no_random_numbers(monkeypatch):
    task = InteractiveSegmentation(micro_model("micro_csa"))
    task.seed, seeds, drawn = 3, set(), set()
    for rank, epoch in ((0, 0), (1, 0), (0, 1)):
        monkeypatch.setattr(InteractiveSegmentation, "global_rank", rank)
        monkeypatch.setattr(InteractiveSegmentation, "current_epoch", epoch)
        task.on_train_batch_start(None, 0)
        seeds.add((epoch, task.batch_seed))
        drawn.add(torch.rand(()).item())
    assert len(seeds) == len({seed for _, seed in seeds}) == 2
    assert len(drawn) == 3


def test_a_task_made_in_python_keeps_no_second_copy_of_its_network(recwarn):
    task = InteractiveSegmentation(micro_model(), corner_noise=0.2)
    assert not [one for one in recwarn if "nn.Module" in str(one.message)]
    assert task.hparams["corner_noise"] == 0.2
    assert not any(map(callable, task.hparams.values()))


PLAIN = {"embed_dim": 48, "depth": 3, "num_heads": 3, "img_size": 64}
NETWORKS = {
    "vit_small_patch16_dinov3": {"embed_dim": 48, "depth": 3, "num_heads": 3},
    "vit_small_patch14_reg4_dinov2": PLAIN,
    "sam2_hiera_tiny": {"stages": (1, 2, 1, 1), "embed_dim": 16},
    "swin_tiny_patch4_window7_224": {"depths": (1, 1, 2, 1), "embed_dim": 24},
    "test_resnet": {},
}


def backbone(name):
    torch.manual_seed(0)
    return TimmBackbone(name, options=NETWORKS[name])


def kept_and_gradients(own, image):
    """Bytes of the tensors that a forward pass keeps for the backward pass, and all gradients."""
    storages = {}

    def keep(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        maps = own(image)
        kept = sum(storages.values())
    sum(
        (level * torch.linspace(-1, 1, level.numel()).view_as(level)).sum() for level in maps
    ).backward()
    return kept, [parameter.grad for parameter in own.parameters()]


@pytest.mark.parametrize("name", NETWORKS)
def test_activations_that_are_computed_again_take_less_memory_and_give_the_same_gradients(name):
    image = torch.randn(1, 3, 128, 128)
    kept, gradients = kept_and_gradients(backbone(name), image)
    lean = backbone(name)
    recompute_activations(lean)
    less, same = kept_and_gradients(lean, image)
    assert less < 0.75 * kept
    for one, other in zip(same, gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_layers_are_numbered_from_the_image_on():
    own = backbone("vit_small_patch14_reg4_dinov2")
    numbers = {name: layer_numbers(own)[weight] for name, weight in own.named_parameters()}
    for name, number in numbers.items():
        inside = name.removeprefix("network.model.")
        block = inside.startswith("blocks.")
        assert number == (1 + int(inside.split(".")[1]) if block else 0), name
    assert set(numbers.values()) == {0, 1, 2, 3}


def test_rates_fall_towards_the_image():
    model = create_model("vits_unet_prop", backbone={"options": PLAIN})
    rate = partial(torch.optim.SGD, lr=0.1)
    task = InteractiveSegmentation(
        model,
        optimizer=rate,
        backbone_rate=0.5,
        layer_decay=0.8,
        frozen=["backbone.network.model.pos_embed"],
    )
    optimizer = task.configure_optimizers()["optimizer"]
    rates = {w: group["lr"] for group in optimizer.param_groups for w in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(rates)
    numbers = layer_numbers(model.backbone)
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            expected = 0.05 * 0.8 ** (3 - numbers[weight]) if weight in numbers else 0.1
            assert rates.pop(weight) == pytest.approx(expected), name
    assert not rates
