"""Initial bases of EM attention, and their moving average over images."""

from __future__ import annotations

from collections import deque
from typing import Literal, get_args

import torch
from torch import Tensor, distributed, nn

from probseg.errors import UnknownNameError, check_least, check_name
from probseg.ops.em import Normalise, l2_normalise, layer_normalise
from probseg.ops.numerics import working_dtype

Update = Literal["moving_average", "learnt", "fixed"]
"""Source of changes in training: the bases fitted to the images, gradients, or none."""

Normalisation = Literal["l2", "layer"]

NORMALISATIONS: dict[str | None, Normalise | None] = {
    "l2": l2_normalise,
    "layer": layer_normalise,
    None: None,
}


REMEMBERED = 16
"""Steps of the moving average that recomputation under gradient checkpointing can go back to."""


def recomputing() -> bool:
    """Return whether a backward pass runs the forward pass once more (`torch.utils.checkpoint`)."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class Bases(nn.Module):
    """Initial bases `mu(0)` of the EM iteration, the same for all pictures (Li et al., 2019, §5).

    They start with the weights of a 1x1 convolution by the initialisation of He et al. (2015), and
    are part of the state dict however they are updated.

    Args:
        num_bases: Number `K` of bases in each head.
        channels: Channels `D` of a basis.
        num_heads: Number of heads `G`.
        update: "moving_average" (Eq. 15), "learnt" by gradients, or "fixed" as initialised.
        normalisation: Of the bases, before the first E step and after each M step:
            "l2" (§5.3), "layer" or None.
        momentum: `alpha` of Eq. 15, in [0, 1], for the moving average.
        train_iterations: Number `T` of EM iterations in training, at least 1.
        eval_iterations: The same in evaluation.
        renormalise: Whether `start` normalises the stored bases; False normalises them only as
            initialised. The moving average of vectors of length 1 is shorter than 1.

    Raises:
        UnknownNameError: If there is no such update or normalisation.
        ValueError: If a number is out of range.
    """

    initial: Tensor

    def __init__(
        self,
        num_bases: int,
        channels: int,
        *,
        num_heads: int = 1,
        update: Update = "moving_average",
        normalisation: Normalisation | None = "l2",
        momentum: float = 0.9,
        train_iterations: int = 3,
        eval_iterations: int = 3,
        renormalise: bool = True,
    ) -> None:
        super().__init__()
        check_name("update of bases", update, get_args(Update))
        if normalisation not in NORMALISATIONS:
            known = get_args(Normalisation)
            raise UnknownNameError(kind="normalisation", name=str(normalisation), known=known)
        check_least("num_bases", num_bases)
        if not 0.0 <= momentum <= 1.0:
            raise ValueError(
                f"`momentum` must be in [0, 1], got {momentum}; Li et al. (2019) use 0.9"
            )
        self.update: Update = update
        self.normalisation = normalisation
        self.momentum = momentum
        check_least("train_iterations", train_iterations)
        check_least("eval_iterations", eval_iterations)
        self.train_iterations = train_iterations
        self.eval_iterations = eval_iterations
        initial = torch.empty(num_heads, num_bases, channels)
        self.renormalise = renormalise
        self._steps: deque[tuple[Tensor, Tensor]] = deque(maxlen=REMEMBERED)  # tokens, start
        if update == "learnt":
            self.initial = nn.Parameter(initial)
        else:
            self.register_buffer("initial", initial)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the bases anew."""
        for head in self.initial:
            nn.init.kaiming_normal_(head)  # of a convolution from D channels to K
        if self.normalise is not None and not self.renormalise:
            self.initial.copy_(self.normalise(self.initial))

    @property
    def iterations(self) -> int:
        """Number of EM iterations in the current mode."""
        return self.train_iterations if self.training else self.eval_iterations

    @property
    def follows(self) -> bool:
        """Whether `follow` changes the bases: the moving average does, in training."""
        return self.training and self.update == "moving_average"

    @property
    def normalise(self) -> Normalise | None:
        """Normalisation of the bases after each M step."""
        return NORMALISATIONS[self.normalisation]

    def start(self, tokens: Tensor) -> Tensor:
        """Return the initial bases for each picture of tokens `(B, G, N, D)`, `(B, G, K, D)`.

        A forward pass that is run again for its gradient starts where it started before the moving
        average, as the sums of its tokens tell.

        Raises:
            RuntimeError: If more forward passes than are remembered came in between.
        """
        initial = self.initial
        if self.follows and not torch.compiler.is_compiling():
            sums = tokens.detach().sum(dim=(0, 1, 2))  # (D,)
            if recomputing():
                initial = self._remembered(sums)
            else:
                self._steps.append((sums, initial.clone()))
        # A copy, as the moving average changes the bases before gradients go through them.
        normalise = (self.normalise if self.renormalise else None) or torch.clone
        return normalise(initial).expand(tokens.shape[0], -1, -1, -1)

    def _remembered(self, sums: Tensor) -> Tensor:
        """Return the bases that a pass over tokens with these sums started from."""
        for known, initial in reversed(self._steps):
            if torch.allclose(known, sums, rtol=1e-4, atol=1e-4 * float(sums.abs().max())):
                return initial
        raise RuntimeError(
            "gradient checkpointing recomputes a forward pass whose initial bases are forgotten: "
            f"at most {REMEMBERED} forward passes may come before a backward pass; build the layer "
            "with bases='learnt' or 'fixed', or do not checkpoint it"
        )

    @torch.no_grad()
    def follow(self, fitted: Tensor) -> None:
        """Move the bases towards those fitted to the pictures (Li et al., 2019, Eq. 15).

        `mu(0) <- alpha mu(0) + (1 - alpha) mean mu(T)`, with the mean over the pictures of all
        processes, however many each of them has. A picture with a number that is not finite, as one
        that half precision overflowed on, does not count; without any other, the bases stay.
        Nothing happens unless `follows`, or when gradient checkpointing runs a pass again.

        Args:
            fitted: `mu(T)` of each picture, `(B, G, K, D)`.
        """
        if not self.follows or recomputing():
            return
        dtype = working_dtype(fitted.dtype)
        counted = fitted.isfinite().flatten(1).all(-1)  # (B,)
        total = fitted.to(dtype).where(counted.view(-1, 1, 1, 1), 0.0).sum(dim=0)  # (G, K, D)
        count = counted.sum(dtype=dtype)
        if distributed.is_available() and distributed.is_initialized():
            # One message: the sum of the pictures' bases, and behind it how many they are.
            message = torch.cat([total.flatten(), count.view(1)])
            distributed.all_reduce(message)
            total, count = message[:-1].view_as(total), message[-1]
        mean = total / count.clamp_min(1.0)
        moved = torch.add(self.momentum * self.initial, mean, alpha=1.0 - self.momentum)
        # In place, as data-parallel wrappers keep references to buffers.
        self.initial.copy_(torch.where(count > 0.0, moved, self.initial))
