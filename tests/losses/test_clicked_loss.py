"""The loss of clicked pixels."""

import math

import torch

from probseg.losses import clicked_loss
from probseg.types import Prompts


def test_it_is_the_cross_entropy_of_clicked_pixels_alone():
    torch.manual_seed(0)
    logits = torch.randn(2, 1, 5, 7, dtype=torch.float64, requires_grad=True)
    points = torch.tensor([[[6.0, 0.0], [2.0, 4.0]], [[0.0, 3.0], [5.0, 1.0]]])
    labels = torch.tensor([[1, 0], [-1, 1]])  # no third click in the second image
    loss = clicked_loss(logits, Prompts(points, labels, torch.full((2, 4), torch.nan)))
    scores = [logits[0, 0, 0, 6].item(), -logits[0, 0, 4, 2].item(), logits[1, 0, 1, 5].item()]
    expected = sum(math.log1p(math.exp(-score)) for score in scores) / 3
    torch.testing.assert_close(loss.item(), expected, rtol=1e-6, atol=0)
    loss.backward()
    learnt = logits.grad[:, 0] != 0
    assert learnt.nonzero().tolist() == [[0, 0, 6], [0, 4, 2], [1, 1, 5]]


def test_it_is_zero_without_clicks():
    logits = torch.randn(1, 1, 4, 4, requires_grad=True)
    loss = clicked_loss(
        logits, Prompts(torch.zeros(1, 0, 2), torch.zeros(1, 0, dtype=torch.long), torch.ones(1, 4))
    )
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()
