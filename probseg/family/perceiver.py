"""Latents that query the inputs: the cross-attention of Perceivers (Jaegle et al., 2021).

Each latent has one edge to one of the inputs, and moves to the expectation of its end:
`z_k <- sum_j softmax_j(s z_k·x_j) x_j`, which is `hopfield_retrieval` with latents as states and
inputs as patterns, under the prior `E_k ~ Uniform{inputs}` (Singh & Buckley, 2023, §4 and
§4.0.4). Slots have the roles swapped: their edges leave the inputs, and slots compete for them.

Both cluster the inputs. With the log prior `-s/2 |x_j|²`, whose logits are `-s/2 |z_k - x_j|²`,
the update is mean shift (Cheng, 1995): each latent, whatever the others do, climbs to a mode of the
kernel density estimate of the inputs, which is the EM algorithm for a single point in a mixture
with the inputs as centres (Carreira-Perpiñán, 2007). The update of slots is EM for all inputs in a
mixture with the slots as centres.
"""

from __future__ import annotations

from torch import Tensor

from probseg.family.composed import ComposedEdges
from probseg.family.hopfield import hopfield_retrieval
from probseg.ops.edges import SoftmaxEdges


def latent_edges(
    queries: Tensor, keys: Tensor, latents: Tensor, *, iterations: int = 1, scale: float = 1.0
) -> ComposedEdges:
    """Let latents read from the keys, and build the posterior of edges that lead through them.

    `p(E_i = j) = sum_k softmax_k(scale q_i·z_k) softmax_j(scale z_k·k_j)`, of rank K: latents
    query the inputs, and outputs query the latents. All iterations but the last move the latents
    among the keys; the last one gathers the values.

    Args:
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        latents: Initial latents, `(B, G, K, D)`.
        iterations: Number of cross-attentions, at least 1.
        scale: Factor of the dot products.

    Raises:
        ValueError: If `iterations` is below 1, or a shape, a device or the scale is wrong.
        TypeError: If a dtype is wrong.
    """
    if iterations != 1:
        latents = hopfield_retrieval(latents, keys, iterations=iterations - 1, scale=scale).states
    return ComposedEdges(
        SoftmaxEdges(queries, latents, scale=scale), SoftmaxEdges(latents, keys, scale=scale)
    )
