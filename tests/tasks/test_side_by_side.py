"""Networks behind one frozen trunk: what each learns, what it answers with, where it goes."""

from copy import deepcopy

import lightning as L
import pytest
import torch

from benchmarks.training.split import split
from probseg.attention import Adaptation
from probseg.clicks import IteratedClicks
from probseg.data import InteractiveDataModule
from probseg.interact import Predictor
from probseg.models import Segmenter
from probseg.tasks import InteractiveSegmentation, SideBySide
from probseg.types import Prompts
from support.fakes import FakeObjects, described, micro_model
from support.refusals import refused
from support.trainings import quiet_trainer

HEAD = {
    "propagation_iterations": 2,
    "click_iterations": 1,
    "options": {"key_iterations": 1, "key_prior": 0.0, "one_projection": True},
}
NETWORKS = {
    "csa": ("micro_csa", {"prompts": "head", "previous_mask": True, "head": HEAD}),
    "conv": ("micro_conv", {"prompts": "head", "previous_mask": True}),
}
DRAWN = {"key": (0, 2), "value": (0, 3)}
SETTINGS = {
    "curriculum": IteratedClicks(most_clicks=3, fewest_rounds=1, most_rounds=2),
    "optimizer": lambda weights: torch.optim.RAdam(weights, lr=0.01),
    "annotators": 2,
}


def network(name):
    torch.manual_seed(0)
    preset, changes = NETWORKS[name]
    return micro_model(preset, **changes).train()


def task(**options):
    settings = {"drawn_iterations": DRAWN, **SETTINGS, **options}
    return SideBySide(network("csa"), {"conv": network("conv")}, **settings)


def trained(learner, place, **options):
    """Train on two batches, and return the trainer."""
    data = InteractiveDataModule(
        FakeObjects(4, size=(32, 32)),
        [FakeObjects(2, size=(32, 32))],
        batch_size=2,
        crop_size=32,
        num_workers=0,
    )
    L.seed_everything(0, verbose=False)
    trainer = quiet_trainer(place, max_epochs=1, gradient_clip_val=0.01, **options)
    trainer.fit(learner, data)
    return trainer


def test_each_network_learns_what_it_learns_alone(tmp_path):
    together = task()
    alone = {
        "csa": InteractiveSegmentation(
            deepcopy(together.model), every_round=True, drawn_iterations=DRAWN, **SETTINGS
        ),
        "conv": InteractiveSegmentation(
            deepcopy(together.others["conv"].model), every_round=True, **SETTINGS
        ),
    }
    before = deepcopy(together.model.state_dict())
    trained(together, tmp_path, limit_val_batches=0)
    beside = {"csa": together.model, "conv": together.others["conv"].model}
    for name, learner in alone.items():
        trained(learner, tmp_path, limit_val_batches=0)
        for key, weight in learner.model.state_dict().items():
            assert torch.equal(weight, beside[name].state_dict()[key]), (name, key)
    same = [
        key
        for key, weight in before.items()
        if torch.equal(weight, together.model.state_dict()[key])
    ]
    trunk = [key for key in before if key.startswith(("backbone.", "decoder."))]
    assert set(trunk) <= set(same) < set(before), "the trunk stays, averages included"
    assert beside["conv"].backbone is together.model.backbone


def test_the_trunk_runs_once_and_iterations_are_drawn_for_each_batch(monkeypatch):
    learner, encoded, asked = task(), [], []
    encode, raw_logits = Segmenter.encode, Segmenter.raw_logits
    monkeypatch.setattr(Segmenter, "encode", lambda m, x: encoded.append(m) or encode(m, x))
    monkeypatch.setattr(
        Segmenter,
        "raw_logits",
        lambda m, *a: asked.append((m, m.adaptation())) or raw_logits(m, *a),
    )
    learner.log = lambda *arguments, **keywords: None  # there is no trainer
    data = InteractiveDataModule(FakeObjects(2, size=(32, 32)), batch_size=2, crop_size=32)
    batch = next(iter(data.train_dataloader()))
    for learner.batch_seed in range(12):
        learner.training_step(batch, 0)
    assert len(encoded) == 12
    drawn = [now for model, now in asked if model is learner.model]
    assert {now.key_iterations for now in drawn} == {0, 1, 2}
    assert {now.value_iterations for now in drawn} == {0, 1, 2, 3}
    assert learner.model.adaptation().value_iterations == 2, "as it was"


def test_a_validation_tells_the_networks_and_the_mechanisms_apart(tmp_path):
    figures = trained(task(), tmp_path).callback_metrics
    for row in ("conv", "without keys", "without values"):
        assert {f"val/fakes/{row}/{of}" for of in ("miou@1", "miou@5", "noc@90")} <= set(figures)


def test_a_run_becomes_a_model_of_each_network(tmp_path):
    learner = task()
    for weight in learner.state_dict().values():
        weight.copy_(weight.half())
    parts = {name: described(preset, **changes) for name, (preset, changes) in NETWORKS.items()}
    arguments = {"model": parts.pop("csa"), "others": parts}
    place = tmp_path / "run/checkpoints/last.ckpt"
    place.parent.mkdir(parents=True)
    torch.save({"state_dict": learner.state_dict(), "hyper_parameters": arguments}, place)
    folders = split(tmp_path / "run", tmp_path / "models")
    image = torch.rand(1, 3, 32, 32)
    prompts = Prompts(
        torch.tensor([[[9.0, 8]]]), torch.tensor([[1]]), torch.full((1, 4), torch.nan)
    )
    for folder, model in zip(folders, [learner.model, learner.others["conv"].model], strict=True):
        read = Predictor.from_pretrained(str(folder)).model
        with torch.no_grad():
            torch.testing.assert_close(read(image, prompts), model.eval()(image, prompts))
    heads = str(tmp_path / "models/heads.safetensors")
    again = SideBySide(network("csa"), {"conv": network("conv")}, heads=heads, **SETTINGS)
    learnt, state = learner.state_dict(), again.state_dict()
    for name in learnt:
        torch.testing.assert_close(state[name], learnt[name], atol=1e-3, rtol=1e-3)
    refused(ValueError, lambda: SideBySide(network("csa"), {}, heads=heads), "heads", heads)
    predictor = Predictor.from_pretrained(str(folders[0]))
    for change in ({"key_iterations": 0}, {"value_iterations": 0}):
        before = predictor.model(image, prompts)
        predictor.adapt(Adaptation(**change))
        assert not torch.equal(predictor.model(image, prompts), before), change


def test_networks_that_cannot_share_a_trunk_are_refused():
    stem = micro_model("micro_conv", previous_mask=True)
    refused(ValueError, lambda: SideBySide(network("csa"), {"stem": stem}), "others", "stem")
    with pytest.raises(ValueError, match="value_iterations"):
        SideBySide(network("conv"), {}, drawn_iterations={"value": (0, 1)})
