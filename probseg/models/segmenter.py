"""The network from image and prompts to logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.attention import Adaptation, adapt, adaptation_of
from probseg.backbones import Backbone, add_prompt_stem, embed_prompts, has_prompt_stem
from probseg.clicks.maps import ClickMaps, click_pixels
from probseg.clicks.propagated import PropagatedClicks
from probseg.errors import require
from probseg.geometry import Size, scale_to, shrink_to
from probseg.heads import Decoder, DecoderMaps, Fusion, GraphCut, Head, MaskQuality, PromptFusion
from probseg.kinds import TaskName
from probseg.models.network import (
    Encoded,
    Network,
    check_head,
    check_image,
    check_prompts,
    check_values,
    normalise,
    resize_maps,
    resize_prompts,
)
from probseg.types import FeatureInfo, Prompts

Place = Literal["stem", "head"]
PromptStems = Literal["convolution", "embedding"]
Sizing = Literal["reduce", "fit", "stretch"]


class Logits(NamedTuple):
    """Logits of the object, float32 or float64, `(B, 1, H, W)` each, and of the answer's quality.

    The latter, `(B,)`, are of the IoU of the main answer, before a refinement, with the truth as
    far as the image shows it.
    """

    main: Tensor
    auxiliary: Tensor | None  # of a decoder with a separate loss
    quality: Tensor | None = None  # None of networks that do not predict it


class Segmenter(Network):
    """Interactive segmentation network.

    Normalisation, click maps, backbone, decoder and head, in this order; images of any size, odd
    ones too. `forward` is `encode`, which depends on the image alone, and then `decode`, which
    repeats for each further click on the same image. Both give calibrated logits; `raw_logits` are
    what a training compares with the truth.

    Args:
        backbone: Image (and click maps) to feature maps.
        decoder: Builds the decoder for the backbone's features, for instance
            `functools.partial(FPNDecoder, channels=96)`.
        head: Builds the head for the decoder's features and the number of channels of the value
            features, None where prompts enter at the stem.
        click_maps: Draws the prompts; disks of radius 8 by default.
        working_size: Longest side in pixels that the network works at. Larger images are reduced
            to it, with their prompts, and the logits enlarged again: objects then appear at the
            sizes that the network was trained on. None works at every image's own size.
        prompts: Where prompts enter. `"stem"`: with the image, through a second first
            convolution; every click runs the whole network. `"head"`: behind the decoder; the
            backbone runs once per image, and a click costs a fraction.
        fusion: Builds the `Fusion` of networks whose prompts enter at the head; a `PromptFusion` by
            default.
        previous_mask: Whether the last answered probability, `Prompts.previous`, is one more
            click map (Sofiiuk et al. 2021); zeros where it is None.
        propagated_clicks: Makes further maps: prompts propagated to pixels of similar colour and
            place. None adds none.
        refinement: Aligns the answer with colours and contours of the image, in evaluation mode;
            None leaves it as it is.
        temperature: Divides the logits, so that their probabilities are calibrated (Guo et al.,
            2017). The network's last answer, where it takes one, is turned back to temperature 1.
            Training takes `raw_logits`, which know no temperature.
        prompt_stem: How prompts enter at the stem; without effect for `prompts="head"`.
            `"convolution"`: a `PromptStem`. `"embedding"`: an `EmbeddedPromptStem`, as in
            RITM.
        cell: Images are padded to whole multiples of this number of pixels. None is the smallest
            number with which all maps of backbone, decoder and head lie exactly on the image. With
            fewer pixels, coarse maps are stretched, as `resnet16_csa.objects` was trained.
        sizing: Which images are brought to the working size. `"reduce"`: larger ones. `"fit"`:
            smaller ones are enlarged to it, too. `"stretch"`: all become squares of it.
        quality: Builds the part that predicts the IoU of each answer with the truth, which changes
            no answer; None for none.
    """

    task: ClassVar[TaskName] = "interactive"

    def __init__(
        self,
        backbone: Backbone,
        decoder: Callable[[FeatureInfo], Decoder],
        head: Callable[[FeatureInfo, int | None], Head],
        click_maps: ClickMaps | None = None,
        working_size: int | None = None,
        prompts: Place = "stem",
        fusion: Callable[[FeatureInfo, int], Fusion] | None = None,
        previous_mask: bool = False,
        propagated_clicks: PropagatedClicks | None = None,
        refinement: GraphCut | None = None,
        temperature: float = 1.0,
        prompt_stem: PromptStems = "convolution",
        cell: int | None = None,
        sizing: Sizing = "reduce",
        quality: Callable[[int], MaskQuality] | None = None,
    ) -> None:
        super().__init__()
        require(0 < temperature < math.inf, "temperature", "finite and above 0", temperature)
        positive = working_size is None or working_size >= 1
        require(positive, "working_size", "a positive number of pixels or None", working_size)
        for name, value, choices in (
            ("prompts", prompts, get_args(Place)),
            ("prompt_stem", prompt_stem, get_args(PromptStems)),
            ("sizing", sizing, get_args(Sizing)),
        ):
            require(value in choices, name, " or ".join(map(repr, choices)), repr(value))
        has_size = sizing == "reduce" or working_size is not None
        require(has_size, "working_size", f"a number of pixels with sizing={sizing!r}", None)
        fits = fusion is None or prompts == "head"
        require(fits, "fusion", "None with prompts='stem', whose first convolution fuses", fusion)
        fresh = prompts == "stem" or not has_prompt_stem(backbone)
        require(fresh, "backbone", "without a stem for prompts with prompts='head'", "one with it")
        check_head(head, Head, "Segmenter")
        self.working_size = working_size
        self.sizing: Sizing = sizing
        self.previous_mask = previous_mask
        self.click_maps = click_maps if click_maps is not None else ClickMaps()
        self.backbone = backbone
        self.decoder: Decoder = decoder(backbone.features)
        self.fusion: Fusion | None = None
        self.propagated_clicks = propagated_clicks
        prompt_channels = self.click_maps.channels + int(previous_mask)
        if propagated_clicks is not None:
            prompt_channels += propagated_clicks.channels
        if prompts == "stem":
            add = add_prompt_stem if prompt_stem == "convolution" else embed_prompts
            add(backbone, prompt_channels)
            self.head: Head = head(self.decoder.features, None)
        else:
            self.fusion = (fusion or PromptFusion)(self.decoder.features, prompt_channels)
            self.head = head(self.decoder.features, self.fusion.channels)
        channels = self.fusion.channels if self.fusion else self.decoder.features.channels[0]
        self.quality = None if quality is None else quality(channels)
        self.aligned = self.decoder.features.aligned
        strides = () if self.aligned else self.decoder.features.strides
        all_strides = () if self.aligned else backbone.features.strides
        needed = math.lcm(*strides, self.head.stride, backbone.multiple)
        self.cell = math.lcm(needed, *all_strides) if cell is None else cell
        require(
            self.cell >= 1 and self.cell % needed == 0,
            "cell",
            f"a multiple of {needed}, the pixels of a whole cell of the finest maps",
            cell,
            "leave it at None for whole cells of all maps",
        )
        self.refinement = refinement
        self.temperature = temperature
        self.register_buffer("mean", torch.tensor(backbone.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(backbone.std).view(3, 1, 1), persistent=False)

    @property
    def prompts_enter(self) -> Place:
        """Where prompts enter."""
        return "stem" if self.fusion is None else "head"

    def forward(self, image: Tensor, prompts: Prompts) -> Tensor:
        """Compute the logits of the object.

        Args:
            image: RGB in [0, 1], float, shape `(B, 3, H, W)`.
            prompts: Clicks, boxes and perhaps the last answer for the `B` images, on the same
                device.

        Returns:
            Calibrated logits `(B, 1, H, W)`, float32 or float64; their sigmoid is the probability
            of the object.

        Raises:
            ValueError: If image and prompts do not fit each other or are not as above.
        """
        check_image(image)
        check_prompts(prompts, len(image), (image.shape[2], image.shape[3]), self.previous_mask)
        check_values(image, prompts)
        return self.decode(self.encode(image), prompts)

    def encode(self, image: Tensor) -> Encoded:
        """Compute what does not depend on prompts for RGB images in [0, 1], `(B, 3, H, W)`."""
        check_image(image)
        encoded = self.preprocess(image)
        return encoded._replace(decoder_maps=self.image_features(encoded.image))

    def sizes(self, size: Size) -> tuple[Size, Size]:
        """Return the working size `(h, w)` of images `(H, W)`, and its padded size."""
        height, width = size
        if (side := self.working_size) is not None:
            resize = {"reduce": shrink_to, "fit": scale_to, "stretch": lambda *_: (side, side)}
            height, width = resize[self.sizing](size, side)
        # On part of a cell, resized maps would lie elsewhere than the image.
        return (height, width), (height + -height % self.cell, width + -width % self.cell)

    def preprocess(self, image: Tensor) -> Encoded:
        """Resize images to the working size, normalise and pad them; no features yet."""
        size = (image.shape[-2], image.shape[-1])
        working_size, padded_size = self.sizes(size)
        pixels = normalise(resize_maps(image, working_size), self.mean, self.std)
        return Encoded(size, working_size, _pad(pixels, padded_size), None)

    def image_features(self, pixels: Tensor) -> DecoderMaps | None:
        """Run backbone and decoder on `Encoded.image`; None where prompts enter at the stem."""
        if self.fusion is None:
            return None
        return self.fusion.prepare(self.decoder(self.backbone(pixels)), self._colours(pixels))

    def decode(self, encoded: Encoded, prompts: Prompts) -> Tensor:
        """Compute calibrated logits `(B, 1, H, W)`, float32 (or 64), for prompts on encoded images.

        Prompts are in pixels of the images as `encode` got them.
        """
        return self.calibrate(self.raw_logits(encoded, self.uncalibrate(prompts)).main)

    def raw_logits(self, encoded: Encoded, prompts: Prompts, refine: bool = True) -> Logits:
        """Compute all logits that have a loss, before calibration.

        The last answer in the prompts is the sigmoid of raw logits; a refinement may be left out.
        """
        moved = self.to_network_pixels(prompts, encoded)
        main, auxiliary, quality = self.padded_logits(encoded.image, encoded.decoder_maps, moved)
        if refine:
            main = self.refine(main, encoded, moved)
        auxiliary = None if auxiliary is None else encoded.unpad_and_resize(auxiliary)
        return Logits(encoded.unpad_and_resize(main), auxiliary, quality)

    def calibrate(self, logits: Tensor) -> Tensor:
        """Divide raw logits by the temperature."""
        return logits if self.temperature == 1 else logits / self.temperature

    def uncalibrate(self, prompts: Prompts) -> Prompts:
        """Bring the last answer in the prompts back to temperature 1."""
        if prompts.previous is None or self.temperature == 1 or not prompts.previous.any():
            return prompts  # zeros stay zeros, and their logits would take longer than the network
        logits = self.temperature * prompts.previous.logit()
        return prompts._replace(previous=logits.sigmoid())

    def to_network_pixels(self, prompts: Prompts, encoded: Encoded) -> Prompts:
        """Check prompts, and convert them to pixels of the padded images."""
        check_prompts(prompts, len(encoded.image), encoded.size, self.previous_mask)
        moved = resize_prompts(prompts, encoded.size, encoded.working_size)
        if not self.previous_mask:
            return moved
        previous = moved.previous
        if previous is None:  # nothing was answered yet
            previous = moved.boxes.new_zeros(len(moved.boxes), 1, 0, 0)
        size = (encoded.image.shape[-2], encoded.image.shape[-1])
        # A training lets no gradient flow from an answer to the one before.
        return moved._replace(previous=_pad(previous.detach().float(), size))

    def padded_logits(
        self, image: Tensor, decoder_maps: DecoderMaps | None, prompts: Prompts
    ) -> Logits:
        """Compute the logits of padded images, for `Encoded.unpad_and_resize`.

        Image and decoder maps are those of `Encoded`, prompts those of `to_network_pixels`.
        """
        size = (image.shape[-2], image.shape[-1])
        maps = self.click_maps(prompts, size)  # (B, 3, h, w)
        clicks = click_pixels(prompts, size) if self.head.clicked_pixels else maps[:, 1:]
        if prompts.previous is not None:
            maps = torch.cat([maps, prompts.previous], dim=1)
        if self.propagated_clicks is not None:
            propagated = self.propagated_clicks(self._colours(image), prompts)
            maps = torch.cat([maps, propagated], dim=1)
        value_features = None
        if decoder_maps is None:
            decoder_maps = self.decoder(
                self.backbone(torch.cat([image, maps.to(image.dtype)], dim=1))
            )
        features = decoder_maps.features
        if self.fusion is not None:
            # It may have been encoded under autocast.
            features = features.to(self.mean.dtype)
            coarser = tuple(level.to(self.mean.dtype) for level in decoder_maps.coarser)
            prepared = decoder_maps._replace(features=features, coarser=coarser)
            value_features = self.fusion(prepared, maps, prompts)
        main = self.head(features, clicks, value_features)
        auxiliary = decoder_maps.auxiliary
        if auxiliary is not None:
            auxiliary = F.interpolate(
                auxiliary.float(), size, mode="bilinear", align_corners=self.aligned
            )
        quality = None
        if self.quality is not None:
            last = features if value_features is None else value_features
            quality = self.quality(last, self.calibrate(main), prompts)
        return Logits(main, auxiliary, quality)

    def refine(self, logits: Tensor, encoded: Encoded, prompts: Prompts) -> Tensor:
        """Refine main logits of the padded images in evaluation mode, prompts in their pixels."""
        if self.refinement is None or self.training:
            return logits
        colours = self._colours(encoded.unpad(encoded.image))
        refined: Tensor = self.refinement(encoded.unpad(logits), colours, prompts)
        return refined

    def _colours(self, image: Tensor) -> Tensor:
        """Return normalised images as RGB in [0, 1], float32; padding is the mean."""
        return image.float() * self.std.float() + self.mean.float()

    def adaptation(self) -> Adaptation:
        """Return the settings that `adapt` changes; None for those that the network lacks."""
        return adaptation_of(self._before_head(), self.head)

    def adapt(self, adaptation: Adaptation) -> None:
        """Switch key adaptation and value propagation of the trained network, in place.

        Keys adapt in the probabilistic attention of backbone and fusion, or in that of the head
        where these have none. Values propagate in heads that were trained with it. Settings that
        are None stay as they are.
        """
        adapt(self._before_head(), self.head, adaptation)

    def _before_head(self) -> nn.Module:
        """Return the parts with layers whose keys adapt before those of the head."""
        return nn.ModuleList(
            [self.backbone] if self.fusion is None else [self.backbone, self.fusion]
        )


def _pad(maps: Tensor, size: Size) -> Tensor:
    """Pad maps `(B, C, h, w)` with zeros at the right and at the bottom."""
    return F.pad(maps, (0, size[1] - maps.shape[-1], 0, size[0] - maps.shape[-2]))
