"""Published checkpoints of RITM as model folders of probseg.

Source: Sofiiuk, Petrov and Konushin, 2021, "Reviving Iterative Training with Mask Guidance for
Interactive Segmentation". A file holds `state_dict` and `config`: the class of the network and
the arguments that it was built with.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probseg.errors import ModelNotFoundError, WeightsError
from probseg.models import Segmenter, build, override, read_preset
from probseg.models.build import Description
from probseg.paths import write_text
from probseg.transfer import digest
from probseg.types import Prompts
from probseg.zoo.index import CARD, WEIGHTS
from probseg.zoo.store import check_fit, load_into, save

HRNET, DEEPLAB = "HRNetModel", "DeeplabModel"
"""Classes of the networks, without their module."""

_NEEDED = {
    "use_rgb_conv": False,
    "conv_extend": False,
    "use_leaky_relu": True,
    "use_disks": True,
    "clicks_groups": None,
    "binary_prev_mask": False,
}
"""Arguments of which the networks of probseg have one value only."""

_DEFAULTS: dict[str, Any] = {
    "use_rgb_conv": True,
    "conv_extend": False,
    "use_leaky_relu": False,
    "use_disks": False,
    "clicks_groups": None,
    "binary_prev_mask": False,
    "with_prev_mask": False,
    "norm_radius": 260,
    "norm_mean_std": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "width": 48,
    "ocr_width": 256,
    "small": False,
    "backbone": "resnet50",
    "deeplab_ch": 256,
}
"""Values of the arguments that a file leaves out."""

_RESNETS = {
    "resnet34": "resnet34",
    "resnet50": "resnet50s",
    "resnet101": "resnet101s",
    "resnet152": "resnet152s",
}
"""timm's names; from 50 layers on, they have a deep stem."""

_STEM = {
    "maps_transform.0.": "backbone.network.conv1.prompts.layers.0.",
    "maps_transform.2.": "backbone.network.conv1.prompts.layers.2.",
    "maps_transform.3.": "backbone.network.conv1.prompts.",
}

_TRUNK = ("conv2", "bn2", "layer1", "transition1", "transition2", "transition3")
_STAGES = ("stage2", "stage3", "stage4")

_CONTEXT = "feature_extractor.ocr_distri_head.object_context_block."

_NAMES: dict[str, dict[str, str]] = {
    HRNET: {
        **_STEM,
        "feature_extractor.conv1.": "backbone.network.conv1.rgb.",
        "feature_extractor.bn1.": "backbone.network.conv1.norm.",
        **{
            f"feature_extractor.{part}.": f"backbone.network.{part}."
            for part in (*_TRUNK, *_STAGES)
        },
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
"""Beginnings of the names in a file, and in our network."""

_BIASED = ("decoder.auxiliary.0", "decoder.pixels")
"""Blocks whose convolution has a bias in the files of HRNet."""


def import_ritm(path: Path, folder: Path) -> Segmenter:
    """Convert a checkpoint of RITM to a model folder, and check that it loads and answers.

    The network computes the function of RITM's. The published networks take no box; the channel for
    it gets weights of 0. Weights stay in float32.

    Args:
        path: A file of RITM, `.pth`; no code in it is run.
        folder: Where to; must not exist.

    Returns:
        The network as it is loaded from the folder, in evaluation mode.

    Raises:
        ModelNotFoundError: If there is no such file.
        FileExistsError: If the folder exists.
        WeightsError: If the file is damaged, holds something else, or a network that probseg has
            not; the message says what differs.
    """
    if folder.exists():
        msg = f"{folder}: exists already; choose another folder, or remove it"
        raise FileExistsError(msg)
    state, config = read_ritm(path)
    description = describe_ritm(config, path)
    model = build(description, Segmenter)
    weights = convert_ritm(state, config, path)
    check_fit(model.state_dict(), weights, str(path))
    model.load_state_dict(weights)
    _answer(model, path)
    save(model, description, folder, half=False)
    load_into(model, folder / WEIGHTS)
    write_text(folder / CARD, _card(path, config, model, folder))
    return model


def read_ritm(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read weights and configuration of a checkpoint of RITM, without running code.

    Args:
        path: The file.

    Returns:
        Tensors by their names in the file, and `class`, the name of the network's class without
        its module, with the arguments that it was built with.

    Raises:
        ModelNotFoundError: If there is no such file.
        WeightsError: If it is damaged, or holds something else.
    """
    if not path.is_file():
        msg = f"{path}: no such file; give the path of a checkpoint of RITM, .pth"
        raise ModelNotFoundError(msg)
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        msg = (
            f"{path}: holds Python objects, which are not read since they could run code, or is "
            "damaged; expected a checkpoint of RITM, of tensors, numbers and texts"
        )
        raise WeightsError(msg) from error
    except Exception as error:  # PyTorch's reader raises what it happens to stumble over
        msg = f"{path}: cannot be read as a checkpoint; the file is damaged, or of another kind"
        raise WeightsError(msg) from error
    state, config = _parts(content)
    if state is None or config is None:
        msg = (
            f"{path}: must hold `state_dict`, tensors by name, and `config`, a class and its "
            f"params, as RITM's files do, got {_kinds(content)}"
        )
        raise WeightsError(msg)
    params = {name: param["value"] for name, param in config["params"].items()}
    kind = str(config["class"]).rpartition(".")[2]
    if kind not in _NAMES:
        msg = f"{path}: config.class must be {HRNET} or {DEEPLAB}, got {config['class']!r}"
        raise WeightsError(msg)
    return state, {**_DEFAULTS, **params, "class": kind}


def describe_ritm(config: Mapping[str, Any], source: Path) -> Description:
    """Return the description of the network with the configuration of a checkpoint.

    Args:
        config: Of `read_ritm`.
        source: Named in errors.

    Raises:
        WeightsError: If probseg has no such network.
    """
    mean, std = (tuple(values) for values in config["norm_mean_std"])
    if (mean, std) != tuple(map(tuple, _DEFAULTS["norm_mean_std"])):
        msg = f"{source}: norm_mean_std must be that of ImageNet, got {mean} and {std}"
        raise WeightsError(msg)
    for name, wanted in _NEEDED.items():
        if config[name] != wanted:
            msg = (
                f"{source}: {name} must be {wanted}, got {config[name]!r}; the networks of f-BRS "
                "and of RITM's ablations with other stems are not supported"
            )
            raise WeightsError(msg)
    changes: dict[str, Any] = {
        "click_maps": {"radius": float(config["norm_radius"])},
        "previous_mask": bool(config["with_prev_mask"]),
    }
    if config["class"] == HRNET:
        width = f"{config['width']}s" if config["small"] else str(config["width"])
        if config["ocr_width"] < 1:
            msg = f"{source}: ocr_width must be at least 1, got {config['ocr_width']}"
            raise WeightsError(msg)
        changes |= {"backbone": {"width": width}, "decoder": {"channels": config["ocr_width"]}}
        return override(read_preset("ritm_hrnet18s_ocr"), changes)
    if config["backbone"] not in _RESNETS:
        msg = f"{source}: backbone must be one of {list(_RESNETS)}, got {config['backbone']!r}"
        raise WeightsError(msg)
    changes |= {
        "backbone": {"name": _RESNETS[config["backbone"]]},
        "decoder": {"channels": config["deeplab_ch"]},
        "head": {"channels": config["deeplab_ch"] // 2},
    }
    return override(read_preset("ritm_resnet50_deeplab"), changes)


def convert_ritm(
    state: Mapping[str, Tensor], config: Mapping[str, Any], source: Path
) -> dict[str, Tensor]:
    """Rename the weights of a checkpoint, and rearrange those that our network has otherwise.

    Args:
        state: Of `read_ritm`.
        config: As above.
        source: Named in errors.

    Returns:
        Weights by their names in our network.

    Raises:
        WeightsError: If the file has a tensor that such a network has not, or lacks one.
    """
    beginnings = _NAMES[config["class"]]
    weights: dict[str, Tensor] = {}
    for name, tensor in state.items():
        theirs = [beginning for beginning in beginnings if name.startswith(beginning)]
        if not theirs:
            msg = f"{source}: no tensor of RITM's {config['class']} is called {name!r}"
            raise WeightsError(msg)
        weights[beginnings[theirs[0]] + name.removeprefix(theirs[0])] = tensor
    try:
        if config["class"] == HRNET:
            for block in _BIASED:
                # In front of a normalisation, a bias is the same as a lower mean.
                bias, mean = weights.pop(f"{block}.0.bias"), f"{block}.1.running_mean"
                weights[mean] = weights[mean] - bias
        first = "backbone.network.conv1.prompts.layers.0.weight"
        # Theirs: the previous mask if there is one, positive, negative. Ours: box, positive,
        # negative, the previous mask.
        previous, clicks = weights[first][:, :-2], weights[first][:, -2:]
    except KeyError as error:
        msg = f"{source}: lacks tensors of RITM's {config['class']}, for {error.args[0]}"
        raise WeightsError(msg) from error
    box = torch.zeros_like(clicks[:, :1])
    weights[first] = torch.cat([box, clicks, previous], dim=1)
    return weights


def _parts(content: object) -> tuple[dict[str, Tensor] | None, dict[str, Any] | None]:
    """Return `state_dict` and `config` of a file; None for one of another form."""
    if not isinstance(content, dict):
        return None, None
    state, config = content.get("state_dict"), content.get("config")
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        state = None
    if (
        not isinstance(config, dict)
        or not isinstance(config.get("class"), str)
        or not isinstance(config.get("params"), dict)
        or not all(isinstance(p, dict) and "value" in p for p in config["params"].values())
    ):
        config = None
    return state, config


def _kinds(content: object) -> str:
    """Describe what a file holds instead."""
    if not isinstance(content, dict):
        return f"a {type(content).__name__}"
    kinds = [f"{name!r}: {type(value).__name__}" for name, value in list(content.items())[:4]]
    return f"{{{', '.join(kinds)}}}"


def _answer(model: Segmenter, source: Path) -> None:
    """Raise a WeightsError unless the network answers a click with finite logits."""
    model.eval()
    image = torch.linspace(0, 1, 3 * 50 * 70).view(1, 3, 50, 70)
    clicked = Prompts(
        points=torch.tensor([[[30.0, 20.0]]]),
        labels=torch.tensor([[1]]),
        boxes=torch.full((1, 4), torch.nan),
    )
    with torch.no_grad():
        logits = model(image, clicked)
    if not logits.isfinite().all():
        msg = f"{source}: the network answers a click with logits that are not finite"
        raise WeightsError(msg)


def _card(path: Path, config: Mapping[str, Any], model: Segmenter, folder: Path) -> str:
    arguments = {name: value for name, value in config.items() if name in _DEFAULTS}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    place = folder if folder.is_absolute() else f"./{folder}"
    return f"""# {folder.name}

Weights of RITM, converted from `{path.name}` by `probseg zoo import ritm`.

- Source: Sofiiuk, Petrov and Konushin, 2021, *Reviving Iterative Training with Mask Guidance for
  Interactive Segmentation* ([arXiv:2102.06583](https://arxiv.org/abs/2102.06583)). For training
  data and licence see the authors' page; probseg neither trained nor published these weights.
- File: `{path.name}`, sha256 `{digest(path)}`.
- Network: `{config["class"]}` with `{arguments}`; {parameters / 1e6:.2f} M parameters, float32.
- Changed: tensors are renamed; biases in front of a batch normalisation are part of its mean; the
  channels of the click maps are reordered, and the box, which RITM does not take, has weights of 0.

```python
import probseg

predictor = probseg.Predictor.from_pretrained("{place}/")
```
"""
