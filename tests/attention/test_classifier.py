"""The classifier that adapts to clicks."""

import pytest
import torch
from scipy.optimize import minimize

from probseg.attention import AdaptiveClassifier, ClickAdaptation


def build(iterations=3, prior=2.0, channels=4):
    torch.manual_seed(0)
    return AdaptiveClassifier(channels, ClickAdaptation(iterations, prior)).double()


def drawn(batch=2):
    features = torch.randn(batch, 4, 5, 6, generator=torch.Generator().manual_seed(0)).double()
    clicks = torch.zeros(batch, 2, 20, 24)
    clicks[0, 0, 4:8, 4:12] = 1  # two whole cells
    clicks[0, 1, 8:10, 12:16] = 1  # half a cell
    clicks[-1, 1, :4, :4] = 1
    return features, clicks


def convolution(layer, features):
    return torch.nn.functional.conv2d(features, layer.weight, layer.bias)


def test_without_clicks_or_iterations_it_is_the_convolution():
    features, clicks = drawn()
    layer = build()
    plain = convolution(layer, features)
    assert torch.equal(layer(features), plain)
    assert torch.equal(layer(features, torch.zeros_like(clicks)), plain)
    assert torch.equal(build(iterations=0)(features, clicks), plain)
    only_first = torch.cat([clicks[:1], torch.zeros_like(clicks[1:])])
    assert torch.allclose(layer(features, only_first)[1], plain[1])


def test_factors_of_the_contributions_are_at_the_posterior_mode():
    """Against the definition: factors around 1, a shift around 0, and the clicked cells."""
    features, clicks = drawn(batch=1)
    layer = build(iterations=500)
    weight, bias = layer.weight.detach().flatten(), layer.bias.detach()
    cells = [(1, 1, 1.0, 0.0), (1, 2, 1.0, 0.0), (2, 3, 0.0, 0.5), (0, 0, 0.0, 1.0)]

    def logits(unknown, at):
        factors, shift = unknown[:4], unknown[4]
        return (factors * weight * at).sum() + bias + shift * weight.norm()

    def loss(unknown):
        unknown = torch.tensor(unknown, requires_grad=True)
        total = ((unknown[:4] - 1).square().sum() + unknown[4] ** 2) * 2.0 / 2
        for row, column, positive, negative in cells:
            z = logits(unknown, features[0, :, row, column])
            total = total - positive * torch.nn.functional.logsigmoid(z).sum()
            total = total - negative * torch.nn.functional.logsigmoid(-z).sum()
        total.backward()
        return total.item(), unknown.grad.numpy()

    best = minimize(loss, [1.0, 1.0, 1.0, 1.0, 0.0], jac=True, options={"gtol": 1e-9})
    unknown = torch.tensor(best.x)
    expected = [[logits(unknown, features[0, :, y, x]).item() for x in range(6)] for y in range(5)]
    assert torch.allclose(layer(features, clicks)[0, 0], torch.tensor(expected).double(), atol=1e-6)


def test_a_clicked_cell_moves_to_its_side_and_more_so_with_a_weaker_prior():
    features, clicks = drawn()
    clicks[:] = 0
    clicks[0, 0, 4:8, 4:8] = clicks[1, 1, 8:12, 4:8] = 1
    plain = convolution(build(), features)
    strong, weak = (build(prior=prior)(features, clicks) - plain for prior in (100.0, 1.0))
    assert 0 < strong[0, 0, 1, 1] < weak[0, 0, 1, 1]
    assert 0 > strong[1, 0, 2, 1] > weak[1, 0, 2, 1]


def test_images_do_not_see_each_other():
    features, clicks = drawn()
    together = build()(features, clicks)
    alone = torch.cat([build()(features[n : n + 1], clicks[n : n + 1]) for n in range(2)])
    assert torch.allclose(together, alone, rtol=1e-10)


def test_gradients():
    features, clicks = drawn()
    layer = build()
    names = ("weight", "bias")

    def function(features, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, given, (features, clicks))

    inputs = (features, layer.weight.detach(), layer.bias.detach())
    assert torch.autograd.gradcheck(function, [one.requires_grad_() for one in inputs])


@pytest.mark.parametrize("wrong", [{"iterations": -1}, {"prior_precision": 0.0}])
def test_settings_out_of_range(wrong):
    with pytest.raises(ValueError, match=f"^`{next(iter(wrong))}` must"):
        ClickAdaptation(**wrong)
