"""SimpleClick written out as plain functions in float64, with weights by the names of its files.

Stated from Liu et al. (2023), Li et al. (2022) and Xie et al. (2021), and from the names and shapes
of the published files; nothing of probseg is used.
"""

from __future__ import annotations

import math
import sys
import types

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.published import MEAN, STD, Weights

LOSS = "isegm.model.modeling.transformer_helper.cross_entropy_loss"
"""Module of the loss that files hold."""


def linear(w: Weights, name: str, x: Tensor, out: int) -> Tensor:
    reach = math.sqrt(3 / x.shape[-1])
    weight = w.get(f"{name}.weight", out, x.shape[-1], low=-reach, high=reach)
    return x @ weight.T + w.get(f"{name}.bias", out, low=-0.3, high=0.3)


def scaled(w: Weights, name: str, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    weight = w.get(f"{name}.weight", count, low=0.7, high=1.3)
    return weight, w.get(f"{name}.bias", count, low=-0.3, high=0.3)


def layer_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    weight, bias = scaled(w, name, x, x.shape[-1])
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / (var + 1e-6).sqrt() * weight + bias


def map_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    """Normalise over channels and pixels."""
    weight, bias = (t.view(1, -1, 1, 1) for t in scaled(w, name, x, x.shape[1]))
    mean = x.mean((1, 2, 3), keepdim=True)
    var = x.var((1, 2, 3), keepdim=True, unbiased=False)
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def squares(w: Weights, name: str, x: Tensor, out: int, side: int) -> Tensor:
    """A convolution of squares beside each other."""
    reach = math.sqrt(3 / (x.shape[1] * side**2))
    weight = w.get(f"{name}.weight", out, x.shape[1], side, side, low=-reach, high=reach)
    return F.conv2d(x, weight, w.get(f"{name}.bias", out, low=-0.3, high=0.3), side)


def doubled(w: Weights, name: str, x: Tensor, out: int) -> Tensor:
    reach = math.sqrt(3 / x.shape[1])
    weight = w.get(f"{name}.weight", x.shape[1], out, 2, 2, low=-reach, high=reach)
    return F.conv_transpose2d(x, weight, w.get(f"{name}.bias", out, low=-0.3, high=0.3), 2)


def block(w: Weights, name: str, x: Tensor, heads: int) -> Tensor:
    """Attention and perceptron of tokens `(n, N, C)`, each with a residual connection."""
    width = x.shape[-1]
    parts = linear(w, f"{name}.attn.qkv", layer_norm(w, f"{name}.norm1", x), 3 * width)
    query, key, value = parts.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    shares = (query @ key.mT / math.sqrt(width // heads)).softmax(-1)
    attended = (shares @ value).transpose(1, 2).flatten(2)
    x = x + linear(w, f"{name}.attn.proj", attended, width)
    inner = gelu(linear(w, f"{name}.mlp.fc1", layer_norm(w, f"{name}.norm2", x), 4 * width))
    return x + linear(w, f"{name}.mlp.fc2", inner, width)


def simpleclick(w, image, maps, patch, width, depth, heads, widths, channels):
    """Return the logits of an image and maps (previous mask, positive, negative clicks)."""
    mean, std = (torch.tensor(v, dtype=torch.float64).view(1, 3, 1, 1) for v in (MEAN, STD))
    x = squares(w, "backbone.patch_embed.proj", (image.double() - mean) / std, width, patch)
    x = x + squares(w, "patch_embed_coords.proj", maps, width, patch)
    cells = x.shape[-1]
    positions = w.get("backbone.pos_embed", 1, cells**2 + 1, width, low=-0.5, high=0.5)[0, 1:]
    x = x[0].flatten(1).T + positions
    half = cells // 2
    quarters = torch.arange(cells**2).view(cells, cells).unfold(0, half, half).unfold(1, half, half)
    quarters = quarters.reshape(4, -1)  # the tokens of each window
    group = 6 if depth == 12 else depth // 4
    for number in range(depth):
        name = f"backbone.blocks.{number}"
        if (number + 1) % group == 0:
            x = block(w, name, x[None], heads)[0]
        else:
            x = x.clone().index_copy(
                0, quarters.flatten(), block(w, name, x[quarters], heads).flatten(0, 1)
            )
    x = x.T.reshape(1, width, cells, cells)
    quarter, middle = max(2 * widths[0], width // 2), max(widths[1], width // 2)
    y = gelu(map_norm(w, "neck.down_4.1", doubled(w, "neck.down_4.0", x, quarter)))
    y = map_norm(w, "neck.down_4.4", doubled(w, "neck.down_4.3", y, quarter // 2))
    levels = [gelu(map_norm(w, "neck.down_4.6", squares(w, "neck.down_4.5", y, widths[0], 1)))]
    y = map_norm(w, "neck.down_8.1", doubled(w, "neck.down_8.0", x, middle))
    levels.append(gelu(map_norm(w, "neck.down_8.3", squares(w, "neck.down_8.2", y, widths[1], 1))))
    y = squares(w, "neck.down_16.0", x, widths[2], 1)
    levels.append(gelu(map_norm(w, "neck.down_16.1", y)))
    y = squares(w, "neck.down_32.0", x, max(widths[3], 2 * width), 2)
    y = squares(w, "neck.down_32.2", map_norm(w, "neck.down_32.1", y), widths[3], 1)
    levels.append(gelu(map_norm(w, "neck.down_32.3", y)))
    reduced = [
        F.interpolate(
            squares(w, f"head.convs.{n}.conv", level, channels, 1).relu(),
            levels[0].shape[-2:],
            mode="bilinear",
            align_corners=False,
        )
        for n, level in enumerate(levels)
    ]
    y = squares(w, "head.fusion_conv.conv", torch.cat(reduced, 1), channels, 1).relu()
    logits = squares(w, "head.conv_seg", y, 1, 1)
    return F.interpolate(logits, image.shape[-2:], mode="bilinear", align_corners=True)


def unused(w: Weights, width: int, channels: int) -> None:
    """Draw the tensors of files that the network does not use."""
    w.get("backbone.cls_token", 1, 1, width, low=-1, high=1)
    w.get("backbone.fc_norm.weight", width, low=-1, high=1)
    w.get("backbone.head.weight", 1000, width, low=-1, high=1)
    w.get("head.up_conv1.0.weight", channels, channels // 2, 2, 2, low=-1, high=1)


def save_checkpoint(path, w, patch, width, depth, heads, widths, channels, **changes) -> None:
    """Write a file of SimpleClick, whose configuration holds an object of its code."""
    vit = {"img_size": (448, 448), "patch_size": (patch, patch), "in_chans": 3, "mlp_ratio": 4}
    vit |= {"embed_dim": width, "depth": depth, "num_heads": heads, "qkv_bias": True}
    parameters = {
        "backbone_params": vit,
        "neck_params": {"in_dim": width, "out_dims": widths},
        "head_params": {"in_channels": widths, "channels": channels, "upsample": "x1"},
        "random_split": False,
        "use_disks": True,
        "norm_radius": 5,
        "with_prev_mask": True,
        "norm_mean_std": (list(MEAN), list(STD)),
    }
    for name, value in changes.items():
        old = parameters.get(name)
        parameters[name] = {**old, **value} if isinstance(old, dict) else value
    module = types.ModuleType(LOSS)
    module.CrossEntropyLoss = type("CrossEntropyLoss", (nn.Module,), {"__module__": LOSS})
    exec("def cross_entropy(): ...", module.__dict__)
    loss = module.CrossEntropyLoss()
    loss.cls_criterion = module.cross_entropy
    parameters["head_params"]["loss_decode"] = loss
    config = {
        "class": "isegm.model.is_plainvit_model.PlainVitModel",
        "params": {
            name: {"type": "builtin", "value": value, "specified": True}
            for name, value in parameters.items()
        },
    }
    names = [LOSS.rsplit(".", n)[0] for n in range(LOSS.count(".") + 1)]
    sys.modules |= {name: types.ModuleType(name) for name in names[1:]} | {LOSS: module}
    try:
        state = {name: tensor.float() for name, tensor in w.state.items()}
        torch.save({"state_dict": state, "config": config}, path)
    finally:
        for name in names:
            del sys.modules[name]
