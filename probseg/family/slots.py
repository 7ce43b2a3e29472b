"""Slots and bases that compete for the inputs: slot attention, EM attention, block slots.

The softmax is over the slots, so that each input has to choose one (Locatello et al., 2020). As
inference, each input has one edge, which leads to one of the slots, and the slots are latent nodes
(Singh & Buckley, 2023, §4.0.5). Two updates differ in one factor. With the responsibilities `w_ik`
of the slots and their mass `N_k = sum_i w_ik`,

- `slot_attention` moves a slot to the mean `sum_i w_ik x_i / N_k`, as Locatello et al. do;
- `slot_inference` moves it to the sum `sum_i w_ik x_i / p`, as Singh and Buckley print it for
  the precision `p = 1`. This is the update that never raises the free energy.

They agree where every slot has the mass `N_k = p`, with K equal slots for `p = N / K`. The
paper calls the sum an EM step of a Gaussian mixture. That holds for the mean instead, and for
logits that include `-scale |slot|²/2`.

Block slots (Singh & Buckley, 2023, §4.0.6; the idea is that of Singh et al., 2022) add memories.
Slot attention and Hopfield retrieval are edges of one graph: each input has an edge to one of the
slots, and each block of a slot's channels has an edge to one of that block's memories. The paper
prints a prior in which every memory chooses a slot, and an update in which every slot chooses a
memory, `softmax_k`. Eq. 7 turns that prior into a softmax over the slots, so that only one of them
can be right. Here it is the update, as in the text and in Singh et al. (2022). Its prior is
`p(E_i) = Uniform{(z_i, m_1), ..., (z_i, m_l)}` for each block of each slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Attention2d, Shared
from probseg.attention.bases import Bases, Normalisation, Update
from probseg.errors import check_least, require
from probseg.family.energy import check_positive, edge_energy, node_energy
from probseg.family.low_rank import BasesEdges
from probseg.ops.attention import LogPrior, assign_checked, attend, attend_checked, checked_terms
from probseg.ops.backends.interface import Attended
from probseg.ops.checks import check_like, check_shape, check_units
from probseg.ops.edges import EdgePosterior
from probseg.ops.em import m_step
from probseg.ops.numerics import working_dtype


class Slots(NamedTuple):
    """Slots and their log masses.

    Args:
        slots: After the last update, `(B, G, K, D)`.
        log_mass: Logarithm of the summed responsibilities of the slots before that update,
            `(B, G, K)`; the masses sum to the number of inputs that see a slot.
    """

    slots: Tensor
    log_mass: Tensor


def slot_attention(
    inputs: Tensor,
    slots: Tensor,
    values: Tensor | None = None,
    *,
    iterations: int = 3,
    scale: float = 1.0,
    log_prior: LogPrior | None = None,
    as_keys: Callable[[Tensor], Tensor] | None = None,
    update: Callable[[Tensor, Tensor], Tensor] | None = None,
    backend: str = "auto",
) -> Slots:
    """Move each slot to the mean of the inputs that choose it (Locatello et al., 2020, Alg. 1).

    `w_ik = softmax_k(scale x_i·slot_k + log_prior_ik)`, `slot_k <- sum_i w_ik v_i / N_k`. The
    means are exact, however small the mass, where Algorithm 1 adds a small number to `w`.

    Special cases: a single slot becomes the mean of all inputs. With the logits of squared
    distances (`as_keys` appends `-|slot|²/2` to the slots, and the inputs end with 1), it is EM
    in a mixture of Gaussians of equal weights and precision `scale`, and for a large scale
    k-means.

    Memory is linear in N + K, precision is as in `attend`. Gradients go through every iteration.

    Args:
        inputs: `(B, G, N, D)`.
        slots: Initial slots, `(B, G, K, D)`; with `as_keys`, its arguments.
        values: Gathered by the slots, `(B, G, N, V)`; None gathers the inputs. Without
            `update`, their means are the next slots and need the same channels.
        iterations: Number of updates, at least 1.
        scale: Factor of the dot products.
        log_prior: Of the slots for each input, as in `attend` with the slots as keys; the same in
            each iteration. None is uniform.
        as_keys: Maps the slots to keys `(B, G, K, D)`, such as a layer norm; None uses the slots
            themselves.
        update: Maps the means `(B, G, K, V)` and the present slots to the next slots, such as a
            recurrent cell; None takes the means.
        backend: As in `attend`.

    Returns:
        The slots, in the dtype of the arguments if there is no `update`, and their log mass in
        float32 (float64 for float64 arguments). A slot that no input sees has a mean of zero.

    Raises:
        ValueError: If `iterations` is below 1; and as `attend` does.
    """
    check_least("iterations", iterations)
    gathered = inputs if values is None else values
    for iteration in range(iterations):
        keys = slots if as_keys is None else as_keys(slots)
        if iteration == 0:
            check_units(inputs, keys, gathered, payload_name="values", payload_of="queries")
            terms = checked_terms(inputs, keys, log_prior, scale)
            if update is None:
                expected = (*keys.shape[:-1], gathered.shape[-1])
                check_shape("slots", slots, expected, "(B, G, K, V)")
        means, log_mass = assign_checked(inputs, keys, gathered, terms, scale, backend)
        slots = means if update is None else update(means, slots)
    return Slots(slots, log_mass)


def slot_inference(
    inputs: Tensor,
    slots: Tensor,
    *,
    iterations: int = 3,
    scale: float = 1.0,
    precision: float = 1.0,
    log_prior: LogPrior | None = None,
    backend: str = "auto",
) -> Slots:
    """Infer the slots as sums of inputs, by responsibility (Singh & Buckley, 2023, §4.0.5).

    `w_ik = softmax_k(scale x_i·slot_k + log_prior_ik)`, `slot_k <- sum_i w_ik x_i / p`. No
    update raises `slot_free_energy`. With `p = 1`, as printed, sums grow with the number of
    inputs, until all inputs choose the largest slot; a precision of `N / K`, the mass of a slot
    if all had the same, keeps slots as large as inputs.

    Memory is linear in N + K. Everything is float32 (float64 for float64): float16 would not hold
    the sums. Gradients go through every iteration.

    Arguments are as in `slot_attention`; slots may also have the dtype of the result, and
    `precision` is the `p`, above 0, of the slots' node potentials `-p/2 |slot|²`.

    Returns:
        The slots and their log mass, in float32 (float64 for float64 arguments). A slot that no
        input sees is zero.

    Raises:
        ValueError: If `iterations` is below 1, the precision is not above 0; and as `attend` does.
    """
    check_least("iterations", iterations)
    check_positive("precision", precision)
    inputs, slots = _holding_sums(inputs, slots)
    check_units(inputs, slots, inputs, payload_name="observations", payload_of="queries")
    terms = checked_terms(inputs, slots, log_prior, scale)
    for _ in range(iterations):
        assigned = assign_checked(inputs, slots, inputs, terms, scale, backend)
        slots = _sums_of(*assigned, precision)
    return Slots(slots, assigned.log_mass)


def slot_free_energy(
    inputs: Tensor,
    slots: Tensor,
    *,
    scale: float = 1.0,
    precision: float = 1.0,
    log_prior: LogPrior | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return `p/2 sum_k |slot_k|² - 1/scale sum_i log sum_k exp(scale x_i·slot_k)`, `(B, G)`.

    See `probseg.family.energy`. No update of `slot_inference` raises it. Arguments, dtypes and
    errors are those of `slot_inference`; the scale is above 0, and the log prior is added to `scale
    x_i·slot_k`. It is inf if an input sees no slot.
    """
    inputs, slots = _holding_sums(inputs, slots)
    read = attend(inputs, slots, slots, log_prior=log_prior, scale=scale, backend=backend)
    nodes, edges = node_energy(slots, precision), edge_energy(read.log_evidence, scale)
    return nodes.sum(-1) + edges.sum(-1)


def _holding_sums(inputs: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Convert inputs, and slots of the same dtype, to a dtype for sums; keep other slots."""
    dtype = working_dtype(inputs.dtype)
    return inputs.to(dtype), slots.to(dtype) if slots.dtype == inputs.dtype else slots


def _sums_of(means: Tensor, log_mass: Tensor, precision: float) -> Tensor:
    """Turn means `(B, G, K, D)` and the log of their mass into sums, divided by a precision."""
    return means * (log_mass.exp() / precision).unsqueeze(-1)


class SlotAttention2d(Attention2d):
    """Slots compete for pixels and take the mean of theirs; pixels read from their slots.

    The posterior leads from a pixel to a slot, and from there to one of the pixels that the slot
    explains. Its cost is linear in the pixels. Slots are inferred for each line of each map, from
    those that are learnt: they do not start at random, as in Locatello et al. (2020), because the
    same picture is to get the same answer, and slots that start apart can learn to stand for
    different things.

    Dot products of the `D` channels of unit variance are unscaled, as in a mixture of Gaussians
    of precision 1: each update multiplies small differences between slots by the scale times the
    variance of the pixels in their direction, and with the `1 / sqrt(D)` of standard attention
    all slots of a new layer would become the mean of the map, without a gradient to part them.

    Args:
        num_slots: Number `K` of slots in each head, at least 1; with 1, all pixels get the mean.
        iterations: Number of updates of the slots, at least 1.
        **shared: As in `Attention2d`.

    Raises:
        ValueError: If `num_slots` or `iterations` is below 1; and as `Attention2d` does.
    """

    no_position = "its pixels look at slots, which do not lie anywhere in the map"
    no_span = "its slots are shared by all pixels of a line"
    has_keys = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_slots: int = 8,
        iterations: int = 3,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        check_least("iterations", iterations)
        check_least("num_slots", num_slots)
        self.iterations = iterations
        self.scale = 1.0
        self.initial = nn.Parameter(torch.randn(self.num_heads, num_slots, self.head_channels))

    def reset_parameters(self) -> None:
        """Draw all parameters anew, see `Attention2d`."""
        super().reset_parameters()
        nn.init.normal_(self.initial)

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the slots and the posterior of edges through them, see `Attention2d`."""
        del keys, log_mask, size
        slots = self.infer(queries, self.initial.expand(queries.shape[0], -1, -1, -1))
        return BasesEdges(queries, slots, scale=self.scale)

    def infer(self, inputs: Tensor, slots: Tensor) -> Tensor:
        """Infer the keys of the last comparison, `(B, G, K, D)`, in the dtype of the inputs.

        Inputs are the pixels of each line, `(B, G, N, D)`; slots begin in the dtype of the
        parameters.
        """
        return slot_attention(
            inputs, slots.to(inputs.dtype), iterations=self.iterations, scale=self.scale
        ).slots


class GRUSlotAttention2d(SlotAttention2d):
    """Slot attention with the learnt update of Locatello et al. (2020, Alg. 1).

    Slots are the states of a gated recurrent unit with the means as inputs; a residual perceptron
    follows, and pixels are compared with layer-normalised slots. Heads share all three. Two
    projections of Algorithm 1 are left out: that of slots, which is a matrix times that of pixels,
    and that of values. The unit gathers the `D` channels that the slots are compared with, which is
    no restriction where `D` is the number of channels of the features; with fewer, Algorithm 1 can
    gather other combinations of the features than it compares, and this layer cannot. Inputs are
    not layer-normalised. Dot products are multiplied by `1 / sqrt(D)`.

    For arguments see `SlotAttention2d`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_slots: int = 8,
        iterations: int = 3,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(
            in_channels, out_channels, num_slots=num_slots, iterations=iterations, **shared
        )
        width = self.head_channels
        self.scale = width**-0.5
        self.norm = nn.LayerNorm(width)
        self.cell = nn.GRUCell(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def infer(self, inputs: Tensor, slots: Tensor) -> Tensor:
        """Infer the slots and normalise them, see `SlotAttention2d`."""

        def as_keys(states: Tensor) -> Tensor:
            normalised: Tensor = self.norm(states)
            return normalised.to(inputs.dtype)

        states = slot_attention(
            inputs,
            slots,
            iterations=self.iterations,
            scale=self.scale,
            as_keys=as_keys,
            update=self._update,
        ).slots
        return as_keys(states)

    def _update(self, means: Tensor, states: Tensor) -> Tensor:
        rows = means.to(states.dtype).flatten(0, 2), states.flatten(0, 2)  # (B * G * K, D)
        moved = self.cell(*rows).view(states.shape)
        result: Tensor = moved + self.perceptron(moved)
        return result


class EMAttention2d(Attention2d):
    """Pixels gather values through bases that EM fits to the queries (after Li et al., 2019).

    With the responsibilities `Z` of the last E step, the value of a basis is the mean of the
    values weighted by `Z`, and pixels read these means out with `Z`. EMANet does the same with
    the queries in the place of the values. It costs `O(N K T)`.

    Along the axes "height" and "width", each line of the map has its own bases, which start from
    the same ones. A moving average takes place whenever edges are inferred in training mode.

    Args:
        num_bases: Number `K` of bases in each head.
        bases: How the initial bases change in training: "moving_average", "learnt" or "fixed".
        normalisation: Of the bases: "l2", "layer" or None.
        train_iterations: Number `T` of EM iterations in training.
        eval_iterations: Number of EM iterations in evaluation.
        scale: Inverse temperature of the responsibilities (`lambda`, Eq. 12).
        momentum: Of the moving average (`alpha`, Eq. 15).
        **shared: Further arguments of `Attention2d`; there is no position and no span.

    Raises:
        UnknownNameError: If there are no such bases, or no such normalisation.
        ValueError: If a number is out of range, or the arguments of `Attention2d` do not fit.
    """

    no_position = "bases have no place on the map, and so no offset from a pixel"
    no_span = "bases are fitted to all pixels of a line at once"
    has_keys = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_bases: int = 64,
        bases: Update = "moving_average",
        normalisation: Normalisation | None = "l2",
        train_iterations: int = 3,
        eval_iterations: int = 3,
        scale: float = 1.0,
        momentum: float = 0.9,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        self.scale = scale
        self.bases = Bases(
            num_bases,
            self.head_channels,
            num_heads=self.num_heads,
            update=bases,
            normalisation=normalisation,
            momentum=momentum,
            train_iterations=train_iterations,
            eval_iterations=eval_iterations,
        )

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges, see `Attention2d`."""
        del keys, log_mask, size  # neither keys nor a span: pixels look at bases
        tokens = queries.to(self.bases.initial.dtype)  # which autocast has lowered
        bases = self.bases.start(tokens)
        for _ in range(self.bases.iterations - 1):
            bases = self._m_step(tokens, bases)
        if self.bases.follows:
            with torch.no_grad():
                self.bases.follow(self._m_step(tokens, bases))
        return BasesEdges(tokens, bases, scale=self.scale)

    def _m_step(self, tokens: Tensor, bases: Tensor) -> Tensor:
        return m_step(tokens, bases, scale=self.scale, normalise=self.bases.normalise)


class DoubleAttention2d(EMAttention2d):
    """EM attention of one iteration through learnt bases: double attention (Li et al., 2019, §5.4).

    Bases gather values from the pixels, and pixels read them out again. Unlike in A2-Net as
    published (Chen et al., 2018), one and the same softmax over the bases does both.

    Args:
        num_bases: Number `K` of bases in each head.
        **shared: Further arguments of `Attention2d`; there is no position and no span.

    Raises:
        ValueError: If a number is out of range, or the arguments of `Attention2d` do not fit.
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, num_bases: int = 64, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            num_bases=num_bases,
            bases="learnt",
            normalisation=None,
            train_iterations=1,
            eval_iterations=1,
            **shared,
        )


@dataclass(frozen=True, eq=False)
class Memories:
    """Memories of the blocks of slots.

    Args:
        patterns: `L` memories for each of `P` blocks, `(B, G, P, L, D / P)`. `P = 1` is the
            update without blocks.
        scale: Factor of their dot products with the blocks of slots.
        strength: `c`: how many inputs a memory counts for, 0 or more; the paper has 1. With 0,
            slots do not remember anything.

    Raises:
        ValueError: If a number is out of range.
    """

    patterns: Tensor
    scale: float = 1.0
    strength: float = 1.0

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)
        right = 0.0 <= self.strength < math.inf
        require(right, "strength", "finite and 0 or more", self.strength, "0 is no memory")


def block_slot_inference(
    inputs: Tensor,
    slots: Tensor,
    memories: Memories,
    *,
    iterations: int = 3,
    scale: float = 1.0,
    precision: float = 1.0,
    log_prior: LogPrior | None = None,
    backend: str = "auto",
) -> Slots:
    """Infer slots from the inputs that choose them and the memories that their blocks choose.

    `slot_k <- 1/p (sum_i softmax_k(scale x_i·slot_k + log_prior_ik) x_i + c sum_b r_k^(b))` with
    `r_k^(b) = sum_l softmax_l(memory_scale slot_k^(b)·m_l^(b)) m_l^(b)`, in the channels of block
    b (Singh & Buckley, 2023, §4.0.6, who have 1 for all constants). No update raises
    `block_slot_free_energy`. For memories without strength it is `slot_inference`; as there, a
    precision of `N / K` keeps slots as large as inputs, and the same number as strength makes
    memories as loud as these.

    Memory is linear in N + K. Everything is float32 (float64 for float64): float16 would not hold
    the sums. Gradients go through every iteration.

    Arguments, results and errors are those of `slot_inference`, and the memories for the blocks of
    the slots, in the dtype of the inputs or of the result.
    """
    check_least("iterations", iterations)
    check_positive("precision", precision)
    inputs, slots, memories = _checked(inputs, slots, memories)
    terms = checked_terms(inputs, slots, log_prior, scale)
    for _ in range(iterations):
        assigned = assign_checked(inputs, slots, inputs, terms, scale, backend)
        seen = _sums_of(*assigned, precision)
        recalled = _recall(slots, memories, backend).values  # (B, G * P, K, D / P)
        weight = memories.strength / precision
        apart = torch.unflatten(recalled, 1, (slots.shape[1], -1))  # (B, G, P, K, D / P)
        slots = seen + weight * apart.transpose(2, 3).flatten(-2)
    return Slots(slots, assigned.log_mass)


def block_slot_free_energy(
    inputs: Tensor,
    slots: Tensor,
    memories: Memories,
    *,
    scale: float = 1.0,
    precision: float = 1.0,
    log_prior: LogPrior | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return `slot_free_energy` with the term of the edges to memories, `(B, G)`.

    `- c / memory_scale sum_kb log sum_l exp(memory_scale slot_k^(b)·m_l^(b))`; see
    `probseg.family.energy`. Arguments, dtypes and errors are those of `block_slot_inference`; the
    scale is above 0. It is inf if an input sees no slot.
    """
    inputs, slots, memories = _checked(inputs, slots, memories)
    seen = slot_free_energy(
        inputs, slots, scale=scale, precision=precision, log_prior=log_prior, backend=backend
    )
    evidence = _recall(slots, memories, backend).log_evidence  # (B, G * P, K)
    of_memories = torch.unflatten(
        edge_energy(evidence, memories.scale), 1, (slots.shape[1], -1)
    )  # (B, G, P, K)
    return seen + memories.strength * of_memories.sum((-2, -1))


def _checked(inputs: Tensor, slots: Tensor, memories: Memories) -> tuple[Tensor, Tensor, Memories]:
    """Bring the three to the dtype that holds sums, and check that they fit together."""
    patterns = _holding_sums(inputs, memories.patterns)[1]
    inputs, slots = _holding_sums(inputs, slots)
    check_units(inputs, slots, inputs, payload_name="observations", payload_of="queries")
    check_like("patterns", patterns, inputs)
    batch, heads, _, channels = slots.shape
    blocks, stored = patterns.shape[2:4]
    divides = blocks > 0 and channels % blocks == 0
    require(divides, "patterns", f"of P blocks that divide the {channels} slot channels", blocks)
    expected = (batch, heads, blocks, stored, channels // blocks)
    check_shape("patterns", patterns, expected, "(B, G, P, L, D / P)")
    return inputs, slots, replace(memories, patterns=patterns)


def _recall(slots: Tensor, memories: Memories, backend: str) -> Attended:
    """Read the memories for the blocks of all slots, with blocks as heads."""
    parts = torch.unflatten(slots, -1, (memories.patterns.shape[2], -1)).transpose(2, 3)
    queries, keys = parts.flatten(1, 2), memories.patterns.flatten(1, 2)
    return attend_checked(queries, keys, keys, scale=memories.scale, backend=backend)


class BlockSlotAttention2d(SlotAttention2d):
    """Slot attention that minimises a free energy, with learnt memories for blocks of the slots.

    Sums over the pixels would grow with their number and drive the softmax to one slot. The node
    potentials of the slots therefore have the precision `N / K`, the number of pixels that a slot
    has if all have the same: a slot is then the mean of its pixels, times its mass relative to
    that, in maps of any size. Memories count for as many pixels. What all pixels of a line have in
    common would do the same, as the slot with the largest mass has the largest share in it, and is
    subtracted first. The dot products are unscaled, as in `SlotAttention2d`.

    Args:
        num_slots: See `SlotAttention2d`.
        iterations: See `SlotAttention2d`.
        num_blocks: Number `P` of blocks that the channels of a slot are divided into.
        num_memories: Number `L` of memories of each block, at least 1.
        **shared: As in `Attention2d`.

    Raises:
        ValueError: If `head_channels` are not divisible by `num_blocks`, or there are no
            memories; and as `SlotAttention2d` does.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_slots: int = 8,
        iterations: int = 3,
        num_blocks: int = 4,
        num_memories: int = 16,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(
            in_channels, out_channels, num_slots=num_slots, iterations=iterations, **shared
        )
        check_least("num_blocks", num_blocks)
        width = self.head_channels
        divides = width % num_blocks == 0
        require(divides, "head_channels", f"divisible by num_blocks={num_blocks}", width)
        check_least("num_memories", num_memories)
        shape = (self.num_heads, num_blocks, num_memories, self.head_channels // num_blocks)
        self.memories = nn.Parameter(torch.randn(shape))

    def reset_parameters(self) -> None:
        """Draw all parameters anew, see `Attention2d`."""
        super().reset_parameters()
        nn.init.normal_(self.memories)

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the slots of centred pixels, see `SlotAttention2d`."""
        centred = queries - queries.mean(-2, keepdim=True)
        return super().edges(centred, keys, log_mask, size)

    def infer(self, inputs: Tensor, slots: Tensor) -> Tensor:
        """Infer the slots, see `SlotAttention2d`."""
        share = inputs.shape[-2] / slots.shape[-2]
        dtype = working_dtype(inputs.dtype)
        patterns = self.memories.to(dtype).expand(inputs.shape[0], -1, -1, -1, -1)
        memories = Memories(patterns, scale=self.scale, strength=share)
        inferred = block_slot_inference(
            inputs,
            slots.to(dtype),
            memories,
            iterations=self.iterations,
            scale=self.scale,
            precision=share,
        ).slots
        return inferred.to(inputs.dtype)
