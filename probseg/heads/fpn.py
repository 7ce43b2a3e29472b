"""Feature pyramid decoder (Lin et al. 2017; Kirillov et al. 2019)."""

from __future__ import annotations

from torch import Tensor, nn

from probseg.heads.base import Decoder, DecoderMaps, conv_norm_relu, enlarged_to, levels_from
from probseg.types import FeatureInfo


class FPNDecoder(Decoder):
    """Light top-down decoder: each coarser map is enlarged and added to the next finer one.

    Args:
        inputs: Channels and strides of the backbone's maps.
        channels: Number of channels of every level and of the result.
        stride: Stride of the finest level used; maps with a smaller stride are left out.

    Raises:
        ValueError: If no map of the backbone has a stride of at least `stride`.
    """

    def __init__(self, inputs: FeatureInfo, channels: int = 96, stride: int = 4) -> None:
        super().__init__()
        self.levels = levels_from(inputs, stride)
        self.lateral = nn.ModuleList(
            nn.Conv2d(inputs.channels[i], channels, kernel_size=1) for i in self.levels
        )
        self.smooth = nn.ModuleList(conv_norm_relu(channels, channels, 3) for _ in self.levels)
        self.features = FeatureInfo((channels,), (inputs.strides[self.levels[0]],))

    def forward(self, maps: list[Tensor]) -> DecoderMaps:
        """Fuse feature maps, finest first, into one of the finest level's size."""
        fused: Tensor | None = None
        for level in reversed(range(len(self.levels))):
            lateral = self.lateral[level](maps[self.levels[level]])
            if fused is not None:
                lateral = lateral + enlarged_to(fused, lateral)
            fused = self.smooth[level](lateral)
        assert fused is not None, "there is at least one level"  # checked in the constructor
        return DecoderMaps(fused)
