"""Configurations of semantic segmentation: each is read and made, and some do a step."""

import json

import pytest
import torch
import yaml

from probseg.callbacks.base import Evaluation
from probseg.cli.checkpoints import without_pretrained_backbones
from probseg.errors import WeightsError
from probseg.models import override, read_preset
from probseg.paths import configs_dir
from probseg.semantic import SEMANTIC_DATASETS, SemanticEvaluation, semantic_variant
from probseg.zoo.store import save
from support.drawn_semantic import micro, write_semantic_sets
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
CONFIGS = [path for path in sorted(configs_dir().rglob("*.yaml")) if is_semantic(path)]
EXPERIMENTS = [path.stem for path in CONFIGS if path.parent.name == "experiment"]
TRAINERS = [path for path in CONFIGS if path.parent.name == "trainer"]
# One training for each way of training: the others differ in networks, data and numbers only.
TRAINED = ("emanet_voc", "emanet_camvid_cpu")
PLAIN = ("--semantic_evaluation.pictures=0",)  # drawing them takes longest


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return write_semantic_sets(tmp_path_factory.mktemp("drawn"))


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


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_are_made(name):
    network = stored_network(name)
    changes = network["init_args"]["changes"]
    backbone = changes["backbone"]
    assert backbone.get("pretrained") or "weights" in backbone
    cli = only_made("fit", *experiment(name), *small(name), *QUIET)
    assert all(len(part) for part in (*cli.datamodule.train, *cli.datamodule.val))
    evaluations = [type(c) for c in cli.trainer.callbacks if isinstance(c, Evaluation)]
    assert evaluations == [SemanticEvaluation]
    settings = cli.config.fit.as_dict()
    stride = 8 if backbone.get("pretrained") else None  # timm's other networks have one alone
    assert settings["semantic_evaluation"]["output_stride"] == stride
    data = settings["data"]
    kinds = {data["init_args"][part]["class_path"] for part in ("train", "val", "test")}
    (kind,) = kinds
    classes = len(SEMANTIC_DATASETS[kind.split(".")[-1]].classes)
    assert changes["head"]["num_classes"] == cli.model.model.num_classes == classes
    if name in PUBLISHED:
        preset, dataset, batch, steps, stride = PUBLISHED[name]
        assert network["init_args"]["of"] == preset
        assert kind == f"probseg.semantic.{dataset}"
        assert (data["init_args"]["batch_size"], data["init_args"]["crop_size"]) == (batch, 513)
        assert backbone["output_stride"] == stride
        assert cli.model.model.backbone.features.strides[-1] == stride
        assert settings["trainer"]["max_steps"] == steps
        assert settings["trainer"]["sync_batchnorm"] is True


@pytest.mark.parametrize("name", TRAINED)
def test_experiments_train_a_step_and_are_tested(name):
    flags = (*small(name), *QUIET, *PLAIN)
    cli = finished("fit", *experiment(name), *flags, *SMALL, "--trainer.fast_dev_run=1")
    assert cli.trainer.global_step == 1
    figures = cli.trainer.callback_metrics
    assert torch.isfinite(figures["train/loss"])
    assert 0 <= figures["val/miou"] <= 1
    assert all(p.isfinite().all() for p in cli.model.parameters())


@pytest.mark.parametrize("name", sorted({*DOCUMENTED, *ABLATIONS}))
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


@each("path", TRAINERS)
def test_trainer_settings_name_known_arguments(path, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        command(*camvid_fit("--trainer", path), "--print_config")
    printed = yaml.safe_load(capsys.readouterr().out)["trainer"]
    shipped = yaml.safe_load(path.read_text())
    assert printed["max_steps"] == shipped.get("max_steps", -1)
    of_kind = {c["class_path"].split(".")[-1]: c.get("init_args") for c in printed["callbacks"]}
    assert {"LastCheckpoint", "LearningRateMonitor", "SemanticVisualLog"} < set(of_kind)
    best = of_kind["ModelCheckpoint"]
    assert (best["monitor"], best["mode"]) == ("val/miou", "max")
    if path.stem != "semantic_cpu":
        assert printed["devices"] == 1, "more would multiply the batch"


def test_a_network_given_as_a_file_takes_the_place_of_the_experiment():
    head = "--model.model.head.num_classes=11"
    flags = ("--model.model", "configs/semantic/micro_emanet.yaml", head, *QUIET)
    cli = only_made("fit", *experiment("emanet_camvid"), *flags)
    assert repr(cli.model.model) == repr(micro(11))


def test_the_schedule_is_set_on_the_command_line():
    schedule = ("--model.lr_scheduler=PolynomialDecay", "--model.lr_scheduler.power=2.0")
    task = part_of("emanet_camvid_cpu", "model", *small("emanet_camvid_cpu"), *schedule)
    optimizer = torch.optim.SGD(task.parameters(), lr=1.0)
    made = task.lr_scheduler(optimizer, 10)
    optimizer.step()
    made.step()
    assert made.get_last_lr() == [pytest.approx(0.81)]


@each(
    ("arguments", "message"),
    [
        (camvid_fit("--data.train.init_args.root=nowhere"), "CamVid was not found"),
        (
            camvid_fit("--model.model.changes.head.num_classes=12"),
            "tells 12 classes apart and the data have 11 (sky, building, pole, ...); set "
            "`num_classes: 11` among the arguments of the network's head",
        ),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(arguments, message, capsys):
    assert command(*arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told


@each(
    ("key", "value", "without"),
    [("pretrained", True, False), ("weights", "/elsewhere/weights.pth", None)],
)
def test_with_a_checkpoint_no_weights_are_fetched(key, value, without):
    stored = {"init_args": {"of": "micro_fcn", "changes": {"backbone": {key: value}}}}
    described = read_preset("emanet_resnet50", "semantic")
    described["init_args"]["backbone"]["init_args"][key] = value
    for config in (stored, described):
        without_pretrained_backbones(config)
    assert stored["init_args"]["changes"]["backbone"][key] is without
    assert described["init_args"]["backbone"]["init_args"][key] is without


def test_a_network_starts_from_the_weights_of_another(tmp_path):
    trained = micro()
    classes = {"head": {"num_classes": 3}}
    save(
        trained, override(read_preset("micro_emanet", "semantic"), classes), tmp_path / "trained"
    )  # in half precision
    torch.manual_seed(1)
    started = semantic_variant("micro_emanet", classes, weights=str(tmp_path / "trained"))
    expected = trained.state_dict()
    for name, tensor in started.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-3)
    with pytest.raises(WeightsError):
        semantic_variant("micro_fcn", classes, weights=str(tmp_path / "trained"))


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
