"""Configurations of semantic segmentation: each is read and made, and some do a step."""

import json

import pytest
import torch
import yaml

from probseg.callbacks import InteractiveEvaluation
from probseg.cli.checkpoints import without_pretrained_backbones
from probseg.errors import WeightsError
from probseg.models import list_presets, override, read_preset
from probseg.paths import configs_dir
from probseg.semantic import SEMANTIC_DATASETS, SemanticEvaluation, semantic_variant
from probseg.tasks import PolynomialDecay
from probseg.zoo.store import save
from support.drawn_semantic import (
    write_camvid,
    write_coco_stuff10k,
    write_coco_stuff164k,
    write_pascal_context,
    write_voc_segmentation,
)
from support.experiments import commands, options_of, part_of, rows
from support.rows import each
from support.runs import QUIET, SMALL, camvid_fit, command, finished, is_semantic, only_made

# The recipes of Li et al. (2019): preset, data, batch size, iterations, and stride in training.
PUBLISHED = {
    "emanet_voc": ("emanet_resnet101", "VOCSegmentation", 16, 30000, 16),
    "emanet_pascal_context": ("emanet_resnet101", "PascalContext", 16, 15000, 16),
    "emanet_coco_stuff10k": ("emanet_resnet101", "COCOStuff10k", 16, 30000, 8),
}
# What an ablation changes in the bases: (update, normalisation, T in training, T in evaluation).
ABLATIONS = {
    "moving average, L2 normalisation, T = 3": ("moving_average", "l2", 3, 3),
    "Fig. 3, left: bases by back-propagation": ("learnt", "l2", 3, 3),
    "Fig. 3, left: bases as initialised": ("fixed", "l2", 3, 3),
    "Fig. 3, right: layer normalisation": ("moving_average", "layer", 3, 3),
    "Fig. 3, right: no normalisation": ("moving_average", None, 3, 3),
    "Fig. 4: T = 5 in training": ("moving_average", "l2", 5, 3),
    "§6.2.2: double-attention block, 77.41": ("learnt", None, 1, 1),
    "§6.2.2: non-local block, 77.78": None,
}
DOCUMENTED = {row.cells["ablation"]: row.options for row in rows("semantic.md")}
EXPERIMENTS = (
    *PUBLISHED,
    "emanet_camvid",
    "emanet_camvid_cpu",
    "emanet_coco",
    "emanet_voc_released",
)
# One training for each way of training: the others differ in networks, data and numbers only.
TRAINED = ("emanet_voc", "emanet_camvid_cpu")
CLASSES = {"head": {"num_classes": 11}}
FCN11 = override(read_preset("micro_fcn", "semantic"), CLASSES)["init_args"]["head"]
TRAINERS = ("semantic", "semantic_15k", "semantic_cpu")
PLAIN = ("--semantic_evaluation.pictures=0",)  # drawing them takes longest
ONE_STEP = ("--trainer.fast_dev_run=1",)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Drawn data of all kinds, which nobody changes."""
    root = tmp_path_factory.mktemp("drawn")
    write_camvid(root / "camvid")
    write_voc_segmentation(root / "VOCdevkit" / "VOC2012")
    write_pascal_context(root / "VOCdevkit" / "VOC2010")
    write_coco_stuff10k(root / "coco_stuff10k")
    write_coco_stuff164k(root / "coco_stuff164k")
    return root


@pytest.fixture(autouse=True)
def _data(drawn, tmp_path, monkeypatch):
    """The drawn data, where the shipped configurations look for them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(drawn))


def experiment(name):
    return ("--config", f"configs/experiment/{name}.yaml")


def stored_network(name):
    """The network of an experiment, as its file describes it."""
    stored = yaml.safe_load((configs_dir() / "experiment" / f"{name}.yaml").read_text())
    return stored["model"]["init_args"]["model"]


def small(name):
    """Flags that put a small network of the same kind into an experiment."""
    backbone = {**stored_network(name)["init_args"]["changes"]["backbone"], "pretrained": False}
    backbone.pop("weights", None)
    return (
        "--model.model.of=micro_emanet",
        f"--model.model.changes.backbone={json.dumps(backbone)}",
    )


def printed_settings(capsys, *arguments):
    with pytest.raises(SystemExit, match=r"^0$"):
        command(*arguments, "--print_config")
    return yaml.safe_load(capsys.readouterr().out)


def test_all_semantic_experiments_are_tested():
    every = [path for path in configs_dir().rglob("*.yaml") if is_semantic(path)]
    found = {path.parent.name: set() for path in every}
    for path in every:
        found[path.parent.name].add(path.stem)
    assert found.pop("experiment") == set(EXPERIMENTS)
    assert found.pop("trainer") == set(TRAINERS)
    assert found.pop("semantic") == set(list_presets("semantic"))
    assert set(found) == {"semantic_data"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_are_made(name):
    network = stored_network(name)
    assert network["class_path"] == "probseg.semantic.semantic_variant"
    assert network["init_args"]["of"] in list_presets("semantic")
    changes = network["init_args"]["changes"]
    backbone = changes["backbone"]
    assert backbone.get("pretrained") or "weights" in backbone
    cli = only_made("fit", *experiment(name), *small(name), *QUIET)
    assert all(len(part) for part in (*cli.datamodule.train, *cli.datamodule.val))
    kinds = (InteractiveEvaluation, SemanticEvaluation)
    evaluations = [type(c) for c in cli.trainer.callbacks if isinstance(c, kinds)]
    assert evaluations == [SemanticEvaluation]
    settings = cli.config.fit.as_dict()
    stride = 8 if backbone.get("pretrained") else None  # timm's other networks have one alone
    assert settings["semantic_evaluation"]["output_stride"] == stride
    assert list(settings["semantic_evaluation"]["scales"]) == [1.0]
    data = settings["data"]
    assert data["class_path"] == "probseg.semantic.SemanticDataModule"
    kinds = {data["init_args"][part]["class_path"] for part in ("train", "val", "test")}
    (kind,) = kinds
    classes = len(SEMANTIC_DATASETS[kind.split(".")[-1]].classes)
    assert changes["head"]["num_classes"] == cli.model.model.num_classes == classes
    if name in PUBLISHED:
        preset, dataset, batch, steps, stride = PUBLISHED[name]
        assert network["init_args"]["of"] == preset
        assert kind == f"probseg.semantic.{dataset}"
        assert (data["init_args"]["batch_size"], data["init_args"]["crop_size"]) == (batch, 513)
        assert list(data["init_args"]["scale"]) == [0.5, 2.0]
        assert backbone["output_stride"] == stride
        assert cli.model.model.backbone.features.strides[-1] == stride
        assert settings["trainer"]["max_steps"] == steps
        assert settings["trainer"]["sync_batchnorm"] is True


@pytest.mark.parametrize("name", TRAINED)
def test_experiments_train_a_step_and_are_tested(name):
    flags = (*small(name), *QUIET, *PLAIN)
    cli = finished("fit", *experiment(name), *flags, *SMALL, *ONE_STEP)
    assert cli.trainer.global_step == 1
    figures = cli.trainer.callback_metrics
    assert torch.isfinite(figures["train/loss"])
    assert 0 <= figures["val/miou"] <= 1
    assert all(p.isfinite().all() for p in cli.model.parameters())
    if name in PUBLISHED:
        made = cli.model.configure_optimizers()
        assert type(made["optimizer"]) is torch.optim.SGD
        assert made["optimizer"].param_groups[0]["initial_lr"] == 0.009
        assert type(made["lr_scheduler"]["scheduler"]) is PolynomialDecay
        return  # test_semantic_runs.py tests a checkpoint
    tested = finished("test", *experiment(name), *flags, *ONE_STEP)
    (score,) = (v for k, v in tested.trainer.callback_metrics.items() if k.endswith("/miou"))
    assert 0 <= score <= 1


@pytest.mark.parametrize("name", ABLATIONS)
def test_ablations_change_the_bases_as_their_names_say(name):
    (words,) = (words for words in commands("semantic.md", "fit") if "--data.batch_size" in words)
    assert words[:3] == ["fit", "--config", "configs/experiment/emanet_voc.yaml"]
    local = ("--model.model.changes.backbone", "{pretrained: false, output_stride: 16}")
    options = [*words[3:], *DOCUMENTED[name], *local]
    network = part_of("emanet_voc", "model", *options_of("model", options)).model
    assert network.num_classes == 21
    assert [len(network.backbone.network.layer3), network.backbone.features.strides[-1]] == [6, 16]
    emau = network.head.emau
    if ABLATIONS[name] is None:
        assert emau.bases is None
        assert emau.scale == pytest.approx(512**-0.5, rel=1e-3)
        return
    bases = emau.bases
    found = (bases.update, bases.normalisation, bases.train_iterations, bases.eval_iterations)
    assert found == ABLATIONS[name]


def test_all_documented_ablations_are_tested():
    assert set(DOCUMENTED) == set(ABLATIONS)


@pytest.mark.parametrize("name", TRAINERS)
def test_trainer_settings_name_known_arguments(name, capsys):
    fit = camvid_fit("--trainer", f"configs/trainer/{name}.yaml")
    printed = printed_settings(capsys, *fit)["trainer"]
    wanted = yaml.safe_load((configs_dir() / "trainer" / f"{name}.yaml").read_text())
    assert printed["max_steps"] == wanted.get("max_steps", -1)
    callbacks = printed["callbacks"]
    of_kind = {one["class_path"].split(".")[-1]: one.get("init_args") for one in callbacks}
    kinds = ["ModelCheckpoint", "LastCheckpoint", "LearningRateMonitor", "SemanticVisualLog"]
    assert list(of_kind) == kinds
    best = of_kind["ModelCheckpoint"]
    assert (best["monitor"], best["mode"]) == ("val/miou", "max")
    if name != "semantic_cpu":
        assert printed["devices"] == 1


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("micro_emanet", ("--model.model.head.num_classes=11",)),
        ("micro_fcn", (f"--model.model.changes.head={json.dumps(FCN11)}",)),
    ],
)
def test_a_network_given_as_a_file_takes_the_place_of_the_experiment(name, classes):
    flags = ("--model.model", f"configs/semantic/{name}.yaml", *classes, *QUIET)
    cli = only_made("fit", *experiment("emanet_camvid"), *flags)
    with torch.device("meta"):
        expected = semantic_variant(name, CLASSES)
    assert repr(cli.model.model) == repr(expected)


def test_the_schedule_is_set_on_the_command_line():
    schedule = ("--model.lr_scheduler=PolynomialDecay", "--model.lr_scheduler.power=2.0")
    task = part_of("emanet_camvid_cpu", "model", *small("emanet_camvid_cpu"), *schedule)
    optimizer = torch.optim.SGD(task.parameters(), lr=1.0)
    made = task.lr_scheduler(optimizer, 10)
    optimizer.step()
    made.step()
    assert made.get_last_lr() == [pytest.approx(0.81)]


def test_help_tells_of_both_evaluations(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        command("test", "--help.all")
    told = capsys.readouterr().out
    for option in ("scales", "flip", "iterations", "output_stride", "pictures", "bases"):
        assert f"--semantic_evaluation.{option}" in told
    assert "--evaluation.protocols" in told


def test_missing_data_are_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "nowhere"))
    assert command(*camvid_fit()) == 2
    told = capsys.readouterr().err
    assert "CamVid was not found" in told
    sets = '[{"class_path": "CamVid", "init_args": {"split": "test"}}]'
    assert command("test", *experiment("emanet_camvid_cpu"), f"--data.test={sets}") == 2
    assert "CamVid was not found" in capsys.readouterr().err


def test_another_number_of_classes_is_told_in_one_line(capsys):
    assert command(*camvid_fit("--model.model.changes.head.num_classes=12")) == 2
    told = capsys.readouterr().err
    assert "tells 12 classes apart and the data have 11 (sky, building, pole, ...)" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("name", ["emanet_resnet50", "emanet_resnet101"])
def test_with_a_checkpoint_no_weights_are_fetched(name):
    stored = {"init_args": {"of": name, "changes": {"backbone": {"pretrained": True}}}}
    described = read_preset(name, "semantic")
    described["init_args"]["backbone"]["init_args"]["pretrained"] = True
    for config in (stored, described):
        without_pretrained_backbones(config)
    assert stored["init_args"]["changes"]["backbone"]["pretrained"] is False
    assert described["init_args"]["backbone"]["init_args"]["pretrained"] is False


def test_with_a_checkpoint_no_weight_file_is_read():
    arguments = {"name": "resnet18", "weights": "/elsewhere/weights.pth"}
    stored = {"init_args": {"changes": {"backbone": {"weights": "a_package"}}}}
    described = {"init_args": {"backbone": {"init_args": arguments}}}
    for config in (stored, described):
        without_pretrained_backbones(config)
    assert stored["init_args"]["changes"]["backbone"]["weights"] is None
    assert arguments["weights"] is None


@each("name", list_presets("semantic"))
def test_no_preset_fetches_weights_by_itself(name):
    """`without_pretrained_backbones` sees what a configuration says, not what a preset does."""
    backbone = read_preset(name, "semantic")["init_args"]["backbone"]["init_args"]
    assert not backbone.get("pretrained", False)


def test_a_network_starts_from_the_weights_of_another(tmp_path):
    description = override(read_preset("micro_emanet", "semantic"), CLASSES)
    trained = semantic_variant("micro_emanet", CLASSES)
    save(trained, description, tmp_path / "trained")  # in half precision
    torch.manual_seed(1)
    started = semantic_variant("micro_emanet", CLASSES, weights=str(tmp_path / "trained"))
    expected = trained.state_dict()
    for name, tensor in started.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-3)
    with pytest.raises(WeightsError):
        semantic_variant("micro_fcn", CLASSES, weights=str(tmp_path / "trained"))


def test_emanet_is_trained_as_its_code_does():
    released = ("--model.model.changes.backbone", "{output_stride: 16, lagging: true}")
    task = part_of("emanet_voc_released", "model", *options_of("model", released))
    dilations = [block.conv2.dilation[0] for block in task.model.backbone.last_stage()]
    assert dilations == [1, 4, 8]
    assert task.released
    assert task.model.head.narrow[0].out_channels == 256
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    made = task.lr_scheduler(optimizer, 100)
    for _ in range(9):
        optimizer.step()
        made.step()
    assert made.get_last_lr() == [1.0]
