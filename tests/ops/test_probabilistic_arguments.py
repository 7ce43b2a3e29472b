"""Wrong arguments of probabilistic_attention and of its updates are named."""

from math import inf, nan

import pytest
import torch

from probseg.errors import UnknownNameError
from probseg.ops import (
    DirichletPrior,
    FactoredPosition,
    GammaPrior,
    KeyAdaptation,
    ValuePropagation,
    probabilistic_attention,
)

X = torch.zeros(2, 1, 4, 3)
CLICKS = torch.zeros(2, 4, dtype=torch.bool)
PROPAGATE = {"value_propagation": ValuePropagation(), "value_precision": 0.1}
WRONG = [
    ({"query_precision": 0.0}, ValueError, "query_precision must be finite and above 0, got 0.0"),
    ({"query_precision": inf}, ValueError, "query_precision must be finite"),
    (
        {"query_precision": torch.ones(3)},
        ValueError,
        r"query_precision must broadcast.*\(2, 1, 4\)",
    ),
    ({"value_precision": -1.0}, ValueError, "value_precision must be finite and 0 or more"),
    ({"value_precision": torch.ones(1, 2, 1, 4)}, ValueError, "value_precision must broadcast"),
    ({"log_prior": "magnitud"}, UnknownNameError, "unknown log prior.*'magnitude'"),
    ({"log_prior": torch.zeros(3)}, ValueError, r"log_prior must have shape \(M,\)"),
    ({"log_mask": torch.zeros(3, 4)}, ValueError, r"log_mask must have shape"),
    ({"log_mask": torch.ones(4, 4, dtype=torch.bool)}, TypeError, "log_mask must be floating"),
    ({"log_prior": None}, TypeError, "log_prior must be one of .*'uniform'.* got None"),
    ({"value_iterations": 0}, ValueError, "value_iterations must be at least 1"),
    ({"initial_values": X[..., :2]}, ValueError, r"initial_values must have shape \(B, G, N, V\)"),
    ({"initial_values": X.half()}, TypeError, "initial_values must have the dtype"),
    ({"fixed_values": X}, ValueError, "belong together"),
    ({"fixed_mask": CLICKS}, ValueError, "belong together"),
    ({"fixed_values": X, "fixed_mask": CLICKS}, ValueError, "no effect without value_propagation"),
    ({"clamp_fixed": True}, ValueError, "need fixed_values and fixed_mask"),
    (PROPAGATE, ValueError, "need fixed_values and fixed_mask"),
    (
        {"value_propagation": ValuePropagation(), "fixed_values": X, "fixed_mask": CLICKS},
        ValueError,
        "needs a value_precision above 0",
    ),
    (
        {**PROPAGATE, "fixed_values": X, "fixed_mask": CLICKS[:1]},
        ValueError,
        r"fixed_mask must have shape \(B, N\) = \(2, 4\), got \(1, 4\)",
    ),
    (
        {**PROPAGATE, "fixed_values": X, "fixed_mask": CLICKS.float()},
        TypeError,
        "fixed_mask must be bool",
    ),
    (
        {**PROPAGATE, "fixed_values": X[..., :1], "fixed_mask": CLICKS},
        ValueError,
        r"fixed_values must have shape",
    ),
    ({"backend": "fast"}, UnknownNameError, "unknown backend"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_wrong_arguments_are_named(options, error, message):
    with pytest.raises(error, match=message):
        probabilistic_attention(X, X, X, **options)


WRONG_TENSORS = [
    (KeyAdaptation(1, torch.ones(3)), "KeyAdaptation.prior_precision"),
    (ValuePropagation(1, torch.ones(2, 3, 4)), "ValuePropagation.prior_precision"),
    (
        KeyAdaptation(precision_prior=GammaPrior(torch.ones(3), 1.0)),
        "KeyAdaptation.precision_prior.shape",
    ),
    (
        KeyAdaptation(precision_prior=GammaPrior(1.0, torch.ones(1, 1, 1, 4))),
        "KeyAdaptation.precision_prior.rate",
    ),
    (
        ValuePropagation(precision_prior=GammaPrior(torch.ones(5, 4), 1.0)),
        "ValuePropagation.precision_prior.shape",
    ),
    (
        ValuePropagation(dirichlet_prior=DirichletPrior(torch.ones(5))),
        "ValuePropagation.dirichlet_prior.concentration",
    ),
]


@pytest.mark.parametrize(("update", "field"), WRONG_TENSORS)
def test_tensors_of_a_wrong_shape_are_named(update, field):
    options = {"key_adaptation": update}
    if isinstance(update, ValuePropagation):
        options = {
            "value_propagation": update,
            "value_precision": 0.1,
            "fixed_values": X,
            "fixed_mask": CLICKS,
        }
    with pytest.raises(ValueError, match=rf"{field} must broadcast to \(B, G, M\) = \(2, 1, 4\)"):
        probabilistic_attention(X, X, X, **options)


@pytest.mark.parametrize("prior", ["uniform", torch.zeros(4)])
def test_position_embeddings_need_a_prior_that_follows_the_keys(prior):
    position = FactoredPosition(torch.zeros(3, 3), torch.zeros(3, 3))
    with pytest.raises(ValueError, match="log_prior must be 'magnitude' or 'key_magnitude'"):
        probabilistic_attention(X, X, X, position=position, log_prior=prior)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GammaPrior(0.9, 1.0), "GammaPrior.shape must be finite and at least 1, got 0.9"),
        (lambda: GammaPrior(inf, 1.0), "GammaPrior.shape must be finite and at least 1, got inf"),
        (lambda: GammaPrior(nan, 1.0), "GammaPrior.shape must be finite and at least 1, got nan"),
        (lambda: GammaPrior(1, 0), "GammaPrior.rate must be finite and above 0, got 0"),
        (lambda: GammaPrior(1.0, -1.0), "GammaPrior.rate must be finite and above 0, got -1.0"),
        (lambda: GammaPrior(1.0, inf), "GammaPrior.rate must be finite and above 0, got inf"),
        (lambda: DirichletPrior(0.5), "DirichletPrior.concentration must be finite.*1, got 0.5"),
        (lambda: DirichletPrior(nan), "DirichletPrior.concentration must be finite.*1, got nan"),
    ],
)
def test_wrong_priors_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("update", [KeyAdaptation, ValuePropagation])
def test_wrong_updates_are_named(update):
    with pytest.raises(ValueError, match=f"{update.__name__}.iterations must be 0 or more, got -1"):
        update(-1)
    with pytest.raises(ValueError, match="prior_precision must be finite and not negative"):
        update(1, -0.5)
    with pytest.raises(ValueError, match=r"prior_precision must be finite.*got inf"):
        update(1, inf)
    with pytest.raises(UnknownNameError, match="prior_mean 'initail': did you mean 'initial'"):
        update(1, 0.5, "initail")


def test_queries_need_a_unit():
    nothing = X[:, :, :0]
    with pytest.raises(ValueError, match="keys must be at least one unit"):
        probabilistic_attention(X, nothing, nothing)
