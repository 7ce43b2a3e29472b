"""The command line of fit, validate and test, before the parser: names, data, shipped files."""

import json
import os
import subprocess
import sys

import pytest
import yaml

import probseg.cli.invocation as invocation
from probseg.cli.invocation import OF_WINGS, Invocation, with_shipped_configs
from probseg.data import FolderDataModule
from probseg.errors import DatasetNotFoundError, UsageError
from probseg.paths import configs_dir
from probseg.semantic import SemanticEvaluation
from support.drawn_semantic import write_camvid
from support.fakes import write_folder
from support.rows import each
from support.runs import (
    MICRO,
    MICRO_EMANET,
    QUIET,
    command,
    folder_fit,
    only_made,
    usage_error,
)

TASK = {"class_path": "SemanticSegmentation", "init_args": {"lr_scheduler": "PolynomialDecay"}}
NESTED = """
class_path: InteractiveDataModule
init_args:
  val: {class_path: SamplePhotos}
  test:
    - {class_path: probseg.data.SBD, init_args: {split: val, root: moved}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory with `mine`, six objects of three photographs, and no other data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    write_folder(tmp_path / "mine", images=3, objects=2)
    return tmp_path


@each(
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
    assert Invocation(arguments[0], arguments[1:]).tasks() == tasks


def test_names_in_files_of_files_count_and_comments_do_not(here):
    (here / "parts").mkdir()
    (here / "parts" / "model.yaml").write_text(f"# CamVid\n{json.dumps(TASK)}")
    path = here / "mine.yaml"
    path.write_text(yaml.safe_dump({"model": "parts/model.yaml", "trainer": {"max_epochs": 3}}))
    for options in (["--config", str(path)], [f"--config={path}"]):
        words = Invocation("fit", options).words
        assert {"max_epochs", "SemanticSegmentation", "PolynomialDecay"} <= words
        assert "CamVid" not in words
    path.write_text("{no yaml")
    assert Invocation("fit", [f"--config={path}"]).words >= {"fit", "config"}


def test_a_file_that_names_itself_or_is_named_twice_is_read_once(here, monkeypatch):
    (here / "a.yaml").write_text(f"data: b.yaml\nmodel: {json.dumps(TASK)}")
    (here / "b.yaml").write_text("class_path: CamVid\ninit_args: {root: a.yaml, split: b.yaml}")
    names = []
    read = invocation.read_yaml
    monkeypatch.setattr(invocation, "read_yaml", lambda path: names.append(path.name) or read(path))
    asked = Invocation("test", ["--config=a.yaml", "--config", "a.yaml", "--model.model=b.yaml"])
    asked.check()
    assert {"CamVid", "SemanticSegmentation"} <= asked.words
    assert asked.arguments[4] == "--model.model=probseg.models.variant"
    assert sorted(names) == ["a.yaml", "a.yaml", "b.yaml"], "one check for each --config"
    Invocation("test", ["--config=a.yaml"]).check()  # which looks for data sets, too


LOADED = """
import json, sys
from support.runs import only_made
only_made(*sys.argv[1:])
print(json.dumps([name for name in sys.modules if name.startswith("probseg.")]))
"""


def test_a_training_on_a_folder_loads_no_wing_and_no_reader():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-c", LOADED, *folder_fit("mine")]
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    wings = {path.split(".")[1] for path in OF_WINGS.values()}
    assert {name for name in loaded if name.split(".")[1] in wings} == set()
    assert not any(name.startswith("probseg.data.sets.") for name in loaded)


USERS = """
from probseg.semantic import *
class Streets(CamVid): ...
class Data(SemanticDataModule): ...
class Task(SemanticSegmentation): ...
def network() -> SemanticSegmenter:
    return semantic_variant("micro_emanet", {"head": {"num_classes": 11}})
"""


def test_classes_of_a_user_are_evaluated_for_their_task(here, monkeypatch):
    """Whose names do not say what the task is."""
    (here / "streets_of_a_user.py").write_text(USERS)
    write_camvid(here / "camvid")
    monkeypatch.syspath_prepend(here)
    path = "streets_of_a_user"
    streets = {"class_path": f"{path}.Streets", "init_args": {"root": "camvid"}}
    cli = only_made(
        *("fit", f"--model={path}.Task", f"--model.model={path}.network", *QUIET),
        *(f"--data={path}.Data", f"--data.train={json.dumps(streets)}"),
    )
    evaluations = [c for c in cli.trainer.callbacks if "Evaluation" in type(c).__name__]
    assert list(map(type, evaluations)) == [SemanticEvaluation]


def test_null_on_the_command_line_is_none(here):
    """jsonargparse turns it into text."""
    write_camvid(here / "camvid")
    head = "{num_classes: 11, normalisation: null}"
    cli = only_made(
        *("fit", "--config", "configs/experiment/emanet_camvid_cpu.yaml", *MICRO_EMANET, *QUIET),
        *("--model.model.changes.head", head),
    )
    assert cli.model.model.head.emau.bases.normalisation is None
    changes = cli.config.fit.model.init_args.model.init_args.changes
    assert changes["head"]["normalisation"] is None


@pytest.mark.parametrize(
    ("verb", "name", "is_first"),
    [
        ("test", "folder", True),
        ("validate", "folder", False),
        ("test", "grabcut", False),
        ("validate", "gabbur2021_sbd", True),  # whose data set has a `split`, too
    ],
)
def test_all_objects_of_the_folder_replace_the_data_of_any_recipe(verb, name, is_first):
    config = ("--config", f"configs/experiment/{name}.yaml")
    options = (*MICRO, *QUIET, "--data.eval_batch_size=3")
    first, last = (("--folder", "mine"), ()) if is_first else ((), ("--folder=mine",))
    data = only_made(verb, *first, *config, *options, *last).datamodule
    evaluated, other = (data.test, data.val) if verb == "test" else (data.val, data.test)
    assert [len(of) for of in evaluated] == [6]
    assert (other, data.train, data.val_objects, data.eval_batch_size) == ([], [], None, 3)


def test_the_shipped_model_needs_no_configuration():
    made = only_made("test", "--folder", "mine", *QUIET)
    assert [len(of) for of in made.datamodule.test] == [6]
    assert made.config.test.model.init_args.model.init_args.name == "lite2_unet_prop"
    made = only_made("test", "--folder", "mine", *QUIET, *MICRO)
    assert [len(of) for of in made.datamodule.test] == [6]
    assert "micro_csa" in str(made.config.test.model)


def test_a_recipe_for_a_folder_says_that_it_tests_the_held_out_part(monkeypatch):
    said = []
    monkeypatch.setattr("probseg.data.datamodule.rank_zero_info", said.append)
    FolderDataModule("mine").test_dataloader()
    assert "the test has what a training on mine holds out, 1 photograph;" in said[-1]


def test_a_model_of_classes_is_refused(capsys):
    config = ("--config", "configs/experiment/emanet_camvid_cpu.yaml", *MICRO_EMANET, *QUIET)
    message = usage_error(capsys, "test", *config, "--folder", "mine")
    assert "needs photographs with a class for each pixel" in message


@each(
    ("arguments", "words"),
    [
        (("test", "--folder"), ["--folder must be given once"]),
        (("test", "--folder", "mine", "--folder=b"), ["must be given once", "'mine', 'b'"]),
        (("test", "--folder=mine", "--data.root=b"), ["--folder mine and --data.root"]),
        (("test", "--folder=mine", "--data.test", "GrabCut"), ["--folder mine and --data.test"]),
        (("test", "--folder=mine", "--data.test.root=b"), ["and --data.test.root"]),
        (("validate", "--folder=mine", "--data", "b.yaml"), ["--folder mine and --data"]),
        (("fit", "--folder=mine"), ["is for test and validate", "--data.root"]),
        (("test", "--folder=none"), ["none, which does not exist", "images/ and masks/"]),
        (("test", "--folder=mine/images"), ["3 photographs, but no masks/", "Did you mean"]),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, words, capsys):
    config = ("--config", "configs/experiment/folder.yaml", *MICRO, *QUIET)
    message = usage_error(capsys, arguments[0], *config, *arguments[1:])
    assert all(word in message for word in words), message


def test_a_data_set_in_a_file_that_the_configuration_names(nested):
    with pytest.raises(DatasetNotFoundError, match="SBD was not found in moved"):
        Invocation("test", ["--config=mine.yaml", "--trainer.devices=1"]).check()
    (nested / "moved").mkdir()  # what is in it is the business of the data set
    Invocation("test", ["--config=mine.yaml"]).check()


@pytest.fixture
def nested(here):
    (here / "data.yaml").write_text(NESTED)
    (here / "mine.yaml").write_text("data: data.yaml")
    return here


@each(
    "option", ["--data.test=SamplePhotos", "--folder=mine", "--print_config", "--config=more.yaml"]
)
def test_options_that_may_change_the_data_are_parsed_first(option, nested):
    (nested / "more.yaml").write_text("data: {init_args: {test: {class_path: SamplePhotos}}}")
    Invocation("test", ["--config", "mine.yaml", option]).check()


@each(
    ("old", "new"),
    [("probseg.data.SBD", "mine.SBD"), ("split:", "splits:"), ("init_args:", "init_args: [")],
)
def test_what_the_parser_must_judge_is_left_to_it(old, new, nested):
    (nested / "data.yaml").write_text(NESTED.replace(old, new))
    Invocation("test", ["--config", "mine.yaml"]).check()


def test_paths_of_shipped_configurations(here):
    asked = ["test", "--config", "configs/quickstart.yaml", "--x=configs/model/micro_csa.yaml"]
    assert with_shipped_configs(asked) == [
        "test",
        "--config",
        str(configs_dir() / "quickstart.yaml"),
        f"--x={configs_dir() / 'model/micro_csa.yaml'}",
    ]
    others = ["configs/nowhere.yaml", "other/quickstart.yaml", "configs", "--config=x.yaml", "0.5"]
    assert with_shipped_configs(others) == others
    (here / "configs").mkdir()
    (here / "configs" / "quickstart.yaml").write_text("{}")
    assert with_shipped_configs(asked)[2] == "configs/quickstart.yaml", "one's own comes first"


@pytest.mark.parametrize("form", [["--model.model", "{}"], ["--model.model={}"]])
def test_a_model_file_leaves_nothing_of_the_model_before(form, capsys):
    chosen = [part.format("configs/model/resnet50_deeplab.yaml") for part in form]
    arguments = ["fit", "--config", "configs/experiment/resnet16_csa_cpu.yaml", *chosen]
    with pytest.raises(SystemExit, match=r"^0$"):
        command(*arguments, "--model.model.backbone.output_stride=8", "--print_config")
    model = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]["model"]["init_args"]
    assert model["backbone"]["class_path"] == "probseg.backbones.ResNet"
    assert model["backbone"]["init_args"]["options"] is None
    assert model["backbone"]["init_args"]["output_stride"] == 8, "later options still count"
    assert model["decoder"]["init_args"]["channels"] == 256
    assert (model["working_size"], model["click_maps"]) == (None, None)


def test_minutes_become_one_budget():
    words = Invocation("fit", ["--config", "a.yaml", "--minutes", "5", "--minutes=10"]).arguments
    budget = ["--trainer.callbacks+=probseg.callbacks.Budget", "--trainer.callbacks.minutes=10"]
    assert words == ["fit", "--config", "a.yaml", *budget]
    with pytest.raises(UsageError, match="--minutes: is for fit"):
        _ = Invocation("test", ["--minutes", "5"]).arguments
    with pytest.raises(UsageError, match=r"--minutes and --trainer\.max_epochs"):
        _ = Invocation("fit", ["--minutes", "5", "--trainer.max_epochs=3"]).arguments
    for wrong in ("ten", "0", "nan"):
        with pytest.raises(UsageError, match=f"--minutes must be .* got '{wrong}'$"):
            _ = Invocation("fit", ["--minutes", wrong]).arguments
