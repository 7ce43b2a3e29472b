"""SimpleClick: a plain vision transformer with windows, its decoder, and published checkpoints.

Source: Liu, Xu, Bertasius and Niethammer, 2023, "SimpleClick: Interactive Image Segmentation with
Simple Vision Transformers" (ICCV), section 3. A file holds `state_dict` and `config`: the class of
the network and the arguments that it was built with, among them the loss of its head, an object
that is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from probseg.backbones import Backbone
from probseg.errors import WeightsError
from probseg.heads import Decoder, DecoderMaps
from probseg.heads.base import enlarge_to
from probseg.models import Segmenter
from probseg.models.build import Description
from probseg.peers.checkpoints import (
    IMAGENET,
    Converted,
    Origin,
    check_arguments,
    import_checkpoint,
    needed_tensors,
    read_with_config,
    rename_tensors,
    with_box,
)
from probseg.types import FeatureInfo

ORIGIN = Origin(
    kind="simpleclick",
    name="SimpleClick",
    paper="Liu, Xu, Bertasius and Niethammer, 2023, *SimpleClick: Interactive Image Segmentation\n"
    "  with Simple Vision Transformers* ([arXiv:2210.11006](https://arxiv.org/abs/2210.11006))",
)

NETWORK = "PlainVitModel"  # class of the network, without its module

WINDOW = 224  # side of a window in pixels: that of the images of the pretraining

_LOSS = "isegm.model.modeling.transformer_helper.cross_entropy_loss."
# names of the code that files refer to
_OWN = (f"{_LOSS}CrossEntropyLoss", f"{_LOSS}cross_entropy")

# arguments of which the network of probseg has one value only
_NEEDED = {
    "use_disks": True,
    "use_rgb_conv": False,
    "with_aux_output": False,
    "random_split": False,
}

_DEFAULTS: dict[str, Any] = {
    "use_disks": False,
    "use_rgb_conv": False,
    "with_aux_output": False,
    "random_split": False,
    "with_prev_mask": False,
    "norm_radius": 5,
    "norm_mean_std": IMAGENET,
    "backbone_params": {},
    "neck_params": {},
    "head_params": {},
}
# values of the arguments, and of those of the parts, that a file leaves out
_PARTS: dict[str, dict[str, Any]] = {
    "backbone_params": {
        "img_size": (224, 224),
        "patch_size": (16, 16),
        "in_chans": 3,
        "embed_dim": 768,
        "depth": 12,
        "num_heads": 12,
        "mlp_ratio": 4.0,
        "qkv_bias": True,
    },
    "neck_params": {"in_dim": 768, "out_dims": [128, 256, 512, 1024]},
    "head_params": {"channels": 256, "upsample": "x1", "dropout_ratio": 0.1},
}

# beginnings of the names in a file, and in our network
_NAMES: dict[str, str | None] = {
    "patch_embed_coords.proj.": "backbone.patches.prompts.",
    "backbone.patch_embed.proj.": "backbone.patches.rgb.",
    "backbone.pos_embed": "backbone.positions",
    "backbone.blocks.": "backbone.blocks.",
    "neck.down_4.": "decoder.levels.0.",
    "neck.down_8.": "decoder.levels.1.",
    "neck.down_16.": "decoder.levels.2.",
    "neck.down_32.": "decoder.levels.3.",
    **{f"head.convs.{level}.conv.": f"decoder.reduce.{level}." for level in range(4)},
    "head.fusion_conv.conv.": "decoder.fuse.",
    "head.conv_seg.": "head.logit.",
    # Of the pretraining's classifier, and of the finer heads that no published network uses.
    **dict.fromkeys(("backbone.cls_token", "backbone.fc_norm.", "backbone.head.")),
    **dict.fromkeys(("head.up_conv1.", "head.up_conv2.")),
}


class WindowedViT(Backbone):
    """Plain vision transformer for images of one size, most of whose blocks attend in windows.

    There is no class token and no normalisation behind the last block. Click maps enter by a
    second patch embedding, which is added to that of the image: the `PromptStem` of a `Segmenter`.

    Args:
        width: Channels of the tokens.
        depth: Number of blocks.
        heads: Heads of each attention.
        patch: Side of a patch in pixels.
        size: Side of the square images in pixels.
        windows: Windows along each side of the image.
        whole_every: Every so many blocks, one attends to the whole image.
        expansion: Channels inside the blocks' perceptrons over `width`.
    """

    mean, std = IMAGENET

    def __init__(
        self,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        patch: int = 16,
        size: int = 448,
        windows: int = 2,
        whole_every: int = 6,
        expansion: float = 4.0,
    ) -> None:
        super().__init__()
        cells = size // patch
        if size % patch or cells % windows:
            raise ValueError(
                f"`size` must be divisible by patch={patch}, and the number of patches by "
                f"windows={windows}, got {size}"
            )
        self.features = FeatureInfo((width,), (patch,))
        self.multiple = size
        self.windows = windows
        self.whole_every = whole_every
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, cells, cells, width))
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.blocks = nn.ModuleList(
            Block(width, heads, expansion, qkv_bias=True, norm_layer=norm) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return one map `(B, width, h, w)`."""
        tokens = self.patches(x).permute(0, 2, 3, 1) + self.positions  # (B, h, w, width)
        for number, block in enumerate(self.blocks, start=1):
            whole = number % self.whole_every == 0
            tokens = in_windows(block, tokens, 1 if whole else self.windows)
        return [tokens.permute(0, 3, 1, 2)]


def in_windows(block: nn.Module, tokens: Tensor, count: int) -> Tensor:
    """Apply a block to the tokens `(B, h, w, C)` of each window alone, `count` along each side."""
    batch, height, width, channels = tokens.shape
    sides = height // count, width // count
    cut = tokens.reshape(batch, count, sides[0], count, sides[1], channels).transpose(2, 3)
    answer: Tensor = block(cut.reshape(batch * count**2, sides[0] * sides[1], channels))
    answer = answer.view(batch, count, count, *sides, channels).transpose(2, 3)
    return answer.reshape(batch, height, width, channels)


class SimpleClickDecoder(Decoder):
    """Four levels of the transformer's map, each reduced, enlarged to the finest, and fused.

    The levels are those of Li et al. (2022, "Exploring Plain Vision Transformer Backbones"), with
    normalisation over a whole map; they are joined by the multilayer perceptron of Xie et al.
    (2021, "SegFormer"), whose layers are 1x1 convolutions.

    Args:
        inputs: Channels and stride of the transformer's map.
        widths: Channels of the levels of a quarter of the stride, half of it, the stride, and
            twice the stride.
        channels: Channels of the result. Its stride is a quarter of the transformer's.
        dropout: Probability with which channels of the result are dropped in training.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        widths: Sequence[int] = (128, 256, 512, 1024),
        channels: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        width = inputs.channels[0]
        quarter, half = max(2 * widths[0], width // 2), max(widths[1], width // 2)
        double = max(widths[3], 2 * width)
        self.levels = nn.ModuleList(
            [
                nn.Sequential(
                    *_enlarged(width, quarter),
                    nn.GELU(),
                    *_enlarged(quarter, quarter // 2),
                    *_projected(quarter // 2, widths[0]),
                ),
                nn.Sequential(*_enlarged(width, half), *_projected(half, widths[1])),
                nn.Sequential(*_projected(width, widths[2])),
                nn.Sequential(
                    nn.Conv2d(width, double, 2, stride=2),
                    nn.GroupNorm(1, double),
                    *_projected(double, widths[3]),
                ),
            ]
        )
        self.reduce = nn.ModuleList(nn.Conv2d(own, channels, 1) for own in widths)
        self.fuse = nn.Conv2d(channels * len(widths), channels, 1)
        self.dropout = nn.Dropout2d(dropout)
        # The logits are enlarged with aligned corners. Patches of 14 pixels give a stride of 3.5.
        self.features = FeatureInfo((channels,), (-(-inputs.strides[0] // 4),), aligned=True)

    def forward(self, maps: list[Tensor]) -> DecoderMaps:
        """Fuse the levels of the last map."""
        finest, *coarser = (
            reduce(level(maps[-1])).relu()
            for level, reduce in zip(self.levels, self.reduce, strict=True)
        )
        joined = torch.cat([finest, *(enlarge_to(own, finest) for own in coarser)], dim=1)
        return DecoderMaps(self.dropout(self.fuse(joined).relu()))


def _enlarged(channels: int, width: int) -> tuple[nn.Module, ...]:
    """Return layers that double the sides of a map, and normalise it."""
    return nn.ConvTranspose2d(channels, width, 2, stride=2), nn.GroupNorm(1, width)


def _projected(channels: int, width: int) -> tuple[nn.Module, ...]:
    """Return a 1x1 convolution with normalisation and activation."""
    return nn.Conv2d(channels, width, 1), nn.GroupNorm(1, width), nn.GELU()


def import_simpleclick(path: Path, folder: Path) -> Segmenter:
    """Convert a checkpoint of SimpleClick, `.pth`, see `import_checkpoint`.

    The network computes the function of SimpleClick's for images of its own size; others are
    stretched to it, as in the published evaluation. It takes no box; the channel for it gets
    weights of 0.
    """

    def convert(path: Path) -> Converted:
        state, config = read_with_config(path, ORIGIN.name, [NETWORK], _DEFAULTS, _OWN)
        parts = {part: {**_PARTS[part], **config[part]} for part in _PARTS}
        return Converted(
            description=describe_simpleclick({**config, **parts}, path),
            weights=convert_simpleclick(state, parts["backbone_params"], path),
            architecture=f"`{NETWORK}` with `{parts['backbone_params']}`",
            changed="tensors are renamed; the biases of both patch embeddings are added; the "
            "channels\n  of the click maps are reordered, and the box, which SimpleClick does not "
            "take, has\n  weights of 0; what only the pretraining used is left out",
        )

    return import_checkpoint(path, folder, ORIGIN, convert)


def describe_simpleclick(config: Mapping[str, Any], source: Path) -> Description:
    """Return the description of the network with a configuration that leaves nothing out."""
    others = "the ablations of SimpleClick and the networks of RITM are others"
    check_arguments(config, _NEEDED, source, others)
    vit, head = config["backbone_params"], config["head_params"]
    (height, width), (patch, other) = vit["img_size"], vit["patch_size"]
    fits = {
        "img_size": height == width and height % patch == 0 and height % WINDOW == 0,
        "patch_size": patch == other and WINDOW % patch == 0,
        "depth": vit["depth"] >= 8 and vit["depth"] % 4 == 0,
        "qkv_bias": vit["qkv_bias"],
        "upsample": head["upsample"] == "x1",
    }
    for name, fit in fits.items():
        if not fit:
            raise WeightsError(
                f"{source}: {name} must be that of a published network (448 x 448 pixels, patches "
                "of 14 or 16, blocks in four groups, logits that are not enlarged), got "
                f"{vit.get(name, head.get(name))!r}"
            )
    depth = vit["depth"]
    return {
        "class_path": "probseg.models.Segmenter",
        "init_args": {
            "backbone": {
                "class_path": "probseg.peers.simpleclick.WindowedViT",
                "init_args": {
                    "width": vit["embed_dim"],
                    "depth": depth,
                    "heads": vit["num_heads"],
                    "patch": patch,
                    "size": height,
                    "windows": height // WINDOW,
                    "whole_every": 6 if depth == 12 else depth // 4,
                    "expansion": vit["mlp_ratio"],
                },
            },
            "decoder": {
                "class_path": "probseg.peers.simpleclick.SimpleClickDecoder",
                "init_args": {
                    "widths": list(config["neck_params"]["out_dims"]),
                    "channels": head["channels"],
                    "dropout": head["dropout_ratio"],
                },
            },
            "head": {"class_path": "probseg.heads.ConvHead"},
            "click_maps": {
                "class_path": "probseg.clicks.maps.ClickMaps",
                "init_args": {"radius": float(config["norm_radius"])},
            },
            "working_size": height,
            "sizing": "stretch",
            "previous_mask": bool(config["with_prev_mask"]),
        },
    }


def convert_simpleclick(
    state: Mapping[str, Tensor], vit: Mapping[str, Any], source: Path
) -> dict[str, Tensor]:
    """Rename the weights of a checkpoint, and rearrange those that our network has otherwise."""
    weights = rename_tensors(state, _NAMES, source, f"SimpleClick's {NETWORK}")
    stem = "backbone.patches."
    with needed_tensors(source, f"SimpleClick's {NETWORK}"):
        weights[f"{stem}rgb.bias"] = weights[f"{stem}rgb.bias"] + weights.pop(f"{stem}prompts.bias")
        weights[f"{stem}prompts.weight"] = with_box(weights[f"{stem}prompts.weight"])
        positions = weights["backbone.positions"][:, 1:]  # the first one is that of the class token
    cells = vit["img_size"][0] // vit["patch_size"][0]
    if positions.shape[1] != cells**2:
        raise WeightsError(
            f"{source}: backbone.pos_embed must have {cells**2 + 1} positions for "
            f"img_size={vit['img_size']}, got {positions.shape[1] + 1}"
        )
    weights["backbone.positions"] = positions.reshape(1, cells, cells, -1)
    return weights
