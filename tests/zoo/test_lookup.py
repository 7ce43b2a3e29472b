"""Models by name in the shipped zoo and in the folders of PROBSEG_ZOO."""

import dataclasses
import re
import shutil
from functools import partial

import pytest

from probseg import Predictor
from probseg.errors import ChecksumError, ModelNotFoundError, UnknownNameError, UsageError, ZooError
from probseg.zoo import create_model, list_models
from probseg.zoo.index import CHECKSUMS, CONFIG, INDEX, WEIGHTS, read_index, write_index
from probseg.zoo.lookup import all_models, find_model, find_run, find_verified
from probseg.zoo.trained import description_for, read_trained
from support.fakes import micro_model
from support.refusals import refused
from support.zoos import add_model, ship, write_checkpoint


@pytest.fixture
def zoos(tmp_path, monkeypatch):
    """The shipped zoo and two more; some names are in several of them."""
    listed = add_model(tmp_path / "shipped", "micro_conv.b")
    again = {
        name: dataclasses.replace(listed, name=name) for name in ("micro_conv.b", "micro_conv.a")
    }
    write_index(again, tmp_path / "shipped")
    add_model(tmp_path / "one", "micro_csa.x")
    add_model(tmp_path / "one", "micro_conv.b")
    add_model(tmp_path / "two", "micro_csa.y")
    ship(monkeypatch, tmp_path / "shipped")
    monkeypatch.setenv("PROBSEG_ZOO", f" {tmp_path}/one , {tmp_path}/two/")
    return tmp_path


def test_zoos_are_searched_in_order_and_the_first_tag_counts(zoos, monkeypatch):
    folders = {
        "micro_conv": "shipped/micro_conv.b",
        "micro_conv.a": "shipped/micro_conv.a",
        "micro_csa": "one/micro_csa.x",
        "micro_csa.y": "two/micro_csa.y",
    }
    for name, folder in folders.items():
        assert find_model(name).folder == zoos / folder
    assert find_model("micro_conv.b", zoos / "one").folder == zoos / "one" / "micro_conv.b"
    names = ["micro_conv.b", "micro_conv.a", "micro_csa.x", "micro_csa.y"]
    assert [model.entry.name for model in all_models()] == names
    places = ["shipped", "shipped", "one", "two"]
    assert [model.folder.parent.name for model in all_models()] == places
    assert list_models("*csa*", pretrained=True) == ["micro_csa.x", "micro_csa.y"]
    assert not create_model("micro_csa.y", pretrained=True).training
    refused(UnknownNameError, lambda: find_model("micro_cas"), "did you mean 'micro_csa'")
    refused(UnknownNameError, lambda: find_model("micro_conv.c"), "micro_conv.a")
    (zoos / "two" / INDEX).write_text("<html>welcome</html>")
    refused(ZooError, all_models, zoos / "two" / INDEX)
    monkeypatch.delenv("PROBSEG_ZOO")
    refused(UsageError, lambda: find_model("micro_csa"), "not trained")


def test_a_folder_with_one_run_means_the_run(tmp_path):
    place = f"{tmp_path}/"
    for number in range(2):
        run = tmp_path / f"version_{number}"
        write_checkpoint(run / "checkpoints" / "last.ckpt", micro_model("micro_csa").state_dict())
        (run / "config.yaml").write_text("seed_everything: 0")
        if number == 0:
            missing = partial(create_model, f"{tmp_path}/version_1", pretrained=True)
            refused(ModelNotFoundError, missing, f"no such folder, but {run}; ", "config.yaml and")
            assert not create_model(place, pretrained=True).training
            assert description_for(place) == description_for(str(run))
            assert read_trained(tmp_path).source == run / "checkpoints" / "last.ckpt"
            assert find_run("version_0") is None, "a name without a slash is none of a folder"
    for read in (partial(create_model, place), partial(read_trained, tmp_path)):
        refused(UsageError, read, "holds 2 runs; give one of them, the newest is", run)


@pytest.mark.parametrize("name", ["resnet50_deeplab", "emanet_resnet50"])
def test_a_preset_without_weights_names_those_with_weights_and_its_training(name):
    for load in (Predictor.from_pretrained, description_for, find_model):
        message = refused(UsageError, partial(load, name), name, "not trained", "lite0_unet_prop.")
        (preset,) = re.findall(r"configs/\S+/(\w+)\.yaml$", message)
        assert preset == name
        (near,) = re.findall(r"The nearest is (\w+)\.", message)
        assert near.startswith("emanet" if "emanet" in name else "lite")


def test_weights_of_the_benchmarks_are_named_in_a_checkout():
    refused(UsageError, lambda: find_model("resnet16_csa"), "has weights", "PROBSEG_ZOO")


@pytest.mark.parametrize("value", ["https://host/zoo", "no/such/folder", "{tests}"])
def test_other_places_than_zoo_folders_are_refused(zoos, monkeypatch, value, tmp_path_factory):
    value = value.format(tests=tmp_path_factory.mktemp("empty"))
    monkeypatch.setenv("PROBSEG_ZOO", value)
    refused(UsageError, lambda: find_model("micro_csa"), "PROBSEG_ZOO", value, "hf-hub:owner/name")


@pytest.mark.parametrize("file", [WEIGHTS, CONFIG])
def test_one_changed_byte_is_refused_wherever_the_copy_is(zoos, file):
    copies = zoos / "copies"
    shutil.copytree(zoos / "two", copies / "zoo")
    shutil.copytree(zoos / "two" / "micro_csa.y", copies / "alone")
    for folder in (copies / "zoo" / "micro_csa.y", copies / "alone"):
        create_model(str(folder), pretrained=True)
        content = bytearray((folder / file).read_bytes())
        content[content.index(b"a")] ^= 1
        (folder / file).write_bytes(content)
    refused(ChecksumError, lambda: find_verified("micro_csa", copies / "zoo"), copies / "zoo", file)
    folder = copies / "alone"
    for load in (lambda: create_model(f"{folder}/", pretrained=True), lambda: read_trained(folder)):
        with pytest.raises((ChecksumError, ZooError), match=str(folder / file)):
            load()


def test_files_that_are_missing_or_not_listed_are_named(zoos):
    folder = zoos / "two" / "micro_csa.y"
    refused(FileNotFoundError, lambda: find_verified("micro_conv.a"), "micro_conv.a", WEIGHTS)
    lines = (folder / CHECKSUMS).read_text().splitlines()
    (folder / CHECKSUMS).write_text(lines[1])
    refused(ChecksumError, lambda: create_model(str(folder), pretrained=True), CHECKSUMS, WEIGHTS)
    (folder / CHECKSUMS).unlink()
    for load in (lambda: create_model(str(folder), pretrained=True), lambda: read_trained(folder)):
        refused(FileNotFoundError, load, folder / CHECKSUMS, "probseg zoo publish")
    create_model(str(folder))  # without weights there is nothing to check
    assert find_verified("micro_csa.y").entry == read_index(zoos / "two")["micro_csa.y"]
