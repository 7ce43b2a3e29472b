"""Two processes train semantic segmentation as one does on the batches of both."""

from functools import partial

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

from probseg.semantic import SemanticDataModule, SemanticSegmentation, semantic_variant
from support.drawn_semantic import FakeStreets
from support.trainings import quiet_trainer

SIZE = 33


class MirroredStreets(FakeStreets):
    """Photographs that mirroring does not change, with equally many pixels that count."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(2, (SIZE, SIZE))
        half = SIZE // 2
        for i, sample in enumerate(self.samples):
            parts = [
                np.concatenate([part, part[:, :half][:, ::-1]], axis=1)
                for part in (sample.image[:, : half + 1], sample.labels[:, : half + 1])
            ]
            self.samples[i] = sample._replace(image=parts[0], labels=parts[1])
        self.samples = [self.samples[number] for number in numbers]


class KnownStatistics(L.Callback):
    """Normalises with the running statistics, which do not depend on who else is in the batch."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        for module in pl_module.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()


def fresh():
    torch.manual_seed(0)
    model = semantic_variant("micro_emanet", {"head": {"num_classes": 3, "dropout": 0.0}})
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
    return model


def after_a_step(place, *numbers, processes=1):
    """State of the network after an iteration on these photographs, shared by the processes."""
    optimizer = partial(torch.optim.SGD, lr=0.1)
    task = SemanticSegmentation(fresh(), optimizer)
    strategy = "ddp_spawn" if processes > 1 else "auto"
    several = {"strategy": strategy, "devices": processes}
    trainer = quiet_trainer(place, KnownStatistics(), max_steps=1, **several)
    data = SemanticDataModule(
        MirroredStreets(*numbers),
        batch_size=len(numbers) // processes,
        crop_size=SIZE,
        scale=(1.0, 1.0),
        num_workers=0,
    )
    trainer.fit(task, data)
    return task.model.state_dict()


@pytest.mark.slow
def test_two_processes_are_one_with_both_photographs(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = fresh().state_dict()
    alone = after_a_step(tmp_path, 0, 1)
    shared = after_a_step(tmp_path, 0, 1, processes=2)
    assert set(shared) == set(alone)
    for name, expected in alone.items():
        torch.testing.assert_close(shared[name], expected, rtol=1e-5, atol=1e-6, msg=name)
    bases = "head.emau.bases.initial"
    assert (alone[bases] - before[bases]).abs().max() > 1e-2
    for number in (0, 1):
        of_one = after_a_step(tmp_path, number)
        assert (of_one[bases] - alone[bases]).abs().max() > 1e-4, "the photographs differ"
        assert not torch.allclose(of_one["head.classify.weight"], alone["head.classify.weight"])
