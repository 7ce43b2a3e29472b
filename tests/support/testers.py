"""What holds for every head, decoder and backbone: a new one needs a subclass in a test file.

    class TestConvHead(HeadTester):
        build = ConvHead

Each room has a test that all parts of its table have a subclass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from probseg.backbones import Backbone, add_prompt_stem
from probseg.heads import Decoder, DecoderMaps, Head
from probseg.types import FeatureInfo
from support.network_cases import assert_all_learn, assert_described, maps_of, opened

PYRAMID = FeatureInfo((3, 4, 5, 6), (2, 4, 8, 16))


def built_by(tester: type) -> set[type]:
    """Collect the classes that the subclasses of a tester build."""
    return {kind.build for kind in tester.__subclasses__()}


class HeadTester:
    """A head alone.

    Attributes:
        build: Its class.
        arguments: Of the class, after the description of the features.
    """

    build: type[Head]
    arguments: dict[str, Any] = {}
    inputs = FeatureInfo((6,), (4,))

    def head(self) -> Head:
        torch.manual_seed(0)
        return self.build(self.inputs, **self.arguments).eval()

    def drawn(self, batch: int, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Features of stride 4, and maps with some clicks of both signs."""
        clicks = (torch.rand(batch, 2, height, width) < 0.05).float()
        return maps_of(self.inputs, batch, height, width)[0], clicks

    def test_logits_have_the_size_of_the_clicks(self):
        head = self.head()
        for size in ((1, 1), (2, 7), (37, 53), (32, 48)):
            logits = head(*self.drawn(2, *size))
            assert logits.shape == (2, 1, *size)
            assert logits.isfinite().all(), size

    def test_images_do_not_see_each_other(self):
        head = self.head()
        features, clicks = self.drawn(3, 20, 28)
        together = head(features, clicks)
        for i in range(3):
            alone = head(features[i : i + 1], clicks[i : i + 1])
            torch.testing.assert_close(together[i : i + 1], alone, atol=1e-5, rtol=1e-4)

    def test_all_parameters_learn(self):
        head = self.head().train()
        head(*self.drawn(2, 24, 24)).square().sum().backward()
        assert_all_learn(head)


class DecoderTester:
    """A decoder alone.

    Attributes:
        build: Its class.
        arguments: Of the class, after the description of the maps.
        inputs: The maps that it takes.
        sizes: Of images whose maps it takes.
        channels: Of the maps that it returns, finest first.
        auxiliary: Whether it returns logits with a loss of their own.
    """

    build: type[Decoder]
    arguments: dict[str, Any] = {}
    inputs = PYRAMID
    sizes = ((1, 1), (5, 70), (37, 53), (64, 48))
    channels: tuple[int, ...] = (8,)
    auxiliary = False

    def decoder(self) -> Decoder:
        torch.manual_seed(0)
        return randomise(self.build(self.inputs, **self.arguments))

    def test_results_have_the_described_shapes(self):
        decoder = self.decoder()
        assert decoder.features.channels == self.channels
        for size in self.sizes:
            decoded = decoder(maps_of(self.inputs, 2, *size))
            levels = (decoded.features, *decoded.coarser)
            for level, width, stride in zip(levels, *decoder.features[:2], strict=True):
                assert level.shape == (2, width, *(-(-side // stride) for side in size))
                assert level.isfinite().all(), size
            assert decoded.units is None
            assert (decoded.auxiliary is not None) == self.auxiliary
            if decoded.auxiliary is not None:
                assert decoded.auxiliary.shape == (2, 1, *decoded.features.shape[-2:])

    def test_all_parameters_learn(self):
        # In float64, so that rounding does not pass for a gradient: it would be 1e-16 for queries
        # and keys of OCR if the object were the only region.
        decoder = self.decoder().double().train()
        decoded = decoder([level.double() for level in maps_of(self.inputs, 3, 64, 48)])
        sum((map_ * torch.randn_like(map_)).sum() for map_ in tensors_of(decoded)).backward()
        assert_all_learn(decoder, least=1e-9)

    def test_one_image_is_enough_to_train(self):
        decoder = self.decoder().train()
        decoder(maps_of(self.inputs, 1, *self.sizes[-2])).features.square().sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in decoder.parameters())

    def test_autocast_stays_close(self):
        decoder, maps = self.decoder(), maps_of(self.inputs, 2, 64, 48)
        exact = tensors_of(decoder(maps))
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype):
                rounded = tensors_of(decoder(maps))
            for wanted, got in zip(exact, rounded, strict=True):
                error = (got.float() - wanted).abs().mean()
                assert error < 0.03 * wanted.abs().mean(), dtype  # not for NaN


class BackboneTester:
    """A backbone alone; weights are random or drawn, nothing is downloaded.

    Attributes:
        build: Its class.
        arguments: Of the class, for a small network.
        whole: Makes the network of timm whose weights it takes.
        replaced: How the names of those weights begin that it has no place for.
    """

    build: type[Backbone]
    arguments: dict[str, Any] = {}
    whole: partial[nn.Module]
    replaced: tuple[str, ...] = ()

    def backbone(self, **more: Any) -> Backbone:
        torch.manual_seed(0)
        return self.build(**self.arguments, **more)

    def test_maps_have_the_described_channels_and_strides(self):
        backbone = self.backbone().eval()
        assert list(backbone.features.strides) == sorted(backbone.features.strides)
        for size in ((1, 1), (2, 5), (37, 53), (64, 96)):
            assert_described(backbone, torch.randn(2, 3, *size))

    def test_images_do_not_see_each_other(self):
        backbone = self.backbone().double().eval()
        images = torch.randn(2, 3, 65, 97, dtype=torch.float64)
        for whole, alone in zip(backbone(images), backbone(images[:1]), strict=True):
            torch.testing.assert_close(whole[:1], alone)

    def test_all_parameters_learn_behind_a_prompt_stem(self):
        backbone = opened(self.backbone()).train()
        add_prompt_stem(backbone, 3)
        maps = backbone(torch.randn(2, 6, 65, 97))
        sum((map_ * torch.randn_like(map_)).mean() for map_ in maps).backward()
        assert_all_learn(backbone)

    def test_without_prompts_a_prompt_stem_changes_nothing(self):
        backbone, image = self.backbone().eval(), torch.randn(1, 3, 64, 64)
        plain = backbone(image)
        add_prompt_stem(backbone, 3)
        for level, wanted in zip(
            backbone(torch.cat([image, torch.zeros(1, 3, 64, 64)], dim=1)), plain, strict=True
        ):
            assert torch.equal(level, wanted)

    def test_pretrained_weights_arrive(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = self.whole()
        weights = whole.state_dict()
        save_file(weights, tmp_path / "weights.safetensors")
        overlay = {"file": str(tmp_path / "weights.safetensors")}
        create = partial(timm.create_model, pretrained_cfg_overlay=overlay)
        monkeypatch.setattr(timm, "create_model", create)
        backbone = self.backbone(pretrained=True)
        assert (backbone.mean, backbone.std) == tuple(
            tuple(whole.pretrained_cfg[key]) for key in ("mean", "std")
        )
        own = backbone.network.state_dict()
        left_out = {key for key in weights if key.startswith(self.replaced)}
        assert set(weights) - set(own) == left_out
        for key in set(weights) - left_out:
            assert torch.equal(own[key], weights[key]), key


def randomise(module: nn.Module) -> nn.Module:
    """Give normalisations statistics and factors that no test can overlook."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, std=0.3)
            nn.init.uniform_(part.running_var, 0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 2)
            nn.init.normal_(part.bias, std=0.3)
    return module.eval()


def tensors_of(decoded: DecoderMaps) -> list[Tensor]:
    """List all tensors of what a decoder returns."""
    tensors: list[Tensor] = []
    keep: Callable[[Tensor], Tensor] = lambda tensor: tensors.append(tensor) or tensor  # noqa: E731
    decoded.map(keep)
    return tensors
