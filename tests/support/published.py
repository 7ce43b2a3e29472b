"""Networks of RITM written out as plain functions, with weights by the names of its files.

Stated from Sofiiuk et al. (2021), Sun et al. (2019), Yuan et al. (2020) and Chen et al. (2018), and
from the names and shapes of the published files; nothing of probseg is used. A `Weights` draws each
tensor when the function first asks for it, so that the function also defines the file's content.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Weights:
    """Random float64 weights of a network by name, drawn when they are first used."""

    def __init__(self, seed: int = 0) -> None:
        self.state: dict[str, Tensor] = {}
        self.generator = torch.Generator().manual_seed(seed)

    def get(self, name: str, *shape: int, low: float, high: float) -> Tensor:
        if name not in self.state:
            numbers = torch.rand(shape, generator=self.generator, dtype=torch.float64)
            self.state[name] = low + (high - low) * numbers
        return self.state[name]

    def conv(self, name, x, out, size=1, stride=1, rate=1, bias=False, groups=1):
        inputs = x.shape[1] // groups
        reach = (3.0 / (inputs * size * size)) ** 0.5  # keeps the variance
        weight = self.get(f"{name}.weight", out, inputs, size, size, low=-reach, high=reach)
        offset = self.get(f"{name}.bias", out, low=-0.3, high=0.3) if bias else None
        return F.conv2d(x, weight, offset, stride, size // 2 * rate, rate, groups)

    def norm(self, name, x):
        count = x.shape[1]
        mean = self.get(f"{name}.running_mean", count, low=-0.3, high=0.3)
        var = self.get(f"{name}.running_var", count, low=0.5, high=1.5)
        weight = self.get(f"{name}.weight", count, low=0.7, high=1.3)
        bias = self.get(f"{name}.bias", count, low=-0.3, high=0.3)
        self.state.setdefault(f"{name}.num_batches_tracked", torch.tensor(7))
        mean, var, weight, bias = (t.view(1, -1, 1, 1) for t in (mean, var, weight, bias))
        return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def enlarged(x, size):
    return F.interpolate(x, size, mode="bilinear", align_corners=True)


def normalised(image):
    mean, std = (torch.tensor(v, dtype=torch.float64).view(1, 3, 1, 1) for v in (MEAN, STD))
    return (image.double() - mean) / std


def disks(size, positive, negative, radius=5):
    """Two maps of disks around clicks (x, y)."""
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in size), indexing="ij")
    maps = torch.zeros(2, *size, dtype=torch.float64)
    for own, clicks in zip(maps, (positive, negative), strict=True):
        for x, y in clicks:
            own[(columns - x) ** 2 + (rows - y) ** 2 <= radius**2] = 1
    return maps[None]


def embedded(w, maps):
    """The stem for clicks: a 1x1 and a 3x3 convolution and a factor."""
    x = F.leaky_relu(w.conv("maps_transform.0", maps, 16, bias=True), 0.2)
    x = w.conv("maps_transform.2", x, 64, 3, stride=2, bias=True)
    return x * w.get("maps_transform.3.scale", 1, low=-0.5, high=-0.4).abs()


def shortcut(w, name, x, out, stride):
    if stride == 1 and x.shape[1] == out:
        return x
    return w.norm(f"{name}.downsample.1", w.conv(f"{name}.downsample.0", x, out, 1, stride))


def conv_relu(w, conv, norm, x, out, *args, **kwargs):
    return F.relu(w.norm(norm, w.conv(conv, x, out, *args, **kwargs)))


def basic_block(w, name, x, out, stride=1, rate=1, first_rate=1):
    y = conv_relu(w, f"{name}.conv1", f"{name}.bn1", x, out, 3, stride, first_rate)
    y = w.norm(f"{name}.bn2", w.conv(f"{name}.conv2", y, out, 3, 1, rate))
    return F.relu(y + shortcut(w, name, x, out, stride))


def bottleneck(w, name, x, width, stride=1, rate=1, first_rate=1):
    y = conv_relu(w, f"{name}.conv1", f"{name}.bn1", x, width)
    y = conv_relu(w, f"{name}.conv2", f"{name}.bn2", y, width, 3, stride, first_rate)
    y = w.norm(f"{name}.bn3", w.conv(f"{name}.conv3", y, 4 * width))
    return F.relu(y + shortcut(w, name, x, 4 * width, stride))


def exchange(w, name, maps, blocks):
    """A module of HRNet: blocks in each branch, and the sum of all branches in each of them."""
    own = []
    for branch, x in enumerate(maps):
        for block in range(blocks):
            x = basic_block(w, f"{name}.branches.{branch}.{block}", x, x.shape[1])
        own.append(x)
    results = []
    for i, to in enumerate(own):
        width, total = to.shape[1], 0
        for j, x in enumerate(own):
            layer = f"{name}.fuse_layers.{i}.{j}"
            if j > i:
                x = w.norm(f"{layer}.1", w.conv(f"{layer}.0", x, width))
                x = enlarged(x, to.shape[-2:])
            for k in range(i - j):
                last = k == i - j - 1
                x = w.conv(f"{layer}.{k}.0", x, width if last else x.shape[1], 3, 2)
                x = w.norm(f"{layer}.{k}.1", x)
                x = x if last else F.relu(x)
            total = total + x
        results.append(F.relu(total))
    return results


def hrnet_maps(w, image, prompts, width, small):
    """Return the four maps of HRNetV2, the prompts' embedding added behind the first layer."""
    name = "feature_extractor"
    blocks, modules = (2, (1, 3, 2)) if small else (4, (1, 4, 3))
    x = conv_relu(w, f"{name}.conv1", f"{name}.bn1", image, 64, 3, 2)
    if prompts is not None:
        x = x + embedded(w, prompts)
    x = conv_relu(w, f"{name}.conv2", f"{name}.bn2", x, 64, 3, 2)
    for block in range(blocks):
        x = bottleneck(w, f"{name}.layer1.{block}", x, 64)
    maps = [x]
    for stage, count in enumerate(modules, start=1):
        step = f"{name}.transition{stage}"
        if stage == 1:
            finest = conv_relu(w, f"{step}.0.0", f"{step}.0.1", x, width, 3)
            maps = [finest]
        # The new branch comes from the coarsest one so far.
        source = x if stage == 1 else maps[-1]
        new = f"{step}.{stage}.0"
        maps = [*maps, conv_relu(w, f"{new}.0", f"{new}.1", source, width * 2**stage, 3, 2)]
        for module in range(count):
            maps = exchange(w, f"{name}.stage{stage + 1}.{module}", maps, blocks)
    return maps


def hrnet_ocr(w, image, prompts, width, ocr_width, small=False):
    """Return main and auxiliary logits of HRNetV2 with OCR, at stride 4."""
    name = "feature_extractor"
    maps = hrnet_maps(w, image, prompts, width, small)
    x = torch.cat([maps[0], *(enlarged(one, maps[0].shape[-2:]) for one in maps[1:])], dim=1)
    total = x.shape[1]
    auxiliary = conv_relu(w, f"{name}.aux_head.0", f"{name}.aux_head.1", x, total, bias=True)
    auxiliary = w.conv(f"{name}.aux_head.3", auxiliary, 1, bias=True)
    conv, norm = f"{name}.conv3x3_ocr.0", f"{name}.conv3x3_ocr.1"
    x = conv_relu(w, conv, norm, x, 2 * ocr_width, 3, bias=True)
    weights = auxiliary.flatten(1).softmax(-1)  # one region: the object
    region = torch.einsum("bn,bcn->bc", weights, x.flatten(2))[..., None, None]
    head = f"{name}.ocr_distri_head"
    block = f"{head}.object_context_block"

    def transformed(part, y, out, layers):
        for layer in range(0, 2 * layers, 2):
            conv, norm = f"{block}.{part}.{layer}", f"{block}.{part}.{layer + 1}.0"
            y = conv_relu(w, conv, norm, y, out)
        return y

    query = transformed("f_pixel", x, ocr_width, 2).flatten(2)
    key = transformed("f_object", region, ocr_width, 2).flatten(2)
    value = transformed("f_down", region, ocr_width, 1).flatten(2)
    shares = (torch.einsum("bcn,bck->bnk", query, key) * ocr_width**-0.5).softmax(-1)
    context = torch.einsum("bnk,bck->bcn", shares, value).view(len(x), -1, *x.shape[-2:])
    context = transformed("f_up", context, 2 * ocr_width, 1)
    both = torch.cat([context, x], dim=1)
    fused = f"{head}.conv_bn_dropout"
    x = conv_relu(w, f"{fused}.0", f"{fused}.1.0", both, 2 * ocr_width)
    return w.conv(f"{name}.cls_head", x, 1, bias=True), auxiliary


def separable(w, name, x, out):
    x = w.conv(f"{name}.body.0", x, x.shape[1], 3, groups=x.shape[1])
    return conv_relu(w, f"{name}.body.1", f"{name}.body.2", x, out)


def resnet_maps(w, image, prompts, depth):
    """Return the maps of the first and of the last stage, with strides 4 and 8."""
    name = "feature_extractor.backbone"
    if depth == 34:
        layers, block = (3, 4, 6, 3), basic_block
        x = w.get(f"{name}.conv1.weight", 64, 3, 7, 7, low=-0.14, high=0.14)
        x = F.conv2d(image, x, stride=2, padding=3)
    else:
        layers, block = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[depth], bottleneck
        x = conv_relu(w, f"{name}.conv1.0", f"{name}.conv1.1", image, 64, 3, 2)
        x = conv_relu(w, f"{name}.conv1.3", f"{name}.conv1.4", x, 64, 3)
        x = w.conv(f"{name}.conv1.6", x, 128, 3)
    x = F.relu(w.norm(f"{name}.bn1", x))
    if prompts is not None:
        x = torch.cat([x[:, :64] + embedded(w, prompts), x[:, 64:]], dim=1)
    x = F.max_pool2d(x, 3, 2, 1)
    maps = []
    rates = ((1, 1), (1, 1), (1, 2), (2, 4))  # of the first block, and of the others
    for stage, (count, (first, rate)) in enumerate(zip(layers, rates, strict=True)):
        for number in range(count):
            stride = 2 if stage == 1 and number == 0 else 1
            own = first if number == 0 else rate
            place = f"{name}.layer{stage + 1}.{number}"
            # A basic block's second convolution has the rate of its stage.
            second = {"rate": rate} if depth == 34 else {}
            x = block(w, place, x, 64 * 2**stage, stride, first_rate=own, **second)
        maps.append(x)
    return maps[0], maps[-1]


def deeplab(w, image, prompts, depth, channels):
    """Return the logits of DeepLabV3+ as RITM has it, at stride 4."""
    name = "feature_extractor"
    fine, coarse = resnet_maps(w, image, prompts, depth)
    aspp = f"{name}.aspp"
    branch = f"{aspp}.concurent"
    x = [conv_relu(w, f"{branch}.0.0", f"{branch}.0.1", coarse, channels)]
    for number, rate in enumerate((12, 24, 36), start=1):
        conv, norm = f"{branch}.{number}.0", f"{branch}.{number}.1"
        x.append(conv_relu(w, conv, norm, coarse, channels, 3, rate=rate))
    pooled = coarse.mean(dim=(2, 3), keepdim=True)
    pooled = conv_relu(w, f"{branch}.4.gap.1", f"{branch}.4.gap.2", pooled, channels)
    x.append(pooled.expand(-1, -1, *coarse.shape[-2:]))
    x = conv_relu(w, f"{aspp}.project.0", f"{aspp}.project.1", torch.cat(x, dim=1), channels)
    skip = f"{name}.skip_project.skip_project"
    fine = conv_relu(w, f"{skip}.0", f"{skip}.1", fine, 32)
    x = torch.cat([enlarged(x, fine.shape[-2:]), fine], dim=1)
    x = separable(w, f"{name}.head.block.0", x, channels)
    x = separable(w, f"{name}.head.block.1", x, channels)
    x = w.conv(f"{name}.head.block.2", x, channels, bias=True)
    x = separable(w, "head.layers.0", x, channels // 2)
    x = separable(w, "head.layers.1", x, channels // 2)
    return w.conv("head.layers.2", x, 1, bias=True)


def checkpoint(w, kind, **settings):
    """The content of a file of RITM: weights in float32, and the arguments of the network."""
    module = {"HRNetModel": "is_hrnet_model", "DeeplabModel": "is_deeplab_model"}[kind]
    given = {
        "use_leaky_relu": True,
        "use_rgb_conv": False,
        "use_disks": True,
        "norm_radius": 5,
        "with_prev_mask": True,
        **settings,
    }
    params = {
        name: {"type": "builtin", "value": value, "specified": True}
        for name, value in given.items()
    }
    params["norm_layer"] = {
        "type": "class",
        "value": "torch.nn.modules.batchnorm.BatchNorm2d",
        "specified": False,
    }
    params["norm_mean_std"] = {
        "type": "builtin",
        "value": (list(MEAN), list(STD)),
        "specified": False,
    }
    state = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in w.state.items()
    }
    return {
        "state_dict": state,
        "config": {"class": f"isegm.model.{module}.{kind}", "params": params},
    }
