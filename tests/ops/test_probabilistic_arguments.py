"""Wrong arguments of probabilistic_attention and of its updates are named."""

from math import inf, nan

import pytest
import torch

from probseg.errors import UnknownNameError
from probseg.ops import (
    DirichletPrior,
    FactoredPosition,
    GammaPrior,
    InferenceSettings,
    KeyAdaptation,
    ValuePropagation,
    probabilistic_attention,
)
from support.rows import each

X = torch.zeros(2, 1, 4, 3)
CLICKS = torch.zeros(2, 4, dtype=torch.bool)
FIXED = {"fixed_values": X, "fixed_mask": CLICKS}
PROPAGATE = {"value_propagation": ValuePropagation(), "value_precision": 0.1}
POSITION = {"position": FactoredPosition(torch.zeros(3, 3), torch.zeros(3, 3))}


def propagating(*arguments, **options):
    return {**PROPAGATE, **FIXED, "value_propagation": ValuePropagation(*arguments, **options)}


WRONG = [
    ({"query_precision": 0.0}, ValueError, "query_precision"),
    ({"query_precision": inf}, ValueError, "query_precision"),
    ({"query_precision": torch.ones(3)}, ValueError, r"`query_precision` .*\(2, 1, 4\)"),
    ({"value_precision": -1.0}, ValueError, "value_precision"),
    ({"value_precision": torch.ones(1, 2, 1, 4)}, ValueError, "value_precision"),
    ({"log_prior": "magnitud"}, UnknownNameError, "log prior.*'magnitude'"),
    ({"log_prior": torch.zeros(3)}, ValueError, "log_prior"),
    ({"log_prior": None}, TypeError, "log_prior"),
    ({"log_mask": torch.zeros(3, 4)}, ValueError, "log_mask"),
    ({"log_mask": torch.ones(4, 4, dtype=torch.bool)}, TypeError, "log_mask"),
    ({"value_iterations": 0}, ValueError, "value_iterations"),
    ({"initial_values": X[..., :2]}, ValueError, "initial_values"),
    ({"initial_values": X.half()}, TypeError, "initial_values"),
    ({"fixed_values": X}, ValueError, "belong together"),
    ({"fixed_mask": CLICKS}, ValueError, "belong together"),
    (FIXED, ValueError, "value_propagation"),
    ({"clamp_fixed": True}, ValueError, "fixed_values"),
    (PROPAGATE, ValueError, "fixed_values"),
    ({**FIXED, "value_propagation": ValuePropagation()}, ValueError, "value_precision"),
    ({**PROPAGATE, **FIXED, "fixed_mask": CLICKS[:1]}, ValueError, r"`fixed_mask` .*\(2, 4\)"),
    ({**PROPAGATE, **FIXED, "fixed_mask": CLICKS.float()}, TypeError, "fixed_mask"),
    ({**PROPAGATE, **FIXED, "fixed_values": X[..., :1]}, ValueError, "fixed_values"),
    ({"backend": "fast"}, UnknownNameError, "backend"),
    ({"keys": X[:, :, :0], "values": X[:, :, :0]}, ValueError, "keys"),
    ({**POSITION, "log_prior": "uniform"}, ValueError, "log_prior"),
    ({**POSITION, "log_prior": torch.zeros(4)}, ValueError, "log_prior"),
    (
        {**POSITION, **propagating(dirichlet_prior=DirichletPrior(2.0))},
        ValueError,
        "dirichlet_prior",
    ),
    # Tensors of updates
    (
        {"key_adaptation": KeyAdaptation(1, torch.ones(3))},
        ValueError,
        r"`KeyAdaptation.prior_precision` .*\(2, 1, 4\)",
    ),
    (
        {"key_adaptation": KeyAdaptation(precision_prior=GammaPrior(1.0, torch.ones(1, 1, 1, 4)))},
        ValueError,
        r"`KeyAdaptation.precision_prior.rate` .*\(2, 1, 4\)",
    ),
    (propagating(1, torch.ones(2, 3, 4)), ValueError, "ValuePropagation.prior_precision"),
    (
        propagating(precision_prior=GammaPrior(torch.ones(5, 4), 1.0)),
        ValueError,
        "ValuePropagation.precision_prior.shape",
    ),
    (
        propagating(dirichlet_prior=DirichletPrior(torch.ones(5))),
        ValueError,
        "ValuePropagation.dirichlet_prior.concentration",
    ),
]


@each(("options", "error", "message"), WRONG)
def test_wrong_arguments_are_named(options, error, message):
    with pytest.raises(error, match=message):
        probabilistic_attention(**{"queries": X, "keys": X, "values": X, **options})


WRONG_SETTINGS = [
    (GammaPrior, (0.9, 1.0), "GammaPrior.shape"),
    (GammaPrior, (inf, 1.0), "GammaPrior.shape"),
    (GammaPrior, (nan, 1.0), "GammaPrior.shape"),
    (GammaPrior, (1.0, 0.0), "GammaPrior.rate"),
    (GammaPrior, (1.0, inf), "GammaPrior.rate"),
    (DirichletPrior, (0.5,), "DirichletPrior.concentration"),
    (DirichletPrior, (nan,), "DirichletPrior.concentration"),
    (KeyAdaptation, (-1,), "KeyAdaptation.iterations"),
    (KeyAdaptation, (1, inf), "KeyAdaptation.prior_precision"),
    (ValuePropagation, (-1,), "ValuePropagation.iterations"),
    (ValuePropagation, (1, -0.5), "ValuePropagation.prior_precision"),
    (ValuePropagation, (1, 0.5, "initail"), "ValuePropagation.prior_mean.*'initial'"),
    (InferenceSettings, (None, 0.0, "magnitud"), "log prior.*'magnitude'"),
    (InferenceSettings, (None, 0.0, "uniform", 0), "value_iterations"),
]


@each(("kind", "arguments", "message"), WRONG_SETTINGS)
def test_wrong_settings_are_named(kind, arguments, message):
    with pytest.raises((ValueError, UnknownNameError), match=message):
        kind(*arguments)
