"""Refinement by backpropagation at each click, the baseline that EM is compared with.

Written from f-BRS (Sofiiuk, Petrov, Barinova & Konushin 2020): channels of an inner layer get a
factor and a summand each, which L-BFGS changes until the answer agrees with the clicks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from probseg.interact.batches import SegmenterModel
from probseg.models import Encoded, Segmenter
from probseg.models.encoded import as_given
from probseg.types import Prompts


class Backpropagation:
    """A network whose prompts enter at the head, refined by gradients; a `Model` for evaluations.

    Args:
        network: In evaluation mode.
        layer: Whose channels change: those that "head" classifies, after which there is only a
            1x1 convolution, or the finest map that "fusion" takes, which repeats all that a click
            costs in each iteration.
        penalty: Weight of the squared changes.
        iterations: Most iterations of L-BFGS.
    """

    previous_mask = True

    def __init__(
        self,
        network: Segmenter,
        layer: Literal["head", "fusion"] = "head",
        penalty: float = 0.1,
        iterations: int = 20,
    ) -> None:
        self.network, self.layer = network, layer
        self.penalty, self.iterations = penalty, iterations
        batches = SegmenterModel(network)
        self.grid, self.encode_each = batches.grid, batches.encode_each

    def decode_each(self, encoded: Sequence[Encoded], prompts: Sequence[Prompts]) -> list[Tensor]:
        """Return logits `(H, W)` of each image."""
        return [self._decode(one, given) for one, given in zip(encoded, prompts, strict=True)]

    def _decode(self, encoded: Encoded, prompts: Prompts) -> Tensor:
        network = self.network
        assert network.fusion is not None, "a network whose prompts enter at the head"
        assert encoded.decoder_maps is not None, "encoded by it"
        moved = network.moved(prompts, encoded)
        maps = network.click_maps(moved, tuple(encoded.image.shape[-2:]))
        clicks = maps[:, 1:].clone()
        assert moved.previous is not None, "the network takes its last answer"
        maps = torch.cat([maps, moved.previous], dim=1)
        with torch.inference_mode(mode=False), torch.enable_grad():
            # Tensors of inference mode cannot be part of a graph, clones can.
            maps, decoder_maps = maps.clone(), encoded.decoder_maps.each(torch.clone)
            moved = Prompts(*(None if one is None else one.clone() for one in moved))
            with torch.no_grad():
                fused = network.fusion(decoder_maps, maps, moved)
            inner = fused if self.layer == "head" else decoder_maps.features

            def logits(change: Tensor) -> Tensor:
                factor, summand = change.view(2, 1, -1, 1, 1)
                changed = inner * (1 + factor) + summand
                if self.layer == "fusion":
                    assert network.fusion is not None, "see above"
                    changed = network.fusion(decoder_maps._replace(features=changed), maps, moved)
                result: Tensor = network.head(decoder_maps.features, clicks, changed)
                return result

            best = self._optimised(logits, clicks, 2 * inner.shape[1])
            with torch.no_grad():
                return as_given(logits(best), encoded)[0, 0]

    def _optimised(self, logits: Callable[[Tensor], Tensor], clicks: Tensor, size: int) -> Tensor:
        positive, negative = (clicks[0, n] > 0.5 for n in range(2))

        def loss(values: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
            change = torch.tensor(values, dtype=torch.float32, requires_grad=True)
            probability = logits(change)[0, 0].sigmoid()
            total = self.penalty * change.square().sum()
            for pixels, label in ((positive, 1.0), (negative, 0.0)):
                if pixels.any():
                    total = total + (probability[pixels] - label).square().mean()
            (gradient,) = torch.autograd.grad(total, change)
            return total.item(), gradient.double().numpy()

        options = {"maxiter": self.iterations}
        found = minimize(loss, np.zeros(size), jac=True, method="L-BFGS-B", options=options)
        return torch.tensor(found.x, dtype=torch.float32)
