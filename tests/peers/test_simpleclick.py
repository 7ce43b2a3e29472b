"""Checkpoints in the layout of SimpleClick become model folders, and others are refused."""

import pytest
import torch

from probseg.errors import UsageError, WeightsError, ZooError
from probseg.export.folder import export_model
from probseg.peers.simpleclick import WindowedViT, import_simpleclick, in_windows
from probseg.types import Prompts
from probseg.zoo import create_model
from probseg.zoo.index import CARD
from probseg.zoo.store import check_folder
from support.published import Weights, disks
from support.published_simpleclick import save_checkpoint, simpleclick, unused
from support.refusals import refused
from support.rows import each
from support.runs import command

NETWORK = {"width": 16, "depth": 8, "heads": 2, "widths": [8, 8, 12, 16], "channels": 8}


@pytest.fixture(scope="module")
def case():
    """Images, prompts, and the weights and logits of SimpleClick, for patches of 16 and 14."""
    generator = torch.Generator().manual_seed(0)
    image, last = (torch.rand(1, n, 448, 448, generator=generator) for n in (3, 1))
    clicks = disks((448, 448), [(20, 9), (300, 441)], [(33, 200)])
    maps = torch.cat([last.double(), clicks], dim=1)
    answers = {}
    for patch in (16, 14):
        weights = Weights()
        answers[patch] = weights, simpleclick(weights, image, maps, patch, **NETWORK)
        unused(weights, NETWORK["width"], NETWORK["channels"])
    prompts = Prompts(
        torch.tensor([[[20.0, 9.0], [300.0, 441.0], [33.0, 200.0]]]),
        torch.tensor([[1, 1, 0]]),
        torch.full((1, 4), torch.nan),
        last,
    )
    return image, prompts, answers


@pytest.fixture
def write(case, tmp_path):
    """Writes a file with other arguments of the network."""

    def write(patch=16, **changes):
        path = tmp_path / "cocolvis_vit_base.pth"
        save_checkpoint(path, case[2][patch][0], patch, **NETWORK, **changes)
        return path

    return write


@each("patch", [16, 14])
def test_a_file_becomes_a_folder_with_the_same_answers(case, write, patch, tmp_path):
    image, prompts, answers = case
    folder = tmp_path / f"vit_{patch}"
    assert command("zoo", "import", "simpleclick", write(patch), folder) == 0
    check_folder(folder)
    model = create_model(f"{folder}/", pretrained=True)
    wanted = answers[patch][1]
    boxed = prompts._replace(boxes=torch.tensor([[5.0, 5.0, 30.0, 40.0]]))
    with torch.no_grad():
        found = model(image, prompts)
        assert torch.equal(model(image, boxed), found)  # which it does not take
    assert (found - wanted).abs().max() < 2e-4 * wanted.std()
    assert "2210.11006" in (folder / CARD).read_text()


def test_images_of_other_sizes_are_stretched(case, write, tmp_path):
    model = import_simpleclick(write(), tmp_path / "folder")
    image = torch.rand(1, 3, 100, 300, generator=torch.Generator().manual_seed(1))
    prompts = Prompts(
        torch.tensor([[[150.0, 50.0]]]), torch.tensor([[1]]), torch.full((1, 4), torch.nan)
    )
    encoded = model.encode(image)
    assert encoded.image.shape[-2:] == (448, 448)
    with torch.no_grad():
        assert model.decode(encoded, prompts).shape == (1, 1, 100, 300)
    moved = model.to_network_pixels(prompts, encoded)
    assert torch.allclose(moved.points, torch.tensor([[[224.25, 225.74]]]), atol=0.01)
    refused(UsageError, lambda: export_model(model, tmp_path / "exported"), "sizing")


@each(
    ("changes", "part"),
    [
        ({"random_split": True}, "random_split"),
        ({"use_disks": False}, "use_disks"),
        ({"with_aux_output": True}, "with_aux_output"),
        ({"norm_mean_std": ([0.5] * 3, [0.2] * 3)}, "norm_mean_std"),
        ({"backbone_params": {"img_size": (448, 224)}}, "img_size"),
        ({"backbone_params": {"img_size": (672, 672)}}, "pos_embed"),
        ({"backbone_params": {"patch_size": (15, 15)}}, "img_size"),
        ({"backbone_params": {"depth": 7}}, "depth"),
        ({"backbone_params": {"depth": 12}}, "backbone.blocks.10"),
        ({"backbone_params": {"qkv_bias": False}}, "qkv_bias"),
        ({"head_params": {"upsample": "x4"}}, "upsample"),
        ({"head_params": {"channels": 12}}, "decoder.fuse.bias"),
    ],
)
def test_networks_that_probseg_has_not_are_refused(write, tmp_path, changes, part):
    path = write(**changes)
    refused(WeightsError, lambda: import_simpleclick(path, tmp_path / "folder"), path, part)
    assert not (tmp_path / "folder").exists()


@each(
    ("part", "name", "value"),
    [
        *(("backbone_params", "embed_dim", value) for value in (0, -1, "x", [768], 10**9)),
        *(("backbone_params", "depth", value) for value in ("x", 10**9, 4.5)),
        *(("backbone_params", "img_size", value) for value in (448, "x", (448,), (10**9, 10**9))),
        *(("backbone_params", "mlp_ratio", value) for value in ("x", float("nan"), 1e9)),
        ("head_params", "channels", "x"),
        ("neck_params", "out_dims", 3),
    ],
)
def test_settings_of_other_types_and_sizes_are_refused(write, tmp_path, part, name, value):
    path = write(**{part: {name: value}})
    with pytest.raises((WeightsError, ZooError)):
        import_simpleclick(path, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_tensors_must_be_those_of_the_network(case, write, tmp_path):
    path = write()
    state = case[2][16][0].state
    for name, tensor in (
        ("patch_embed_coords.proj.bias", None),
        ("backbone.more", torch.zeros(1)),
        ("head.conv_seg.bias", torch.full((1,), torch.nan)),
    ):
        changed = Weights()
        changed.state = {key: own for key, own in state.items() if key != name}
        if tensor is not None:
            changed.state[name] = tensor
        save_checkpoint(path, changed, 16, **NETWORK)
        refused(WeightsError, lambda: import_simpleclick(path, tmp_path / "folder"), path)


class Harmful:
    def __reduce__(self):
        return (open, ("harmed", "w"))


def test_no_other_object_of_a_file_is_made(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file.pth"
    torch.save({"state_dict": {}, "config": Harmful()}, path)
    refused(WeightsError, lambda: import_simpleclick(path, tmp_path / "folder"), path)
    assert not (tmp_path / "harmed").exists()


@each("count", [1, 2])
def test_a_block_sees_one_window_at_a_time(count):
    tokens = torch.rand(2, 4, 6, 3, generator=torch.Generator().manual_seed(0))
    found = in_windows(lambda window: window - window[:, :1], tokens, count)
    height, width = 4 // count, 6 // count
    for y in range(0, 4, height):
        for x in range(0, 6, width):
            window = tokens[:, y : y + height, x : x + width]
            wanted = window - tokens[:, y : y + 1, x : x + 1]
            assert torch.equal(found[:, y : y + height, x : x + width], wanted)


def test_the_transformer_takes_one_size():
    network = WindowedViT(width=8, depth=2, heads=1, patch=16, size=64, windows=2, whole_every=2)
    assert network(torch.zeros(1, 3, 64, 64))[0].shape == (1, 8, 4, 4)
    refused(ValueError, lambda: WindowedViT(width=8, heads=1, size=70), "size")
