import os

import pytest
import torch

import probseg.zoo.store as store
from probseg.descriptions import class_name, is_description
from probseg.errors import WeightsError
from probseg.models import read_preset
from probseg.paths import zoo_dir
from probseg.zoo import create_model
from probseg.zoo.index import CARD, CHECKSUMS, WEIGHTS, description_of, read_index
from probseg.zoo.lookup import find_verified
from probseg.zoo.store import checksum_lines, load_into, read_config
from support.fakes import micro_model
from support.refusals import refused
from support.zoos import PUBLISHED


def test_weights_come_back_rounded_to_half_precision(tmp_path):
    model = micro_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("num_batches_tracked"):
                buffer.fill_(4097)  # float16 has no such number
    before = os.umask(0o022)
    try:
        store.save(model, read_preset("micro_conv"), tmp_path)
    finally:
        os.umask(before)
    loaded = micro_model()
    load_into(loaded, tmp_path / WEIGHTS)
    for name, tensor in model.state_dict().items():
        found = loaded.state_dict()[name]
        assert found.dtype == tensor.dtype, name
        expected = tensor.half().float() if tensor.is_floating_point() else tensor
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=name)
    assert read_config(tmp_path) == read_preset("micro_conv")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_diverged_weights_are_not_saved(tmp_path):
    model = micro_model()
    with torch.no_grad():
        next(model.parameters()).fill_(1e6)
    refused(ValueError, lambda: store.save(model, read_preset("micro_conv"), tmp_path), "float16")
    assert not (tmp_path / WEIGHTS).exists()


def test_weights_of_another_architecture_are_refused(tmp_path):
    store.save(micro_model(), read_preset("micro_conv"), tmp_path)
    path = tmp_path / WEIGHTS
    refused(WeightsError, lambda: load_into(micro_model("micro_csa"), path), "missing", "head.")
    other = micro_model(decoder={"channels": 24})
    refused(WeightsError, lambda: load_into(other, path), "of another shape", "decoder.")
    other = micro_model()
    del other.head
    refused(WeightsError, lambda: load_into(other, path), "unknown", "head.")
    path.write_bytes(b"not weights at all")
    refused(WeightsError, lambda: load_into(micro_model(), path), path)


MODELS = [(root, name) for root in PUBLISHED for name in read_index(root)]
NAMES = [name for _, name in MODELS]


def by_names(value):
    """A description with the names of its classes alone: their modules may have moved since."""
    if not isinstance(value, dict):
        return value
    inner = {key: by_names(item) for key, item in value.items()}
    return inner | ({"class_path": class_name(value)} if is_description(value) else {})


def test_zoos_list_each_folder_once():
    assert read_index(zoo_dir())
    assert len(set(NAMES)) == len(NAMES)
    for root in PUBLISHED:
        assert {path.name for path in root.iterdir() if path.is_dir()} == set(read_index(root))


@pytest.mark.parametrize(("root", "name"), MODELS, ids=NAMES)
def test_models_are_complete_small_and_measured(root, name):
    entry, _ = verified = find_verified(name, root)
    folder = verified.folder
    assert {path.name for path in folder.iterdir()} == {*entry.files, CARD, CHECKSUMS}
    assert (folder / CHECKSUMS).read_text() == checksum_lines(entry.files)
    assert by_names(read_config(folder)) == by_names(description_of(entry))
    model = create_model(f"{folder}/", pretrained=True)
    assert not model.training
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    assert sum(p.numel() for p in model.parameters()) == entry.parameters
    for key, value in entry.input.items():
        assert getattr(model, key) == value
    assert all(file.bytes < 16e6 for file in entry.files.values())
    ends = "/miou@5" if entry.task == "interactive" else "/miou"
    assert any(key.endswith(ends) for key in entry.metrics)
    for key, metric in entry.metrics.items():
        most = 20 if "/noc@" in key else 1
        assert 0 <= metric.value <= most, key
        assert metric.error is None or 0 <= metric.error < most / 4, key
