"""Configurations of earlier versions."""

import pytest
import yaml
from fakes import write_folder
from runs import QUIET, only_made, working_in

from probseg.models import Segmenter
from probseg.paths import configs_dir


def written(place, maker, style):
    """A configuration whose network is made by a function."""
    config = yaml.safe_load((configs_dir() / "experiment" / "folder.yaml").read_text())
    network = config["model"]["init_args"]["model"]
    network["class_path"] = maker
    network["init_args"] = {"name": "micro_csa", "pretrained": False}
    network["dict_kwargs"] = {"working_size": 24}
    config["trainer"] = {"max_epochs": 1}
    config["data"]["init_args"]["root"] = str(write_folder(place / "data", images=5, size=(24, 32)))
    path = place / "old.yaml"
    path.write_text(yaml.safe_dump(config, default_flow_style=style, default_style='"'))
    return path


@pytest.mark.parametrize(
    ("maker", "style"), [("probseg.zoo.create_model", False), ("probseg.create_model", True)]
)
def test_runs_whose_config_names_create_model_go_on(tmp_path, maker, style):
    with working_in(tmp_path):
        cli = only_made("fit", "--config", written(tmp_path, maker, style), *QUIET)
    assert isinstance(cli.model.model, Segmenter)
    assert cli.model.model.working_size == 24
    named = cli.config.fit.model.init_args.model.class_path
    assert named == "probseg.zoo.create_interactive"
