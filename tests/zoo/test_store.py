import dataclasses
import os
from pathlib import Path

import pytest
import torch
from fakes import micro_model
from zoos import add_model

import probseg.zoo.store as store
from probseg.errors import ChecksumError, UnknownNameError, WeightsError
from probseg.models import read_preset
from probseg.paths import zoo_dir
from probseg.zoo import create_model
from probseg.zoo.index import (
    CARD,
    WEIGHTS,
    description_of,
    read_index,
    write_index,
)
from probseg.zoo.places import find, verify
from probseg.zoo.store import load_into, read_config


@pytest.fixture
def zoo(tmp_path):
    listed = add_model(tmp_path, "micro_conv.b")
    others = [dataclasses.replace(listed, name=name) for name in ("micro_conv.a", "micro_csa.a")]
    write_index({entry.name: entry for entry in (listed, *others)}, tmp_path)
    return tmp_path


def test_weights_come_back_rounded_to_half_precision(zoo):
    model = micro_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    store.save(model, read_preset("micro_conv"), zoo / "other")
    loaded = micro_model()
    load_into(loaded, zoo / "other" / WEIGHTS)
    for name, tensor in model.state_dict().items():
        found = loaded.state_dict()[name]
        assert found.dtype == tensor.dtype, name
        expected = tensor.half().float() if tensor.is_floating_point() else tensor
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=name)


def test_everybody_may_read_what_is_saved(zoo):
    before = os.umask(0o022)
    try:
        store.save(micro_model(), read_preset("micro_conv"), zoo / "shared")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (zoo / "shared").iterdir()} == {0o644}


def test_description_comes_back(zoo):
    assert read_config(zoo / "micro_conv.b") == read_preset("micro_conv")


def test_diverged_weights_are_not_saved(tmp_path):
    model = micro_model()
    with torch.no_grad():
        next(model.parameters()).fill_(1e6)
    with pytest.raises(ValueError, match="float16"):
        store.save(model, read_preset("micro_conv"), tmp_path)
    assert not (tmp_path / WEIGHTS).exists()


def test_architecture_means_its_first_tag(zoo):
    assert find("micro_conv", zoo).entry.name == "micro_conv.b"
    assert find("micro_conv.a", zoo).entry.name == "micro_conv.a"


@pytest.mark.parametrize(
    ("name", "near"), [("micro_cas", "did you mean 'micro_csa'"), ("micro_conv.c", "micro_conv.a")]
)
def test_unknown_names_list_the_nearest(zoo, name, near):
    with pytest.raises(UnknownNameError, match=f"unknown zoo model '{name}'.*{near}"):
        find(name, zoo)


def test_right_checksum_gives_the_folder(zoo):
    assert verify("micro_conv", zoo) == zoo / "micro_conv.b"


def test_a_single_flipped_bit_is_found(zoo):
    path = zoo / "micro_conv.b" / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    with pytest.raises(ChecksumError, match=r"micro_conv\.b.*reinstall probseg, or restore"):
        verify("micro_conv", zoo)


def test_missing_weight_file_is_named(zoo):
    with pytest.raises(FileNotFoundError, match=r"micro_csa\.a.*is missing"):
        verify("micro_csa", zoo)


def test_weights_of_another_architecture_are_refused_in_words(zoo):
    with pytest.raises(WeightsError, match=r"another architecture \(.* missing, e\.g\. head"):
        load_into(micro_model("micro_csa"), zoo / "micro_conv.b" / WEIGHTS)
    with pytest.raises(WeightsError, match="of another shape"):
        load_into(micro_model(decoder={"channels": 24}), zoo / "micro_conv.b" / WEIGHTS)


def test_a_file_that_holds_no_weights_is_refused_in_words(tmp_path):
    path = tmp_path / WEIGHTS
    path.write_bytes(b"not weights at all")
    with pytest.raises(WeightsError, match=r"model\.safetensors: cannot be read"):
        load_into(micro_model(), path)


def test_folder_without_description(tmp_path):
    with pytest.raises(FileNotFoundError, match="a model folder holds"):
        read_config(tmp_path)


ROOTS = (zoo_dir(), Path(__file__).parents[2] / "benchmarks" / "zoo")
"""The zoo that ships, and the one of models that exist for comparisons."""

MODELS = [(root, name) for root in ROOTS for name in read_index(root)]
NAMES = [name for _, name in MODELS]


def test_a_model_ships_with_the_package():
    assert read_index(zoo_dir()), f"{zoo_dir()}: publish a model with `probseg zoo publish`"


def test_models_have_one_place():
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize(("root", "name"), MODELS, ids=NAMES)
def test_models_are_complete(root, name):
    listed = read_index(root)[name]
    folder = verify(name, root)
    assert folder == root / name
    assert {path.name for path in folder.iterdir()} == {*listed.files, CARD}
    assert read_config(folder) == description_of(listed)
    model = create_model(f"{folder}/", pretrained=True)
    assert not model.training
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    assert sum(p.numel() for p in model.parameters()) == listed.parameters
    for key, value in listed.input.items():
        assert getattr(model, key) == value
    card = (folder / CARD).read_text(encoding="utf-8")
    facts = (name, listed.files[WEIGHTS].sha256, listed.license, listed.description, *listed.data)
    assert all(fact in card for fact in facts)
    assert "from_pretrained" in card or "create_model" in card


@pytest.mark.parametrize(("root", "name"), MODELS, ids=NAMES)
def test_models_are_small_and_measured(root, name):
    listed = read_index(root)[name]
    assert all(file.bytes < 16e6 for file in listed.files.values())
    ends = "/miou@5" if listed.task == "interactive" else "/miou"
    assert any(key.endswith(ends) for key in listed.metrics)
    for key, metric in listed.metrics.items():
        most = 20 if "/noc@" in key else 1
        assert 0 <= metric.value <= most, key
        assert metric.error is None or 0 <= metric.error < most / 4, key


@pytest.mark.parametrize("root", ROOTS)
def test_zoos_hold_nothing_that_is_not_listed(root):
    folders = {path.name for path in root.iterdir() if path.is_dir()}
    assert folders == set(read_index(root))
