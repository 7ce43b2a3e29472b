"""Runs that start from a checkpoint fetch no pretrained weights, which it would replace."""

import json

import pytest
import timm.models._builder
import torch
import yaml

from probseg.errors import UsageError
from support.fakes import write_folder
from support.runs import MICRO, QUIET, SMALL, finished, only_made

pytestmark = pytest.mark.usefixtures("undrawn")

FETCHED = "no weights for you"
REPLACED = {
    "backbone": {
        "class_path": "probseg.backbones.TimmBackbone",
        "init_args": {"name": "test_resnet.r160_in1k", "pretrained": True},
    },
}
VARIANT = ("--model.model=probseg.models.variant", "--model.model.of=micro_csa")
NETWORKS = {
    "described": (*MICRO, "--model.model.backbone.pretrained=true"),
    "varied": (*VARIANT, '--model.model.changes={"backbone": {"pretrained": true}}'),
    "replaced": (*VARIANT, f"--model.model.changes={json.dumps(REPLACED)}"),
    "by name": (
        *("--model.model.name=micro_csa", "--model.model.pretrained=false"),
        *("--model.model.dict_kwargs.backbone", '{"pretrained": true}'),
    ),
}
"""The ways to name a network whose backbone has weights to download."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with drawn data and a run, in which nothing can be fetched any more."""

    def refuse(*arguments, **options):
        raise OSError(FETCHED)

    place = tmp_path_factory.mktemp("downloads")
    write_folder(place / "objects", images=4, size=(24, 32))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        finished(*fit(*MICRO, "--trainer.max_epochs=1"))
        patch.setattr(timm.models._builder, "load_pretrained", refuse)
        yield place


def fit(*more):
    """Arguments of a short training."""
    experiment = ("fit", "--config", "configs/experiment/folder.yaml", "--data.root=objects")
    return (*experiment, *QUIET, *SMALL, "--evaluation.pictures=0", *more)


def run(place, number):
    return place / "runs" / "probseg" / f"version_{number}"


def asks_for_weights(node):
    """Whether a part of a configuration has a pretrained backbone."""
    if not isinstance(node, dict):
        return False
    backbone = node.get("backbone") or {}
    arguments = backbone.get("init_args") or backbone
    return bool(arguments.get("pretrained")) or any(map(asks_for_weights, node.values()))


@pytest.mark.parametrize("network", NETWORKS)
def test_weights_are_fetched_for_new_trainings_only(network, place):
    last = run(place, 0) / "checkpoints" / "last.ckpt"
    cli = only_made(*fit(*NETWORKS[network], "--ckpt_path", last))
    assert asks_for_weights(cli.config.fit.model.as_dict()), "as the configuration to be saved"
    cli.checkpoint = None
    with pytest.raises(UsageError, match=FETCHED):
        cli.instantiate_classes()


def test_a_run_goes_on_and_is_validated_without_fetching(place):
    """As if it had begun with fetched weights, which its configuration says."""
    config = yaml.safe_load((run(place, 0) / "config.yaml").read_text())
    backbone = config["model"]["init_args"]["model"]["init_args"]["backbone"]
    backbone["init_args"]["pretrained"] = True
    (place / "begun.yaml").write_text(yaml.safe_dump(config))
    finished("fit", "--config", "begun.yaml", "--ckpt_path=last", "--trainer.max_epochs=2")
    last = run(place, 0) / "checkpoints" / "last.ckpt"
    stored = torch.load(last, weights_only=True)
    assert stored["epoch"] == 1
    cli = finished("validate", "--config", run(place, 0) / "config.yaml", "--ckpt_path", last)
    loaded = cli.model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in stored["state_dict"].items())
    for number in (0, 1):
        saved = yaml.safe_load((run(place, number) / "config.yaml").read_text())
        assert asks_for_weights(saved["model"])
