"""Decoders and heads: from feature maps to logits. Each is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probseg.kinds import Registry, lazy_getattr

if TYPE_CHECKING:
    from probseg.heads.base import Decoder, DecoderMaps, Head
    from probseg.heads.conv import ConvHead, MaskQuality, SeparableHead
    from probseg.heads.csa import CorrectiveSelfAttention
    from probseg.heads.deeplab import DeepLabV3PlusDecoder, DenseDeepLabDecoder
    from probseg.heads.fusion import Fusion, PromptFusion, PromptStage
    from probseg.heads.graph_cut import GraphCut
    from probseg.heads.ocr import OCRDecoder
    from probseg.heads.propagation import PromptPropagation
    from probseg.heads.pyramid import FPNDecoder, PromptUNet, PyramidDecoder, SimplePyramid

_DECODERS = {
    "DeepLabV3PlusDecoder": "probseg.heads.deeplab.DeepLabV3PlusDecoder",
    "DenseDeepLabDecoder": "probseg.heads.deeplab.DenseDeepLabDecoder",
    "FPNDecoder": "probseg.heads.pyramid.FPNDecoder",
    "OCRDecoder": "probseg.heads.ocr.OCRDecoder",
    "PyramidDecoder": "probseg.heads.pyramid.PyramidDecoder",
    "SimplePyramid": "probseg.heads.pyramid.SimplePyramid",
}
_FUSIONS = {
    "PromptFusion": "probseg.heads.fusion.PromptFusion",
    "PromptStage": "probseg.heads.fusion.PromptStage",
    "PromptUNet": "probseg.heads.pyramid.PromptUNet",
}
_HEADS = {
    "ConvHead": "probseg.heads.conv.ConvHead",
    "CorrectiveSelfAttention": "probseg.heads.csa.CorrectiveSelfAttention",
    "SeparableHead": "probseg.heads.conv.SeparableHead",
}

DECODERS: Registry[type[Decoder]] = Registry("decoder", _DECODERS)
FUSIONS: Registry[type[Fusion]] = Registry("fusion", _FUSIONS)
HEADS: Registry[type[Head]] = Registry("head", _HEADS)

# Decorators that add a part of your own, by the name of its class.
register_decoder = DECODERS.register
register_fusion = FUSIONS.register
register_head = HEADS.register

_PATHS = {
    **_DECODERS,
    **_FUSIONS,
    **_HEADS,
    "DecoderMaps": "probseg.heads.base.DecoderMaps",
    "Decoder": "probseg.heads.base.Decoder",
    "Fusion": "probseg.heads.fusion.Fusion",
    "GraphCut": "probseg.heads.graph_cut.GraphCut",
    "Head": "probseg.heads.base.Head",
    "MaskQuality": "probseg.heads.conv.MaskQuality",
    "PromptPropagation": "probseg.heads.propagation.PromptPropagation",
}

__all__ = [
    "DECODERS",
    "FUSIONS",
    "HEADS",
    "ConvHead",
    "CorrectiveSelfAttention",
    "Decoder",
    "DecoderMaps",
    "DeepLabV3PlusDecoder",
    "DenseDeepLabDecoder",
    "FPNDecoder",
    "Fusion",
    "GraphCut",
    "Head",
    "MaskQuality",
    "OCRDecoder",
    "PromptFusion",
    "PromptPropagation",
    "PromptStage",
    "PromptUNet",
    "PyramidDecoder",
    "SeparableHead",
    "SimplePyramid",
    "register_decoder",
    "register_fusion",
    "register_head",
]

__getattr__ = lazy_getattr(__name__, _PATHS)
