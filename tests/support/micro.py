"""Small networks of every kind: the presets `micro_*`, and changes to them for tests alone."""

from __future__ import annotations

from typing import Any

from probseg.models import list_presets, override, read_preset
from probseg.models.build import Description

BOTNET = {
    "class_path": "probseg.backbones.BoTNet",
    "init_args": {
        "name": "resnet26.bt_in1k",
        "pretrained": False,
        "output_stride": 16,
        "attention": "standard",
        "layout": "full",
        "position": "factored",
        "num_heads": 2,
        "image_size": 64,
        "attention_options": {"position_keys": False},
        "options": {"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16]},
    },
}
PROBABILISTIC = {
    "attention": "probabilistic",
    "layout": "axial",
    "position": "full",
    "attention_options": {"position_keys": True},
}
DEEPLAB = {"class_path": "probseg.heads.DeepLabV3PlusDecoder", "init_args": {"channels": 16}}
FUSION = {
    "class_path": "probseg.heads.PromptFusion",
    "init_args": {"channels": 8, "dilations": [1, 2]},
}
OCR = {"class_path": "probseg.heads.OCRDecoder", "init_args": {"channels": 8}}

CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "micro_botnet": ("micro_conv", {"backbone": BOTNET}),
    "micro_csa_bp5": ("micro_csa", {"head": {"propagation_iterations": 5}}),
    "micro_csa_full": ("micro_csa", {"head": {"layout": "full", "stride": 8, "span": None}}),
    "micro_deeplab": ("micro_conv", {"decoder": DEEPLAB}),
    "micro_fast": (
        "micro_csa",
        {"head": {"propagation_iterations": 5}, "prompts": "head", "fusion": FUSION},
    ),
    "micro_ocr_csa": ("micro_csa", {"decoder": OCR, "head": {"propagation_iterations": 5}}),
    "micro_previous": ("micro_conv", {"previous_mask": True}),
    "micro_prob_botnet": ("micro_botnet", {"backbone": PROBABILISTIC}),
}
"""Name, the network that is changed, and the changes."""

SHIPPED = [name for name in list_presets() if name.startswith("micro_")]
MICRO = sorted([*SHIPPED, *CHANGED])


def described(name: str, **changes: Any) -> Description:
    """Return the description of a preset or a network of `CHANGED`, with changes."""
    if name not in CHANGED:
        return override(read_preset(name), changes)
    of, own = CHANGED[name]
    return override(described(of, **own), changes)
