"""Losses against sums written out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probseg.losses import BinaryCrossEntropy, NormalizedFocalLoss, SoftIoULoss, WeightedSum
from probseg.losses.binary import binary_cross_entropy, normalized_focal_loss, soft_iou_loss

LOSSES = [
    BinaryCrossEntropy(),
    NormalizedFocalLoss(),
    SoftIoULoss(),
    WeightedSum([BinaryCrossEntropy(), SoftIoULoss()], [1.0, 0.5]),
]
NAMES = [type(loss).__name__ for loss in LOSSES]


@st.composite
def cases(draw):
    shape = draw(hnp.array_shapes(min_dims=3, max_dims=3, max_side=5))
    scores = draw(hnp.arrays(np.float32, shape, elements=st.floats(-8, 8, width=32)))
    masks = draw(hnp.arrays(np.uint8, shape, elements=st.sampled_from([0, 1, 255])))
    return scores, masks


def tensors(scores, masks):
    return torch.from_numpy(scores).unsqueeze(1), torch.from_numpy(masks)


def valid_pixels(scores, masks):
    """For each image, the probability of the object and the target of its valid pixels."""
    for own_scores, mask in zip(scores, masks, strict=True):
        yield [
            (1 / (1 + math.exp(-float(score))), int(target))
            for score, target in zip(own_scores.ravel(), mask.ravel(), strict=True)
            if target != 255
        ]


@given(case=cases())
def test_cross_entropy(case):
    images = []
    for pixels in valid_pixels(*case):
        terms = [-math.log(p if target else 1 - p) for p, target in pixels]
        images.append(sum(terms) / max(1, len(terms)))
    expected = sum(images) / len(images)
    assert binary_cross_entropy(*tensors(*case)).item() == pytest.approx(expected, abs=1e-4)


@given(case=cases(), alpha=st.sampled_from([0.25, 0.5, 0.9]), gamma=st.sampled_from([0, 1, 2]))
def test_normalised_focal_loss(case, alpha, gamma):
    images = []
    for pixels in valid_pixels(*case):
        right = [p if target else 1 - p for p, target in pixels]
        weights = [(1 - q) ** gamma for q in right]
        mean = max(1e-6, sum(weights) / max(1, len(weights)))
        terms = [
            (alpha if target else 1 - alpha) * w / mean * -math.log(q)
            for (_, target), w, q in zip(pixels, weights, right, strict=True)
        ]
        images.append(sum(terms) / max(1, len(terms)))
    expected = sum(images) / len(images)
    got = normalized_focal_loss(*tensors(*case), alpha, gamma).item()
    assert got == pytest.approx(expected, rel=1e-3, abs=1e-4)


@given(case=cases())
def test_soft_iou(case):
    images = []
    for pixels in valid_pixels(*case):
        intersection = sum(p * target for p, target in pixels)
        union = sum(p + target - p * target for p, target in pixels)
        images.append(1 - (intersection + 1) / (union + 1))
    expected = sum(images) / len(images)
    assert soft_iou_loss(*tensors(*case)).item() == pytest.approx(expected, abs=1e-5)


def test_numbers_by_hand():
    logits = torch.tensor([0.0, math.log(3), 50.0]).view(1, 1, 1, 3)
    masks = torch.tensor([[[1, 0, 255]]], dtype=torch.uint8)
    # p = 1/2 of an object and 3/4 of the background
    entropy = (math.log(2) + math.log(4)) / 2
    assert binary_cross_entropy(logits, masks).item() == pytest.approx(entropy)
    weights = 0.25, 0.5625  # of mean 0.40625
    focal = 0.5 * (0.25 * math.log(2) + 0.5625 * math.log(4)) / sum(weights)
    assert normalized_focal_loss(logits, masks).item() == pytest.approx(focal)
    assert soft_iou_loss(logits, masks).item() == pytest.approx(1 - 1.5 / 2.75)


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@given(case=cases(), seed=st.integers(0, 99))
def test_ignored_pixels_do_not_count(loss, case, seed):
    logits, masks = tensors(*case)
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed)) * 20
    other = torch.where((masks == 255).unsqueeze(1), noise, logits).requires_grad_()
    value = loss(other, masks)
    assert value.item() == pytest.approx(loss(logits, masks).item(), abs=1e-6)
    value.backward()
    assert not other.grad[(masks == 255).unsqueeze(1)].any()


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_images_count_alike_whatever_their_valid_pixels(loss):
    logits = torch.randn(2, 1, 6, 7)
    masks = torch.randint(0, 2, (2, 6, 7), dtype=torch.uint8)
    masks[0, 1:] = 255
    each = [loss(logits[i : i + 1], masks[i : i + 1]).item() for i in range(2)]
    assert loss(logits, masks).item() == pytest.approx(sum(each) / 2, rel=1e-5)


@pytest.mark.parametrize("loss", [*LOSSES, NormalizedFocalLoss(gamma=0.5)])
def test_saturated_logits_have_finite_losses_and_gradients(loss):
    logits = torch.tensor([200.0, -200.0, 200.0, -200.0]).view(1, 1, 2, 2).requires_grad_()
    for mask in ([[1, 0], [1, 0]], [[0, 1], [0, 1]], [[255, 255], [255, 255]]):
        logits.grad = None
        value = loss(logits, torch.tensor([mask], dtype=torch.uint8))
        value.backward()
        assert value.isfinite()
        assert logits.grad.isfinite().all()


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_gradient_descent_finds_the_mask(loss):
    mask = torch.tensor([[[1, 1, 0, 255], [0, 1, 0, 0]]], dtype=torch.uint8)
    logits = torch.zeros(1, 1, 2, 4, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=2.0)
    for _ in range(60):
        optimizer.zero_grad()
        loss(logits, mask).backward()
        optimizer.step()
    valid = mask != 255
    assert torch.equal((logits[:, 0] > 0)[valid], (mask == 1)[valid])


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_summed_in_full_precision(loss, dtype):
    logits = torch.randn(1, 1, 64, 64).to(dtype)
    masks = torch.randint(0, 2, (1, 64, 64), dtype=torch.uint8)
    assert loss(logits, masks).dtype == torch.float32
    assert torch.equal(loss(logits, masks), loss(logits.float(), masks))


def test_focal_loss_without_focus_is_half_the_cross_entropy():
    logits = torch.randn(2, 1, 5, 5)
    masks = torch.randint(0, 2, (2, 5, 5), dtype=torch.uint8)
    focal = NormalizedFocalLoss(alpha=0.5, gamma=0.0)(logits, masks)
    assert focal.item() == pytest.approx(0.5 * binary_cross_entropy(logits, masks).item())


def test_weighted_sum():
    logits, masks = torch.randn(1, 1, 4, 4), torch.ones(1, 4, 4, dtype=torch.uint8)
    terms = [BinaryCrossEntropy(), SoftIoULoss()]
    a, b = (term(logits, masks).item() for term in terms)
    assert WeightedSum(terms)(logits, masks).item() == pytest.approx(a + b)
    assert WeightedSum(terms, [2.0, 0.5])(logits, masks).item() == pytest.approx(2 * a + 0.5 * b)


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 2, 4, 5), (2, 1, 5, 4), (1, 1, 4, 5)])
def test_shapes_that_do_not_fit_are_refused(loss, shape):
    with pytest.raises(ValueError, match=r"\(B, 1, H, W\) and masks \(B, H, W\)") as caught:
        loss(torch.zeros(shape), torch.zeros(2, 4, 5, dtype=torch.uint8))
    assert str(tuple(shape)) in str(caught.value)
    assert "(2, 4, 5)" in str(caught.value)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"0 < alpha < 1.*alpha=1"):
        NormalizedFocalLoss(alpha=1)
    with pytest.raises(ValueError, match=r"gamma >= 0.*gamma=-1"):
        NormalizedFocalLoss(gamma=-1)
    with pytest.raises(ValueError, match="one weight per loss, got 1 for 2"):
        WeightedSum([BinaryCrossEntropy(), SoftIoULoss()], [1.0])
    with pytest.raises(ValueError, match="at least one loss"):
        WeightedSum([])
