"""A translator with additive attention, whole, and a language it learns in seconds.

    python translate.py 30457 81

Encoder and decoder are recurrent (Bahdanau et al., 2015; Cho et al., 2014). The toy language writes
a number backwards, with another digit for each: `d` becomes `3 d + 1` modulo 10.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from probseg.family import BahdanauDecoderStep

PAD = 10
"""After the last digit of a sequence, and before the first one that is written."""


class Translation(NamedTuple):
    """What a translator writes.

    Args:
        logits: Of the digits, `(B, T, 10)`.
        weights: Where it looked for each digit, `(B, T, T)`.
    """

    logits: Tensor
    weights: Tensor


class Translator(nn.Module):
    """An encoder in both directions, and a decoder that attends to its states.

    Args:
        channels: Of embeddings, states and hidden units.
    """

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(PAD + 1, channels)
        self.forwards = nn.GRU(channels, channels, batch_first=True)
        self.backwards = nn.GRU(channels, channels, batch_first=True)
        self.initial = nn.Linear(channels, channels)
        self.step = BahdanauDecoderStep(channels, channels, 2 * channels, channels)
        self.readout = nn.Linear(3 * channels, PAD)

    def forward(self, source: Tensor, target: Tensor | None = None) -> Translation:
        """Translate.

        Args:
            source: Digits, then `PAD`, int64, `(B, T)`.
            target: Digits that the decoder reads as those it wrote, `(B, T)`; None lets it read
                its own.
        """
        tokens = self.embedding(source)
        right, _ = self.forwards(tokens)
        left, first = self.backwards(tokens.flip(1))
        encoded = torch.cat([right, left.flip(1)], dim=-1)  # (B, T, 2 C)
        state = self.initial(first[0]).tanh()  # of the first digit, with all that follow
        written = torch.full_like(source[:, 0], PAD)
        logits, weights = [], []
        for place in range(source.shape[1]):
            decoded = self.step(state, encoded, self.embedding(written), source == PAD)
            state = decoded.state
            logits.append(self.readout(torch.cat([state, decoded.context], dim=-1)))
            weights.append(decoded.weights)
            written = logits[-1].argmax(-1) if target is None else target[:, place]
        return Translation(torch.stack(logits, 1), torch.stack(weights, 1))


def sentences(count: int, longest: int = 5) -> tuple[Tensor, Tensor]:
    """Draw numbers of two digits and more, and their translations, both `(count, longest)`."""
    digits = torch.randint(PAD, (count, longest))
    lengths = torch.randint(2, longest + 1, (count, 1))
    place = torch.arange(longest)
    source = digits.where(place < lengths, PAD)
    reversed_ = source.gather(1, (lengths - 1 - place).clamp(min=0))
    return source, ((3 * reversed_ + 1) % 10).where(place < lengths, PAD)


def train(translator: Translator, steps: int = 150, batch_size: int = 256) -> None:
    """Learn from sentences that are drawn as it goes."""
    optimiser = torch.optim.Adam(translator.parameters(), lr=0.02)
    for step in range(steps):
        source, target = sentences(batch_size)
        logits = translator(source, target).logits
        loss = cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 25 == 24:
            print(f"step {step + 1}: loss {loss.item():.3f}")


def main(numbers: list[str]) -> None:
    """Train, and translate numbers of two to five digits."""
    torch.manual_seed(0)
    translator = Translator()
    train(translator)
    for number in numbers:
        found = translator(torch.tensor([[int(digit) for digit in number]])).logits.argmax(-1)
        print(number, "".join(map(str, found[0].tolist())))


if __name__ == "__main__":
    main(sys.argv[1:])
