"""Names on a command line: what they import, and which evaluations they configure."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from probseg.cli.named import OF_WINGS, named_tasks, names_in
from probseg.kinds import find
from probseg.semantic import SemanticEvaluation
from support.drawn_semantic import write_camvid
from support.fakes import write_folder
from support.runs import MICRO_EMANET, QUIET, folder_fit, only_made

TASK = {"class_path": "SemanticSegmentation", "init_args": {"lr_scheduler": "PolynomialDecay"}}

PROGRAM = """
import json, sys
from support.runs import only_made
only_made(*sys.argv[1:])
print(json.dumps([name for name in sys.modules if name.startswith("probseg.")]))
"""


def test_short_names_are_those_of_the_classes():
    for name, path in OF_WINGS.items():
        assert find(path).__name__ == name


@pytest.mark.parametrize(
    ("arguments", "tasks"),
    [
        (["fit", "--data.train=GrabCut"], ["interactive"]),
        (["fit", "--data.train", "[{class_path: CamVid}]"], ["interactive", "semantic"]),
        (["fit", "--model=probseg.semantic.SemanticSegmentation"], ["interactive", "semantic"]),
        (["test", "--semantic_evaluation.flip", "true"], ["interactive", "semantic"]),
        (["fit", "--help.all"], ["interactive", "semantic"]),
    ],
)
def test_a_name_configures_the_evaluation_of_its_task(arguments, tasks):
    assert named_tasks(names_in(arguments)) == tasks


def test_names_in_files_of_files_count_and_comments_do_not(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "model.yaml").write_text(f"# CamVid\n{json.dumps(TASK)}")
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"model": "parts/model.yaml", "trainer": {"max_epochs": 3}}))
    for arguments in (["fit", "--config", str(path)], ["fit", f"--config={path}"]):
        words = names_in(arguments)
        assert {"max_epochs", "SemanticSegmentation", "PolynomialDecay"} <= words
        assert "CamVid" not in words
    path.write_text("{no yaml")
    assert names_in(["fit", f"--config={path}"]) >= {"fit", "config"}


def test_a_training_on_a_folder_loads_no_wing(tmp_path, repository):
    write_folder(tmp_path / "objects", images=5, size=(24, 32))
    command = [sys.executable, "-c", PROGRAM, *folder_fit(tmp_path / "objects")]
    paths = [str(repository / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    wings = {path.split(".")[1] for path in OF_WINGS.values()}
    assert {name for name in loaded if name.split(".")[1] in wings} == set()


USERS = """
from probseg.semantic import *
class Streets(CamVid): ...
class Data(SemanticDataModule): ...
class Task(SemanticSegmentation): ...
def network() -> SemanticSegmenter:
    return semantic_variant("micro_emanet", {"head": {"num_classes": 11}})
"""


def test_classes_of_a_user_are_evaluated_for_their_task(tmp_path, monkeypatch):
    """Whose names do not say what the task is."""
    (tmp_path / "streets_of_a_user.py").write_text(USERS)
    write_camvid(tmp_path / "camvid")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = "streets_of_a_user"
    streets = {"class_path": f"{path}.Streets", "init_args": {"root": "camvid"}}
    cli = only_made(
        *("fit", f"--model={path}.Task", f"--model.model={path}.network", *QUIET),
        *(f"--data={path}.Data", f"--data.train={json.dumps(streets)}"),
    )
    evaluations = [c for c in cli.trainer.callbacks if "Evaluation" in type(c).__name__]
    assert list(map(type, evaluations)) == [SemanticEvaluation]


def test_null_on_the_command_line_is_none(tmp_path, monkeypatch):
    """jsonargparse turns it into text."""
    write_camvid(tmp_path / "camvid")
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    head = "{num_classes: 11, normalisation: null}"
    cli = only_made(
        *("fit", "--config", "configs/experiment/emanet_camvid_cpu.yaml", *MICRO_EMANET, *QUIET),
        *("--model.model.changes.head", head),
    )
    assert cli.model.model.head.emau.bases.normalisation is None
    changes = cli.config.fit.model.init_args.model.init_args.changes
    assert changes["head"]["normalisation"] is None
