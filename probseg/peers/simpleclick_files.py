"""Published checkpoints of SimpleClick as model folders of probseg.

A file holds `state_dict` and `config`: the class of the network and the arguments that it was
built with, among them the loss of its head, an object that is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from probseg.errors import WeightsError
from probseg.models import Segmenter
from probseg.models.build import Description
from probseg.peers.checkpoints import (
    IMAGENET,
    Converted,
    Origin,
    check_arguments,
    import_checkpoint,
    read_with_config,
    renamed,
    with_box,
)

ORIGIN = Origin(
    kind="simpleclick",
    name="SimpleClick",
    paper="Liu, Xu, Bertasius and Niethammer, 2023, *SimpleClick: Interactive Image Segmentation\n"
    "  with Simple Vision Transformers* ([arXiv:2210.11006](https://arxiv.org/abs/2210.11006))",
)

NETWORK = "PlainVitModel"
"""Class of the network, without its module."""

WINDOW = 224
"""Side of a window in pixels: that of the images of the pretraining."""

_LOSS = "isegm.model.modeling.transformer_helper.cross_entropy_loss."
_OWN = (f"{_LOSS}CrossEntropyLoss", f"{_LOSS}cross_entropy")
"""Names of the code that files refer to."""

_NEEDED = {
    "use_disks": True,
    "use_rgb_conv": False,
    "with_aux_output": False,
    "random_split": False,
}
"""Arguments of which the network of probseg has one value only."""

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
"""Values of the arguments, and of those of the parts, that a file leaves out."""

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
"""Beginnings of the names in a file, and in our network."""


def import_simpleclick(path: Path, folder: Path) -> Segmenter:
    """Convert a checkpoint of SimpleClick, `.pth`, see `import_checkpoint`.

    The network computes the function of SimpleClick's for images of its own size; others are
    stretched to it, as in the published evaluation. It takes no box; the channel for it gets
    weights of 0.
    """
    return import_checkpoint(path, folder, ORIGIN, _converted)


def _converted(path: Path) -> Converted:
    state, config = read_with_config(path, ORIGIN.name, [NETWORK], _DEFAULTS, _OWN)
    parts = {part: {**_PARTS[part], **config[part]} for part in _PARTS}
    return Converted(
        description=describe_simpleclick({**config, **parts}, path),
        weights=convert_simpleclick(state, parts["backbone_params"], path),
        architecture=f"`{NETWORK}` with `{parts['backbone_params']}`",
        changed="tensors are renamed; the biases of both patch embeddings are added; the channels\n"
        "  of the click maps are reordered, and the box, which SimpleClick does not take, has\n"
        "  weights of 0; what only the pretraining used is left out",
    )


def describe_simpleclick(config: Mapping[str, Any], source: Path) -> Description:
    """Return the description of the network with the configuration of a checkpoint.

    Args:
        config: Arguments by name, none left out.
        source: Named in errors.

    Raises:
        WeightsError: If probseg has no such network.
    """
    others = "the ablations of SimpleClick and the networks of RITM are others"
    check_arguments(config, _NEEDED, source, others)
    vit, head = config["backbone_params"], config["head_params"]
    (height, width), (patch, other) = vit["img_size"], vit["patch_size"]
    fits = {
        "img_size": height == width and height % patch == 0 and height % WINDOW == 0,
        "patch_size": patch == other and WINDOW % patch == 0,
        "depth": vit["depth"] >= 8 and vit["depth"] % 4 == 0,
        "qkv_bias": vit["qkv_bias"],
    }
    for name, fit in fits.items():
        if not fit:
            msg = (
                f"{source}: backbone_params.{name} must be that of a published network (448 x 448 "
                f"pixels, patches of 14 or 16, blocks in four groups), got {vit[name]!r}"
            )
            raise WeightsError(msg)
    if head["upsample"] != "x1":
        msg = f"{source}: head_params.upsample must be 'x1', got {head['upsample']!r}"
        raise WeightsError(msg)
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
    """Rename the weights of a checkpoint, and rearrange those that our network has otherwise.

    Args:
        state: Tensors by their names in the file.
        vit: Arguments of the transformer.
        source: Named in errors.

    Returns:
        Weights by their names in our network.

    Raises:
        WeightsError: If the file has a tensor that such a network has not, or lacks one.
    """
    weights = renamed(state, _NAMES, source, f"SimpleClick's {NETWORK}")
    stem = "backbone.patches."
    try:
        weights[f"{stem}rgb.bias"] = weights[f"{stem}rgb.bias"] + weights.pop(f"{stem}prompts.bias")
        weights[f"{stem}prompts.weight"] = with_box(weights[f"{stem}prompts.weight"])
        positions = weights["backbone.positions"][:, 1:]  # the first one is that of the class token
    except KeyError as error:
        msg = f"{source}: lacks tensors of SimpleClick's {NETWORK}, for {error.args[0]}"
        raise WeightsError(msg) from error
    cells = vit["img_size"][0] // vit["patch_size"][0]
    if positions.shape[1] != cells**2:
        msg = (
            f"{source}: backbone.pos_embed must have {cells**2 + 1} positions for "
            f"img_size={vit['img_size']}, got {positions.shape[1] + 1}"
        )
        raise WeightsError(msg)
    weights["backbone.positions"] = positions.reshape(1, cells, cells, -1)
    return weights
