"""Models by name."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

from probseg.models import Segmenter, build, list_presets, override, read_preset
from probseg.models.build import Description
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
        WeightsError: If the weights do not fit the network, which changes may cause.
    """
    folder, description = describe(name, pretrained)
    model = build(override(description, changes))
    if folder is None:
        return model
    load_into(model, folder / WEIGHTS)
    return model.eval()


def describe(name: str, pretrained: bool) -> tuple[Path | None, Description]:
    """Find the description of a network, and the folder of its weights if it is to have them.

    Args:
        name: As for `create_model`.
        pretrained: Whether weights will be loaded; the folder is then checked.

    Raises:
        UnknownNameError: If there is no such model; the message lists the nearest names.
        ChecksumError: If the weight file is not the recorded one.
    """
    if "/" in name:
        folder = Path(name)
        return (folder if pretrained else None), read_config(folder)
    if pretrained:
        folder = verify(name)
        return folder, read_config(folder)
    return None, read_preset(name.split(".")[0])
