"""Fine-tuning of pretrained transformers: rates by depth, and activations that are not kept."""

from functools import partial

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from probseg.backbones import TimmBackbone, layer_numbers, recompute_activations
from probseg.tasks import InteractiveSegmentation
from probseg.zoo import create_model

PLAIN = {"embed_dim": 48, "depth": 3, "num_heads": 3, "img_size": 64}
NETWORKS = {
    "vit_small_patch16_dinov3": {"embed_dim": 48, "depth": 3, "num_heads": 3},
    "vit_small_patch14_reg4_dinov2": PLAIN,
    "sam2_hiera_tiny": {"stages": (1, 2, 1, 1), "embed_dim": 16},
    "swin_tiny_patch4_window7_224": {"depths": (1, 1, 2, 1), "embed_dim": 24},
    "test_resnet": {},
}


def backbone(name):
    torch.manual_seed(0)
    return TimmBackbone(name, options=NETWORKS[name])


def kept_and_gradients(own, image):
    """Bytes of the tensors that a forward pass keeps for the backward pass, and all gradients."""
    storages = {}

    def keep(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        maps = own(image)
        kept = sum(storages.values())
    sum(
        (level * torch.linspace(-1, 1, level.numel()).view_as(level)).sum() for level in maps
    ).backward()
    return kept, [parameter.grad for parameter in own.parameters()]


@pytest.mark.parametrize("name", NETWORKS)
def test_activations_that_are_computed_again_take_less_memory_and_give_the_same_gradients(name):
    image = torch.randn(1, 3, 128, 128)
    kept, gradients = kept_and_gradients(backbone(name), image)
    lean = backbone(name)
    recompute_activations(lean)
    less, same = kept_and_gradients(lean, image)
    assert less < 0.75 * kept
    for one, other in zip(same, gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_layers_are_numbered_from_the_image_on():
    own = backbone("vit_small_patch14_reg4_dinov2")
    numbers = {name: layer_numbers(own)[weight] for name, weight in own.named_parameters()}
    for name, number in numbers.items():
        inside = name.removeprefix("network.model.")
        block = inside.startswith("blocks.")
        assert number == (1 + int(inside.split(".")[1]) if block else 0), name
    assert set(numbers.values()) == {0, 1, 2, 3}


def test_rates_fall_towards_the_image():
    model = create_model("vits_unet_prop", backbone={"options": PLAIN})
    rate = partial(torch.optim.SGD, lr=0.1)
    task = InteractiveSegmentation(
        model,
        optimizer=rate,
        backbone_rate=0.5,
        layer_decay=0.8,
        frozen=["backbone.network.model.pos_embed"],
    )
    optimizer = task.configure_optimizers()["optimizer"]
    rates = {w: group["lr"] for group in optimizer.param_groups for w in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(rates)
    numbers = layer_numbers(model.backbone)
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            expected = 0.05 * 0.8 ** (3 - numbers[weight]) if weight in numbers else 0.1
            assert rates.pop(weight) == pytest.approx(expected), name
    assert not rates
