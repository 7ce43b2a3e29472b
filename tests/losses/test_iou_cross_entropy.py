"""The loss of a predicted IoU."""

import numpy as np
import pytest
import torch

from probseg.losses import iou_cross_entropy
from probseg.metrics import iou


def test_it_is_the_cross_entropy_with_the_iou_of_counted_images():
    torch.manual_seed(0)
    logits = torch.randn(4, 1, 9, 7, requires_grad=True)
    masks = torch.randint(2, (4, 9, 7), dtype=torch.uint8)
    masks[:, :3] = 255
    masks[3] = 255  # nothing counts
    quality = torch.tensor([-2.0, 0.5, 3.0, 9.0], requires_grad=True)
    predicted = 1 / (1 + np.exp(-quality[:3].detach().double().numpy()))
    inside = logits.detach()[:, 0].numpy() > 0
    truth = np.array([iou(inside[n], masks[n].numpy()) for n in range(3)])
    entropy = -(truth * np.log(predicted) + (1 - truth) * np.log(1 - predicted)).mean()
    loss, error = iou_cross_entropy(quality, logits, masks)
    assert loss.item() == pytest.approx(entropy, rel=1e-5)
    assert error.item() == pytest.approx(np.abs(predicted - truth).mean(), rel=1e-5)
    loss.backward()
    assert quality.grad[:3].all()
    assert quality.grad[3] == 0
    assert logits.grad is None


def test_it_is_0_where_no_image_counts():
    loss, error = iou_cross_entropy(
        torch.ones(2), -torch.ones(2, 1, 4, 4), torch.zeros(2, 4, 4, dtype=torch.uint8)
    )
    assert (loss, error) == (0, 0)
