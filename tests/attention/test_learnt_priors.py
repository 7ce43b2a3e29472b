"""Priors of the probabilistic layer that are learnt, and values that propagate through it."""

import math

import torch
from torch import Tensor

from probseg.attention import ProbabilisticAttention2d
from probseg.attention.base import POSITIONS
from probseg.errors import UnknownNameError
from probseg.ops.axial import from_lines, to_lines
from support.network_cases import draw
from support.refusals import refused
from support.rows import each

PROPAGATES = {"value_precision": 0.5, "propagation_iterations": 1, "value_prior": 0.1}
VIEWS = [{"axis": "full"}, {"axis": "height"}, {"axis": "width"}, {"axis": "width", "span": 3}]

TIED = [(None, "uniform")]  # position embeddings need a prior that follows the keys
TIED += [(p, prior) for p in (None, *POSITIONS) for prior in ("magnitude", "key_magnitude")]


def build(**options: object) -> ProbabilisticAttention2d:
    torch.manual_seed(0)
    options = {"num_heads": 2, "head_channels": 4, **options}
    return ProbabilisticAttention2d(8, 6, **options)


def click(row: int, column: int) -> Tensor:
    mask = torch.zeros(1, 4, 5, dtype=torch.bool)
    mask[0, row, column] = True
    return mask


def test_each_head_follows_its_own_prior():
    layer = build(learn_priors=True, key_prior=0.3, log_prior="key_magnitude", **PROPAGATES)
    features, values = draw(1, 8, 4, 5), draw(1, 6, 4, 5, seed=1)
    for parameter in (layer.log_key_prior, layer.log_value_prior):
        before = layer(features, None, values, click(1, 2))
        with torch.no_grad():
            parameter[1] += 2.0
        after = layer(features, None, values, click(1, 2))
        changed = (after - before).abs().amax((0, 2, 3)) > 1e-5
        assert changed.tolist() == [False] * 3 + [True] * 3


ADAPT = {
    "key_prior": 0.3,
    "key_precision_prior": (2.0, 1.5),
    "value_precision_prior": (3.0, 0.7),
    "weight_prior": 1.5,
    **PROPAGATES,
}


@each("view", VIEWS)
def test_precisions_and_weights_start_with_the_fixed_ones_and_learn(view):
    """Eqs. 36 to 38 with priors that are learnt, and learnt alpha, beta and log pi (§3.7, §3.4)."""
    learnt = build(
        learn_priors=True, learn_precisions=True, log_prior="learnt", **ADAPT, **view
    ).double()
    fixed = build(log_prior="uniform", **ADAPT, **view).double()
    features, values = draw(1, 8, 4, 5).double(), draw(1, 6, 4, 5, seed=1).double()
    clicked = (features, None, values, click(1, 2))
    for arguments in ((features,), clicked):
        torch.testing.assert_close(learnt(*arguments), fixed(*arguments), rtol=1e-7, atol=1e-7)
    learnt(*clicked).square().sum().backward()
    gradients = {name: own.grad for name, own in learnt.named_parameters()}
    idle = [name for name, own in gradients.items() if own is None or not own.any()]
    assert not idle
    assert len(learnt.state_dict()) == 3 + 1 + 3 + 4 + 2


def test_learnt_weights_are_a_prior_over_the_units():
    layer = build(log_prior="learnt", key_iterations=0).double()
    torch.nn.init.normal_(layer.log_weights.weight)
    features = draw(2, 8, 4, 5).double()
    q, k, v, log_pi = (
        torch.einsum("oi,bihw->bohw", part.weight[:, :, 0, 0], features).unflatten(1, (2, -1))
        for part in (layer.query, layer.key, layer.value, layer.log_weights)
    )
    q, k, v, log_pi = (x.flatten(3).mT for x in (q, k, v, log_pi))  # (B, G, N, C)
    distance = (q[:, :, :, None] - k[:, :, None]).square().sum(-1)
    w = (log_pi.mT - distance / 2 / 4**0.5).softmax(-1)
    torch.testing.assert_close(layer(features), (w @ v).mT.reshape(2, 6, 4, 5))
    refused(ValueError, lambda: layer.posterior(features), "learnt")


@each("view", VIEWS[:3])
def test_the_posterior_over_edges_has_adapted_precisions(view):
    options = {"key_precision_prior": (2.0, 1.5), "log_prior": "key_magnitude", **view}
    layer = build(learn_precisions=True, key_prior=0.3, **options).double()
    torch.nn.init.constant_(layer.log_query_precision, 0.4)
    features = draw(1, 8, 4, 5).double()
    values = to_lines(layer.projected(features, None)[2], layer.axis)
    read = layer.posterior(features).expect(values)
    # Per-unit alpha: the read-out weighs by responsibility alone, as beta is the same for all.
    torch.testing.assert_close(from_lines(read, layer.axis, 4, 5).flatten(1, 2), layer(features))


@each("rate", [1.0, 1e6])
@each("sign", [-1.0, 1.0])
def test_they_stay_positive_however_large_the_steps(rate, sign):
    layer = build(learn_priors=True, key_prior=0.3, **PROPAGATES)
    features, values = draw(1, 8, 4, 5), draw(1, 6, 4, 5, seed=1)
    priors = [layer.log_key_prior, layer.log_value_prior]
    optimizer = torch.optim.SGD(priors, lr=rate)
    start = [prior.detach().clone() for prior in priors]
    for _ in range(4):
        optimizer.zero_grad()
        (sign * layer(features, None, values, click(1, 2)).square().sum()).backward()
        optimizer.step()
        assert all(prior.isfinite().all() for prior in priors)
        assert layer(features, None, values, click(1, 2)).isfinite().all()
        settings = layer.inference()
        for update in (settings.key_adaptation, settings.value_propagation):
            assert (update.prior_precision > 0).all()
    for prior, first in zip(priors, start, strict=True):
        assert (prior - first).abs().max() > 0.1


FIXED = draw(1, 6, 4, 5)


def forward(fixed_values=None, fixed_mask=None, **options):
    return lambda: build(**options)(draw(1, 8, 4, 5), None, fixed_values, fixed_mask)


def test_wrong_arguments_are_named():
    mask, partial_values = click(1, 1), {**PROPAGATES, "value_prior": 0.0}
    for error, call, *parts in (
        (ValueError, forward(learn_priors=True), "key_prior"),
        (ValueError, forward(learn_priors=True, key_prior=0.3, **partial_values), "value_prior"),
        (ValueError, forward(learn_priors=True, **{**ADAPT, "weight_prior": 1.0}), "above 1"),
        (ValueError, forward(propagation_iterations=1), "value_precision"),
        (ValueError, forward(log_prior="uniform", position="full"), "`log_prior`"),
        (ValueError, forward(log_prior="learnt", position="full"), "`log_prior`"),
        (ValueError, forward(position="full", **ADAPT), "`dirichlet_prior`"),
        (UnknownNameError, forward(log_prior="magnitud"), "unknown log prior 'magnitud'"),
        (UnknownNameError, forward(propagation_given="querys", **PROPAGATES), "'queries'"),
        (ValueError, forward(FIXED, mask, value_precision=0.5), "propagat"),
        (ValueError, forward(None, mask, **PROPAGATES), "`fixed_values` and `fixed_mask`"),
        (ValueError, forward(FIXED, None, **PROPAGATES), "`fixed_values` and `fixed_mask`"),
        (ValueError, forward(FIXED[..., :4], mask, **PROPAGATES), "fixed_values"),
        (ValueError, forward(FIXED[:, :4], mask, **PROPAGATES), "fixed_values"),
        (ValueError, forward(FIXED, mask[..., :4], **PROPAGATES), "fixed_mask"),
    ):
        refused(error, call, *parts)


@each(
    ("view", "position", "log_prior"),
    [(VIEWS[i % len(VIEWS)], *tied) for i, tied in enumerate(TIED)] + [(VIEWS[3], *TIED[0])],
)
def test_fixed_values_reach_the_pixels_in_sight(view, position, log_prior):
    layer = build(position=position, log_prior=log_prior, **PROPAGATES, **view)
    features = draw(1, 8, 4, 5)
    plain = layer(features)
    fixed = plain.detach() + 6.0
    output = layer(features, None, fixed, click(2, 1))
    changed = (output - plain).abs().amax((0, 1)) > 1e-6
    expected = torch.zeros(4, 5, dtype=torch.bool)
    if view["axis"] == "full":
        expected[:] = True
    elif view["axis"] == "height":
        expected[:, 1] = True
    else:
        expected[2] = True
        if "span" in view:  # units at most one away move; they are read at most two away
            expected[2, 4] = False
    assert torch.equal(changed, expected)
    if log_prior == "magnitude":  # units with large values are favoured, near and far
        return
    towards = (output - plain) * (fixed[:, :, 2, 1] - plain.detach()[:, :, 2, 1])[..., None, None]
    assert (towards.sum(1)[0][expected] > 0).all()


def test_fixed_values_are_read_where_they_are_fixed():
    layer = build(**PROPAGATES)
    features, fixed = draw(1, 8, 4, 5), draw(1, 6, 4, 5, seed=1)
    other = fixed.clone()
    other[0, :, ~click(2, 1)[0]] = math.nan
    wanted = layer(features, None, fixed, click(2, 1))
    assert torch.equal(layer(features, None, other, click(2, 1)), wanted)
    with_grad = fixed.clone().requires_grad_()
    layer(features, None, with_grad, click(2, 1)).sum().backward()
    assert torch.equal((with_grad.grad != 0).any(1), click(2, 1))


def test_heads_take_their_part_of_the_fixed_values():
    layer = build(log_prior="uniform", **PROPAGATES)
    features, plain = draw(1, 8, 4, 5), draw(1, 6, 4, 5, seed=1)
    changed = plain.clone()
    changed[:, 3:] += 5.0
    difference = layer(features, None, changed, click(2, 1)) - layer(
        features, None, plain, click(2, 1)
    )
    assert (difference[:, :3] == 0).all()
    assert difference[:, 3:].abs().max() > 0.05


def test_fixed_values_under_autocast():
    """Projections give half precision there; what a user fixed is float32 as ever."""
    layer = build(**PROPAGATES)
    features, fixed = draw(1, 8, 4, 5), draw(1, 6, 4, 5, seed=1)
    exact = layer(features, None, fixed, click(2, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(features, None, fixed, click(2, 1))
    assert (half - exact).norm() / exact.norm() < 3e-2
