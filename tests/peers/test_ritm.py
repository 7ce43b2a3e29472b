"""Checkpoints in the layout of RITM become model folders, and others are refused."""

import copy
import functools

import pytest
import torch

from probseg.errors import UnknownNameError, WeightsError, ZooError
from probseg.peers.checkpoints import with_box
from probseg.peers.ritm import import_ritm, read_ritm
from probseg.types import Prompts
from probseg.zoo import create_model
from probseg.zoo.index import CARD
from probseg.zoo.store import check_folder
from support.published import Weights, checkpoint, deeplab, disks, enlarged, hrnet_ocr, normalised
from support.refusals import refused
from support.rows import each
from support.runs import command, usage_error

SIZE = (45, 59)
SMALL = {"width": 18, "ocr_width": 48, "small": True, "with_aux_output": True}


@pytest.fixture(scope="module")
def case():
    """A photograph, its clicks, the last answer, and a file's content with the logits of RITM."""
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(1, 3, *SIZE, generator=generator)
    last = torch.rand(1, 1, *SIZE, generator=generator)
    maps = torch.cat([last.double(), disks(SIZE, [(20, 9)], [(3, 33)])], dim=1)
    weights = Weights()
    logits, _ = hrnet_ocr(weights, normalised(image), maps, 18, 48, small=True)
    prompts = Prompts(
        torch.tensor([[[20.0, 9.0], [3.0, 33.0]]]),
        torch.tensor([[1, 0]]),
        torch.full((1, 4), torch.nan),
        last,
    )
    return image, prompts, checkpoint(weights, "HRNetModel", **SMALL), enlarged(logits, SIZE)


@pytest.fixture
def file(case, tmp_path):
    path = tmp_path / "coco_lvis_h18s.pth"
    torch.save(case[2], path)
    return path


def changed(content, **values):
    """A file's content with other arguments of the network."""
    other = copy.deepcopy(content)
    for name, value in values.items():
        other["config"]["params"][name] = {"type": "builtin", "value": value, "specified": True}
    return other


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before PyTorch 1.6"])
def test_a_file_becomes_a_folder_with_the_same_answers(case, zipped, tmp_path, capsys):
    image, prompts, content, wanted = case
    path, folder = tmp_path / "coco_lvis_h18s.pth", tmp_path / "models" / "h18s"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    assert command("zoo", "import", "ritm", path, folder) == 0
    assert "probseg test" in capsys.readouterr().out
    check_folder(folder)
    model = create_model(f"{folder}/", pretrained=True)
    with torch.no_grad():
        found = model(image, prompts)
        boxed = prompts._replace(boxes=torch.tensor([[5.0, 5.0, 30.0, 40.0]]))
        assert torch.equal(model(image, boxed), found), "a box has no effect"
    assert (found - wanted).abs().max() < 2e-4 * wanted.std()
    assert str(folder) in usage_error(capsys, "zoo", "import", "ritm", path, folder)
    card = (folder / CARD).read_text()
    for part in ("2102.06583", path.name, "sha256", "'ocr_width': 48"):
        assert part in card


def test_deeplab_without_previous_mask_becomes_a_folder_too(tmp_path):
    weights = Weights()
    image = torch.rand(1, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    maps = disks(SIZE, [(20, 9)], [], radius=3)
    wanted = enlarged(deeplab(weights, normalised(image), maps, 34, 128), SIZE)
    arguments = {"backbone": "resnet34", "deeplab_ch": 128, "norm_radius": 3}
    content = checkpoint(weights, "DeeplabModel", **arguments, with_prev_mask=False)
    torch.save(content, tmp_path / "r34.pth")
    model = import_ritm(tmp_path / "r34.pth", tmp_path / "r34")
    assert not model.previous_mask
    clicks = torch.tensor([[[20.0, 9.0]]]), torch.tensor([[1]]), torch.full((1, 4), torch.nan)
    with torch.no_grad():
        found = model(image, Prompts(*clicks))
    assert (found - wanted).abs().max() < 2e-4 * wanted.std()


@each("previous", [0, 1])
def test_click_maps_are_reordered_and_the_box_has_weights_of_0(previous):
    theirs = torch.arange(1.0, 3 + previous).view(1, -1, 1, 1)  # previous mask, positive, negative
    ours = [0.0, 2.0, 3.0, 1.0] if previous else [0.0, 1.0, 2.0]
    assert with_box(theirs).flatten().tolist() == ours


def test_files_of_another_kind_are_refused(case, file, tmp_path):
    content = case[2]
    state, config = content["state_dict"], content["config"]
    for other in (
        state,
        [content, content],
        {"state_dict": state},
        {"state_dict": {"x": 1}, "config": config},
        {"state_dict": state, "config": ["x.HRNetModel"]},
        {"state_dict": state, "config": {**config, "class": 3}},
        {"state_dict": state, "config": {"class": "x.HRNetModel"}},
        {"state_dict": state, "config": {"class": "x.HRNetModel", "params": {"width": 18}}},
        {"state_dict": state, "config": {**config, "class": "isegm.VitModel"}},
    ):
        torch.save(other, file)
        refused(WeightsError, lambda: read_ritm(file), file)
    file.write_bytes(file.read_bytes()[:-200])
    refused(WeightsError, lambda: read_ritm(file), file)
    file.write_text("text")
    refused(WeightsError, lambda: read_ritm(file), file)
    refused(FileNotFoundError, lambda: read_ritm(tmp_path / "none.pth"), "none.pth")


SHARED = functools.reduce(lambda inner, _: [inner, inner], range(60), "x")
"""Lists of which each is twice in the next, which nobody may write out."""


@each(
    ("name", "value"),
    [
        *(("norm_mean_std", value) for value in (3, None, [[0.5] * 3], [3, 3], SHARED, "no")),
        *(("norm_radius", value) for value in ("x", [1], None, 10**400, float("inf"), SHARED)),
        *(("width", value) for value in ({}, [18], 10**400, SHARED)),
        *(("ocr_width", value) for value in ("x", [1], 10**9, -1, 0, SHARED)),
        ("use_rgb_conv", True),
        ("conv_extend", True),
        ("use_leaky_relu", False),
        ("use_disks", False),
        ("clicks_groups", [2, 5]),
        ("binary_prev_mask", True),
        ("norm_mean_std", ([0.5, 0.5, 0.5], [0.2, 0.2, 0.2])),
        ("width", 19),
        ("backbone", "resnet77"),
    ],
)
def test_settings_that_probseg_has_not_are_refused(case, file, name, value, tmp_path):
    content = changed(case[2], **{name: value})
    if name == "backbone":
        content["config"]["class"] = "isegm.model.is_deeplab_model.DeeplabModel"
    torch.save(content, file)
    with pytest.raises((WeightsError, ZooError, UnknownNameError)) as told:
        import_ritm(file, tmp_path / "folder")
    if name.startswith(("use", "conv", "clicks", "binary", "backbone")):
        assert name in str(told.value)
    assert not (tmp_path / "folder").exists()


def test_tensors_must_be_those_of_the_network(case, file, tmp_path):
    content = case[2]
    first = "maps_transform.0.weight"
    for change, part in (
        ({"feature_extractor.more": torch.zeros(1)}, "feature_extractor.more"),
        ({"feature_extractor.layer1.9.bn1.weight": torch.zeros(1)}, "layer1.9"),
        ({first: torch.zeros(16, 2, 1, 1)}, first.partition(".")[2]),
        ({"feature_extractor.cls_head.bias": torch.zeros(2)}, "head.logit.bias"),
        ({"feature_extractor.cls_head.bias": torch.full((1,), torch.nan)}, "finite"),
    ):
        other = {**content, "state_dict": {**content["state_dict"], **change}}
        torch.save(other, file)
        if first in change:
            part = "prompts.layers.0.weight"
        refused(WeightsError, lambda: import_ritm(file, tmp_path / "folder"), file, part)
    for missing in ("feature_extractor.aux_head.0.bias", "feature_extractor.conv1.weight", first):
        state = {name: t for name, t in content["state_dict"].items() if name != missing}
        torch.save({**content, "state_dict": state}, file)
        refused(WeightsError, lambda: import_ritm(file, tmp_path / "folder"), file)
    assert not (tmp_path / "folder").exists()
