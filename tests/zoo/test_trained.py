import json
from pathlib import Path

import pytest
import torch
import yaml

from probseg import Predictor, create_model
from probseg.errors import UsageError, WeightsError
from probseg.models import override, read_preset
from probseg.zoo.index import CONFIG
from probseg.zoo.store import save
from probseg.zoo.trained import network_of, read_trained, weights_digest, without_files
from support.fakes import micro_model

VARIED = {"head": {"channels": 16}, "working_size": 50}


def state(value):
    """Weights of a network of one number, as a task has them."""
    return {"model.head.weight": torch.tensor([value])}


def checkpoint(path, model=None, best=None, **content):
    """Write what Lightning writes, as far as it is read."""
    node = model or {"class_path": "probseg.models.variant", "init_args": {"of": "micro_csa"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    callbacks = {"ModelCheckpoint{}": {"best_model_path": best}} if best else {"Other": {}}
    torch.save({"hyper_parameters": {"model": node}, "callbacks": callbacks, **content}, path)
    return path


@pytest.fixture
def run(tmp_path):
    """The folder of a run that averaged its weights."""
    folder = tmp_path / "version_0"
    checkpoint(folder / "checkpoints" / "epoch001.ckpt", state_dict=state(1.0))
    checkpoint(folder / "checkpoints" / "epoch002.ckpt", state_dict=state(2.0))
    checkpoint(
        folder / "checkpoints" / "last.ckpt",
        best="/elsewhere/checkpoints/epoch002.ckpt",
        state_dict=state(3.0),
        current_model_state=state(4.0),
        averaging_state={"n_averaged": torch.tensor(7)},
    )
    settings = {"seed_everything": 5, "ckpt_path": "x.ckpt", "data": {"root": "photos"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    starts = [
        {"verb": verb, "environment": {"commit": commit * 10, "dirty": dirty}}
        for verb, commit, dirty in (
            ("fit", "abcd", False),
            ("validate", "ffff", False),
            ("fit", "abcd", False),
            ("fit", "0123", True),
        )
    ]
    (folder / "starts.jsonl").write_text("".join(f"{json.dumps(start)}\n" for start in starts))
    return folder


@pytest.mark.parametrize(
    ("which", "value"), [(None, 2.0), ("best", 2.0), ("ema", 3.0), ("last", 4.0)]
)
def test_weights_of_a_run(run, which, value):
    trained = read_trained(run, which)
    assert {name: float(tensor) for name, tensor in trained.weights.items()} == {
        "head.weight": value
    }
    assert weights_digest(state(value)) in trained.digests
    assert trained.description == read_preset("micro_csa")
    assert trained.preset == "micro_csa"
    if which != "best":
        alone = read_trained(run / "checkpoints" / "last.ckpt", which)
        assert float(alone.weights["head.weight"]) == (4.0 if which == "last" else 3.0)


def test_the_run_tells_seed_commits_and_settings(run):
    for source in (run, run / "checkpoints" / "epoch001.ckpt"):
        trained = read_trained(source)
        assert trained.seed == 5
        assert trained.commit == "abcdabcdabcd, then 012301230123 with uncommitted changes"
        assert yaml.safe_load(trained.config) == {"seed_everything": 5, "data": {"root": "photos"}}
    trained = read_trained(checkpoint(run.parent / "a" / "b.ckpt", state_dict=state(1.0)))
    assert (trained.seed, trained.commit, trained.config) == (None, None, None)


def test_what_there_is_not_is_refused_in_words(run, tmp_path):
    with pytest.raises(UsageError, match=r"`weights` 'ema': .*epoch001\.ckpt has no average"):
        read_trained(run / "checkpoints" / "epoch001.ckpt", "ema")
    with pytest.raises(UsageError, match="'best': give the folder of a run"):
        read_trained(run / "checkpoints" / "last.ckpt", "best")
    (run / "checkpoints" / "last.ckpt").unlink()
    with pytest.raises(UsageError, match=r"found epoch001\.ckpt, epoch002\.ckpt; give the path"):
        read_trained(run)
    with pytest.raises(UsageError, match=r"last\.ckpt: no such file"):
        read_trained(run, "last")
    (run / "checkpoints" / "epoch001.ckpt").unlink()
    assert float(read_trained(run).weights["head.weight"]) == 2.0
    with pytest.raises(UsageError, match="no such file; expected a run folder, a checkpoint or"):
        read_trained(tmp_path / "nothing.ckpt")


def test_other_files_are_refused_in_words(tmp_path):
    path = tmp_path / "weights.ckpt"
    path.write_bytes(b"no checkpoint")
    with pytest.raises(WeightsError, match=r"weights\.ckpt: cannot be read as a checkpoint"):
        read_trained(path)
    torch.save({"weights": 1}, path)
    with pytest.raises(WeightsError, match=r"weights\.ckpt: holds no training state"):
        read_trained(path)
    torch.save({"run": Path("code")}, path)
    with pytest.raises(WeightsError, match="holds Python objects, which are not read"):
        read_trained(path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.yaml", f"a: [{'1, ' * 100_000}]", "has more than"),
        ("config.yaml", "5", "or starts.jsonl is not what"),
        ("starts.jsonl", "{}\n" * 6_000_000, "has more than"),
    ],
)
def test_texts_of_a_run_are_settings_of_bounded_size(run, name, content, words):
    (run / name).write_text(content)
    with pytest.raises(WeightsError, match=rf"{name}:? {words}"):
        read_trained(run)


def test_a_model_folder_can_be_published_again(tmp_path):
    model, description = micro_model("micro_csa"), read_preset("micro_csa")
    save(model, description, tmp_path / "zoo" / "micro_csa.a")
    trained = read_trained(tmp_path / "zoo" / "micro_csa.a")
    assert trained.description == json.loads((tmp_path / "zoo/micro_csa.a" / CONFIG).read_text())
    assert set(trained.weights) == set(model.state_dict())
    rounded = {
        f"model.{name}": tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in model.state_dict().items()
    }
    assert trained.digests == {weights_digest(rounded)}
    with pytest.raises(UsageError, match=r"`weights` 'ema'.*which has one set"):
        read_trained(tmp_path / "zoo" / "micro_csa.a", "ema")


def test_results_of_the_rounded_weights_are_of_these_weights_too(run):
    trained = read_trained(run)
    assert trained.digests == {weights_digest(state(2.0))}, "2 is a number of half precision"
    path = checkpoint(run / "checkpoints" / "third.ckpt", state_dict=state(1 / 3))
    rounded = {"model.head.weight": torch.tensor([1 / 3]).half()}
    both = {weights_digest(rounded), weights_digest(state(1 / 3))}
    assert read_trained(path).digests == both
    assert len(both) == 2


NODES = {
    "variant": ("probseg.models.variant", {"of": "micro_csa", "changes": VARIED}),
    "by name": ("probseg.zoo.create_model", {"name": "micro_csa", "pretrained": False, **VARIED}),
    "warm start": (
        "probseg.zoo.warm_start",
        {"of": "micro_csa", "weights": "x.ckpt", "fresh": ["head.*"], "changes": VARIED},
    ),
}


@pytest.mark.parametrize(("path", "arguments"), NODES.values(), ids=NODES)
def test_the_network_itself_is_found(path, arguments, tmp_path):
    node = {"class_path": path, "init_args": arguments}
    found = network_of({"hyper_parameters": {"model": node}}, tmp_path)
    assert found == (override(read_preset("micro_csa"), VARIED), "micro_csa")


def test_semantic_and_unnamed_networks_are_found_too(tmp_path):
    def found(path, arguments, **more):
        node = {"class_path": path, "init_args": arguments, **more}
        return network_of({"hyper_parameters": {"model": node}}, tmp_path)

    head = {"head": {"num_classes": 5}}
    of = {"of": "micro_emanet", "changes": head}
    expected = override(read_preset("micro_emanet", "semantic"), head), "micro_emanet"
    assert found("probseg.semantic.semantic_variant", of) == expected
    assert found("probseg.zoo.warm_start", {**of, "weights": "x"}) == expected
    named = {"name": "micro_csa", "pretrained": False}
    changed, _ = found("probseg.zoo.create_model", named, dict_kwargs={"working_size": 50})
    assert changed["init_args"]["working_size"] == 50
    node = read_preset("micro_conv")
    assert found(**{"path": node["class_path"], "arguments": node["init_args"]}) == (node, None)
    with pytest.raises(WeightsError, match=r"weights\.ckpt"):
        network_of({"state_dict": {}, "hyper_parameters": {}}, tmp_path / "weights.ckpt")


def test_a_description_names_no_file_once_it_is_written(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(micro_model("micro_csa"), read_preset("micro_csa"), tmp_path / "base")
    for name in (f"{tmp_path}/base/", str(run), run.name):
        arguments = {"name": name, "pretrained": True, "working_size": 50}
        node = {"class_path": "probseg.zoo.create_interactive", "init_args": arguments}
        with pytest.raises((WeightsError, UsageError)):
            network_of({"hyper_parameters": {"model": node}}, tmp_path)
        expected = override(read_preset("micro_csa"), {"working_size": 50})
        assert network_of({"hyper_parameters": {"model": without_files(node)}}, tmp_path) == (
            (expected, None)
        )
    for same in (
        read_preset("micro_csa"),
        {"class_path": "create_model", "init_args": {"name": "x"}},
    ):
        assert without_files(same) == same


def test_runs_and_checkpoints_are_models(run, tmp_path):
    model = micro_model("micro_csa")
    with torch.no_grad():
        model.head.last.value.weight.add_(1)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    best = checkpoint(run / "checkpoints" / "epoch002.ckpt", state_dict=weights)
    for source in (run, best):
        loaded = create_model(str(source), pretrained=True).state_dict()
        for name, tensor in model.state_dict().items():
            assert torch.equal(loaded[name], tensor)
        answering = Predictor.from_pretrained(str(source)).model
        assert torch.equal(answering.head.last.value.weight, model.head.last.value.weight)
        assert not answering.training
    fresh = create_model(str(run), working_size=40)
    assert (fresh.training, fresh.working_size) == (True, 40)
    with pytest.raises(WeightsError, match="another architecture"):
        create_model(str(best), pretrained=True, head={"channels": 16})
    with pytest.raises(UsageError, match="no such file"):
        create_model(str(tmp_path / "none.ckpt"), pretrained=True)


def test_a_digest_is_of_names_and_values_and_not_of_their_order():
    one, other = torch.rand(3), torch.rand(3)
    digest = weights_digest({"a": one, "b": other})
    assert weights_digest({"b": other.double(), "a": one}) == digest
    assert weights_digest({"a": other, "b": one}) != digest
    assert weights_digest({"a": one, "c": other}) != digest
