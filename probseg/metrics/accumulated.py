"""Scores of interactive segmentation as `torchmetrics.Metric`s, over batches and processes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from probseg.errors import check_least, require
from probseg.metrics.interaction import Floats, area_under_curve, checked_ious, noc, standard_error
from probseg.metrics.masks import iou


def gather_rows(rows: Tensor, group: distributed.ProcessGroup | None = None) -> list[Tensor]:
    """Return the rows of all processes; some have none, and cannot know the others' shape."""
    everyone: list[Tensor] = [rows] * distributed.get_world_size(group)
    distributed.all_gather_object(everyone, rows.cpu(), group)
    return [some.to(rows.device) for some in everyone if len(some)] or [rows]


class ClickMetric(Metric):  # type: ignore[misc]
    """Keeps the IoUs of all runs after each click; subclasses score each object.

    `compute` returns the mean over objects by its name, and its standard error over objects by
    that name and `_se`.

    Args:
        **options: As of `torchmetrics.Metric`.
    """

    full_state_update = False
    entry = 0  # of the scores of an object, where it has several
    ious: list[Tensor]
    index: list[Tensor]

    def __init__(self, **options: object) -> None:
        super().__init__(**{"dist_sync_fn": gather_rows, **options})
        self.add_state("ious", default=[], dist_reduce_fx="cat")
        self.add_state("index", default=[], dist_reduce_fx="cat")

    def update(
        self,
        ious: Tensor | npt.NDArray[np.generic],
        masks: Tensor | npt.NDArray[np.uint8] | None = None,
        index: Tensor | Sequence[int] | None = None,
    ) -> None:
        """Add the runs of some objects.

        Args:
            ious: After `0 ... K` clicks, `(objects, K + 1)` or `(objects, trials, K + 1)`; or,
                with `masks`, what was predicted then, bool, `(objects, K + 1, H, W)`.
            masks: uint8, `(objects, H, W)`: 1 object, 0 background, 255 ignored.
            index: Numbers of the objects in their data set, `(objects,)`, in each update or in
                none. Objects of one number count once, as those that a `DistributedSampler` gives
                to two processes, and their order does not matter to the last bit.
        """
        curves = ious.detach().cpu().numpy() if isinstance(ious, Tensor) else np.asarray(ious)
        if masks is not None:
            truths = masks.cpu().numpy() if isinstance(masks, Tensor) else masks
            pairs = zip(curves, truths, strict=True)
            curves = np.array([[iou(answer, truth) for answer in run] for run, truth in pairs])
        runs = checked_ious(curves[:, None] if curves.ndim == 2 else curves)
        self.of_objects(runs)  # wrong settings are refused now, not when all is computed
        fits = not self.ious or runs.shape[1:] == self.ious[0].shape[1:]
        require(fits, "ious", "of as many trials and clicks in each update", f"shape {runs.shape}")
        self.ious.append(torch.from_numpy(runs.copy()).to(self.device))
        if index is not None:
            self.index.append(torch.as_tensor(index, device=self.device))

    def compute(self) -> dict[str, Tensor]:
        """Return the mean over objects and its standard error; NaN for a single object."""
        ious = dim_zero_cat(self.ious).cpu().numpy()
        if len(self.index):
            index = dim_zero_cat(self.index).cpu().numpy()
            of_all = f"a number for each of {len(ious)} objects, in each update or in none"
            require(index.shape == ious.shape[:1], "index", of_all, f"shape {index.shape}")
            ious = ious[np.unique(index, return_index=True)[1]]
        values = self.of_objects(checked_ious(ious))
        figures = {self.title: values.mean(axis=0), f"{self.title}_se": standard_error(values)}
        return {
            name: torch.tensor(float(np.ravel(figure)[self.entry]), device=self.device)
            for name, figure in figures.items()
        }

    @property
    @abstractmethod
    def title(self) -> str:
        """Name of the figure."""

    @abstractmethod
    def of_objects(self, ious: Floats) -> Floats:
        """Return the score of each object, the mean over its trials, `(objects,)`.

        Or several, `(objects, scores)`, of which `entry` counts.
        """


class NumberOfClicks(ClickMetric):
    """Mean number of clicks to an IoU, see `probseg.metrics.noc`: `noc@90` and `noc@90_se`.

    Args:
        threshold: The IoU, a fraction.
        **options: As of `torchmetrics.Metric`.
    """

    def __init__(self, threshold: float = 0.9, **options: object) -> None:
        super().__init__(**options)
        self.threshold = threshold

    @property
    def title(self) -> str:
        """Name of the figure."""
        return f"noc@{100 * self.threshold:g}"

    def of_objects(self, ious: Floats) -> Floats:
        """Return the clicks of each object."""
        return np.asarray(noc(ious, self.threshold).mean(axis=1))


class MeanIoUAtK(ClickMetric):
    """Mean IoU after some clicks: `miou@5` and `miou@5_se`.

    Args:
        clicks: Number of corrective clicks.
        **options: As of `torchmetrics.Metric`.
    """

    def __init__(self, clicks: int = 5, **options: object) -> None:
        super().__init__(**options)
        check_least("clicks", clicks, 0)
        self.entry = clicks

    @property
    def title(self) -> str:
        """Name of the figure."""
        return f"miou@{self.entry}"

    def of_objects(self, ious: Floats) -> Floats:
        """Return the IoUs of each object after all numbers of clicks, as `miou_at` sums them."""
        require(self.entry < ious.shape[-1], "clicks", f"below {ious.shape[-1]}", self.entry)
        return np.asarray(ious.mean(axis=1))


class ClickAUC(ClickMetric):
    """Mean area under the curve of IoU against clicks, see `area_under_curve`: `auc`, `auc_se`.

    Args:
        first: Clicks after which the curve begins.
        **options: As of `torchmetrics.Metric`.
    """

    title = "auc"

    def __init__(self, first: int = 0, **options: object) -> None:
        super().__init__(**options)
        self.first = first

    def of_objects(self, ious: Floats) -> Floats:
        """Return the area of each object."""
        return np.asarray(area_under_curve(ious, self.first).mean(axis=1))
