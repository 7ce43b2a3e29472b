"""A sequence decoder with additive attention (Bahdanau et al., 2015)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from probseg.family.additive import additive_edges
from probseg.ops.checks import check_shape


class DecoderStep(NamedTuple):
    """Result of one step of a decoder.

    Args:
        state: The new state `s_t`, `(B, S)`.
        context: Expectation of the encoder's states, `(B, E)`; zero where all is padding.
        weights: Posterior over the tokens that were read, `(B, T)`: not negative, with the sum
            1, or 0 where all is padding.
    """

    state: Tensor
    context: Tensor
    weights: Tensor


class BahdanauDecoderStep(nn.Module):
    """One step of a recurrent decoder, with a separate context for each output token.

    The context `c_t = sum_j p(E_t = j) h_j` is additive attention whose query is the previous
    state `s_{t-1}` and whose keys and values are the states `h_j` of the encoder. A gated
    recurrent unit (Cho et al., 2014) then reads the token written last and the context:
    `s_t = GRU([x_t, c_t], s_{t-1})`.

    Args:
        input_channels: `I`, of the features of the token written last.
        state_channels: `S`, of the decoder's state.
        encoder_channels: `E`, of the encoder's states.
        hidden_channels: `H`, hidden units of the scores.
    """

    def __init__(
        self, input_channels: int, state_channels: int, encoder_channels: int, hidden_channels: int
    ) -> None:
        super().__init__()
        self.input_channels = input_channels
        self.query = nn.Linear(state_channels, hidden_channels, bias=False)
        self.key = nn.Linear(encoder_channels, hidden_channels, bias=False)
        self.score = nn.Parameter(torch.randn(1, hidden_channels) * hidden_channels**-0.5)
        self.cell = nn.GRUCell(input_channels + encoder_channels, state_channels)

    def forward(
        self,
        state: Tensor,
        encoder_states: Tensor,
        inputs: Tensor,
        padding: Tensor | None = None,
    ) -> DecoderStep:
        """Attend to the encoder's states and decode one token.

        Args:
            state: The previous state, `(B, S)`.
            encoder_states: `(B, T, E)`.
            inputs: Features of the token written last, `(B, I)`.
            padding: True where a sequence is over, bool, `(B, T)`; None where none is.

        Raises:
            ValueError: If a shape is wrong.
        """
        if encoder_states.ndim != 3:
            msg = f"`encoder_states` must have shape (B, T, E), got {tuple(encoder_states.shape)}"
            raise ValueError(msg)
        batch, length, _ = encoder_states.shape
        check_shape(
            "encoder_states", encoder_states, (batch, length, self.key.in_features), "(B, T, E)"
        )
        check_shape("state", state, (batch, self.query.in_features), "(B, S)")
        check_shape("inputs", inputs, (batch, self.input_channels), "(B, I)")
        mask = None
        if padding is not None:
            check_shape("padding", padding, (batch, length), "(B, T)")
            mask = torch.zeros_like(padding, dtype=torch.float32).masked_fill(padding, -torch.inf)
            mask = mask.unsqueeze(1)  # (B, 1, T)
        queries = self.query(state)[:, None, None]  # (B, 1, 1, H)
        keys = self.key(encoder_states).unsqueeze(1)  # (B, 1, T, H)
        edges = additive_edges(queries, keys, self.score, log_mask=mask)
        context = edges.expect(encoder_states.unsqueeze(1))[:, 0, 0]  # (B, E)
        weights = edges.log_probability(slice(None)).exp()[:, 0, 0]  # (B, T)
        new_state = self.cell(torch.cat([inputs, context], dim=-1), state)
        return DecoderStep(new_state, context, weights)
