"""Slots that compete for the inputs: Locatello et al. (2020), and the free energy behind it.

The softmax is over the slots, so that each input has to choose one. As inference, each input has
one edge, which leads to one of the slots, and the slots are latent nodes (Singh & Buckley, 2023,
§4.0.5). Two updates differ in one factor. With the responsibilities `w_ik` of the slots and their
mass `N_k = sum_i w_ik`,

- `slot_attention` moves a slot to the mean `sum_i w_ik x_i / N_k`, as Locatello et al. do;
- `slot_inference` moves it to the sum `sum_i w_ik x_i / p`, as Singh and Buckley print it for
  the precision `p = 1`. This is the update that never raises the free energy.

They agree where every slot has the mass `N_k = p`, with K equal slots for `p = N / K`. The
paper calls the sum an EM step of a Gaussian mixture. That holds for the mean instead, and for
logits that include `-scale |slot|²/2`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from probseg.family.free_energy import check_positive, edge_energy, node_energy
from probseg.ops.attention import LogPrior, assign_checked, attend, checked_terms
from probseg.ops.checks import check_iterations, check_shape, check_units
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
        BackendError: If the named backend cannot serve these arguments.
        ValueError: If `iterations` is below 1, or a shape, a device or the scale is wrong.
        TypeError: If a dtype is wrong.
        UnknownNameError: If there is no backend of this name.
    """
    check_iterations(iterations)
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

    Args:
        inputs: `(B, G, N, D)`.
        slots: Initial slots, `(B, G, K, D)`, in the dtype of the inputs or of the result.
        iterations: Number of updates, at least 1.
        scale: Factor of the dot products.
        precision: `p` of the slots' node potentials `-p/2 |slot|²`, above 0.
        log_prior: Of the slots for each input, as in `slot_attention`.
        backend: As in `attend`.

    Returns:
        The slots and their log mass, in float32 (float64 for float64 arguments). A slot that no
        input sees is zero.

    Raises:
        BackendError: If the named backend cannot serve these arguments.
        ValueError: If `iterations` is below 1, the precision is not above 0, or a shape, a device
            or the scale is wrong.
        TypeError: If a dtype is wrong.
        UnknownNameError: If there is no backend of this name.
    """
    check_iterations(iterations)
    check_positive("precision", precision)
    inputs, slots = holding_sums(inputs, slots)
    check_units(inputs, slots, inputs, payload_name="observations", payload_of="queries")
    terms = checked_terms(inputs, slots, log_prior, scale)
    for _ in range(iterations):
        assigned = assign_checked(inputs, slots, inputs, terms, scale, backend)
        slots = sums_of(*assigned, precision)
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
    """Return `p/2 sum_k |slot_k|² - 1/scale sum_i log sum_k exp(scale x_i·slot_k)`.

    See `probseg.family.free_energy`. No update of `slot_inference` raises it.

    Args:
        inputs: `(B, G, N, D)`.
        slots: `(B, G, K, D)`, in a dtype as in `slot_inference`.
        scale: As in `slot_inference`, above 0.
        precision: As in `slot_inference`.
        log_prior: As in `slot_inference`; added to `scale x_i·slot_k`.
        backend: As in `attend`.

    Returns:
        `(B, G)` in float32 (float64 for float64 arguments); inf if an input sees no slot.

    Raises:
        ValueError: If the scale or the precision is not above 0; and all that `slot_inference`
            raises.
    """
    inputs, slots = holding_sums(inputs, slots)
    read = attend(inputs, slots, slots, log_prior=log_prior, scale=scale, backend=backend)
    nodes, edges = node_energy(slots, precision), edge_energy(read.log_evidence, scale)
    return nodes.sum(-1) + edges.sum(-1)


def holding_sums(inputs: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Convert inputs, and slots of the same dtype, to a dtype for sums; keep other slots."""
    dtype = working_dtype(inputs.dtype)
    return inputs.to(dtype), slots.to(dtype) if slots.dtype == inputs.dtype else slots


def sums_of(means: Tensor, log_mass: Tensor, precision: float) -> Tensor:
    """Turn means `(B, G, K, D)` and the log of their mass into sums, divided by a precision."""
    return means * (log_mass.exp() / precision).unsqueeze(-1)
