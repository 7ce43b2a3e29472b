"""Training of the part that predicts the IoU of answers."""

import pytest
import torch

from probseg.clicks import IteratedClicks
from probseg.data import InteractiveDataModule
from probseg.losses import iou_cross_entropy
from probseg.tasks import InteractiveSegmentation
from support.fakes import FakeObjects, micro_model
from support.trainings import quiet_trainer

QUALITY = {"class_path": "probseg.heads.MaskQuality", "init_args": {"channels": 4, "hidden": 8}}
OTHERS = ["backbone.*", "decoder.*", "fusion.*", "head.*"]


def task(**options):
    torch.manual_seed(0)
    model = micro_model("micro_fast", quality=QUALITY, previous_mask=True)
    clicks = IteratedClicks(most_clicks=4, fewest_rounds=2, most_rounds=2)
    rate = {"optimizer": lambda p: torch.optim.Adam(p, lr=0.1)}
    return InteractiveSegmentation(model, curriculum=clicks, every_round=True, **rate, **options)


def test_with_all_else_frozen_only_the_part_changes(tmp_path):
    training = task(frozen=OTHERS, annotators=2)
    before = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    trainer = quiet_trainer(tmp_path, max_epochs=2, limit_train_batches=2, limit_val_batches=1)
    objects = FakeObjects(4), FakeObjects(1)
    data = InteractiveDataModule(*objects, batch_size=2, crop_size=32, num_workers=0)
    trainer.fit(training, datamodule=data)
    after = training.model.state_dict()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if name.startswith("quality.")}
    assert {"train/quality_loss", "train/quality_error"} <= trainer.callback_metrics.keys()


def test_its_loss_is_that_of_all_rounds(monkeypatch):
    training, logged, asked = task(), {}, []
    training.log = lambda name, value, **keywords: logged.update({name: value.item()})
    raw_logits = training.model.raw_logits

    def spied(*arguments, **options):
        asked.append(raw_logits(*arguments, **options))
        return asked[-1]

    monkeypatch.setattr(training.model, "raw_logits", spied)
    objects = FakeObjects(4)
    data = InteractiveDataModule(objects, objects, batch_size=4, crop_size=32, num_workers=0)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    total = training.training_step(batch, 0)["loss"].item()
    assert len(asked) == 3
    terms = [iou_cross_entropy(one.quality, one.main, batch.masks) for one in asked]
    loss, error = (sum(term[n].item() for term in terms) / 3 for n in (0, 1))
    assert logged["train/quality_loss"] == pytest.approx(loss)
    assert logged["train/quality_error"] == pytest.approx(error)
    assert total == pytest.approx(logged["train/loss"] + loss)
