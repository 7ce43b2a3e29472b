"""Averages over sizes and mirror images, against averages made by hand."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from probseg.semantic.multiscale import class_probabilities, predict_classes
from support.rows import each


class Lopsided(nn.Module):
    """Answers that depend on place and size, so that neither mirroring nor scaling is for free."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3, padding=1).double()
        self.seen = []

    def forward(self, image):
        self.seen.append(tuple(image.shape[-2:]))
        across = torch.linspace(-1, 2, image.shape[-1], dtype=image.dtype)
        return self.layer(image) * image.shape[-2] / 8 + across * torch.arange(4.0).view(4, 1, 1)


def by_hand(model, image, scales, flip):
    """The mean of all answers, one after the other."""
    height, width = image.shape[-2:]
    answers = []
    for scale in scales:
        size = round(scale * height), round(scale * width)
        for mirrored in (False, True) if flip else (False,):
            seen = F.interpolate(image, size, mode="bilinear", antialias=True)
            if mirrored:
                seen = torch.flip(seen, [3])
            logits = model(seen)
            exponents = logits.exp()
            answer = exponents / exponents.sum(dim=1, keepdim=True)
            if mirrored:
                answer = torch.flip(answer, [3])
            answers.append(F.interpolate(answer, (height, width), mode="bilinear", antialias=True))
    return torch.stack(answers).mean(dim=0)


@given(
    scales=st.lists(st.sampled_from([0.5, 0.75, 1.0, 1.25, 1.75]), min_size=1, max_size=4),
    flip=st.booleans(),
    size=st.tuples(st.integers(4, 20), st.integers(4, 20)),
    seed=st.integers(0, 100),
)
def test_the_mean_is_that_of_all_answers(scales, flip, size, seed):
    torch.manual_seed(seed)
    model, image = Lopsided(), torch.rand(1, 3, *size, dtype=torch.float64)
    expected = by_hand(model, image, scales, flip)
    found = class_probabilities(model, image, scales, flip)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(1, *size, dtype=torch.float64))
    clear = expected.topk(2, dim=1).values.diff(dim=1).abs().squeeze(1) > 1e-9
    chosen = predict_classes(model, image, scales, flip)
    assert torch.equal(chosen[clear], expected.argmax(dim=1)[clear])


def test_nothing_is_resized_without_need(monkeypatch):
    model, image = Lopsided(), torch.rand(1, 3, 8, 12, dtype=torch.float64)
    class_probabilities(model, image, (0.5, 1.5), flip=True)
    assert model.seen == [(4, 6)] * 2 + [(12, 18)] * 2
    monkeypatch.setattr(F, "interpolate", None)
    assert torch.equal(predict_classes(model, image), model(image).argmax(dim=1))
    assert predict_classes(model, image, (1.0,), flip=True).shape == (1, 8, 12)


@each("scales", [(), (0.0, 1.0), (-1.0,)])
def test_sizes_that_make_no_sense(scales):
    with pytest.raises(ValueError, match="`scales`"):
        predict_classes(Lopsided(), torch.rand(1, 3, 8, 8), scales)
