"""From a tested checkpoint to a model of a zoo, by the command line."""

import json

import pytest
import torch
import yaml

from probseg.release.evaluations import read_evaluations
from probseg.zoo import create_model
from probseg.zoo.index import CARD, read_index
from probseg.zoo.trained import read_trained
from support.fakes import write_folder
from support.rows import each
from support.runs import command, folder_fit, usage_error
from support.tested import FACTS, network_for_clicks

KEYS = ["GrabCut/gabbur2021+max_clicks=3", "GrabCut/ritm+max_clicks=3"]

pytestmark = pytest.mark.usefixtures("undrawn")


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
    """Arguments of `probseg zoo publish`."""
    monkeypatch.setenv("PROBSEG_DATA", str(clicks.data))

    def arguments(*more, name="micro_csa.mine"):
        zoo = ("--facts", facts, "--zoo", tmp_path / "zoo")
        return ("zoo", "publish", clicks.checkpoint, name, *zoo, *more)

    return arguments


@pytest.fixture
def card(tmp_path):
    """Reads the card of the published model."""
    return (tmp_path / "zoo" / "micro_csa.mine" / CARD).read_text


def test_figures_are_published_once_they_were_measured_again(
    publish, clicks, card, tmp_path, capsys
):
    assert command(*publish("--results", *clicks.results)) == 0
    output = capsys.readouterr().out
    assert all(f"measuring {key} with the weights in half precision" in output for key in KEYS)
    entry = read_index(tmp_path / "zoo")["micro_csa.mine"]
    for key, path in zip(KEYS, clicks.results, strict=True):
        summary = json.loads(path.read_text())["datasets"]["GrabCut"]
        miou = entry.metrics[f"{key}/miou@3"]
        assert miou.value == pytest.approx(summary["miou"][3], abs=1e-4)
        assert miou.error == pytest.approx(summary["se_objects"][3], abs=1e-4)
        assert entry.metrics[f"{key}/noc@90"].value == pytest.approx(summary["noc"]["90"])
    evaluations = read_evaluations(tmp_path / "zoo" / "micro_csa.mine")
    assert [evaluation.key for evaluation in evaluations] == KEYS
    assert all(evaluation.parity is not None for evaluation in evaluations)
    assert "Measured again with the float16 weights" in card()


def test_results_that_the_weights_do_not_give_are_refused(publish, clicks, tmp_path, capsys):
    results = json.loads(clicks.results[1].read_text())
    results["datasets"]["GrabCut"]["miou"][2] += 0.01
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    assert command(*publish("--results", path)) == 2
    assert f"{KEYS[1]}: the float16 weights do not keep the figures (miou@2" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "zoo" / "micro_csa.mine").exists()
    results["metadata"]["weights_sha256"] = "0" * 64
    path.write_text(json.dumps(results))
    assert "results.json: was made with other weights" in usage_error(
        capsys, *publish("--results", path)
    )


def test_without_the_data_it_takes_a_flag_and_an_honest_card(
    publish, clicks, card, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    assert command(*publish("--results", clicks.results[1])) == 2
    message = capsys.readouterr().err
    assert "GrabCut was not found" in message
    assert "--no-parity" in message
    assert command(*publish("--results", clicks.results[1], "--no-parity")) == 0
    assert "for the float16 weights of this folder was not checked" in card()


def test_the_untrained_network_stands_below_in_the_table(publish, clicks, card, tmp_path):
    before = json.loads(clicks.results[1].read_text())
    before["datasets"]["GrabCut"]["miou"] = [0.0, 0.1234, 0.1, 0.1]
    before["metadata"]["weights_sha256"] = "of other weights"
    path = tmp_path / "untrained.json"
    path.write_text(json.dumps(before))
    results = ("--results", *clicks.results, "--no-parity", "--untrained", path)
    assert command(*publish(*results)) == 0
    first, second = card().split(f"**{KEYS[1]}**")
    assert "untrained" not in first
    (row,) = [line for line in second.splitlines() if line.startswith("| GrabCut, untrained |")]
    assert "12.3" in row


def test_changes_and_preset_by_flags(publish, tmp_path, capsys):
    wide = ("--preset", "micro_csa", "--changes", '{"working_size": 96}')
    assert command(*publish(*wide, name="mine.wide")) == 0
    entry = read_index(tmp_path / "zoo")["mine.wide"]
    assert (entry.preset, entry.arguments) == ("micro_csa", {"working_size": 96})
    for wrong in ("[", "[1]"):
        assert "--changes" in usage_error(capsys, *publish("--changes", wrong))


def test_a_published_model_keeps_facts_that_are_not_given_again(publish, clicks, facts, tmp_path):
    assert command(*publish()) == 0
    zoo = tmp_path / "zoo"
    before = read_index(zoo)["micro_csa.mine"]
    again = ("zoo", "publish", zoo / "micro_csa.mine", "micro_csa.mine", "--zoo", zoo)
    assert command(*again, "--results", *clicks.results, "--no-parity") == 2, "of full precision"
    assert command(*again) == 0
    assert read_index(zoo)["micro_csa.mine"] == before
    facts.write_text("description: Another text.")
    assert command(*again, "--facts", facts) == 0
    after = read_index(zoo)["micro_csa.mine"]
    assert (after.description, after.data) == ("Another text.", before.data)


@each(
    ("content", "part"),
    [
        ("{", "JSON or YAML"),
        ("licence: CC0-1.0", "licence must be left out, as it is not among description, data"),
        ("[1]", "names with their values"),
        ("hours: long", "hours must be a number, got 'long'"),
        ("commit: 1234567", "commit must be text"),
        ("data: ellipses", "data must be a list of texts"),
        ("seed: true", "seed must be a whole number, got True"),
        ("description: A model.", "data, license, hardware, hours, limits"),
    ],
)
def test_wrong_facts_are_named(publish, facts, capsys, content, part):
    facts.write_text(content)
    message = usage_error(capsys, *publish())
    assert "facts.yaml" in message
    assert part in message


def test_a_real_run_with_averaged_weights(tmp_path, monkeypatch, facts):
    """What Lightning's callback leaves in a checkpoint, and the files of a run say."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "data", images=5, size=(24, 32))
    average = "lightning.pytorch.callbacks.EMAWeightAveraging"
    flags = (f"--trainer.callbacks+={average}", "--trainer.callbacks.decay=0.5")
    flags += ("--trainer.max_epochs=1", "--evaluation.pictures=0")
    assert command(*folder_fit("data", *flags)) == 0
    run = tmp_path / "runs" / "probseg" / "version_0"
    stored = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    ema, last, best = (read_trained(run, which) for which in ("ema", "last", "best"))
    name = "head.bottleneck.0.weight"
    assert torch.equal(ema.weights[name], stored["state_dict"][f"model.{name}"])
    assert torch.equal(last.weights[name], stored["current_model_state"][f"model.{name}"])
    assert not torch.equal(ema.weights[name], last.weights[name])
    assert ema.weights.keys() == last.weights.keys() == best.weights.keys()
    given = {name: fact for name, fact in FACTS.items() if name != "recipe"}
    facts.write_text(yaml.safe_dump(given | {"commit": ema.commit or "abcdef"}))
    zoo = tmp_path / "zoo"
    publish = ("zoo", "publish", run, "micro_csa.mine", "--weights", "ema", "--zoo", zoo)
    assert command(*publish, "--facts", facts) == 0
    entry = read_index(zoo)["micro_csa.mine"]
    assert (entry.recipe, entry.seed) == ("probseg fit --config training.yaml", 0)
    loaded = create_model(str(zoo / "micro_csa.mine"), pretrained=True).state_dict()[name]
    assert torch.equal(loaded, ema.weights[name].half().float())
    published = yaml.safe_load((zoo / "micro_csa.mine" / "training.yaml").read_text())
    assert published["trainer"]["max_epochs"] == 1
