"""Losses against sums written out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probseg.losses import (
    BinaryCrossEntropy,
    NormalizedFocalLoss,
    SoftIoULoss,
    WeightedSum,
    clicked_loss,
    iou_cross_entropy,
    taught_loss,
)
from probseg.losses.binary import binary_cross_entropy, normalized_focal_loss, soft_iou_loss
from probseg.metrics import iou
from probseg.types import Prompts
from support.mask_cases import readable
from support.refusals import refused
from support.rows import each

LOSSES = [
    BinaryCrossEntropy(),
    NormalizedFocalLoss(),
    SoftIoULoss(),
    WeightedSum([BinaryCrossEntropy(), SoftIoULoss()], [1.0, 0.5]),
]


every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)


@st.composite
def cases(draw):
    shape = draw(hnp.array_shapes(min_dims=3, max_dims=3, max_side=5))
    scores = draw(hnp.arrays(np.float32, shape, elements=st.floats(-8, 8, width=32)))
    masks = draw(
        hnp.arrays(np.uint8, shape, elements=st.sampled_from([0, 1, 255])).filter(readable)
    )
    return scores, masks


def tensors(scores, masks):
    return torch.from_numpy(scores).unsqueeze(1), torch.from_numpy(masks)


def mean_over_images(scores, masks, value):
    """Mean of a function of the probabilities and the targets of each image's valid pixels."""
    values = []
    for own_scores, mask in zip(scores.astype(float), masks, strict=True):
        valid = mask != 255
        values.append(value(1 / (1 + np.exp(-own_scores[valid])), mask[valid].astype(float)))
    return np.mean(values)


def mean(values):
    return values.sum() / max(1, values.size)


@given(case=cases())
def test_cross_entropy(case):
    def value(p, target):
        return mean(-np.log(np.where(target, p, 1 - p)))

    expected = mean_over_images(*case, value)
    assert binary_cross_entropy(*tensors(*case)).item() == pytest.approx(expected, abs=1e-4)


@given(case=cases(), alpha=st.sampled_from([0.25, 0.5, 0.9]), gamma=st.sampled_from([0, 1, 2]))
def test_normalised_focal_loss(case, alpha, gamma):
    def value(p, target):
        right = np.where(target, p, 1 - p)
        weights = (1 - right) ** gamma
        balance = np.where(target, alpha, 1 - alpha)
        return mean(balance * weights * -np.log(right)) / (mean(weights) or 1)

    got = normalized_focal_loss(*tensors(*case), alpha, gamma).item()
    assert got == pytest.approx(mean_over_images(*case, value), rel=1e-3, abs=1e-4)


@given(case=cases())
def test_soft_iou(case):
    def value(p, target):
        return 1 - ((p * target).sum() + 1) / ((p + target - p * target).sum() + 1)

    expected = mean_over_images(*case, value)
    assert soft_iou_loss(*tensors(*case)).item() == pytest.approx(expected, abs=1e-5)


def published_focal_loss(logits, masks, gamma):
    """Sofiiuk et al. (2019), Eqs. 8-10, with probabilities of the wrong class from their logits."""
    wrong = torch.sigmoid(torch.where(masks == 1, -logits, logits))
    weights = wrong**gamma
    loss = 0.5 * weights * -torch.log1p(-wrong)
    return (loss.sum(dim=(1, 2)) / weights.sum(dim=(1, 2)).detach()).mean()


@each("gamma", [0.5, 1.0, 2.0])
@each("size", [2.0, 7.5, 10.0, 20.0, 30.0])
@each("mistakes", [0, 3])
def test_the_focal_loss_stays_normalised_on_sure_images(size, gamma, mistakes):
    masks = torch.zeros(2, 9, 8, dtype=torch.uint8)
    masks[:, 2:6, 1:5] = 1
    generator = torch.Generator().manual_seed(0)
    sizes = size * (0.9 + 0.1 * torch.rand(2, 9, 8, generator=generator))
    logits = torch.where(masks == 1, sizes, -sizes)
    logits.view(2, -1)[:, :mistakes] *= -1
    exact = logits.double().requires_grad_()
    wanted = published_focal_loss(exact, masks, gamma)
    wanted.backward()
    logits.requires_grad_()
    got = normalized_focal_loss(logits.unsqueeze(1), masks, gamma=gamma)
    got.backward()
    assert got.item() == pytest.approx(wanted.item(), rel=2e-5)
    torch.testing.assert_close(logits.grad, exact.grad.float(), rtol=1e-4, atol=0)


@every_loss
@given(case=cases(), seed=st.integers(0, 99))
def test_ignored_pixels_do_not_count(loss, case, seed):
    logits, masks = tensors(*case)
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed)) * 20
    other = torch.where((masks == 255).unsqueeze(1), noise, logits).requires_grad_()
    value = loss(other, masks)
    assert value.item() == pytest.approx(loss(logits, masks).item(), abs=1e-6)
    value.backward()
    assert not other.grad[(masks == 255).unsqueeze(1)].any()


@every_loss
def test_images_count_alike_whatever_their_valid_pixels(loss):
    logits = torch.randn(2, 1, 6, 7)
    masks = torch.randint(0, 2, (2, 6, 7), dtype=torch.uint8)
    masks[0, 1:] = 255
    each = [loss(logits[i : i + 1], masks[i : i + 1]).item() for i in range(2)]
    assert loss(logits, masks).item() == pytest.approx(sum(each) / 2, rel=1e-5)


@each("loss", [*LOSSES, NormalizedFocalLoss(gamma=0.5)])
def test_saturated_logits_have_finite_losses_and_gradients(loss):
    logits = torch.tensor([200.0, -200.0, 200.0, -200.0]).view(1, 1, 2, 2).requires_grad_()
    for mask in ([[1, 0], [1, 0]], [[0, 1], [0, 1]], [[255, 255], [255, 255]]):
        logits.grad = None
        value = loss(logits, torch.tensor([mask], dtype=torch.uint8))
        value.backward()
        assert value.isfinite()
        assert logits.grad.isfinite().all()


@every_loss
@each("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_summed_in_full_precision(loss, dtype):
    logits = torch.randn(1, 1, 64, 64).to(dtype)
    masks = torch.randint(0, 2, (1, 64, 64), dtype=torch.uint8)
    assert loss(logits, masks).dtype == torch.float32
    assert torch.equal(loss(logits, masks), loss(logits.float(), masks))


@each("loss", [BinaryCrossEntropy(), NormalizedFocalLoss(gamma=0.0), SoftIoULoss()])
def test_gradients_in_double_precision(loss):
    logits = torch.randn(2, 1, 3, 4, dtype=torch.float64, requires_grad=True)
    masks = torch.randint(0, 2, (2, 3, 4), dtype=torch.uint8)
    assert loss(logits, masks).dtype == torch.float64
    assert torch.autograd.gradcheck(lambda x: loss(x, masks), logits)


@each("loss", [BinaryCrossEntropy(), NormalizedFocalLoss(), SoftIoULoss()])
def test_masks_may_have_a_channel(loss):
    logits, masks = torch.randn(2, 1, 4, 5), torch.randint(2, (2, 4, 5), dtype=torch.uint8)
    assert torch.equal(loss(logits, masks[:, None]), loss(logits, masks))


def test_weighted_sum():
    logits, masks = torch.randn(1, 1, 4, 4), torch.ones(1, 4, 4, dtype=torch.uint8)
    terms = [BinaryCrossEntropy(), SoftIoULoss()]
    a, b = (term(logits, masks).item() for term in terms)
    assert WeightedSum(terms)(logits, masks).item() == pytest.approx(a + b)
    assert WeightedSum(terms, [2.0, 0.5])(logits, masks).item() == pytest.approx(2 * a + 0.5 * b)


def test_wrong_arguments_are_named():
    bce, masks = BinaryCrossEntropy(), torch.zeros(2, 4, 5, dtype=torch.uint8)
    refused(ValueError, lambda: NormalizedFocalLoss(alpha=1), "alpha", 1)
    refused(ValueError, lambda: NormalizedFocalLoss(gamma=-1), "gamma", -1)
    refused(ValueError, lambda: WeightedSum([bce, bce], [1.0]), "weight", 1, 2)
    refused(ValueError, lambda: WeightedSum([]), "losses", "at least one")
    for shape in ((2, 4, 5), (2, 2, 4, 5), (2, 1, 5, 4), (1, 1, 4, 5)):
        for loss in LOSSES:
            refused(ValueError, lambda f=loss, s=shape: f(torch.zeros(s), masks), "logits", shape)


def test_it_is_zero_where_nothing_counts():
    logits = torch.randn(2, 1, 4, 4, requires_grad=True)
    no_clicks = Prompts(torch.zeros(2, 0, 2), torch.zeros(2, 0, dtype=torch.long), torch.ones(2, 4))
    loss = clicked_loss(logits, no_clicks)
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()
    nowhere = torch.zeros(2, 4, 4, dtype=torch.uint8)
    assert iou_cross_entropy(torch.ones(2), -torch.ones(2, 1, 4, 4), nowhere) == (0, 0)


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


def test_what_is_taught_weighs_by_the_difference_to_the_teacher():
    random = np.random.default_rng(0)
    logits, taught = random.normal(0, 2, (3, 1, 4, 5)), random.uniform(0, 1, (3, 1, 4, 5))
    masks = random.choice([0, 1, 255], (3, 4, 5)).astype(np.uint8)
    expected = []
    for scores, target, mask in zip(logits[:, 0], taught[:, 0], masks, strict=True):
        known = mask != 255
        p, target = 1 / (1 + np.exp(-scores[known])), target[known]
        weight = (p - target) ** 2
        entropy = -target * np.log(p) - (1 - target) * np.log(1 - p)
        expected.append((weight * entropy).sum() / weight.sum())
    given = torch.tensor(logits, dtype=torch.float32, requires_grad=True)
    loss = taught_loss(given, torch.tensor(taught), torch.tensor(masks))
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-5)
    loss.backward()
    assert not given.grad[:, 0][torch.tensor(masks) == 255].any()
    same = given.detach().requires_grad_()
    taught_loss(same, same.detach().sigmoid(), torch.tensor(masks)).backward()
    assert not same.grad.any(), "a network that answers as its teacher does has nothing to learn"
