"""Runs that start from a checkpoint fetch no pretrained weights, which it would replace."""

import json

import pytest
import timm.models._builder
import torch
import yaml
from fakes import write_folder
from runs import MICRO, QUIET, SMALL, finished

from probseg.errors import UsageError

FETCHED = "no weights for you"
PRETRAINED = '{"pretrained": true}'
CHANGED = '{"backbone": {"pretrained": true}}'
VARIED = {
    "decoder": {"class_path": "probseg.heads.FPNDecoder", "init_args": {"channels": 8}},
    "backbone": {
        "class_path": "probseg.backbones.TimmBackbone",
        "init_args": {"name": "test_resnet.r160_in1k", "pretrained": True},
    },
}
# The ways to name a network: flags without weights, and with weights to download.
NETWORKS = {
    "described": (MICRO, (*MICRO, "--model.model.backbone.pretrained=true")),
    "varied": (
        ("--model.model=probseg.models.variant", "--model.model.of=micro_csa"),
        (
            "--model.model=probseg.models.variant",
            "--model.model.of=micro_csa",
            f"--model.model.changes={CHANGED}",
        ),
    ),
    "replaced": (
        (
            "--model.model=probseg.models.variant",
            "--model.model.of=micro_conv",
            f"--model.model.changes={json.dumps({'decoder': VARIED['decoder']})}",
        ),
        (
            "--model.model=probseg.models.variant",
            "--model.model.of=micro_conv",
            f"--model.model.changes={json.dumps(VARIED)}",
        ),
    ),
    "by name": (
        ("--model.model.name=micro_csa", "--model.model.pretrained=false"),
        (
            "--model.model.name=micro_csa",
            "--model.model.pretrained=false",
            "--model.model.dict_kwargs.backbone",
            PRETRAINED,
        ),
    ),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with drawn data, in which nothing can be fetched."""

    def refuse(*arguments, **options):
        raise OSError(FETCHED)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(timm.models._builder, "load_pretrained", refuse)
    write_folder(tmp_path / "objects", images=4, size=(24, 32))
    return tmp_path


def fit(*more):
    """Arguments of a short training of the recipe's network, or of another."""
    experiment = ("fit", "--config", "configs/experiment/folder.yaml", "--data.root=objects")
    return (*experiment, *QUIET, *SMALL, "--evaluation.pictures=0", *more)


def runs(place):
    return sorted((place / "runs" / "probseg").glob("version_*"))


def asks_for_weights(node):
    """Whether a part of a configuration has a pretrained backbone."""
    if not isinstance(node, dict):
        return False
    backbone = node.get("backbone") or {}
    arguments = backbone.get("init_args") or backbone
    return bool(arguments.get("pretrained")) or any(map(asks_for_weights, node.values()))


@pytest.fixture
def pretrained_run(request, place):
    """Configuration and checkpoint of a run that began with fetched weights, as if it had.

    A checkpoint says what its network is, too, and is believed more than the configuration.
    """
    without, wanted = NETWORKS[request.param]
    finished(*fit(*without, "--trainer.max_epochs=1"))
    with pytest.raises(SystemExit, match=r"^0$"):
        finished(*fit(*wanted, "--print_config"))
    run = runs(place)[0]
    checkpoint = run / "checkpoints" / "last.ckpt"
    stored = torch.load(checkpoint, weights_only=True)
    config = yaml.safe_load((run / "config.yaml").read_text())
    for network in (stored["hyper_parameters"]["model"], config["model"]["init_args"]["model"]):
        assert not asks_for_weights(network)
        if request.param == "described":
            network["init_args"]["backbone"]["init_args"]["pretrained"] = True
        elif request.param == "varied":
            network["init_args"]["changes"] = json.loads(CHANGED)
        elif request.param == "replaced":
            network["init_args"]["changes"] = VARIED
        else:
            network["dict_kwargs"] = {"backbone": json.loads(PRETRAINED)}
        assert asks_for_weights(network)
    torch.save(stored, checkpoint)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run / "config.yaml", checkpoint


@pytest.mark.parametrize("network", NETWORKS)
def test_a_new_training_fetches_weights(network, place):
    with pytest.raises(UsageError, match=FETCHED):
        finished(*fit(*NETWORKS[network][1], "--trainer.fast_dev_run=1"))


@pytest.mark.parametrize("pretrained_run", NETWORKS, indirect=True)
@pytest.mark.parametrize("verb", ["test", "validate", "fit"])
def test_a_run_with_a_checkpoint_fetches_nothing(verb, pretrained_run, place):
    config, checkpoint = pretrained_run
    weights = torch.load(checkpoint, weights_only=True)["state_dict"]
    more = {
        "test": ("--evaluation.trials=1", "--evaluation.max_clicks=2"),
        "validate": (),
        "fit": ("--trainer.max_epochs=2",),
    }[verb]
    short = ("--trainer.limit_test_batches=1", *more) if verb == "test" else more
    cli = finished(verb, "--config", config, "--ckpt_path", checkpoint, *short)
    if verb != "fit":
        loaded = cli.model.state_dict()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
    assert len(runs(place)) == 2
    saved = yaml.safe_load((runs(place)[1] / "config.yaml").read_text())
    assert asks_for_weights(saved["model"])
    if verb == "fit":
        later = torch.load(runs(place)[1] / "checkpoints" / "last.ckpt", weights_only=True)
        assert later["epoch"] == 1


@pytest.mark.parametrize("pretrained_run", ["described"], indirect=True)
def test_a_training_goes_on_from_the_last_checkpoint_without_fetching(pretrained_run, place):
    config, _ = pretrained_run
    finished("fit", "--config", config, "--ckpt_path", "last", "--trainer.max_epochs=2")
    assert len(runs(place)) == 1
    assert asks_for_weights(yaml.safe_load(config.read_text())["model"])


@pytest.mark.parametrize("pretrained_run", ["described"], indirect=True)
def test_the_configuration_of_such_a_run_begins_another_with_fetched_weights(pretrained_run):
    config, checkpoint = pretrained_run
    finished("validate", "--config", config, "--ckpt_path", checkpoint)
    with pytest.raises(UsageError, match=FETCHED):
        finished("fit", "--config", config, "--trainer.fast_dev_run=1")
