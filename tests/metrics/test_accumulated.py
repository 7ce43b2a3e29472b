"""Scores as metrics that add up over batches and processes."""

import numpy as np
import torch
from torchmetrics import MetricCollection

from probseg.metrics import (
    ClickAUC,
    MeanIoUAtK,
    NumberOfClicks,
    area_under_curve,
    noc,
    standard_error,
)
from support.refusals import refused

RUNS = np.random.default_rng(0).uniform(size=(7, 3, 5))
RUNS[0, 0, 2] = 0.9  # exactly there


def collection():
    return MetricCollection([NumberOfClicks(), MeanIoUAtK(3), ClickAUC(1)], compute_groups=False)


def expected(runs):
    values = {
        "noc@90": noc(runs, 0.9).mean(axis=1),
        "miou@3": runs[:, :, 3].mean(axis=1),
        "auc": area_under_curve(runs, 1).mean(axis=1),
    }
    figures = {name: value.mean() for name, value in values.items()}
    figures |= {f"{name}_se": float(standard_error(value)) for name, value in values.items()}
    return {name: torch.tensor(figure, dtype=torch.float32) for name, figure in figures.items()}


def test_figures_over_batches_and_merged_states_are_those_of_all_objects():
    first, second = collection(), collection()
    first.update(torch.from_numpy(RUNS[:2]))
    first.update(RUNS[2:3])
    second.update(torch.from_numpy(RUNS[3:]))
    for name, metric in first.items():
        metric.merge_state(second[name])
    torch.testing.assert_close(dict(first.compute()), expected(RUNS))
    first.reset()
    first.update(RUNS[:4, 0])
    torch.testing.assert_close(dict(first.compute()), expected(RUNS[:4, :1]))


def test_masks_are_scored():
    truth = torch.zeros(2, 4, 4, dtype=torch.uint8)
    truth[:, :2] = 1
    answers = torch.stack([truth == 0, truth == 2, truth == 1], dim=1)  # IoU 0, 0 and 1
    metric = NumberOfClicks(0.5)
    metric.update(answers, truth)
    assert metric.compute()["noc@50"] == 2
    refused(ValueError, lambda: metric.update(answers, truth * 255), "// 255")
    refused(ValueError, lambda: metric.update(RUNS * 100), "percent")
