"""The networks named after RITM compute its function, in float64 and with shared random weights."""

from pathlib import Path

import pytest
import torch

from probseg.models import build
from probseg.peers.ritm import convert_ritm, describe_ritm, read_ritm
from probseg.types import Prompts
from probseg.zoo.create import create_model
from support.published import Weights, checkpoint, deeplab, disks, enlarged, hrnet_ocr, normalised

POSITIVE, NEGATIVE = [(20, 9), (41, 30)], [(3, 33)]
SIZES = [(64, 96), (45, 59), (37, 70)]


def drawn(size, previous=True):
    """An image, the maps in RITM's order and the prompts that they are drawn from."""
    generator = torch.Generator().manual_seed(1)
    image = torch.rand(1, 3, *size, generator=generator)
    last = torch.rand(1, 1, *size, generator=generator)
    clicks = disks(size, POSITIVE, NEGATIVE)
    maps = torch.cat([last.double(), clicks], dim=1) if previous else clicks
    prompts = Prompts(
        points=torch.tensor([POSITIVE + NEGATIVE], dtype=torch.float32),
        labels=torch.tensor([[1, 1, 0]]),
        boxes=torch.full((1, 4), torch.nan),
        previous=last if previous else None,
    )
    return image, maps, prompts


def configuration(folder, kind, **settings):
    """What is read from a file with these settings."""
    torch.save(checkpoint(Weights(), kind, **settings), folder / "file.pth")
    return read_ritm(folder / "file.pth")[1]


def ours(weights, config):
    """Our network with the weights of theirs, in float64."""
    model = build(describe_ritm(config, Path("file"))).double().eval()
    model.load_state_dict(convert_ritm(weights.state, config, Path("file")))
    return model


def logits_in_float64(model, image, maps):
    """The network's parts in float64; ours has the box in front and the previous mask behind."""
    previous, clicks = maps[:, :-2], maps[:, -2:]
    pixels = torch.cat([normalised(image), torch.zeros_like(clicks[:, :1]), clicks, previous], 1)
    decoded = model.decoder(model.backbone(pixels))
    return model.head(decoded.features, clicks), decoded.auxiliary


@pytest.mark.parametrize(
    ("width", "ocr_width", "small", "previous", "size"),
    [
        *((18, 48, True, True, size) for size in SIZES),
        (18, 64, False, True, (45, 59)),
        (32, 128, False, False, (45, 59)),
    ],
)
def test_hrnet_with_ocr(width, ocr_width, small, previous, size, tmp_path):
    weights = Weights()
    image, maps, prompts = drawn(size, previous)
    main, auxiliary = hrnet_ocr(weights, normalised(image), maps, width, ocr_width, small)
    arguments = {"width": width, "ocr_width": ocr_width, "small": small}
    config = configuration(tmp_path, "HRNetModel", **arguments, with_prev_mask=previous)
    model = ours(weights, config)
    wanted = enlarged(main, size)
    with torch.no_grad():
        got, coarse = logits_in_float64(model, image, maps)
        answered = model.float().raw_logits(model.encode(image), prompts)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(coarse, auxiliary, rtol=1e-9, atol=1e-9)
    # The whole network, with its drawing of clicks, in float32.
    spread = wanted.std().item()
    assert spread > 1e-3
    assert (answered.main - wanted).abs().max() < 2e-4 * spread
    aligned = enlarged(auxiliary, size)
    assert (answered.auxiliary - aligned).abs().max() < 2e-4 * aligned.std()


@pytest.mark.parametrize(
    ("depth", "channels", "size"), [*((34, 128, size) for size in SIZES), (50, 256, (45, 59))]
)
def test_deeplab(depth, channels, size, tmp_path):
    weights = Weights()
    image, maps, prompts = drawn(size)
    wanted = enlarged(deeplab(weights, normalised(image), maps, depth, channels), size)
    arguments = {"backbone": f"resnet{depth}", "deeplab_ch": channels}
    model = ours(weights, configuration(tmp_path, "DeeplabModel", **arguments))
    with torch.no_grad():
        got, _ = logits_in_float64(model, image, maps)
        answered = model.float()(image, prompts)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    assert (answered - wanted).abs().max() < 2e-4 * wanted.std()


@pytest.mark.parametrize(
    ("preset", "kind", "arguments"),
    [
        ("ritm_hrnet18s_ocr", "HRNetModel", {"width": 18, "ocr_width": 48, "small": True}),
        ("ritm_resnet50_deeplab", "DeeplabModel", {"backbone": "resnet50", "deeplab_ch": 256}),
    ],
)
def test_presets_are_the_networks_of_the_files(preset, kind, arguments, tmp_path):
    config = configuration(tmp_path, kind, **arguments)
    with torch.device("meta"):
        from_file = build(describe_ritm(config, tmp_path))
        named = create_model(preset)
    assert str(named) == str(from_file)


def test_gathering_by_the_object_alone_and_by_both_are_different_functions():
    model = create_model("hrnet18_ocr_conv").double().eval()
    other = create_model("hrnet18_ocr_conv", decoder={"regions": 2}).double().eval()
    other.load_state_dict(model.state_dict())
    maps = [torch.rand(1, 18 * 2**i, 16 >> i, 24 >> i, dtype=torch.float64) for i in range(4)]
    one, two = model.decoder(maps), other.decoder(maps)
    assert torch.equal(one.auxiliary, two.auxiliary)
    assert not torch.allclose(one.features, two.features)
