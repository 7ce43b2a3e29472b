"""Published checkpoints of RITM as model folders of probseg.

Source: Sofiiuk, Petrov and Konushin, 2021, "Reviving Iterative Training with Mask Guidance for
Interactive Segmentation". A file holds `state_dict` and `config`: the class of the network and
the arguments that it was built with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from probseg.errors import WeightsError
from probseg.models import Segmenter, override, read_preset
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

ORIGIN = Origin(
    kind="ritm",
    name="RITM",
    paper="Sofiiuk, Petrov and Konushin, 2021, *Reviving Iterative Training with Mask Guidance\n"
    "  for Interactive Segmentation* ([arXiv:2102.06583](https://arxiv.org/abs/2102.06583))",
)

HRNET, DEEPLAB = "HRNetModel", "DeeplabModel"  # classes of the networks, without their module

# arguments of which the networks of probseg have one value only
_NEEDED = {
    "use_rgb_conv": False,
    "conv_extend": False,
    "use_leaky_relu": True,
    "use_disks": True,
    "clicks_groups": None,
    "binary_prev_mask": False,
}

# values of the arguments that a file leaves out
_DEFAULTS: dict[str, Any] = {
    "use_rgb_conv": True,
    "conv_extend": False,
    "use_leaky_relu": False,
    "use_disks": False,
    "clicks_groups": None,
    "binary_prev_mask": False,
    "with_prev_mask": False,
    "norm_radius": 260,
    "norm_mean_std": IMAGENET,
    "width": 48,
    "ocr_width": 256,
    "small": False,
    "backbone": "resnet50",
    "deeplab_ch": 256,
}

# timm's names; from 50 layers on, they have a deep stem
_RESNETS = {
    "resnet34": "resnet34",
    "resnet50": "resnet50s",
    "resnet101": "resnet101s",
    "resnet152": "resnet152s",
}

_STEM = {
    "maps_transform.0.": "backbone.network.conv1.prompts.layers.0.",
    "maps_transform.2.": "backbone.network.conv1.prompts.layers.2.",
    "maps_transform.3.": "backbone.network.conv1.prompts.",
}

_TRUNK = (
    *("conv2", "bn2", "layer1", "transition1", "transition2", "transition3"),
    *("stage2", "stage3", "stage4"),
)

_CONTEXT = "feature_extractor.ocr_distri_head.object_context_block."

# beginnings of the names in a file, and in our network
_NAMES: dict[str, dict[str, str]] = {
    HRNET: {
        **_STEM,
        "feature_extractor.conv1.": "backbone.network.conv1.rgb.",
        "feature_extractor.bn1.": "backbone.network.conv1.norm.",
        **{f"feature_extractor.{part}.": f"backbone.network.{part}." for part in _TRUNK},
        "feature_extractor.aux_head.0.": "decoder.auxiliary.0.0.",
        "feature_extractor.aux_head.1.": "decoder.auxiliary.0.1.",
        "feature_extractor.aux_head.3.": "decoder.auxiliary.1.",
        "feature_extractor.conv3x3_ocr.0.": "decoder.pixels.0.",
        "feature_extractor.conv3x3_ocr.1.": "decoder.pixels.1.",
        **{
            f"{_CONTEXT}{theirs}.{place}.": f"decoder.attention.{ours}.{own}."
            for theirs, ours in (("f_pixel", "query"), ("f_object", "key"))
            for place, own in (("0", "0.0"), ("1.0", "0.1"), ("2", "1.0"), ("3.0", "1.1"))
        },
        **{
            f"{_CONTEXT}{theirs}.{place}.": f"decoder.attention.{ours}.{own}."
            for theirs, ours in (("f_down", "value"), ("f_up", "output"))
            for place, own in (("0", "0"), ("1.0", "1"))
        },
        "feature_extractor.ocr_distri_head.conv_bn_dropout.0.": "decoder.fuse.0.0.",
        "feature_extractor.ocr_distri_head.conv_bn_dropout.1.0.": "decoder.fuse.0.1.",
        "feature_extractor.cls_head.": "head.logit.",
    },
    DEEPLAB: {
        **_STEM,
        "feature_extractor.backbone.conv1.": "backbone.network.conv1.rgb.",
        "feature_extractor.backbone.bn1.": "backbone.network.conv1.norm.",
        **{
            f"feature_extractor.backbone.layer{n}.": f"backbone.network.layer{n}."
            for n in (1, 2, 3, 4)
        },
        "feature_extractor.aspp.concurent.0.": "decoder.pyramid.point.",
        "feature_extractor.aspp.concurent.1.": "decoder.pyramid.atrous.0.",
        "feature_extractor.aspp.concurent.2.": "decoder.pyramid.atrous.1.",
        "feature_extractor.aspp.concurent.3.": "decoder.pyramid.atrous.2.",
        "feature_extractor.aspp.concurent.4.gap.": "decoder.pyramid.pool.",
        "feature_extractor.aspp.project.": "decoder.pyramid.project.",
        "feature_extractor.skip_project.skip_project.": "decoder.low.",
        "feature_extractor.head.block.0.body.": "decoder.fuse.0.",
        "feature_extractor.head.block.1.body.": "decoder.fuse.1.",
        "feature_extractor.head.block.2.": "decoder.fuse.2.",
        "head.layers.0.body.": "head.layers.0.",
        "head.layers.1.body.": "head.layers.1.",
        "head.layers.2.": "head.layers.2.",
    },
}


def import_ritm(path: Path, folder: Path) -> Segmenter:
    """Convert a checkpoint of RITM, `.pth`, see `import_checkpoint`.

    The network computes the function of RITM's. The published networks take no box; the channel for
    it gets weights of 0.
    """

    def convert(path: Path) -> Converted:
        state, config = read_ritm(path)
        arguments = {name: value for name, value in config.items() if name in _DEFAULTS}
        return Converted(
            description=describe_ritm(config, path),
            weights=convert_ritm(state, config, path),
            architecture=f"`{config['class']}` with `{arguments}`",
            changed="tensors are renamed; biases in front of a batch normalisation are part of "
            "its\n  mean; the channels of the click maps are reordered, and the box, which RITM "
            "does not\n  take, has weights of 0",
        )

    return import_checkpoint(path, folder, ORIGIN, convert)


def read_ritm(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read weights and configuration, see `read_with_config`, with the arguments left out."""
    return read_with_config(path, ORIGIN.name, _NAMES, _DEFAULTS)


def describe_ritm(config: Mapping[str, Any], source: Path) -> Description:
    """Return the description of the network with the configuration of `read_ritm`."""
    others = "the networks of f-BRS and of RITM's ablations with other stems are not supported"
    check_arguments(config, _NEEDED, source, others)
    changes: dict[str, Any] = {
        "click_maps": {"radius": float(config["norm_radius"])},
        "previous_mask": bool(config["with_prev_mask"]),
    }
    if config["class"] == HRNET:
        width = f"{config['width']}s" if config["small"] else str(config["width"])
        changes |= {"backbone": {"width": width}, "decoder": {"channels": config["ocr_width"]}}
        return override(read_preset("ritm_hrnet18s_ocr"), changes)
    if config["backbone"] not in _RESNETS:
        raise WeightsError(
            f"{source}: backbone must be one of {list(_RESNETS)}, got {config['backbone']!r}"
        )
    changes |= {
        "backbone": {"name": _RESNETS[config["backbone"]]},
        "decoder": {"channels": config["deeplab_ch"]},
        "head": {"channels": config["deeplab_ch"] // 2},
    }
    return override(read_preset("ritm_resnet50_deeplab"), changes)


def convert_ritm(
    state: Mapping[str, Tensor], config: Mapping[str, Any], source: Path
) -> dict[str, Tensor]:
    """Rename the weights of `read_ritm`, and rearrange those that our network has otherwise."""
    weights = rename_tensors(state, _NAMES[config["class"]], source, f"RITM's {config['class']}")
    with needed_tensors(source, f"RITM's {config['class']}"):
        if config["class"] == HRNET:
            # In front of a normalisation, a bias is the same as a lower mean.
            for block in ("decoder.auxiliary.0", "decoder.pixels"):
                bias, mean = weights.pop(f"{block}.0.bias"), f"{block}.1.running_mean"
                weights[mean] = weights[mean] - bias
        first = "backbone.network.conv1.prompts.layers.0.weight"
        weights[first] = with_box(weights[first])
    return weights
