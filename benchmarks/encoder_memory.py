"""Memory of training with an encoder, computed, not measured on a GPU.

Weights take 4 bytes each, and trained ones 12 more: gradient and two moments of RAdam. Activations
are what the forward passes of encoder, decoder and rounds of clicks keep for the backward pass
under bfloat16 autocast on the CPU, each storage once; two crops less one are those of a crop. With
gradient checkpointing, an average block is added, which the backward pass computes again.
Buffers of CUDA and its libraries, about a gigabyte, come on top. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from probseg.backbones import recompute_activations
from probseg.models import Segmenter
from probseg.types import Prompts
from probseg.zoo import create_interactive

PRESETS = ("vits_unet_prop", "vitb_unet_prop", "sam2t_unet_prop")
SIDE, BATCH, ANNOTATORS, ROUNDS = 384, 28, 3, 4
"""Of the recipes: pixels, crops of a batch, annotators of a crop, answers of each."""


def main() -> None:
    """Print a row for each preset and setting."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("presets", nargs="*", default=PRESETS)
    print(f"| preset | encoder | weights, optimiser, GB | a crop, MB | batch of {BATCH}, GB |")
    for name in parser.parse_args().presets:
        model = create_interactive(name).train()
        model.backbone.requires_grad_(False)
        show(name, "frozen", model, crop_bytes(model))
        model.backbone.requires_grad_(True)
        trained = crop_bytes(model)
        show(name, "trained", model, trained)
        recompute_activations(model.backbone)
        lean = crop_bytes(model)
        block = (trained - lean) / len(blocks_of(model))
        show(name, "trained, gradient checkpointing", model, lean + block)


def show(name: str, setting: str, model: Segmenter, crop: float) -> None:
    """Print a row."""
    fixed = sum(own.numel() * (16 if own.requires_grad else 4) for own in model.parameters())
    total = (fixed + BATCH * crop) / 1e9
    print(
        f"| {name} | {setting} | {fixed / 1e9:.2f} | {crop / 1e6:.0f} | {total:.1f} |", flush=True
    )


def crop_bytes(model: Segmenter) -> int:
    """Return the bytes of activations that the backward pass needs for each crop."""
    return kept_bytes(model, 2) - kept_bytes(model, 1)


def kept_bytes(model: Segmenter, crops: int) -> int:
    """Return the bytes of all that a step keeps for the backward pass."""
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # held, so that no other takes its place
        return tensor

    def keep_input(_: torch.nn.Module, inputs: tuple[Tensor]) -> None:
        keep(inputs[0])

    # Inputs of blocks that are computed again are kept, too, unseen by hooks of saved tensors.
    hooks = [
        block.register_forward_pre_hook(keep_input)
        for block in blocks_of(model)
        if next(block.parameters()).requires_grad
    ]
    rows = crops * ANNOTATORS
    points = torch.full((rows, 3, 2), SIDE / 2)
    labels = torch.tensor([[1, 0, 1]]).expand(rows, 3)
    previous = torch.full((rows, 1, SIDE, SIDE), 0.5)
    prompts = Prompts(points, labels, torch.full((rows, 4), torch.nan), previous)
    with torch.autocast("cpu", torch.bfloat16), saved_tensors_hooks(keep, lambda tensor: tensor):
        encoded = model.encode(torch.rand(crops, 3, SIDE, SIDE)).repeated(ANNOTATORS)
        answers = [model.raw_logits(encoded, prompts).main for _ in range(ROUNDS)]
    for hook in hooks:
        hook.remove()
    assert all(answer.requires_grad for answer in answers)
    return sum(storage.nbytes() for storage in kept.values())


def blocks_of(model: Segmenter) -> torch.nn.Sequential:
    """Return the blocks of the encoder."""
    blocks: torch.nn.Sequential = model.backbone.get_submodule("network.model.blocks")
    return blocks


if __name__ == "__main__":
    main()
