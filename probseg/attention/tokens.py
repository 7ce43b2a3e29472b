"""Probabilistic attention on tokens `(B, N, C)`, in the place of PyTorch's and timm's."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor, nn

from probseg.attention.base import reset_parts
from probseg.ops.checks import as_terms
from probseg.ops.mixture import PriorName
from probseg.ops.probabilistic import probabilistic_attention, refuse_causal
from probseg.ops.settings import KeyAdaptation


class ProbabilisticAttention(nn.Module):
    """Attention of transformers whose keys may adapt to the queries.

    A drop-in for `nn.MultiheadAttention(dim, num_heads, batch_first=True)`, whose masks it takes as
    that does, and for the attention of timm's blocks. Without key iterations and with the default
    prior it computes the same. There is no dropout of weights, which are never stored.

    Args:
        dim: Channels of queries, keys, values and output, divided evenly among the heads.
        num_heads: Number of heads.
        bias: Whether projections have a bias.
        key_iterations: Number of EM iterations of the keys; 0 leaves them as they are.
        key_prior: Precision of the prior of the keys, 0 for maximum likelihood.
        log_prior: "magnitude", "key_magnitude" or "uniform", see `probabilistic_attention`.
        backend: As in `attend`; "reference" can be differentiated twice.

    Raises:
        ValueError: If the channels cannot be divided, or a number is out of range.
    """

    batch_first = True
    in_proj_bias = None  # by which PyTorch's encoder layer knows that its own kernel is no use
    hides = True  # what a bool `attn_mask` holds for hidden pairs; False in the place of timm's

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        bias: bool = True,
        key_iterations: int = 0,
        key_prior: float = 0.001,
        log_prior: PriorName = "magnitude",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"`dim` must be divisible by `num_heads`, got {dim} and {num_heads}")
        self.num_heads = num_heads
        self.log_prior, self.backend = log_prior, backend
        self.key_adaptation = KeyAdaptation(key_iterations, key_prior)
        self.query, self.key, self.value, self.proj = (
            nn.Linear(dim, dim, bias=bias) for _ in range(4)
        )
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()

    def reset_parameters(self) -> None:
        """Draw all parameters anew, as for a layer that was built on `meta`."""
        reset_parts(self)

    def extra_repr(self) -> str:
        """Return the settings that `print` shows."""
        keys = self.key_adaptation
        return (
            f"num_heads={self.num_heads}, key_iterations={keys.iterations}, "
            f"key_prior={keys.prior_precision}, log_prior={self.log_prior!r}"
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
        average_attn_weights: bool = True,
    ) -> Any:  # noqa: ANN401 (what the layer in whose place it is returns)
        """Infer the value of each query.

        Args:
            query: `(B, N, C)`.
            key: `(B, M, C)`; None for the queries.
            value: `(B, M, C)`; None for the keys.
            key_padding_mask: True for padding, bool, `(B, M)`, or a float that is added to the
                logits. In self-attention with key iterations, padded queries get no value.
            attn_mask: True for pairs that are hidden (in the place of timm's attention, as there:
                for those that are seen), bool, or a float that is added to the logits: `(N, M)`,
                `(B * num_heads, N, M)` or `(B, num_heads, N, M)`; sizes of the last may be 1.
            is_causal: Hide later tokens, too.
            need_weights: Only False: weights are never stored.
            average_attn_weights: Not read.

        Returns:
            `(B, N, C)`; with a `key`, as PyTorch's layer is called, the pair of this and None.

        Raises:
            ValueError: If weights are wanted, or a causal mask while keys adapt: keys would carry
                the future.
        """
        del average_attn_weights
        adapts = self.key_adaptation.iterations > 0
        if need_weights or (is_causal and adapts):
            option, reason = ("is_causal", "keys that adapt would carry the future")
            if need_weights:
                option, reason = ("need_weights", "weights are never stored")
            raise ValueError(f"`{option}` must be False, got True: {reason}")
        alone = key is None or key is query
        keys = query if key is None else key
        queries, heads = self._split(self.query(query), self.q_norm), self.num_heads
        masks = [] if attn_mask is None else [_log_mask(attn_mask, queries, self.hides)]
        if masks and masks[0].ndim == 3:
            masks[0] = masks[0].reshape(-1, heads, *masks[0].shape[1:])  # (B, G, N, M)
        if key_padding_mask is not None:
            masks.append(_log_mask(key_padding_mask, queries)[:, None, None])  # (B, 1, 1, M)
        if is_causal:
            hidden = torch.ones(
                query.shape[1], keys.shape[1], dtype=torch.bool, device=query.device
            )
            masks.append(_log_mask(hidden.triu(1), queries))
        query_mask = None
        if adapts and not alone:
            query_mask = torch.ones(query.shape[:2], dtype=torch.bool, device=query.device)
        elif adapts and key_padding_mask is not None:
            # a `query_mask` stands for other tokens, among which there is no order
            refuse_causal(as_terms("attn_mask", tuple(masks), queries, queries), queries, queries)
            query_mask = _log_mask(key_padding_mask, queries) > -math.inf
        inferred = probabilistic_attention(
            queries,
            self._split(self.key(keys), self.k_norm),
            self._split(self.value(keys if value is None else value)),
            log_prior=self.log_prior,
            log_mask=tuple(masks) or None,
            query_mask=query_mask,
            key_adaptation=self.key_adaptation if adapts else None,
            backend=self.backend,
        )
        output: Tensor = self.proj(inferred.values.transpose(1, 2).flatten(2))
        return output if key is None else (output, None)

    def _split(self, tokens: Tensor, norm: nn.Module | None = None) -> Tensor:
        """Split channels into heads, `(B, G, N, D)`."""
        heads = torch.unflatten(tokens, -1, (self.num_heads, -1)).transpose(1, 2)
        if norm is not None:
            heads = norm(heads).to(tokens.dtype)
        return heads


def _log_mask(mask: Tensor, queries: Tensor, hides: bool = True) -> Tensor:
    """Return a mask as numbers to be added to the logits; a bool is `hides` where it hides."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=queries.dtype).masked_fill(mask == hides, -math.inf)


def convert_attention(model: nn.Module, **options: Any) -> nn.Module:  # noqa: ANN401
    """Replace the attentions of a transformer in place, keeping their weights.

    Those of timm's vision transformers and `nn.MultiheadAttention`; other layers stay as they are.
    Dropout of weights, which does nothing in eval mode, is left out there.

    Args:
        model: Of timm, torchvision or your own.
        **options: Of `ProbabilisticAttention`. With no key iterations, answers stay the same.

    Returns:
        The model.

    Raises:
        ValueError: If there is no such attention, or one with options that have no counterpart, as
            is dropout of weights in training.
    """
    timm = sys.modules.get("timm.layers")  # not imported: no layer is of it
    kinds = nn.MultiheadAttention, getattr(timm, "Attention", nn.MultiheadAttention)
    known = [kind.forward for kind in kinds]  # others of these names have e.g. biases of positions
    converted = {
        layer: _converted(layer, options)
        for layer in model.modules()
        if layer is not model
        and type(layer).forward in known
        and isinstance(getattr(layer, "qkv", None), nn.Linear | None)  # as it was built
    }
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if layer in converted:
            model.set_submodule(name, converted[layer])
        if isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False  # for PyTorch's kernel, which reads other weights
    if not converted:
        raise ValueError(
            "`model` must have an attention of timm's vision transformers (`blocks[i].attn`) or an "
            f"nn.MultiheadAttention inside, got a {type(model).__name__} without one"
        )
    return model


def _converted(layer: Any, options: dict[str, Any]) -> nn.Module:  # noqa: ANN401
    of_torch = isinstance(layer, nn.MultiheadAttention)
    if of_torch:
        extra = layer.bias_k is not None or layer.add_zero_attn
        wrong = not layer.batch_first or layer.in_proj_weight is None or extra
        weight, bias, proj = layer.in_proj_weight, layer.in_proj_bias, layer.out_proj
        dropout, option = layer.dropout, "dropout"
    else:
        wrong, proj = layer.gate is not None, layer.proj
        weight, bias = layer.qkv.weight, layer.qkv.bias
        dropout, option = layer.attn_drop.p, "attn_drop.p"
    if dropout and layer.training:
        raise ValueError(
            f"`model` has a {type(layer).__name__} in training with `{option}` {dropout}, expected "
            "0: weights, which are never stored, have no dropout. Set it to 0, or call "
            "`model.eval()` first"
        )
    if wrong or weight.shape != (3 * proj.out_features, proj.out_features):
        raise ValueError(
            f"`model` has a {type(layer).__name__} that cannot be converted: batch_first=False, "
            "other sizes of keys and values, extra keys or a gate have no counterpart"
        )
    new = ProbabilisticAttention(weight.shape[1], layer.num_heads, **options)
    new.to(weight.device, weight.dtype).train(layer.training)
    if bias is not None and new.query.bias is None:
        raise ValueError(f"`bias` must be True, as a {type(layer).__name__} of `model` has biases")
    with torch.no_grad():
        for index, linear in enumerate((new.query, new.key, new.value)):
            linear.weight.copy_(weight.chunk(3)[index])
            linear.weight.requires_grad_(weight.requires_grad)
            if linear.bias is not None:
                linear.bias.copy_(0 * linear.bias if bias is None else bias.chunk(3)[index])
                linear.bias.requires_grad_((weight if bias is None else bias).requires_grad)
    if not of_torch:
        new.q_norm, new.k_norm = layer.q_norm, layer.k_norm
        new.hides, proj = False, nn.Sequential(layer.norm, proj, layer.proj_drop)
    new.proj = proj
    return new
