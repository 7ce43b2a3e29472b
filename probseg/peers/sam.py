"""SAM, SAM 2 and SAM 3 by the modules of `transformers`: parts of a `Segmenter`.

Sources: Kirillov et al., 2023, "Segment Anything", section 3 and appendix A; Ravi et al., 2024,
"SAM 2: Segment Anything in Images and Videos", section 4, without the memory for videos; of Carion
et al., 2025, "SAM 3: Segment Anything with Concepts", the tracker, which answers clicks.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.backbones import Backbone
from probseg.clicks.maps import box_corners
from probseg.errors import UsageError, require
from probseg.heads import Decoder, DecoderMaps, Fusion, Head
from probseg.peers.checkpoints import IMAGENET
from probseg.types import FeatureInfo, Prompts

CHANNELS = 256  # channels of the maps behind all image encoders

# stride of the map that prompts are compared with; masks are answered at a quarter of it
PATCH = 16

CERTAIN = 2.0**-24  # least distance of a probability from 0 and 1: that of float32 below 1


class SamEncoder(Backbone):
    """Image encoder of SAM: a vision transformer with windows and relative positions.

    Args:
        width: Channels of the tokens.
        depth: Number of blocks.
        heads: Heads of each attention.
        whole: Numbers of the blocks that attend to the whole image, from 0.
        size: Side of the square images in pixels.
    """

    mean, std = IMAGENET

    def __init__(
        self,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        whole: Sequence[int] = (2, 5, 8, 11),
        size: int = 1024,
    ) -> None:
        super().__init__()
        library = _library()
        config = library.SamVisionConfig(
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            global_attn_indexes=list(whole),
            image_size=size,
        )
        self.network = library.SamVisionModel(config).vision_encoder
        self.features = FeatureInfo((CHANNELS,), (PATCH,))
        self.multiple = size

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return one map of stride 16."""
        return [self.network(x).last_hidden_state]


class Sam2Encoder(Backbone):
    """Image encoder of SAM 2: Hiera with a feature pyramid.

    Args:
        width: Channels of the first stage; each further one has twice as many.
        heads: Heads of the attentions of the first stage; twice as many in each further one.
        stages: Blocks of each of the four stages.
        whole: Numbers of the blocks that attend to the whole image, from 0.
        windows: Sides in tokens of the windows of each stage.
        background: Side of the position embedding that is interpolated to the image.
        size: Side of the square images in pixels.
    """

    mean, std = IMAGENET

    def __init__(
        self,
        width: int = 96,
        heads: int = 1,
        stages: Sequence[int] = (1, 2, 7, 2),
        whole: Sequence[int] = (5, 7, 9),
        windows: Sequence[int] = (8, 4, 14, 7),
        background: int = 7,
        size: int = 1024,
    ) -> None:
        super().__init__()
        library = _library()
        widths = [width * 2**stage for stage in range(len(stages))]
        hiera = library.Sam2HieraDetConfig(
            hidden_size=width,
            num_attention_heads=heads,
            image_size=[size, size],
            blocks_per_stage=list(stages),
            embed_dim_per_stage=widths,
            num_attention_heads_per_stage=[heads * 2**stage for stage in range(len(stages))],
            window_size_per_stage=list(windows),
            global_attention_blocks=list(whole),
            window_positional_embedding_background_size=[background, background],
        )
        config = library.Sam2VisionConfig(
            backbone_config=hiera, backbone_channel_list=widths[::-1], fpn_hidden_size=CHANNELS
        )
        self.network = library.Sam2VisionModel(config)
        self.features = FeatureInfo((CHANNELS,) * 3, (PATCH // 4, PATCH // 2, PATCH))
        self.multiple = size

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return maps of strides 4, 8 and 16."""
        return list(self.network(x).fpn_hidden_states)


class Sam3Encoder(Backbone):
    """Image encoder of SAM 3: a vision transformer with windows, and the tracker's pyramid.

    Args:
        width: Channels of the tokens.
        depth: Number of blocks.
        hidden: Channels inside of the multilayer perceptrons.
        heads: Heads of each attention.
        whole: Numbers of the blocks that attend to the whole image, from 0.
        window: Side in tokens of the windows of the other blocks.
        background: Side in tokens of the position embedding that is repeated over the image.
        size: Side of the square images in pixels.
    """

    mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

    def __init__(
        self,
        width: int = 1024,
        depth: int = 32,
        hidden: int = 4736,
        heads: int = 16,
        whole: Sequence[int] = (7, 15, 23, 31),
        window: int = 24,
        background: int = 24,
        size: int = 1008,
    ) -> None:
        super().__init__()
        library = _library()
        vit = library.Sam3ViTConfig(
            hidden_size=width,
            intermediate_size=hidden,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            global_attn_indexes=list(whole),
            window_size=window,
            pretrain_image_size=14 * background,
            image_size=size,
        )
        config = library.Sam3VisionConfig(
            backbone_config=vit, fpn_hidden_size=CHANNELS, scale_factors=[4.0, 2.0, 1.0]
        )
        self.network = library.Sam3VisionModel(config)
        self.features = FeatureInfo((CHANNELS,) * 3, (4, 7, 14))  # the first is 3.5
        self.multiple = size

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return maps of strides 3.5, 7 and 14."""
        return list(self.network(x).fpn_hidden_states)


class BareMaps(Decoder):
    """The backbone's maps as they are.

    Args:
        inputs: Channels and strides of the backbone's maps.
    """

    def __init__(self, inputs: FeatureInfo) -> None:
        super().__init__()
        self.features = inputs

    def forward(self, maps: list[Tensor]) -> DecoderMaps:
        """Return the maps."""
        return DecoderMaps(maps[0], coarser=tuple(maps[1:]))


class MaskDecoder(Fusion):
    """Prompt encoder and mask decoder: logits of stride 4 for the prompts on a map of stride 16.

    A single click on an unknown object is ambiguous: three masks are answered, of which the one
    with the best predicted IoU counts; otherwise one mask is answered. The last answer enters as
    logits. The images of a batch are answered one by one: padding would be one more prompt.

    Args:
        inputs: Channels and strides of the backbone's maps.
        prompt_channels: Number of click maps, which are not looked at.
        size: Side of the square images in pixels.
    """

    channels = 1
    patch = PATCH

    def __init__(self, inputs: FeatureInfo, prompt_channels: int, size: int = 1024) -> None:
        super().__init__()
        self.mask_size = (4 * size // self.patch, 4 * size // self.patch)
        self.network = self.built(_library(), size)
        self.network.vision_encoder = nn.Identity()  # the backbone has it

    @abstractmethod
    def built(self, library: Any, size: int) -> Any:  # noqa: ANN401
        """Return the whole network, of `transformers`, with as small an image encoder as can be."""

    @abstractmethod
    def embeddings(self, decoder_maps: DecoderMaps) -> Any:  # noqa: ANN401
        """Return the maps in the form that the network takes them."""

    def forward(self, decoder_maps: DecoderMaps, maps: Tensor, prompts: Prompts) -> Tensor:
        """Return logits `(B, 1, h, w)`."""
        answers = []
        for row in range(len(maps)):
            image = slice(row, row + 1)
            of_image = decoder_maps.map(lambda part, image=image: part[image])  # type: ignore[misc]
            answers.append(self._answer(of_image, prompts.at(image)))
        return torch.cat(answers)

    def _answer(self, decoder_maps: DecoderMaps, prompts: Prompts) -> Tensor:
        """Return the logits `(1, 1, h, w)` of one image."""
        valid = prompts.labels[0] >= 0
        known: dict[str, Tensor] = {}
        if valid.any():
            known["input_points"] = prompts.points[:, None, valid].float()
            known["input_labels"] = prompts.labels[:, None, valid]
        if not prompts.boxes.isnan().any():
            known["input_boxes"] = box_corners(prompts.boxes.float()).reshape(1, 1, 4)
        if prompts.previous is not None and prompts.previous.any():
            logits = prompts.previous.float().logit(eps=CERTAIN)  # (1, 1, H, W)
            # Without antialiasing, which would blur what was answered at this size.
            logits = F.interpolate(logits, self.mask_size, mode="bilinear", align_corners=False)
            known["input_masks"] = logits
        ambiguous = set(known) == {"input_points", "input_labels"} and int(valid.sum()) == 1
        answer = self.network(
            image_embeddings=self.embeddings(decoder_maps), multimask_output=ambiguous, **known
        )
        best = answer.iou_scores[0, 0].argmax()
        masks: Tensor = answer.pred_masks[:, 0, best, None]
        return masks


class SamMaskDecoder(MaskDecoder):
    """Prompt encoder and mask decoder of SAM, behind a `SamEncoder`; see `MaskDecoder`."""

    def built(self, library: Any, size: int) -> Any:  # noqa: ANN401
        """Return SAM without blocks in its image encoder."""
        cells = size // PATCH
        config = library.SamConfig(
            vision_config=library.SamVisionConfig(num_hidden_layers=0, image_size=size),
            prompt_encoder_config=library.SamPromptEncoderConfig(
                image_size=size, image_embedding_size=cells
            ),
        )
        network = library.SamModel(config)
        # One tensor under two names could not be stored.
        network.prompt_encoder.shared_embedding = copy.deepcopy(network.shared_image_embedding)
        return network

    def embeddings(self, decoder_maps: DecoderMaps) -> Tensor:
        """Return the map."""
        return decoder_maps.features


class Sam2MaskDecoder(MaskDecoder):
    """Prompt encoder and mask decoder of SAM 2, behind a `Sam2Encoder`; see `MaskDecoder`."""

    def built(self, library: Any, size: int) -> Any:  # noqa: ANN401
        """Return SAM 2 without blocks in its image encoder."""
        hiera = library.Sam2HieraDetConfig(blocks_per_stage=[0, 0, 0, 0])
        config = library.Sam2Config(
            vision_config=library.Sam2VisionConfig(backbone_config=hiera),
            prompt_encoder_config=library.Sam2PromptEncoderConfig(image_size=size),
        )
        return library.Sam2Model(config)

    def prepare(self, decoder_maps: DecoderMaps, image: Tensor) -> DecoderMaps:
        """Project the finer maps, and mark the coarsest as that of an image without a past."""
        finer, coarsest = decoder_maps.coarser
        decoder = self.network.mask_decoder
        without_past = self.network.no_memory_embedding.view(1, -1, 1, 1)
        return decoder_maps._replace(
            features=decoder.conv_s0(decoder_maps.features),
            coarser=(decoder.conv_s1(finer), coarsest + without_past),
        )

    def embeddings(self, decoder_maps: DecoderMaps) -> list[Tensor]:
        """Return the maps, finest first."""
        return [decoder_maps.features, *decoder_maps.coarser]


class Sam3MaskDecoder(Sam2MaskDecoder):
    """Prompt encoder and mask decoder of SAM 3's tracker, behind a `Sam3Encoder`."""

    patch = 14

    def built(self, library: Any, size: int) -> Any:  # noqa: ANN401
        """Return the tracker without blocks in its image encoder."""
        vit = library.Sam3ViTConfig(num_hidden_layers=0, image_size=size)
        config = library.Sam3TrackerConfig(
            vision_config=library.Sam3VisionConfig(backbone_config=vit),
            prompt_encoder_config=library.Sam3TrackerPromptEncoderConfig(image_size=size),
        )
        return library.Sam3TrackerModel(config)


class EnlargedLogits(Head):
    """Enlarges logits that the fusion has computed to the size of the image.

    Args:
        inputs: Channels and strides of the decoder's maps.
        value_channels: 1, that of the logits.
    """

    def __init__(self, inputs: FeatureInfo, value_channels: int | None = None) -> None:
        super().__init__()
        right = value_channels == 1
        require(right, "value_channels", "1, that of the fusion's logits", value_channels)

    def forward(
        self, features: Tensor, clicks: Tensor, value_features: Tensor | None = None
    ) -> Tensor:
        """Return logits `(B, 1, H, W)`."""
        assert value_features is not None, "prompts enter at the head"
        return F.interpolate(
            value_features, clicks.shape[-2:], mode="bilinear", align_corners=False
        )


def _library() -> Any:  # noqa: ANN401
    """Import `transformers`, an extra."""
    try:
        return import_module("transformers")
    except ModuleNotFoundError as error:
        raise UsageError(
            "transformers, which has the modules of SAM, is not installed; in a checkout run: "
            'pip install -e ".[sam]"'
        ) from error
