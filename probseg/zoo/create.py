"""Models by name."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

from probseg.errors import UnknownNameError
from probseg.models import Segmenter, build, list_presets, override, read_preset, without_downloads
from probseg.zoo.store import WEIGHTS, load_into, read_config, read_index, verify


def list_models(pattern: str = "*", pretrained: bool = False) -> list[str]:
    """List the names that `create_model` knows.

    Args:
        pattern: Shell pattern, for instance ``"*csa*"``.
        pretrained: List those with weights only, as ``architecture.tag``.

    Returns:
        Names in alphabetical order.
    """
    names = list(read_index()) if pretrained else list_presets()
    return sorted(fnmatch.filter(names, pattern))


def create_model(name: str, pretrained: bool = False, **changes: Any) -> Segmenter:  # noqa: ANN401
    """Create an interactive segmentation network.

    Args:
        name: A preset (``"resnet18_conv"``), a zoo model (``"resnet18_conv.objects"``) or the path
            of a local model folder; a path must contain a slash.
        pretrained: Load the zoo's weights, or those of the folder.
        **changes: Arguments of `Segmenter` to change, as dictionaries:
            ``head={"attention": "standard"}``.

    Returns:
        The network on the CPU: in evaluation mode if pretrained, else in training mode.

    Raises:
        UnknownNameError: If there is no such model; the message lists the nearest names.
        ChecksumError: If the weight file is not the recorded one.
        ValueError: If the weights do not fit the network, which changes may cause.
    """
    if "/" in name:
        folder = Path(name)
        description = read_config(folder)
    elif pretrained:
        folder = verify(name)
        description = read_config(folder)
    else:
        architecture = name.split(".")[0]
        if architecture not in list_presets():
            raise UnknownNameError("model", name, list_presets())
        description = read_preset(architecture)
    if not pretrained:
        return build(override(description, changes))
    model = build(override(without_downloads(description), changes))
    load_into(model, folder / WEIGHTS)
    return model.eval()
