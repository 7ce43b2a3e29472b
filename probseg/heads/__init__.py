"""Decoders and heads: from feature maps to logits."""

from probseg.heads.base import Decoder, Head
from probseg.heads.conv import ConvHead
from probseg.heads.csa import CorrectiveSelfAttention
from probseg.heads.fpn import FPNDecoder

DECODERS: dict[str, type[Decoder]] = {"FPNDecoder": FPNDecoder}
HEADS: dict[str, type[Head]] = {
    "ConvHead": ConvHead,
    "CorrectiveSelfAttention": CorrectiveSelfAttention,
}

__all__ = [
    "DECODERS",
    "HEADS",
    "ConvHead",
    "CorrectiveSelfAttention",
    "Decoder",
    "FPNDecoder",
    "Head",
]
