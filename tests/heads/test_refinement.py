"""Refinement of logits by what units of like colour, place and features say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probseg.heads import ColourRefinement
from probseg.heads.refinement import _propagated
from probseg.types import FeatureInfo

INPUTS = FeatureInfo((6,), (4,))


def refinement(**arguments):
    torch.manual_seed(0)
    return ColourRefinement(INPUTS, **({"units": 4, "width": 8} | arguments))


def scene(height=32, width=40, batch=1):
    """Logits, image, features and clicks."""
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(batch, 1, height, width, generator=generator),
        torch.randn(batch, 3, height, width, generator=generator),
        torch.randn(batch, 6, -(-height // 4), -(-width // 4), generator=generator),
        (torch.rand(batch, 2, height, width, generator=generator) > 0.97).float(),
    )


def test_it_begins_as_the_identity():
    logits, *rest = scene()
    torch.testing.assert_close(refinement()(logits, *rest), logits)


@given(st.integers(2, 5), st.integers(1, 7), st.integers(1, 7), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_units_say_the_posterior_mean_of_what_was_said(heads, height, width, units):
    generator = np.random.default_rng(heads + 10 * height + 100 * width + 1000 * units)
    posterior = generator.dirichlet(np.ones(units), size=(1, heads, height * width))
    said = generator.random((1, 3, height, width))
    told = _propagated(torch.from_numpy(posterior), torch.from_numpy(said)).numpy()
    flat = said[0].reshape(3, -1)
    for head in range(heads):
        weights = posterior[0, head]  # (N, M)
        for place in range(height * width):
            read = np.zeros(3)
            for unit in range(units):
                share = weights[:, unit] / weights[:, unit].sum()
                read += weights[place, unit] * (flat * share).sum(axis=1)
            found = told[0, 3 * head : 3 * head + 3].reshape(3, -1)[:, place]
            kept = min(max(read[0], 0.01), 0.99)
            assert found[0] == pytest.approx(np.log(kept / (1 - kept)), abs=1e-9)
            assert found[1:] == pytest.approx(np.sqrt(read[1:] + 1e-4), abs=1e-9)


def halves():
    """Two colours, left and right of a column, and logits that know nothing."""
    image = torch.full((1, 3, 32, 64), -1.5)
    image[..., 40:] = 1.5
    return torch.zeros(1, 1, 32, 64), image, torch.zeros(1, 6, 8, 16)


def told(module, logits, image, features, clicks):
    """Return what is given to the convolutions: logits, what 3 heads say, colours, clicks."""
    seen = []
    module.fine.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    with torch.no_grad():
        module(logits, image, features, clicks)
    return seen[0]


def test_a_click_speaks_for_its_colour_in_the_head_of_colours_alone():
    clicks = torch.zeros(1, 2, 32, 64)
    clicks[0, 0, :8, :8] = 1  # on the left colour, at its corner
    seen = told(refinement(), *halves(), clicks)
    odds, positive, negative = seen[0, 1:4]
    far, other = (28, 34), (28, 60)  # of the same colour, and of the other
    assert odds[far] > odds[other] + 0.01
    assert positive[far] > positive[other] + 0.1
    assert negative.std() < 1e-6


def test_clicks_of_both_signs_pull_apart_what_logits_say_of_both_colours():
    clicks = torch.zeros(1, 2, 32, 64)
    clicks[0, 0, 10:14, 10:14] = 1
    clicks[0, 1, 10:14, 50:54] = 1
    odds = told(refinement(), *halves(), clicks)[0, 1]
    assert odds[20, 20] > 0.01
    assert odds[20, 60] < -0.01


def test_pixels_that_both_signs_claim_keep_what_logits_say():
    logits, *rest = halves()
    clicks = torch.ones(1, 2, 32, 64)
    odds = told(refinement(), logits + 2, *rest, clicks)[0, 1]
    torch.testing.assert_close(odds, torch.full_like(odds, 2.0), atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [(32, 40), (33, 41), (7, 50), (3, 3)])
def test_sizes_need_not_be_whole_cells(size):
    assert refinement()(*scene(*size)).shape == (1, 1, *size)


def trained(**arguments):
    """A refinement that does something, in evaluation mode."""
    module = refinement(**arguments)
    torch.nn.init.normal_(module.correction.weight)
    return module.eval()


def test_images_of_a_batch_do_not_see_each_other():
    module = trained()
    batch = scene(batch=3)
    together = module(*batch)
    alone = torch.cat([module(*(part[n : n + 1] for part in batch)) for n in range(3)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_half_precision_gives_nearly_the_same():
    module = trained()
    batch = scene()
    with torch.autocast("cpu", torch.bfloat16):
        half = module(*batch)
    full = module(*batch)
    assert (half - full).abs().max() < 0.05 * full.abs().max()


def test_all_that_is_learnt_gets_a_gradient():
    module = trained().train()
    logits, image, features, clicks = scene(batch=2)
    logits.requires_grad_()
    features.requires_grad_()
    module(logits, image, features, clicks).square().mean().backward()
    for name, tensor in (*module.named_parameters(), ("logits", logits), ("features", features)):
        assert tensor.grad is not None, name
        assert tensor.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    "name", ["units", "key_iterations", "feature_channels", "channels", "width", "stride"]
)
def test_numbers_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        ColourRefinement(INPUTS, **{name: 0})
