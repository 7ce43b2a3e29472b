import multiprocessing
import subprocess
import sys
from datetime import timedelta

import numpy as np
import pytest
import torch
from torch import distributed

from probseg.metrics import boundary_iou, failures, miou_at, noc
from probseg.metrics.torch_metrics import BoundaryIoU, MeanIoUAtClicks, NumberOfClicks
from probseg.types import IGNORE


def make_metrics():
    return MeanIoUAtClicks(6), NumberOfClicks(0.8, 6), BoundaryIoU()


def draw_runs(seed=0):
    """IoUs (9, 7), predictions and masks (9, 20, 30); one run is there at the last click only."""
    random = np.random.default_rng(seed)
    ious = random.random((9, 7))
    ious[0], ious[1] = 0.1, 0.9
    ious[2] = [0, 0, 0, 0, 0, 0, 0.8]
    masks = random.choice([0, 0, 1, 1, 1, IGNORE], (9, 20, 30)).astype(np.uint8)
    predictions = random.random((9, 20, 30)) < 0.8
    return torch.tensor(ious), torch.tensor(predictions), torch.tensor(masks)


def give(metrics, rows):
    ious, predictions, masks = (part[rows] for part in draw_runs())
    metrics[0].update(ious)
    metrics[1].update(ious)
    metrics[2].update(predictions, masks)


def values(metrics):
    """All values of all metrics, flat."""
    results = [metric.compute() for metric in metrics]
    results[1] = torch.stack([value.double() for value in results[1].values()])
    return torch.cat([result.reshape(-1) for result in results])


def whole():
    metrics = make_metrics()
    give(metrics, slice(None))
    return values(metrics)


def test_values_are_those_of_the_functions():
    ious, predictions, masks = (part.numpy() for part in draw_runs())
    runs = ious[:, None]
    failed = failures(runs, 0.8)
    assert failed.at_cap > failed.never > 0
    boundary = [boundary_iou(*pair) for pair in zip(predictions, masks, strict=True)]
    expected = [*miou_at(runs), noc(runs, 0.8).mean(), *failed, np.mean(boundary)]
    assert whole().tolist() == pytest.approx(expected)


def test_batches_add_up_and_results_stay_as_they_were():
    metrics = make_metrics()
    give(metrics, slice(0, 2))
    early = values(metrics)
    results = [metric.compute() for metric in metrics]
    copies = [str(result) for result in results]
    give(metrics, slice(2, 9))
    assert [str(result) for result in results] == copies
    assert torch.allclose(values(metrics), whole())
    assert not torch.allclose(values(metrics), early)
    for metric in metrics:
        metric.reset()
    give(metrics, slice(0, 2))
    assert torch.equal(values(metrics), early)


def work(rank, folder):
    """One of two processes: the first has most of the runs, and one batch more."""
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=2,
        timeout=timedelta(minutes=2),
    )
    try:
        metrics = make_metrics()
        if rank == 0:
            give(metrics, slice(0, 4))
        give(metrics, slice(4, 7) if rank == 0 else slice(7, 9))
        torch.save(values(metrics), f"{folder}/{rank}.pt")
    finally:
        distributed.destroy_process_group()


def test_processes_add_up(tmp_path):
    other = multiprocessing.get_context("spawn").Process(target=work, args=(1, str(tmp_path)))
    other.start()
    work(0, str(tmp_path))
    other.join()
    assert other.exitcode == 0
    for rank in range(2):
        assert torch.allclose(torch.load(tmp_path / f"{rank}.pt"), whole())


def test_without_runs_there_is_a_warning_and_no_value():
    for metric in (MeanIoUAtClicks(2), NumberOfClicks(0.8, 2), BoundaryIoU()):
        with pytest.warns(UserWarning, match="before the ``update`` method"):
            result = metric.compute()
        mean = result["noc"] if isinstance(result, dict) else result
        assert mean.isnan().all()


def test_wrong_arguments_are_refused():
    for metric in (MeanIoUAtClicks(2), NumberOfClicks(0.8, 2)):
        for ious in (torch.zeros(3), torch.zeros(1, 2), torch.full((1, 3), 90.0)):
            with pytest.raises(ValueError, match="ious"):
                metric.update(ious)
    with pytest.raises(ValueError, match="threshold"):
        NumberOfClicks(80, 2)
    with pytest.raises(ValueError, match="prediction"):
        BoundaryIoU().update(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3, dtype=torch.uint8))


def test_the_functions_need_neither_torchmetrics_nor_lightning():
    code = (
        "import sys, probseg.metrics; "
        "found = {'torchmetrics', 'lightning'} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
