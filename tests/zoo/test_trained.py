import json

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
from support.rows import each
from support.zoos import write_checkpoint

VARIED = {"head": {"channels": 16}, "working_size": 50}


def state(value):
    """Weights of a network of one number, as a task has them."""
    return {"model.head.weight": torch.tensor([value])}


def checkpoint(path, value):
    return write_checkpoint(path, {"head.weight": torch.tensor([value])})


def chosen(best, dirpath="/elsewhere/checkpoints", monitor="val/miou@5"):
    """What a `ModelCheckpoint` keeps."""
    return {"monitor": monitor, "best_model_path": str(best), "dirpath": str(dirpath)}


@pytest.fixture
def run(tmp_path):
    """The folder of a run that averaged its weights."""
    folder = tmp_path / "version_0"
    checkpoint(folder / "checkpoints" / "epoch001.ckpt", 1.0)
    checkpoint(folder / "checkpoints" / "epoch002.ckpt", 2.0)
    best = {"ModelCheckpoint{}": chosen("/elsewhere/checkpoints/epoch002.ckpt")}
    write_checkpoint(
        folder / "checkpoints" / "last.ckpt",
        {"head.weight": torch.tensor([3.0])},
        callbacks=best,
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
    trained = read_trained(checkpoint(run.parent / "a" / "b.ckpt", 1 / 3))
    assert (trained.seed, trained.commit, trained.config) == (None, None, None)
    rounded = {"model.head.weight": torch.tensor([1 / 3]).half()}
    digests = {weights_digest(rounded), weights_digest(state(1 / 3))}
    assert trained.digests == digests, "results of the rounded weights are of these, too"
    assert len(digests) == 2
    one, other = torch.rand(3), torch.rand(3)
    digest = weights_digest({"a": one, "b": other})
    assert weights_digest({"b": other.double(), "a": one}) == digest
    assert digest not in (weights_digest({"a": other, "b": one}), weights_digest({"a": one}))


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


@each(
    ("place", "monitor", "value"),
    [
        ("runs/a/checkpoints/epoch=1-val/miou@5=0.9.ckpt", "val/miou@5", 1.0),  # Lightning's names
        ("elsewhere/best.ckpt", "val/miou@5", 1.0),
        ("runs/a/checkpoints/newest.ckpt", None, 0.0),  # chosen by nothing, and so not the best
    ],
)
def test_the_best_checkpoint_is_what_was_recorded(place, monitor, value, tmp_path):
    best, moved = tmp_path / place, tmp_path / "moved"
    inside = "checkpoints" in place
    folder = tmp_path / "runs" / "a" / "checkpoints" if inside else best.parent
    last = tmp_path / "runs" / "a" / "checkpoints" / "last.ckpt"
    state = {"ModelCheckpoint{}": chosen(best, folder, monitor)}
    write_checkpoint(last, {"head.weight": torch.tensor([0.0])}, callbacks=state)
    checkpoint(best, 1.0)
    (last.parents[1] / "config.yaml").write_text("seed_everything: 5\n")
    last.parents[1].rename(moved)
    trained = read_trained(moved)
    assert (float(trained.weights["head.weight"]), trained.seed) == (value, 5)
    assert read_trained(trained.source).seed == (5 if inside else None)
    if monitor is not None:
        trained.source.unlink()
        with pytest.raises(UsageError, match=f"best checkpoint.*{best.name}, is missing"):
            read_trained(moved)


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


HEAD = {"head": {"num_classes": 5}}
CSA, EMANET = read_preset("micro_csa"), read_preset("micro_emanet", "semantic")


OF_CSA, OF_EMANET = {"of": "micro_csa"}, {"of": "micro_emanet", "changes": HEAD}
NETWORKS = {"micro_csa": override(CSA, VARIED), "micro_emanet": override(EMANET, HEAD), None: CSA}


@each(
    ("path", "arguments", "more", "preset"),
    [
        ("variant", OF_CSA | {"changes": VARIED}, {}, "micro_csa"),
        ("create_model", {"name": "micro_csa", "pretrained": False, **VARIED}, {}, "micro_csa"),
        ("create_model", {"name": "micro_csa"}, {"dict_kwargs": VARIED}, "micro_csa"),
        ("warm_start", OF_EMANET | {"weights": "x", "fresh": ["head.*"]}, {}, "micro_emanet"),
        ("semantic_variant", OF_EMANET, {}, "micro_emanet"),
        (CSA["class_path"], CSA["init_args"], {}, None),
    ],
)
def test_the_network_itself_is_found(path, arguments, more, preset, tmp_path):
    node = {"class_path": path, "init_args": arguments, **more}
    stored = {"hyper_parameters": {"model": node}}
    assert network_of(stored, tmp_path) == (NETWORKS[preset], preset)
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
    best = write_checkpoint(run / "checkpoints" / "epoch002.ckpt", model.state_dict())
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
