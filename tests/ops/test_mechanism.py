"""The whole of probabilistic_attention: gradients, backends, symmetries and known limits."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from probseg.ops import BackendError, probabilistic_attention
from support.mechanisms import Mechanism, mechanisms, results, tensors_of, with_tensors
from support.ops_cases import draw, tiles_of
from support.rows import each

# --- Gradients ---

EVERYTHING = Mechanism(
    (1, 2, 3, 3),
    (2, 2),
    "key_magnitude",
    "heads",
    "heads",
    "tensor",
    "tensor",
    "tensor",
    fixed="all",
    initial=True,
    masked=True,
)
GRADIENTS = {
    "chunked, named": ("chunked", EVERYTHING),
    "reference, pairs": ("reference", replace(EVERYTHING, prior="full", alpha="scalar")),
    "reference, several": (
        "reference",
        replace(EVERYTHING, prior="several", mean="previous", beta="scalar"),
    ),
    "chunked, distance": ("chunked", replace(EVERYTHING, prior="distance", seed=1)),
    "sdpa, keys": ("sdpa", replace(EVERYTHING, prior="heads", iterations=(2, -1, 2))),
    "sdpa, one fixed": ("sdpa", replace(EVERYTHING, prior="magnitude", fixed="one")),
    "sdpa, all fixed": ("sdpa", replace(EVERYTHING, prior="heads", dirichlet="none")),
    "chunked, many fixed": (
        "chunked",
        replace(EVERYTHING, sizes=(1, 1, 5, 3), channels=(2, 1), iterations=(-1, 3, 1)),
    ),
    "chunked, tied": (
        "chunked",
        replace(
            EVERYTHING,
            prior="magnitude",
            mean="previous",
            dirichlet="none",
            theta=0.0,
            given="queries",
        ),
    ),
    "reference, ragged": ("reference", replace(EVERYTHING, sizes=(2, 1, 3, 2), fixed="ragged")),
    "chunked, one query": ("chunked", replace(EVERYTHING, sizes=(1, 1, 1, 3), prior="magnitude")),
    "reference, one unit": ("reference", replace(EVERYTHING, sizes=(1, 1, 3, 1), masked=False)),
}


@pytest.mark.parametrize(("backend", "mechanism"), GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_of_all_tensors_are_those_of_finite_differences(backend, mechanism):
    arguments = mechanism.arguments()
    mask = arguments.pop("log_mask", None)
    leaves = [tensor.requires_grad_() for tensor in tensors_of(arguments)]
    if mechanism is EVERYTHING:
        # Three tensors, five of precisions and their priors, theta twice, the concentration, the
        # start and the fixed values.
        assert len(leaves) == 3 + 6 + 2 + 1 + 2

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        call = with_tensors(arguments, tensors)
        result = probabilistic_attention(**call, log_mask=mask, backend=backend)
        found = results(result)
        found["log_evidence"] = found["log_evidence"].where(found["log_evidence"].isfinite(), 0.0)
        return tuple(tensor for tensor in found.values() if tensor.requires_grad)

    assert gradcheck(run, leaves, fast_mode=mechanism is not EVERYTHING)


# --- Backends ---


def sdpa_reasons(case: Mechanism, gradients: bool) -> set[str]:
    """What the documentation of the backend says that it cannot do, as far as it applies.

    The backend is that of the passes over all pairs: the fixed tokens give it no reason.
    """
    reasons = set()
    keys, values, _ = case.iterations
    if case.dirichlet != "none" and values > 0 and keys < 1:
        return reasons  # the weights take the place of the prior before all pairs are visited
    if case.prior in ("distance", "several"):
        reasons.add("cannot compute the pairs of a DistancePrior")
    if case.prior in ("pair", "full") and case.sizes[2] > 1 and gradients:
        reasons.add("no gradient to a log prior of pairs")
    return reasons


@given(
    mechanisms(gamma="float", theta="tensor", dirichlet="float")
    | mechanisms(gamma="none", theta=0.7, dirichlet="none"),
    st.sampled_from(["chunked", "sdpa", "auto"]),
    st.booleans(),
)
def test_backends_agree_or_refuse_for_a_documented_reason(case, backend, gradients):
    found = []
    for name in ("reference", backend):
        arguments = case.arguments()
        mask = arguments.pop("log_mask", None)
        leaves = [tensor.requires_grad_(gradients) for tensor in tensors_of(arguments)]
        arguments = {**with_tensors(arguments, leaves), "log_mask": mask, "backend": name}
        reasons = sdpa_reasons(case, gradients) if name == "sdpa" else set()
        if reasons:
            with pytest.raises(BackendError, match="|".join(reasons)):
                probabilistic_attention(**arguments)
            return
        with tiles_of(8):
            result = probabilistic_attention(**arguments)
        outputs = results(result)
        found.append(list(outputs.values()))
        if gradients:
            tracked = [o.where(o.isfinite(), 0.0) for o in outputs.values() if o.requires_grad]
            upstream = [draw(*o.shape, seed=i) for i, o in enumerate(tracked)]
            found[-1] += torch.autograd.grad(
                tracked, leaves, upstream, allow_unused=True, materialize_grads=True
            )
    torch.testing.assert_close(found[1], found[0], rtol=1e-7, atol=1e-8)
    assert all(not tensor.isnan().any() for tensor in found[0])


# --- Mechanisms that it contains ---

BACKENDS = ("reference", "chunked", "sdpa", "auto")


@pytest.mark.parametrize("backend", BACKENDS)
@each(("n", "m"), [(1, 1), (1, 5), (7, 1), (37, 53), (300, 300)])
def test_defaults_are_standard_attention_in_single_precision(n, m, backend):
    q, k, v = (draw(2, 3, s, 16, seed=i).float() for i, s in enumerate((n, m, m)))
    wanted = F.scaled_dot_product_attention(q, k, v)
    result = probabilistic_attention(q, k, v, backend=backend)
    torch.testing.assert_close(result.values, wanted, rtol=0, atol=2e-6)
