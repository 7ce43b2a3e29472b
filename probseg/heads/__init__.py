"""Decoders and heads: from feature maps to logits."""

from probseg.heads.base import Decoded, Decoder, Head
from probseg.heads.conv import ConvHead, SeparableHead
from probseg.heads.csa import CorrectiveSelfAttention
from probseg.heads.deeplab import DeepLabV3PlusDecoder, DenseDeepLabDecoder
from probseg.heads.fpn import FPNDecoder
from probseg.heads.fusion import Fusion, PromptFusion
from probseg.heads.graph_cut import GraphCut
from probseg.heads.ocr import OCRDecoder
from probseg.heads.propagation import PromptPropagation
from probseg.heads.pyramid import PromptUNet, PyramidDecoder
from probseg.heads.stage import PromptStage

DECODERS: dict[str, type[Decoder]] = {
    "DeepLabV3PlusDecoder": DeepLabV3PlusDecoder,
    "DenseDeepLabDecoder": DenseDeepLabDecoder,
    "FPNDecoder": FPNDecoder,
    "OCRDecoder": OCRDecoder,
    "PyramidDecoder": PyramidDecoder,
}
FUSIONS: dict[str, type[Fusion]] = {
    "PromptFusion": PromptFusion,
    "PromptStage": PromptStage,
    "PromptUNet": PromptUNet,
}
HEADS: dict[str, type[Head]] = {
    "ConvHead": ConvHead,
    "CorrectiveSelfAttention": CorrectiveSelfAttention,
    "SeparableHead": SeparableHead,
}

__all__ = [
    "DECODERS",
    "FUSIONS",
    "HEADS",
    "ConvHead",
    "CorrectiveSelfAttention",
    "Decoded",
    "Decoder",
    "DeepLabV3PlusDecoder",
    "DenseDeepLabDecoder",
    "FPNDecoder",
    "Fusion",
    "GraphCut",
    "Head",
    "OCRDecoder",
    "PromptFusion",
    "PromptPropagation",
    "PromptStage",
    "PromptUNet",
    "PyramidDecoder",
    "SeparableHead",
]
