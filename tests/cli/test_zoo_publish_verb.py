"""From a tested checkpoint to a model of a zoo, by the command line."""

import json

import pytest
import torch
import yaml
from runs import command, folder_fit
from tested import FACTS, network_for_classes, network_for_clicks

from probseg.zoo import create_model
from probseg.zoo.evaluations import read_evaluations
from probseg.zoo.index import CARD, read_index
from probseg.zoo.trained import read_trained

KEYS = ["GrabCut/gabbur2021+max_clicks=3", "GrabCut/ritm+max_clicks=3"]


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    return network_for_clicks(tmp_path_factory.mktemp("clicks"))


@pytest.fixture
def facts(tmp_path):
    path = tmp_path / "facts.yaml"
    path.write_text(yaml.safe_dump(FACTS))
    return path


@pytest.fixture
def publish(clicks, facts, tmp_path, monkeypatch):
    """Run `probseg zoo publish`; return its status."""
    monkeypatch.setenv("PROBSEG_DATA", str(clicks.data))

    def run(*more, source=clicks.checkpoint, name="micro_csa.mine"):
        arguments = ("--facts", facts, "--zoo", tmp_path / "zoo")
        return command("zoo", "publish", source, name, *arguments, *more)

    return run


def test_figures_are_published_once_they_were_measured_again(publish, clicks, tmp_path, capsys):
    assert publish("--results", *clicks.results) == 0
    told = capsys.readouterr().out
    assert all(f"measuring {key} with the weights in half precision" in told for key in KEYS)
    entry = read_index(tmp_path / "zoo")["micro_csa.mine"]
    for key, path in zip(KEYS, clicks.results, strict=True):
        summary = json.loads(path.read_text())["datasets"]["GrabCut"]
        assert entry.metrics[f"{key}/miou@3"].value == pytest.approx(summary["miou"][3], abs=1e-4)
        error = entry.metrics[f"{key}/miou@3"].error
        assert error == pytest.approx(summary["se_objects"][3], abs=1e-4)
        assert entry.metrics[f"{key}/noc@90"].value == pytest.approx(summary["noc"]["90"])
    folder = tmp_path / "zoo" / "micro_csa.mine"
    assert [evaluation.key for evaluation in read_evaluations(folder)] == KEYS
    assert all(evaluation.parity is not None for evaluation in read_evaluations(folder))
    assert "Measured again with the float16 weights" in (folder / CARD).read_text()


def test_results_that_the_weights_do_not_give_are_refused(publish, clicks, tmp_path, capsys):
    results = json.loads(clicks.results[1].read_text())
    results["datasets"]["GrabCut"]["miou"][2] += 0.01
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    assert publish("--results", path) == 2
    told = capsys.readouterr().err
    assert "GrabCut/ritm+max_clicks=3: the float16 weights do not keep the figures (miou@2" in told
    assert not (tmp_path / "zoo" / "micro_csa.mine").exists()
    results["metadata"]["weights_sha256"] = "0" * 64
    path.write_text(json.dumps(results))
    assert publish("--results", path) == 2
    assert "results.json: was made with other weights" in capsys.readouterr().err


def test_without_the_data_it_takes_a_flag_and_an_honest_card(
    publish, clicks, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    assert publish("--results", clicks.results[1]) == 2
    told = capsys.readouterr().err
    assert "GrabCut was not found" in told
    assert "--no-parity publishes without this check, and the card says so" in told
    assert publish("--results", clicks.results[1], "--no-parity") == 0
    card = (tmp_path / "zoo" / "micro_csa.mine" / CARD).read_text()
    assert "whether they hold for the float16 weights of this folder was not checked" in card


def test_the_untrained_network_stands_below_in_the_table(publish, clicks, tmp_path):
    before = json.loads(clicks.results[1].read_text())
    before["datasets"]["GrabCut"]["miou"] = [0.0, 0.1234, 0.1, 0.1]
    before["metadata"]["weights_sha256"] = "of other weights"
    path = tmp_path / "untrained.json"
    path.write_text(json.dumps(before))
    assert publish("--results", *clicks.results, "--no-parity", "--untrained", path) == 0
    card = (tmp_path / "zoo" / "micro_csa.mine" / CARD).read_text()
    first, second = card.split(f"**{KEYS[1]}**")
    assert "untrained" not in first
    (row,) = [line for line in second.splitlines() if line.startswith("| GrabCut, untrained |")]
    assert "12.3" in row


def test_changes_and_preset_by_flags(publish, tmp_path, capsys):
    flags = ("--changes", '{"working_size": 96}', "--preset", "micro_csa")
    assert publish(*flags, name="mine.wide") == 0
    entry = read_index(tmp_path / "zoo")["mine.wide"]
    assert (entry.preset, entry.arguments) == ("micro_csa", {"working_size": 96})
    for wrong, told in (("[", "is neither JSON nor YAML"), ("[1]", "expected arguments with")):
        assert publish("--changes", wrong) == 2
        assert f"--changes: {told}" in capsys.readouterr().err


def test_a_published_model_is_published_again_without_facts(publish, clicks, tmp_path):
    """As when figures are added, or the card is to be written anew."""
    assert publish() == 0
    zoo = tmp_path / "zoo"
    before = read_index(zoo)["micro_csa.mine"]
    again = ("zoo", "publish", zoo / "micro_csa.mine", "micro_csa.mine", "--zoo", zoo)
    assert command(*again, "--results", *clicks.results, "--no-parity") == 2, "of full precision"
    assert command(*again) == 0
    assert read_index(zoo)["micro_csa.mine"] == before


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "facts.yaml: is neither JSON nor YAML"),
        ("licence: CC0-1.0", "facts.yaml: expected an object with keys among description, data"),
        ("[1]", "facts.yaml: expected an object with keys among description, data"),
        ("hours: long", "facts.yaml: hours must be a number, got 'long'"),
        ("commit: 1234567", "facts.yaml: commit must be text, in quotes if it looks like a number"),
        ("data: ellipses", "facts.yaml: data must be a list of texts, got 'ellipses'"),
        ("seed: true", "facts.yaml: seed must be a whole number, got True"),
        ("description: A model.", "facts.yaml: data, license, hardware, hours, limits must be"),
    ],
)
def test_wrong_facts_are_told_in_words(publish, facts, capsys, content, told):
    facts.write_text(content)
    assert publish() == 2
    assert told in capsys.readouterr().err


def test_facts_may_be_json(publish, facts):
    facts.write_text(json.dumps(FACTS))
    assert publish() == 0


def test_a_semantic_network(tmp_path, monkeypatch, facts):
    classes = network_for_classes(tmp_path / "classes")
    monkeypatch.setenv("PROBSEG_DATA", str(classes.data))
    zoo = tmp_path / "zoo"
    publish = ("zoo", "publish", classes.checkpoint, "micro_emanet.streets", "--zoo", zoo)
    assert command(*publish, "--facts", facts, "--results", *classes.results) == 0
    entry = read_index(zoo)["micro_emanet.streets"]
    expected = json.loads(classes.results[0].read_text())
    assert set(entry.metrics) == {
        f"CamVid/{x}" for x in ("miou", "pixel_accuracy", "mean_accuracy")
    }
    assert entry.metrics["CamVid/miou"].value == pytest.approx(expected["miou"], abs=1e-4)
    assert entry.metrics["CamVid/miou"].error is None
    assert create_model(str(zoo / "micro_emanet.streets"), pretrained=True).num_classes == 11


def test_a_real_run_with_averaged_weights(tmp_path, monkeypatch, facts):
    """What Lightning's callback leaves in a checkpoint, and what the files of a run tell."""
    from fakes import write_folder

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    write_folder(tmp_path / "photos", images=5, size=(24, 32))
    average = "lightning.pytorch.callbacks.EMAWeightAveraging"
    flags = ("--trainer.max_epochs=2", f"--trainer.callbacks+={average}")
    assert command(*folder_fit("photos", *flags, "--trainer.callbacks.decay=0.5")) == 0
    run = tmp_path / "runs" / "probseg" / "version_0"
    stored = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    ema, last, best = (read_trained(run, which) for which in ("ema", "last", "best"))
    name = "head.bottleneck.0.weight"
    assert torch.equal(ema.weights[name], stored["state_dict"][f"model.{name}"])
    assert torch.equal(last.weights[name], stored["current_model_state"][f"model.{name}"])
    assert not torch.equal(ema.weights[name], last.weights[name])
    assert ema.weights.keys() == last.weights.keys() == best.weights.keys()
    assert ema.seed == 0
    assert yaml.safe_load(ema.config)["data"]["init_args"]["root"] == "photos"
    told = {name: fact for name, fact in FACTS.items() if name not in ("recipe", "commit")}
    facts.write_text(yaml.safe_dump(told | {"commit": ema.commit or "abcdef"}))
    zoo = tmp_path / "zoo"
    publish = ("zoo", "publish", run, "micro_csa.mine", "--weights", "ema", "--zoo", zoo)
    assert command(*publish, "--facts", facts) == 0
    entry = read_index(zoo)["micro_csa.mine"]
    assert entry.recipe == "probseg fit --config training.yaml"
    assert entry.seed == 0
    loaded = create_model(str(zoo / "micro_csa.mine"), pretrained=True)
    torch.testing.assert_close(
        loaded.state_dict()[name], ema.weights[name].half().float(), rtol=0, atol=0
    )
    published = (zoo / "micro_csa.mine" / "training.yaml").read_text()
    assert yaml.safe_load(published)["trainer"]["max_epochs"] == 2
