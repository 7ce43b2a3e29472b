"""Predictive coding with prediction errors that are normalised over the edges.

In a predictive coding network (Rao & Ballard, 1999), units of a layer predict those of the layer
below, and latent units descend the free energy of the prediction errors. Here it is not known which
unit a child is predicted by: the free energy marginalises over the edge of each child (Singh &
Buckley, 2023, §5)::

    F = - sum_n log sum_k exp(log_prior_nk - kappa_n/2 |x_n - p_k|²)

so that each error counts by the posterior `w_nk` of its edge, the softmax of the summands. The
paper prints `softmax(-ε²)` with the gradient `k ε`, where `ε² = k (x - p)²`: its squares
lack the factor 1/2 that makes the two consistent. The gradient of F that it prints is
the direction of descent, the gradient's negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Attention2d, Shared
from probseg.errors import check_least, require
from probseg.family.low_rank import BasesEdges
from probseg.ops.attention import LogPrior, assign_checked, attend_checked
from probseg.ops.checks import as_precision, as_terms, check_shape, check_units
from probseg.ops.edges import EdgePosterior
from probseg.ops.numerics import full_precision, working_dtype


class NormalisedErrors(NamedTuple):
    """Prediction errors of a layer, weighted by the posterior over edges.

    Args:
        bottom_up: Message to the predictions, `sum_n w_nk kappa_n (x_n - p_k)`, minus the
            gradient of F with respect to them, `(B, G, M, D)`.
        top_down: Message to the children, `sum_k w_nk kappa_n (x_n - p_k)`, the gradient of F
            with respect to them, `(B, G, N, D)`.
        mass: The precision of the children that each prediction answers for,
            `sum_n w_nk kappa_n`, `(B, G, M)`.
        free_energy: `F`, `(B, G)`.
    """

    bottom_up: Tensor
    top_down: Tensor
    mass: Tensor
    free_energy: Tensor


class Descent(NamedTuple):
    """Free energy of a hierarchy, and its descent directions.

    Args:
        directions: Minus the gradient of F with respect to each latent layer, `(B, G, M_l, D_l)`.
        curvatures: Upper bounds of the curvature of F for each unit, `(B, G, M_l, 1)`.
        free_energy: `F`, `(B, G)`.
    """

    directions: tuple[Tensor, ...]
    curvatures: tuple[Tensor, ...]
    free_energy: Tensor


def normalised_errors(
    children: Tensor,
    predictions: Tensor,
    *,
    precision: float | Tensor = 1.0,
    log_prior: LogPrior | None = None,
) -> NormalisedErrors:
    """Compare children with their possible predictions, in linear memory.

    For the network of the paper, whose edges have separate weights, put the children into the
    dimension of the heads: children `(B, N, 1, 1)` and predictions `w_ij z_i` `(B, N, M, 1)`.

    Args:
        children: `x`, `(B, G, N, D)`.
        predictions: `p`, `(B, G, M, D)`.
        precision: `kappa` of the children: positive float, or positive tensor that broadcasts to
            `(B, G, N)`. The normaliser of the Gaussian, which depends on it alone, is left out of
            F.
        log_prior: Of the edges, as in `attend` with the children as queries; None is zero
            everywhere. Children that it lets nothing predict take no part.

    Returns:
        The errors in the dtype of the children, and the mass and F in float32 (float64 for
        float64). All are differentiable.

    Raises:
        ValueError: As `attend` does.
    """
    expected = (*children.shape[:2], *predictions.shape[-2:-1], *children.shape[-1:])
    check_shape("predictions", predictions, expected, "(B, G, M, D)")
    check_units(children, predictions, predictions, payload_name="predictions", payload_of="keys")
    terms = as_terms("log_prior", log_prior, children, predictions)
    checked = as_precision("precision", precision, children, zero=False)
    dtype = working_dtype(children.dtype)
    # Errors do not change with the origin; the cancellation of squares does if it is far away.
    centre = predictions.to(dtype).mean(-2, keepdim=True).detach()  # (B, G, 1, D)
    x, p = children.to(dtype) - centre, predictions.to(dtype) - centre
    kappa = torch.as_tensor(checked, dtype=dtype, device=x.device)
    kappa = kappa.expand(x.shape[:-1]).unsqueeze(-1)  # (B, G, N, 1)
    # -kappa/2 |x - p|² = [kappa x, -kappa]·[p, |p|²/2] - kappa/2 |x|².
    left = torch.cat([kappa * x, -kappa], dim=-1)  # (B, G, N, D + 1)
    right = torch.cat([p, p.square().sum(-1, keepdim=True) / 2], dim=-1)  # (B, G, M, D + 1)
    predicted, log_evidence = attend_checked(left, right, p, terms)
    weighted = torch.cat([kappa * x, kappa], dim=-1)  # (B, G, N, D + 1)
    means, log_count = assign_checked(left, right, weighted, terms)
    sums = log_count.exp().unsqueeze(-1) * means  # (B, G, M, D + 1)
    bottom_up = sums[..., :-1] - sums[..., -1:] * p  # (B, G, M, D)
    seen = log_evidence > -torch.inf  # (B, G, N)
    top_down = (kappa * (x - predicted)).where(seen.unsqueeze(-1), 0.0)
    energies = (kappa * x.square()).sum(-1) / 2 - log_evidence.where(seen, 0.0)  # (B, G, N)
    return NormalisedErrors(
        bottom_up.to(children.dtype),
        top_down.to(children.dtype),
        sums[..., -1],
        energies.where(seen, 0.0).sum(-1),
    )


def free_energy_descent(
    observed: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    *,
    precisions: Sequence[float | Tensor],
    prior_precision: float = 1.0,
) -> Descent:
    """Compute the free energy of a hierarchy and the directions in which it falls.

    Layer l predicts the layer below by `mu^(l) W^(l)ᵀ`; layer 0 is observed. F is the sum of the
    free energies of all layers and of `prior_precision/2 |mu^(L)|²` of the top one.

    The log of a sum of exponentials curves less than its average summand, so that the sum of the
    squares, each with the weight of its edge, bounds F from above (as in EM). With
    `|dx - W dmu|² <= (1 + |W|²) (|dx|² + |dmu|²)` that bound falls apart into the units:
    `curvature_k = (1 + |W^(l)|²) sum_n w_nk kappa_n` for the children of unit k (`|W^(l)|²` in
    the place of the bracket for observed children), plus `(1 + |W^(l+1)|²) kappa_k` for its own
    prediction, or the precision of the prior. `|W|` is the spectral norm.

    Args:
        observed: `(B, G, N, D_0)`, floating point.
        states: The latent layers from the lowest to the highest, `(B, G, M_l, D_l)`.
        weights: `W`, one for each latent layer, `(G, D_(l-1), D_l)`; G may be 1.
        precisions: Of the children of each latent layer, see `normalised_errors`.
        prior_precision: Of the zero-mean Gaussian prior of the highest layer, above 0.

    Raises:
        ValueError: If a shape, a number of layers or a precision is wrong.
        TypeError: If a dtype is wrong.
    """
    _check_hierarchy(states, weights, precisions, prior_precision)
    matrices = _generative(weights, observed)
    return _descent(observed, states, matrices, precisions, prior_precision)


def predictive_coding_inference(
    observed: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    *,
    precisions: Sequence[float | Tensor],
    prior_precision: float = 1.0,
    steps: int = 1,
    rate: float = 1.0,
) -> tuple[Tensor, ...]:
    """Let the latent layers of a hierarchy descend its free energy; return them afterwards.

    All units move at once, by their direction of descent over their curvature, see
    `free_energy_descent`, which has the same arguments and errors: the dynamics of Singh & Buckley,
    2023, §5, with a time constant for each unit. Fixed points are the same. F never increases,
    whatever the number of children is. The `steps` have the factor `rate`, above 0 and below 2; 1
    goes to the lowest point of the bound. Layers are float32 (float64 for float64).
    """
    check_least("steps", steps, 0)
    right = 0.0 < rate < 2.0
    require(right, "rate", "above 0 and below 2", rate, "beyond, the free energy can increase")
    _check_hierarchy(states, weights, precisions, prior_precision)
    dtype = working_dtype(observed.dtype)
    observed = observed.to(dtype)
    current = tuple(state.to(dtype) for state in states)
    matrices = _generative(weights, observed)
    for _ in range(steps):
        descent = _descent(observed, current, matrices, precisions, prior_precision)
        current = tuple(
            state + rate * direction / curvature
            for state, direction, curvature in zip(
                current, descent.directions, descent.curvatures, strict=True
            )
        )
    return current


class _Generative(NamedTuple):
    """How a layer predicts the one below."""

    matrix: Tensor  # W, (G, D_below, D_above), in the working dtype
    squared_norm: Tensor  # |W|², (G, 1, 1)


def _generative(weights: Sequence[Tensor], observed: Tensor) -> list[_Generative]:
    """Compute the spectral norms, which are expensive and the same in all steps."""
    dtype = working_dtype(observed.dtype)
    with full_precision(observed.device):
        matrices = [weight.to(dtype) for weight in weights]
        norms = [torch.linalg.matrix_norm(matrix, 2).square() for matrix in matrices]
    return [
        _Generative(matrix, norm[:, None, None])
        for matrix, norm in zip(matrices, norms, strict=True)
    ]


def _descent(
    observed: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[_Generative],
    precisions: Sequence[float | Tensor],
    prior_precision: float,
) -> Descent:
    """See `free_energy_descent`; arguments are checked."""
    dtype = working_dtype(observed.dtype)
    layers = [layer.to(dtype) for layer in (observed, *states)]
    top = layers[-1]
    free_energy = prior_precision / 2 * top.square().sum((-2, -1))  # (B, G)
    directions = [torch.zeros_like(layer) for layer in layers]
    curvatures = [torch.zeros_like(layer[..., :1]) for layer in layers]
    directions[-1] = -prior_precision * top
    curvatures[-1] = curvatures[-1] + prior_precision
    with full_precision(observed.device):
        for above, ((matrix, norm), precision) in enumerate(
            zip(weights, precisions, strict=True), 1
        ):
            children = layers[above - 1]
            errors = normalised_errors(children, layers[above] @ matrix.mT, precision=precision)
            share = norm if above == 1 else 1.0 + norm
            directions[above] = directions[above] + errors.bottom_up @ matrix
            curvatures[above] = curvatures[above] + share * errors.mass.unsqueeze(-1)
            kappa = as_precision("precision", precision, children, zero=False)
            kappa = kappa.unsqueeze(-1) if isinstance(kappa, Tensor) else kappa
            directions[above - 1] = directions[above - 1] - errors.top_down
            curvatures[above - 1] = curvatures[above - 1] + (1.0 + norm) * kappa
            free_energy = free_energy + errors.free_energy
    return Descent(tuple(directions[1:]), tuple(curvatures[1:]), free_energy)


def _check_hierarchy(
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    precisions: Sequence[float | Tensor],
    prior_precision: float,
) -> None:
    layers = (len(states), len(weights), len(precisions))
    fits = len({*layers}) == 1 and states
    require(fits, "states", "as many layers as `weights` and `precisions`, at least 1", layers)
    right = prior_precision > 0.0
    require(right, "prior_precision", "above 0", prior_precision, "use a small number for none")


class PredictiveCodingAttention2d(Attention2d):
    """Pixels attend to each other through a few latent causes that predict them.

    The causes of each head start from learnt states, and predict the queries of the pixels by a
    learnt generative matrix. They descend the free energy of the normalised prediction errors, with
    steps that never increase it, however many pixels there are. Each pixel then looks, through the
    causes that explain it, at the pixels that these explain. It costs `N K` for K causes.

    The precision of the pixels is `1 / sqrt(D)`, so that logits are scaled as in dot-product
    attention.

    Args:
        num_causes: Number `K` of causes of each head.
        steps: Number of steps of the descent.
        prior_precision: Of the zero-mean prior of the causes.
        **shared: As in `Attention2d`.

    Raises:
        ValueError: If a number is out of range.
    """

    no_position = "pixels look at latent causes, which have no place in the map"
    no_span = (
        "pixels look at latent causes of their whole line, and only through these at each other"
    )
    has_keys = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_causes: int = 8,
        steps: int = 3,
        prior_precision: float = 1.0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        check_least("num_causes", num_causes)
        check_least("steps", steps)
        require(prior_precision > 0.0, "prior_precision", "above 0", prior_precision)
        self.steps = steps
        self.prior_precision = prior_precision
        channels = self.head_channels
        self.causes = nn.Parameter(torch.randn(self.num_heads, num_causes, channels))
        # Orthogonal matrices predict queries of unit variance and have the shortest way to them.
        self.generative = nn.Parameter(torch.empty(self.num_heads, channels, channels))
        for matrix in self.generative:
            nn.init.orthogonal_(matrix)

    def reset_parameters(self) -> None:
        """Draw all parameters anew, see `Attention2d`."""
        super().reset_parameters()
        nn.init.normal_(self.causes)
        for matrix in self.generative:
            nn.init.orthogonal_(matrix)

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the causes and the posterior over edges through them, see `Attention2d`."""
        del keys, log_mask, size
        tokens = queries.to(working_dtype(queries.dtype))
        precision = tokens.shape[-1] ** -0.5
        (causes,) = predictive_coding_inference(
            tokens,
            [self.causes.to(tokens.dtype).expand(tokens.shape[0], -1, -1, -1)],
            [self.generative],
            precisions=[precision],
            prior_precision=self.prior_precision,
            steps=self.steps,
        )
        with full_precision(tokens.device):
            predictions = causes @ self.generative.to(tokens.dtype).mT  # (B, G, K, D)
        log_prior = -precision / 2 * predictions.square().sum(-1)  # (B, G, K)
        return BasesEdges(tokens, predictions, log_prior, precision)
