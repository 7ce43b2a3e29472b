"""Edges of two steps, through a few tokens in between: posteriors of low rank, in linear time.

Slot and EM attention lead through bases, Linformers (Wang et al., 2020) through means of pixels,
Perceivers (Jaegle et al., 2021) through latents and Performers (Choromanski et al., 2021) through
random features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Attention2d, Shared, line_size
from probseg.errors import check_least
from probseg.family.energy import check_positive, hopfield_retrieval
from probseg.ops.attention import LogPrior, assign, attend
from probseg.ops.backends.interface import Attended, Context
from probseg.ops.checks import check_shape, check_units
from probseg.ops.edges import EdgePosterior, SoftmaxEdges, log_softmax, widened
from probseg.ops.numerics import working_dtype


@dataclass(frozen=True, eq=False)
class ComposedEdges(EdgePosterior):
    """Edges of two steps: `p(E_i = j) = sum_k p(A_i = k) p(B_k = j)`, of rank K.

    Queries have an edge to one of K tokens, and these have one to a key. Memory and time are
    linear in N + M.

    Args:
        first: Posterior of `A`, over the edges from N queries to K tokens.
        second: Posterior of `B`, over the edges from these to M keys.
    """

    first: EdgePosterior
    second: EdgePosterior

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `EdgePosterior`."""
        return *self.first.shape[:3], self.second.shape[-1]

    def prepared(self) -> EdgePosterior:
        """See `EdgePosterior`: both factors."""
        everything = slice(None)
        first, second = (edges.log_probability(everything) for edges in (self.first, self.second))
        return FactoredEdges(self, first, second)

    def expect(self, values: Tensor) -> Tensor:
        """See `EdgePosterior`."""
        return self.first.expect(self.second.expect(values))

    def log_probability(self, rows: slice) -> Tensor:
        """See `EdgePosterior`."""
        return self.prepared().log_probability(rows)


@dataclass(frozen=True, eq=False)
class FactoredEdges(EdgePosterior):
    """A posterior of low rank with both factors of its probabilities."""

    edges: EdgePosterior  # the same posterior
    log_first: Tensor  # (B, G, N, K)
    log_second: Tensor  # (B, G, K, M)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `EdgePosterior`."""
        return self.edges.shape

    def expect(self, values: Tensor) -> Tensor:
        """See `EdgePosterior`."""
        return self.edges.expect(values)

    def log_probability(self, rows: slice) -> Tensor:
        """See `EdgePosterior`."""
        return log_product(self.log_first[:, :, rows], self.log_second)


def log_product(left: Tensor, right: Tensor) -> Tensor:
    """Return `log sum_k exp(left_ik + right_kj)`, `(B, G, N, M)`.

    The factors are `(B, G, N, K)` and `(B, G, K, M)`. The exponentials are never multiplied, as
    their products would underflow. A loop over k keeps memory at a few results, in both directions.
    Where no k has any probability the result is -inf, without gradient. It can be differentiated
    once.
    """
    result: Tensor = _LogProduct.apply(left, right)
    return result


class _LogProduct(torch.autograd.Function):
    """With the shares `s_ijk = exp(left_ik + right_kj - result_ij)` of each k.

    `dleft_ik = sum_j s_ijk dresult_ij` and `dright_kj = sum_i s_ijk dresult_ij`.
    """

    @staticmethod
    def forward(ctx: Context, left: Tensor, right: Tensor) -> Tensor:
        shape = (*left.shape[:-1], right.shape[-1])
        highest = left.new_full(shape, -math.inf)
        for k in range(left.shape[-1]):
            torch.maximum(highest, _through(left, right, k), out=highest)
        highest.masked_fill_(highest == -math.inf, 0.0)
        total = left.new_zeros(shape)
        for k in range(left.shape[-1]):
            total += _through(left, right, k).sub_(highest).exp_()
        result = total.log_().add_(highest)
        ctx.save_for_backward(left, right, result)
        return result

    @staticmethod
    def backward(ctx: Context, d_result: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "log probabilities of edges through bases cannot be differentiated twice "
                "(create_graph=True); write them out from SoftmaxEdges of the bases"
            )
        left, right, result = ctx.saved_tensors
        impossible = result == -math.inf
        finite = result.masked_fill(impossible, 0.0)
        d_result = d_result.masked_fill(impossible, 0.0)
        d_left, d_right = torch.zeros_like(left), torch.zeros_like(right)
        for k in range(left.shape[-1]):
            part = _through(left, right, k).sub_(finite).exp_().mul_(d_result)
            d_left[..., k], d_right[..., k, :] = part.sum(-1), part.sum(-2)
        return d_left, d_right


def _through(left: Tensor, right: Tensor, k: int) -> Tensor:
    return left[..., k, None] + right[..., k, None, :]


@dataclass(frozen=True, eq=False)
class BasesEdges(EdgePosterior):
    """Edges that lead through one of K bases: `p(E_i = j) = sum_k z_ik z_jk / sum_n z_nk`.

    `z_ik = softmax_k(scale x_i·mu_k + log_prior_ik)` is the responsibility of base k for token i:
    an edge leads from a query to a base, and from there to a token of that base. The posterior of
    slot and EM attention over the tokens themselves. It has rank K, and costs N K.

    Args:
        tokens: Both queries and keys, `(B, G, N, D)`.
        bases: `(B, G, K, D)`.
        log_prior: Of the bases for each token, as in `attend`; None is uniform.
        scale: Factor of the dot products.
    """

    tokens: Tensor
    bases: Tensor
    log_prior: LogPrior | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_units(self.tokens, self.bases, self.bases, payload_name="bases", payload_of="keys")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `EdgePosterior`."""
        batch, heads, count, _ = self.tokens.shape
        return batch, heads, count, count

    def prepared(self) -> EdgePosterior:
        """See `EdgePosterior`: the E step and the masses of the bases."""
        of_bases = SoftmaxEdges(self.tokens, self.bases, self.log_prior, self.scale)
        log_z = of_bases.log_probability(slice(None))  # (B, G, N, K)
        return FactoredEdges(self, log_z, log_softmax(log_z.mT))

    def expect(self, values: Tensor) -> Tensor:
        """See `EdgePosterior`."""
        payload = widened(values, self.tokens)
        gathered = assign(
            self.tokens, self.bases, payload, log_prior=self.log_prior, scale=self.scale
        )
        read = attend(
            self.tokens, self.bases, gathered.means, log_prior=self.log_prior, scale=self.scale
        )
        return read.values.to(values.dtype)

    def log_probability(self, rows: slice) -> Tensor:
        """See `EdgePosterior`."""
        return self.prepared().log_probability(rows)


def projected_edges(
    queries: Tensor, keys: Tensor, log_projection: Tensor, *, scale: float = 1.0
) -> ComposedEdges:
    """Build the posterior of edges that lead through projections of the keys (Linformer).

    Keys and values of M tokens are projected to K of them, `softmax(Q (E K)ᵀ) (F V)`; it is a
    posterior over edges to the M tokens where the rows of F are probabilities. Here E = F = P, as
    in the paper's "key-value sharing" (§4): `p(E_i = j) = sum_k softmax_k(scale q_i·(P K)_k) P_kj`,
    of rank K, in time and memory that are linear in N and M. With the identity as P, it is softmax
    attention.

    Args:
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        log_projection: `log P`, `(K, M)`, floating; normalised over the tokens. -inf for tokens
            that have no part in a projection.
        scale: Factor of the dot products.

    Raises:
        ValueError: As `attend` does.
    """
    check_shape("log_projection", log_projection, (len(log_projection), keys.shape[-2]), "(K, M)")
    queries, keys = (tokens.to(working_dtype(tokens.dtype)) for tokens in (queries, keys))
    nothing = keys.new_zeros(*keys.shape[:-1], 1)  # (B, G, M, 1)
    few = nothing[:, :, :1].expand(-1, -1, len(log_projection), -1)  # (B, G, K, 1)
    pooling = SoftmaxEdges(few, nothing, log_projection.to(keys.dtype))
    return ComposedEdges(SoftmaxEdges(queries, pooling.expect(keys), scale=scale), pooling)


def pooling_log_projection(
    height: int, width: int, bins: tuple[int, int], device: torch.device | None = None
) -> Tensor:
    """Return the projection that takes means over the bins of a map (Wang et al., 2020, §4).

    Bins are those of adaptive average pooling: `floor(b H / B)` to `ceil((b + 1) H / B)`.

    Args:
        height: `H` of the map.
        width: `W` of the map.
        bins: Along height and width, each at least 1 and at most the size.
        device: Of the result.

    Returns:
        For `projected_edges`: 0 for a pixel in the bin and -inf for others, `(K, H * W)`, float32,
        with the bins in the order of the pixels.

    Raises:
        ValueError: If a number of bins is out of range.
    """
    members = []
    for name, size, count in (("height", height, bins[0]), ("width", width, bins[1])):
        if not 1 <= count <= size:  # a text of the sizes would bind compiled graphs to them
            raise ValueError(f"`bins` must be 1 to {size} along {name}, got {count}")
        place = torch.arange(size, device=device)
        number = torch.arange(count, device=device).unsqueeze(-1)
        members.append(
            (place >= number * size // count) & (place < -(-(number + 1) * size // count))
        )
    inside = members[0][:, None, :, None] & members[1][None, :, None, :]  # (B_h, B_w, H, W)
    flat = inside.flatten(2).flatten(0, 1)
    return torch.zeros(flat.shape, device=device).masked_fill(~flat, -torch.inf)


class LinformerAttention2d(Attention2d):
    """Pixels attend to the means of keys and values over the bins of a grid.

    Means are the projection of Wang et al. (2020, §4) that fits lines and maps of any size;
    learnt matrices fit one. Dot products have the factor `1 / sqrt(D)`. A map no larger than the
    grid gets standard attention.

    Args:
        bins: Bins along height and width, at least 1; smaller maps have one for each pixel.
        **shared: As in `Attention2d`; there is no position and no span.

    Raises:
        ValueError: If `bins` is below 1; and as `Attention2d` does.
    """

    no_position = "its keys are means over pixels, which have no one offset"
    no_span = "bins are shared by all pixels of a line"

    def __init__(
        self, in_channels: int, out_channels: int, *, bins: int = 8, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        check_least("bins", bins)
        self.bins = bins

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges through the bins, see `Attention2d`."""
        del log_mask
        height, width = line_size(self.axis, *size)
        bins = (min(self.bins, height), min(self.bins, width))
        projection = pooling_log_projection(height, width, bins, queries.device)
        return projected_edges(queries, keys, projection, scale=self.head_channels**-0.5)


def latent_edges(
    queries: Tensor, keys: Tensor, latents: Tensor, *, iterations: int = 1, scale: float = 1.0
) -> ComposedEdges:
    """Let latents read from the keys, and build the posterior of edges that lead through them.

    `p(E_i = j) = sum_k softmax_k(scale q_i·z_k) softmax_j(scale z_k·k_j)`, of rank K: latents query
    the inputs, and outputs query the latents. Each latent has one edge to one of the inputs, and
    moves to the expectation of its end, which is `hopfield_retrieval` with latents as states (Singh
    & Buckley, 2023, §4 and §4.0.4). Slots have the roles swapped: their edges leave the inputs, and
    slots compete for them. All iterations but the last move the latents among the keys; the last
    one gathers the values.

    Both cluster the inputs. With the log prior `-s/2 |x_j|²` the update is mean shift (Cheng,
    1995): each latent, whatever the others do, climbs to a mode of the kernel density estimate of
    the inputs, which is the EM algorithm for a single point in a mixture with the inputs as centres
    (Carreira-Perpiñán, 2007). The update of slots is EM for all inputs in a mixture with the slots
    as centres.

    Args:
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        latents: Initial latents, `(B, G, K, D)`.
        iterations: Number of cross-attentions, at least 1.
        scale: Factor of the dot products.

    Raises:
        ValueError: If `iterations` is below 1; and as `attend` does.
    """
    if iterations != 1:
        latents = hopfield_retrieval(latents, keys, iterations=iterations - 1, scale=scale).states
    return ComposedEdges(
        SoftmaxEdges(queries, latents, scale=scale), SoftmaxEdges(latents, keys, scale=scale)
    )


class PerceiverAttention2d(Attention2d):
    """A few learnt latents read from all pixels, and pixels read from the latents.

    Its cost is linear in the pixels. Latents are inferred for each line of each map. There is no
    transformer among the latents, and no residual path around the cross-attention. Dot products of
    the `D` channels of unit variance are unscaled, as in `SlotAttention2d` and for the same reason:
    with `1 / sqrt(D)` all latents of a new layer would become the mean of the map.

    Args:
        num_latents: Number `K` of latents in each head, at least 1.
        iterations: Number of cross-attentions from the latents to the pixels, at least 1. With 1,
            pixels compare themselves with the learnt latents, and otherwise with what these read.
        **shared: As in `Attention2d`; there is no position and no span.

    Raises:
        ValueError: If `num_latents` or `iterations` is below 1; and as `Attention2d` does.
    """

    no_position = "its pixels look at latents, which do not lie anywhere in the map"
    no_span = "its latents are shared by all pixels of a line"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_latents: int = 8,
        iterations: int = 2,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        check_least("iterations", iterations)
        check_least("num_latents", num_latents)
        self.iterations = iterations
        self.latents = nn.Parameter(torch.randn(self.num_heads, num_latents, self.head_channels))

    def reset_parameters(self) -> None:
        """Draw all parameters anew, see `Attention2d`."""
        super().reset_parameters()
        nn.init.normal_(self.latents)

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the latents and the posterior of edges through them, see `Attention2d`."""
        del log_mask, size
        latents = self.latents.to(queries.dtype).expand(queries.shape[0], -1, -1, -1)
        return latent_edges(queries, keys, latents, iterations=self.iterations)


def random_features(
    count: int, channels: int, heads: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Draw directions `w` for the features, orthogonal to each other in blocks of D.

    `exp(q·k) = E_w[phi_w(q) phi_w(k)]` for `phi_w(x) = exp(w·x - |x|²/2)` and normal `w`
    (Choromanski et al., 2021, Lemma 1). Each direction is normal, `N(0, I)`, by itself, so that
    estimates stay unbiased; orthogonal ones have a lower variance (§2.4).

    Args:
        count: Number `R` of features, at least 1.
        channels: `D` of queries and keys.
        heads: `G`, each with directions of its own.
        generator: Source of the random numbers; None is PyTorch's own.

    Returns:
        `(G, R, D)`, float32.

    Raises:
        ValueError: If `count` is below 1.
    """
    check_least("count", count)
    blocks = -(-count // channels)
    rotation, triangle = torch.linalg.qr(
        torch.randn(heads, blocks, channels, channels, generator=generator)
    )
    # With the signs of the diagonal, rotations are uniform.
    rotation = rotation * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.randn(heads, blocks, channels, channels, generator=generator).norm(dim=-1)
    features: Tensor = (lengths.unsqueeze(-1) * rotation).flatten(1, 2)
    return features[:, :count]


def random_feature_attention(
    queries: Tensor, keys: Tensor, values: Tensor, features: Tensor, *, scale: float = 1.0
) -> Attended:
    """Estimate `attend` in time and memory that are linear in N and M.

    `o_i = phi(q_i) (phi(K)ᵀ V) / phi(q_i) (phi(K)ᵀ 1)`. Numerator, denominator and with it
    `exp(log_evidence)` are unbiased estimates; the values, a quotient, converge as
    `1 / sqrt(R)`. The variance grows with `exp(scale |q_i + k_j|²)`.

    Args:
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        values: `(B, G, M, V)`.
        features: Directions of the features, `(G, R, D)`, such as `random_features` draws.
        scale: Factor of the dot products, above 0.

    Returns:
        Values `(B, G, N, V)` in the dtype of the values, and log evidence `(B, G, N)` in float32
        (float64 for float64).

    Raises:
        ValueError: If a shape or a device is wrong, or the scale is not above 0.
        TypeError: If a dtype is wrong.
    """
    scaled = _scaled(queries, keys, features, scale)
    payload = widened(values, scaled.queries)
    gathered = attend(scaled.features, scaled.keys, payload, log_prior=scaled.log_prior)
    read = attend(
        scaled.queries,
        scaled.features,
        gathered.values,
        log_prior=gathered.log_evidence.to(scaled.queries.dtype),
    )
    constant = scaled.queries.square().sum(-1) / 2 + math.log(features.shape[-2])
    return Attended(read.values.to(values.dtype), read.log_evidence - constant)


def random_feature_edges(
    queries: Tensor, keys: Tensor, features: Tensor, *, scale: float = 1.0
) -> ComposedEdges:
    """Build the posterior over edges whose expectation is `random_feature_attention`.

    The edges of all queries lead through the R features: from a query to a feature, and from there
    to a key::

        p(A_i = r) = softmax_r(w_r·q_i + log Z_r)        Z_r = sum_j phi_r(k_j)
        p(B_r = j) = softmax_j(w_r·k_j - |k_j|²/2)

    The log evidence and all products are computed in the log, so that no feature overflows. For
    arguments and exceptions see there.
    """
    scaled = _scaled(queries, keys, features, scale)
    nothing = scaled.keys[..., :0]
    mass = attend(scaled.features, scaled.keys, nothing, log_prior=scaled.log_prior).log_evidence
    return ComposedEdges(
        SoftmaxEdges(scaled.queries, scaled.features, mass),
        SoftmaxEdges(scaled.features, scaled.keys, scaled.log_prior),
    )


class _Scaled(NamedTuple):
    """Arguments in the working dtype, with the scale in queries and keys."""

    queries: Tensor  # (B, G, N, D)
    keys: Tensor  # (B, G, M, D)
    features: Tensor  # (B, G, R, D)
    log_prior: Tensor  # -|k_j|²/2, (B, G, M)


def _scaled(queries: Tensor, keys: Tensor, features: Tensor, scale: float) -> _Scaled:
    check_positive("scale", scale)
    check_units(queries, keys, keys, payload_name="keys", payload_of="keys")
    batch, heads, _, channels = queries.shape
    check_shape("features", features, (heads, features.shape[-2], channels), "(G, R, D)")
    dtype = working_dtype(queries.dtype)
    root = math.sqrt(scale)
    keys = root * keys.to(dtype)
    directions = features.to(dtype).expand(batch, -1, -1, -1)
    return _Scaled(root * queries.to(dtype), keys, directions, -keys.square().sum(-1) / 2)


class PerformerAttention2d(Attention2d):
    """Pixels attend as in standard attention, estimated in time linear in the pixels.

    The features are drawn once and kept with the weights. Dot products have the factor
    `1 / sqrt(D)`.

    Args:
        num_features: Number `R` of random features in each head, at least 1.
        **shared: As in `Attention2d`; there is no position and no span.

    Raises:
        ValueError: If `num_features` is below 1; and as `Attention2d` does.
    """

    no_position = "random features see queries and keys one by one, and not the offset between them"
    no_span = "all pixels of a line share the sums over its keys"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_features: int = 64,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        self.features: Tensor
        self.register_buffer(
            "features", random_features(num_features, self.head_channels, self.num_heads)
        )

    def reset_parameters(self) -> None:
        """Draw all parameters anew, see `Attention2d`."""
        super().reset_parameters()
        heads, count, channels = self.features.shape
        self.features.copy_(random_features(count, channels, heads))

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Estimate the posterior over edges, see `Attention2d`."""
        del log_mask, size
        return random_feature_edges(queries, keys, self.features, scale=self.head_channels**-0.5)
