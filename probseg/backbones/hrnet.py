"""High-resolution networks."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from probseg.backbones.timm import TimmBackbone
from probseg.errors import check_name

# timm's names, with the tags of the weights that the authors of HRNet trained
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


class HRNetV2(TimmBackbone):
    """The four maps of HRNetV2 (Sun et al., 2019), with strides 4, 8, 16 and 32.

    The weights are the same for both values of `aligned`, the functions are not. timm has the
    network for classification, whose coarser branches are enlarged by nearest neighbours. The one
    for segmentation (Sun et al. 2019; Yuan et al. 2020; RITM) enlarges them bilinearly.

    Args:
        width: Channels of the finest map: "18", "30", "32", "40", "44", "48" or "64"; "18s" is the
            small network of that width, with fewer blocks. The coarser maps have 2, 4 and 8 times
            as many.
        pretrained: Load the ImageNet weights of HRNet's authors, see `TimmBackbone`.
        aligned: Enlarge coarser branches bilinearly, with aligned corners, to the size of the finer
            one; False enlarges by nearest neighbours and pads images to a multiple of 32 pixels.
            The maps are resized in the same way afterwards, see `FeatureInfo`.
    """

    def __init__(
        self, width: str | int = "18", pretrained: bool = False, aligned: bool = False
    ) -> None:
        width = str(width)  # a YAML file has 18 as a number
        check_name("HRNet width", width, WIDTHS)
        # Without a location, timm leaves out the head that widens the maps for classification.
        options = {"feature_location": "", "out_indices": (1, 2, 3, 4)}
        super().__init__(WIDTHS[width], pretrained, options=options)
        self.features = self.features._replace(aligned=aligned)
        if aligned:
            self.multiple = 1
            for stage in (self.network.stage2, self.network.stage3, self.network.stage4):
                for place, module in enumerate(stage):
                    stage[place] = AlignedExchange(module)


class AlignedExchange(nn.Module):
    """timm's `HighResolutionModule`, with branches enlarged bilinearly and with aligned corners."""

    def __init__(self, module: Any) -> None:  # noqa: ANN401 (timm's class is not exported)
        super().__init__()
        self.branches = module.branches
        self.fuse_layers = module.fuse_layers
        for row, layers in enumerate(self.fuse_layers):
            for coarser in layers[row + 1 :]:
                coarser[-1] = nn.Identity()  # timm's enlargement
        self.fuse_act = module.fuse_act

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Transform the maps of all branches, finest first."""
        branches = [branch(x) for branch, x in zip(self.branches, maps, strict=True)]
        fused = []
        for row, layers in enumerate(self.fuse_layers):
            size = branches[row].shape[-2:]
            total = None
            for column, layer in enumerate(layers):
                term = layer(branches[column])
                if column > row:
                    term = F.interpolate(term, size, mode="bilinear", align_corners=True)
                total = term if total is None else total + term
            fused.append(self.fuse_act(total))
        return fused
