"""High-resolution networks."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from probseg.backbones.timm import TimmBackbone
from probseg.errors import UnknownNameError

WIDTHS = {
    "18s": "hrnet_w18_small_v2.ms_in1k",
    "18": "hrnet_w18.ms_in1k",
    "30": "hrnet_w30.ms_in1k",
    "32": "hrnet_w32.ms_in1k",
    "40": "hrnet_w40.ms_in1k",
    "44": "hrnet_w44.ms_in1k",
    "48": "hrnet_w48.ms_in1k",
    "64": "hrnet_w64.ms_in1k",
}
"""timm's names, with the tags of the weights that the authors of HRNet trained."""


class HRNetV2(TimmBackbone):
    """The four maps of HRNetV2 (Sun et al., 2019), with strides 4, 8, 16 and 32.

    Args:
        width: Channels of the finest map: "18", "30", "32", "40", "44", "48" or "64"; "18s" is the
            small network of that width, with fewer blocks. The coarser maps have 2, 4 and 8 times
            as many.
        pretrained: Load the ImageNet weights of HRNet's authors, see ``TimmBackbone``.

    Raises:
        UnknownNameError: If there is no network of that width.
    """

    def __init__(self, width: str | int = "18", pretrained: bool = False) -> None:
        width = str(width)  # a YAML file has 18 as a number
        if width not in WIDTHS:
            raise UnknownNameError(kind="HRNet width", name=width, known=WIDTHS)
        # Without a location, timm leaves out the head that widens the maps for classification.
        options = {"feature_location": "", "out_indices": (1, 2, 3, 4)}
        super().__init__(WIDTHS[width], pretrained, options=options)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the feature maps, finest first."""
        height, width = x.shape[-2:]
        # The branches fit together only where the coarsest has whole pixels.
        stride = max(self.features.strides)
        maps = super().forward(F.pad(x, (0, -width % stride, 0, -height % stride)))
        return [
            own[..., : -(-height // step), : -(-width // step)]
            for own, step in zip(maps, self.features.strides, strict=True)
        ]
