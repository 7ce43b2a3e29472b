import csv
import json

import pytest
import torch
from runs import command, train_two_epochs

import probseg.cli.zoo
import probseg.zoo.store as store
from probseg.models import override, read_preset
from probseg.zoo import create_model
from probseg.zoo.publish import Facts, network_of, publish

FACTS = {
    "description": "A tiny network for tests.",
    "data": ["drawn ellipses (CC0)"],
    "license": "CC0-1.0",
    "recipe": "probseg fit --config configs/experiment/folder.yaml",
    "commit": "abcdef",
    "seed": 7,
    "hardware": "one core, two seconds",
    "limits": ["It knows ellipses only.", "It is bad at them."],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint written by `fit`, and the results of two tests of it."""
    place = tmp_path_factory.mktemp("publish")
    _, run = train_two_epochs(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        evaluation = ("--evaluation.trials=2", "--evaluation.max_clicks=3")
        protocols = ("--evaluation.protocols=[gabbur2021,ritm]",)
        checkpoint = run / "checkpoints" / "last.ckpt"
        config = ("--config", run / "config.yaml", "--ckpt_path", checkpoint)
        assert command("test", *config, *evaluation, *protocols) == 0
    tests = run.with_name("version_1") / "test"
    return checkpoint, [tests / p / "results.json" for p in ("gabbur2021", "ritm")]


@pytest.fixture(scope="module")
def published(trained, tmp_path_factory):
    root = tmp_path_factory.mktemp("zoo")
    checkpoint, results = trained
    return root, publish(checkpoint, "micro_csa.fakes", root, Facts(**FACTS), results)


@pytest.fixture
def as_shipped(published, monkeypatch):
    """The published zoo in place of the shipped one."""
    root, entry = published
    monkeypatch.setattr(store, "zoo_dir", lambda: root)
    monkeypatch.setattr(probseg.cli.zoo, "zoo_dir", lambda: root)
    return root, entry


def test_the_network_is_the_trained_one(trained, as_shipped):
    model = create_model("micro_csa", pretrained=True)
    trained_weights = torch.load(trained[0], weights_only=True)["state_dict"]
    assert {f"model.{name}" for name in model.state_dict()} == set(trained_weights)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(
            tensor, trained_weights[f"model.{name}"], rtol=2e-3, atol=1e-6, msg=name
        )


def test_the_index_has_the_figures_of_the_results(trained, published):
    entry = published[1]
    assert entry.description == FACTS["description"]
    for path, protocol in zip(trained[1], ("gabbur2021", "ritm"), strict=True):
        summary = json.loads(path.read_text())["datasets"]["folder"]
        for k in (0, 1, 2, 3):
            figure = entry.metrics[f"folder/{protocol}/miou@{k}"]
            assert figure == pytest.approx(summary["miou"][k], abs=1e-4)
        assert entry.metrics[f"folder/{protocol}/noc@90"] == summary["noc"]["90"]
    assert not any("miou@5" in key for key in entry.metrics), "the tests had 3 clicks"


def test_figures_follow_from_the_objects_table(trained, published):
    """The card's figure is the mean of the IoUs in objects.csv, computed here by hand."""
    rows = list(csv.DictReader(trained[1][0].with_name("objects.csv").open()))
    ious = [float(row["iou"]) for row in rows if row["k"] == "3"]
    assert len(ious) == 2, "one object, two trials"
    expected = sum(ious) / len(ious)
    assert published[1].metrics["folder/gabbur2021/miou@3"] == pytest.approx(expected, abs=1e-4)


def test_the_card_has_facts_and_figures(trained, published):
    root, entry = published
    card = (root / "micro_csa.fakes" / store.CARD).read_text()
    for fact in (*FACTS["data"], *FACTS["limits"], "Seed 7", "abcdef", entry.sha256):
        assert fact in card
    assert card.startswith("---\nlicense: CC0-1.0\n")
    for path in trained[1]:
        results = json.loads(path.read_text())
        summary = results["datasets"]["folder"]
        row = next(
            line
            for line in card.split(f"Protocol `{results['protocol']['name']}`")[1].splitlines()
            if line.startswith("| folder |")
        )
        assert f"| {100 * summary['miou'][3]:.1f} |" in row  # one object has no error
        assert f"| {summary['noc']['90']:.2f} |" in row
        assert f"| {summary['n_objects']} x {summary['n_trials']} |" in row


def test_publishing_again_replaces_the_line_and_keeps_the_others(trained, tmp_path):
    for name in ("micro_csa.one", "micro_csa.two", "micro_csa.one"):
        publish(trained[0], name, tmp_path, Facts(**FACTS))
    assert list(store.read_index(tmp_path)) == ["micro_csa.one", "micro_csa.two"]


def test_changes_after_training(trained, tmp_path):
    publish(trained[0], "micro_csa.wide", tmp_path, Facts(**FACTS), changes={"working_size": 96})
    assert create_model(str(tmp_path / "micro_csa.wide"), pretrained=True).working_size == 96


@pytest.mark.parametrize("name", ["micro_csa", "micro_csa.a.b"])
def test_names_without_a_single_tag_are_refused(trained, tmp_path, name):
    with pytest.raises(ValueError, match=r"architecture\.tag"):
        publish(trained[0], name, tmp_path, Facts(**FACTS))


def test_checkpoints_that_do_not_say_their_network_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"weights\.ckpt.*only checkpoints written by"):
        network_of({"state_dict": {}, "hyper_parameters": {}}, tmp_path / "weights.ckpt")


def test_a_network_started_by_name_is_resolved(published):
    """`configs/experiment/folder.yaml` trains `create_model(...)`, not a list of parts."""
    arguments = {"name": "micro_csa", "pretrained": False, "head": {"attention": "standard"}}
    node = {"class_path": "probseg.zoo.create_model", "init_args": arguments}
    description = network_of({"hyper_parameters": {"model": node}}, published[0])
    assert description["class_path"] == "probseg.models.Segmenter"
    assert description["init_args"]["head"]["init_args"]["attention"] == "standard"


VARIED = {"head": {"channels": 16}, "working_size": 50}


@pytest.mark.parametrize("path", ["probseg.models.variant", "probseg.models.build.variant"])
def test_a_variant_is_published_as_the_network_itself(tmp_path, path):
    node = {"class_path": path, "init_args": {"of": "micro_csa", "changes": VARIED}}
    model = create_model("micro_csa", **VARIED).eval()
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    stored = {"state_dict": weights, "hyper_parameters": {"model": node}}
    torch.save(stored, tmp_path / "last.ckpt")
    publish(tmp_path / "last.ckpt", "micro_csa.varied", tmp_path, Facts(**FACTS))
    folder = tmp_path / "micro_csa.varied"
    assert store.read_config(folder) == override(read_preset("micro_csa"), VARIED)
    loaded = create_model(str(folder), pretrained=True)
    assert loaded.working_size == 50
    for name, tensor in loaded.state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=2e-3, atol=1e-6)


def test_zoo_commands(as_shipped, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    root, entry = as_shipped
    assert command("zoo", "list") == 0
    listed = capsys.readouterr().out
    assert "micro_csa.fakes" in listed
    assert f"{entry.parameters / 1e6:.2f} M" in listed
    assert command("zoo", "show", "micro_csa") == 0
    shown = capsys.readouterr().out
    assert "A tiny network for tests." in shown
    assert "license: CC0" not in shown, "the front matter is for the hub"
    assert command("zoo", "verify") == 0
    assert "micro_csa.fakes: checksum is right" in capsys.readouterr().out
    assert command("zoo", "show", "micro_cas") == 2
    assert "did you mean 'micro_csa'" in capsys.readouterr().err
    assert root.is_dir()


def test_publish_command(trained, tmp_path, capsys):
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps(FACTS))
    checkpoint, results = trained
    arguments = ("zoo", "publish", checkpoint, "micro_csa.mine", "--facts", facts)
    zoo = ("--zoo", tmp_path, "--results", *results)
    assert command(*arguments, *zoo) == 0
    assert "folder/ritm/noc@90" in store.read_index(tmp_path)["micro_csa.mine"].metrics
    assert store.verify("micro_csa.mine", tmp_path) == tmp_path / "micro_csa.mine"
    facts.write_text(json.dumps({"licence": "CC0-1.0"}))
    capsys.readouterr()
    assert command(*arguments, *zoo) == 2
    assert "facts.json: expected an object with exactly the keys description, data" in (
        capsys.readouterr().err
    )
    facts.write_text("{")
    assert command(*arguments, *zoo) == 2
    assert "facts.json: is not JSON" in capsys.readouterr().err


def test_the_untrained_network_stands_below_in_the_table_of_the_same_protocol(trained, tmp_path):
    checkpoint, (gabbur, ritm) = trained
    before = json.loads(ritm.read_text())
    before["datasets"]["folder"]["miou"] = [0.0, 0.1234, 0.1, 0.1]
    path = tmp_path / "untrained.json"
    path.write_text(json.dumps(before))
    publish(checkpoint, "micro_csa.two", tmp_path, Facts(**FACTS), [gabbur, ritm], [path])
    card = (tmp_path / "micro_csa.two" / "README.md").read_text()
    first, second = card.split("Protocol `ritm`")
    assert "untrained" not in first
    (row,) = [line for line in second.splitlines() if line.startswith("| folder, untrained |")]
    assert "12.3" in row
