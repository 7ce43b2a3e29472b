"""Published checkpoints of SAM, SAM 2, SAM 2.1 and SAM 3 as model folders of probseg.

A file holds tensors by name, in the layout of Meta's code or of `transformers`, without a
configuration: the network follows from names and shapes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probseg.errors import WeightsError
from probseg.models import Segmenter
from probseg.models.build import Description
from probseg.peers.checkpoints import (
    Converted,
    Origin,
    import_checkpoint,
    is_state,
    kinds,
    needed_tensors,
    read_foreign,
    rename_tensors,
)
from probseg.peers.sam import PATCH

ORIGIN = Origin(
    kind="sam",
    name="SAM",
    paper="Kirillov et al., 2023, *Segment Anything* ([arXiv:2304.02643]"
    "(https://arxiv.org/abs/2304.02643));\n  SAM 2 and 2.1: Ravi et al., 2024, *SAM 2: Segment "
    "Anything in Images and Videos*\n  ([arXiv:2408.00714](https://arxiv.org/abs/2408.00714));\n  "
    "SAM 3: Carion et al., 2025, *SAM 3: Segment Anything with Concepts*",
)


# returns class, arguments and image size of an image encoder
Reader = Callable[[Mapping[str, Tensor], Path], tuple[str, dict[str, Any], int]]


class Hiera(NamedTuple):
    """What the shapes of an image encoder of SAM 2 do not tell; see `Sam2Encoder`."""

    heads: int
    whole: tuple[int, ...]
    windows: tuple[int, ...] = (8, 4, 14, 7)


# image encoders of SAM 2 by width and blocks of each stage: tiny, small, base plus, large
SAM2: dict[tuple[int, tuple[int, ...]], Hiera] = {
    (96, (1, 2, 7, 2)): Hiera(heads=1, whole=(5, 7, 9)),
    (96, (1, 2, 11, 2)): Hiera(heads=1, whole=(7, 10, 13)),
    (112, (2, 3, 16, 3)): Hiera(heads=2, whole=(12, 16, 20)),
    (144, (2, 6, 36, 4)): Hiera(heads=2, whole=(23, 33, 43), windows=(8, 4, 16, 8)),
}

SAM2_SIZE = 1024  # side of the images of SAM 2 in pixels, on which no tensor depends


class Vit3(NamedTuple):
    """What the shapes of the image encoder of SAM 3 do not tell; see `Sam3Encoder`."""

    heads: int = 16
    whole: tuple[int, ...] = (7, 15, 23, 31)
    window: int = 24
    size: int = 1008


# image encoders of SAM 3 by width and number of blocks
SAM3: dict[tuple[int, int], Vit3] = {(1024, 32): Vit3()}

# patterns of the names in a file of the whole SAM 3, and those of its tracker
_OF_SAM3 = (
    (r"^detector_model\.vision_encoder\.backbone\.", "vision_encoder.backbone."),
    (r"^tracker_neck\.", "vision_encoder.neck."),
    (r"^tracker_model\.", ""),
)

_SHARED = (
    (r"^prompt_encoder\.mask_downscaling\.0\.", "prompt_encoder.mask_embed.conv1."),
    (r"^prompt_encoder\.mask_downscaling\.1\.", "prompt_encoder.mask_embed.layer_norm1."),
    (r"^prompt_encoder\.mask_downscaling\.3\.", "prompt_encoder.mask_embed.conv2."),
    (r"^prompt_encoder\.mask_downscaling\.4\.", "prompt_encoder.mask_embed.layer_norm2."),
    (r"^prompt_encoder\.mask_downscaling\.6\.", "prompt_encoder.mask_embed.conv3."),
    (r"\.pe_layer\.positional_encoding_gaussian_matrix", ".shared_embedding.positional_embedding"),
    (r"\.output_upscaling\.0\.", ".upscale_conv1."),
    (r"\.output_upscaling\.1\.", ".upscale_layer_norm."),
    (r"\.output_upscaling\.3\.", ".upscale_conv2."),
    (r"(_mlps\.\d|_head)\.layers\.0\.", r"\1.proj_in."),
    (r"(_mlps\.\d|_head)\.layers\.2\.", r"\1.proj_out."),
    (r"(_mlps\.\d|_head)\.layers\.1\.", r"\1.layers.0."),
    (r"\.norm(?=\d\.|_final)", ".layer_norm"),
    (r"\.patch_embed\.proj\.", ".patch_embed.projection."),
)
_OF_SAM = (
    (r"^image_encoder\.blocks\.", "vision_encoder.layers."),
    (r"^image_encoder\.neck\.0\.", "vision_encoder.neck.conv1."),
    (r"^image_encoder\.neck\.1\.", "vision_encoder.neck.layer_norm1."),
    (r"^image_encoder\.neck\.2\.", "vision_encoder.neck.conv2."),
    (r"^image_encoder\.neck\.3\.", "vision_encoder.neck.layer_norm2."),
    (r"^image_encoder\.", "vision_encoder."),
    (r"\.point_embeddings\.", ".point_embed."),
    *_SHARED,
)
# patterns of Meta's names, and their replacements in the names of `transformers`, in order
_OF_SAM2 = (
    (r"^sam_", ""),
    (r"^image_encoder\.trunk\.", "vision_encoder.backbone."),
    (r"^image_encoder\.neck\.convs\.(\d)\.conv\.", r"vision_encoder.neck.convs.\1."),
    (r"^no_mem_embed$", "no_memory_embedding"),
    (r"\.mlp\.layers\.0\.", ".mlp.proj_in."),
    (r"\.mlp\.layers\.1\.", ".mlp.proj_out."),
    (r"\.out_proj\.", ".o_proj."),
    *_SHARED,
)

# beginnings of the names of `transformers`, and in our network
_NAMES: dict[str, str | None] = {
    "vision_encoder.": "backbone.network.",
    **{
        part: f"fusion.network.{part}"
        for part in ("shared_image_embedding.", "prompt_encoder.", "mask_decoder.")
    },
    "no_memory_embedding": "fusion.network.no_memory_embedding",
    # The memory of SAM 2, which single images do not use, in both layouts.
    **dict.fromkeys(("memory_", "maskmem_", "mask_downsample", "no_mem_pos_enc", "obj_ptr_")),
    **dict.fromkeys(("no_obj_", "no_memory_positional", "temporal_positional", "object_pointer_")),
    **dict.fromkeys(("no_object_pointer", "occlusion_")),
    # What finds concepts in SAM 3.
    "detector_model.": None,
}


def import_sam(path: Path, folder: Path) -> Segmenter:
    """Convert a checkpoint of SAM, SAM 2, SAM 2.1 or SAM 3, see `import_checkpoint`.

    The network computes the function of Meta's image predictors, by the modules of `transformers`.
    The file is one of Meta, `.pth` or `.pt`, or of `transformers`, `.safetensors` or `.bin`; of SAM
    3, whose tracker is taken, one of `transformers`.
    """

    def convert(path: Path) -> Converted:
        state = read_sam(path)
        return Converted(
            description=describe_sam(state, path),
            weights=rename_tensors(state, _NAMES, path, "SAM"),
            architecture=_generation(state)[0],
            changed="tensors are renamed; what only videos or concepts need is left out",
        )

    return import_checkpoint(path, folder, ORIGIN, convert)


def read_sam(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint by their names in `transformers`."""
    content = read_foreign(path, ORIGIN.name)
    state = content.get("model", content) if isinstance(content, dict) else content
    if not is_state(state) or not any(
        name.startswith(("image_encoder.", "vision_encoder.", "tracker_neck.")) for name in state
    ):
        raise WeightsError(
            f"{path}: must hold the tensors of SAM, SAM 2 or SAM 2.1 by name, in the layout of "
            f"Meta's files or of transformers, or of SAM 3 in that of transformers, got "
            f"{kinds(content)}"
        )
    if any(name.startswith("tracker_neck.") for name in state):
        state = {_renamed(name, _OF_SAM3): tensor for name, tensor in state.items()}
    if any(name.startswith("vision_encoder.") for name in state):
        # The tracker of SAM 3 reads three of the four maps of its pyramid.
        return {name: tensor for name, tensor in state.items() if ".fpn_layers.3." not in name}
    of_sam2 = any(name.startswith("image_encoder.trunk.") for name in state)
    patterns = _OF_SAM2 if of_sam2 else _OF_SAM
    named = {_renamed(name, patterns): tensor for name, tensor in state.items()}
    position = "shared_embedding.positional_embedding"
    with needed_tensors(path, "SAM's prompt encoder"):
        named["shared_image_embedding.positional_embedding"] = named[f"prompt_encoder.{position}"]
        if of_sam2:
            rows = [named.pop(f"prompt_encoder.point_embeddings.{n}.weight") for n in range(4)]
            named["prompt_encoder.point_embed.weight"] = torch.cat(rows)
    return named


def describe_sam(state: Mapping[str, Tensor], source: Path) -> Description:
    """Return the description of the network with the tensors of `read_sam`."""
    others = "an image encoder of SAM or SAM 2 (those of MobileSAM and others are not supported)"
    with needed_tensors(source, others):
        encoder, arguments, size = _generation(state)[1](state, source)
    generation = encoder.removesuffix("Encoder")
    return {
        "class_path": "probseg.models.Segmenter",
        "init_args": {
            "backbone": {
                "class_path": f"probseg.peers.sam.{encoder}",
                "init_args": {**arguments, "size": size},
            },
            "decoder": {"class_path": "probseg.peers.sam.BareMaps"},
            "fusion": {
                "class_path": f"probseg.peers.sam.{generation}MaskDecoder",
                "init_args": {"size": size},
            },
            "head": {"class_path": "probseg.peers.sam.EnlargedLogits"},
            "prompts": "head",
            "working_size": size,
            # SAM pads images at the right and at the bottom; the later ones make squares of them.
            "sizing": "fit" if generation == "Sam" else "stretch",
            "previous_mask": True,
        },
    }


def _generation(state: Mapping[str, Tensor]) -> tuple[str, Reader]:
    """Return the name of a generation, and what reads the shapes of its image encoder."""
    if any(name.startswith("vision_encoder.neck.fpn_layers.") for name in state):
        return "SAM 3", _vit3
    if any(name.startswith("vision_encoder.backbone.") for name in state):
        return "SAM 2", _hiera
    return "SAM", _vit


def _renamed(name: str, patterns: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name


def _vit(state: Mapping[str, Tensor], source: Path) -> tuple[str, dict[str, Any], int]:
    """Return class, arguments and image size of an encoder of SAM."""
    _, side, _, width = state["vision_encoder.pos_embed"].shape
    layer = re.compile(r"vision_encoder\.layers\.(\d+)\.attn\.rel_pos_h")
    depth = sum(bool(layer.fullmatch(name)) for name in state)
    positions = [state[f"vision_encoder.layers.{n}.attn.rel_pos_h"] for n in range(max(depth, 1))]
    arguments = {
        "width": width,
        "depth": depth,
        "heads": width // positions[0].shape[1],
        "whole": [n for n, rows in enumerate(positions) if len(rows) == 2 * side - 1],
    }
    return "SamEncoder", arguments, side * PATCH


def _hiera(state: Mapping[str, Tensor], source: Path) -> tuple[str, dict[str, Any], int]:
    """Return class, arguments and image size of an encoder of SAM 2."""
    backbone = "vision_encoder.backbone."
    width = state[f"{backbone}patch_embed.projection.weight"].shape[0]
    block = re.compile(re.escape(backbone) + r"blocks\.\d+\.attn\.proj\.weight")
    blocks = Counter(len(tensor) for name, tensor in state.items() if block.fullmatch(name))
    stages = tuple(blocks[channels] for channels in sorted(blocks))
    if (width, stages) not in SAM2:
        known = ", ".join(f"{channels} with {list(each)}" for channels, each in SAM2)
        raise WeightsError(
            f"{source}: the image encoder must have a width and blocks of a published SAM 2 "
            f"({known}), got {width} with {list(stages)}"
        )
    arguments = {
        "width": width,
        "stages": list(stages),
        "background": state[f"{backbone}pos_embed"].shape[-1],
        **SAM2[width, stages]._asdict(),
    }
    return "Sam2Encoder", arguments, SAM2_SIZE


def _vit3(state: Mapping[str, Tensor], source: Path) -> tuple[str, dict[str, Any], int]:
    """Return class, arguments and image size of an encoder of SAM 3."""
    backbone = "vision_encoder.backbone."
    patches = state[f"{backbone}embeddings.patch_embeddings.projection.weight"]
    width = patches.shape[0]
    layer = re.compile(re.escape(backbone) + r"layers\.\d+\.mlp\.fc1\.weight")
    hidden = [len(tensor) for name, tensor in state.items() if layer.fullmatch(name)]
    if (width, len(hidden)) not in SAM3:
        raise WeightsError(
            f"{source}: the image encoder must have the 1024 channels and 32 blocks of "
            f"the published SAM 3, got {width} and {len(hidden)}"
        )
    vit = SAM3[width, len(hidden)]
    side = round(state[f"{backbone}embeddings.position_embeddings"].shape[1] ** 0.5)
    arguments = {
        "width": width,
        "depth": len(hidden),
        "hidden": hidden[0],
        "heads": vit.heads,
        "whole": list(vit.whole),
        "window": vit.window,
        "background": side,
    }
    return "Sam3Encoder", arguments, vit.size
