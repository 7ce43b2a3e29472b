"""The order of the rooms, and what a plain import must not cost."""

import ast
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import probseg
from probseg.kinds import KINDS, TASKS, WINGS, find
from probseg.tasks.prediction import Prediction
from support.rows import each

TRUNK = ["zoo", "interact", "data", "evaluation", "reports", "tasks", "callbacks", "cli"]
FLOORS = [
    {
        *{"types", "errors", "images", "picture_formats", "masks", "paths"},
        *{
            "seeds",
            "terminal",
            "texts",
            "descriptions",
            "kinds",
            "geometry",
            "deprecation",
        },
        *{"lightning_internals", "quick_imports", "page", "weight_files"},
    },
    {"ops"},
    {"attention", "losses", "clicks", "metrics"},
    {"backbones", "heads"},
    {"models", "formats"},
    *({room} for room in TRUNK),
    {"__main__"},
    set(WINGS),
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
STRANGERS = [("data", "models"), ("data", "interact")]


def test_the_picture_of_the_packages_has_all_of_them(monkeypatch):
    monkeypatch.syspath_prepend("docs/pictures")
    drawn = runpy.run_path("docs/pictures/rooms.py")
    folders = {path.parent.name for path in Path(probseg.__file__).parent.glob("*/*.py")}
    assert drawn["CONTENT"].keys() | drawn["OFFERS"].keys() == folders - {"page"}


def imported_modules(source):
    """Full names of the modules that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong_arrows(room, source):
    """Imports of a file that lead to a higher floor, or to another room of the same floor.

    The wings share the highest floor; files of the lowest may import each other. Outside of
    `kinds`, a file of the trunk names no wing in a string either.
    """
    for module in imported_modules(source):
        package, _, rest = module.partition(".")
        target = rest.partition(".")[0]
        if package != "probseg" or target == room or target not in FLOOR:
            continue
        same_floor = FLOOR[target] == FLOOR[room] > 0
        if FLOOR[target] > FLOOR[room] or same_floor or (room, target) in STRANGERS:
            yield f"{room} -> {module}"
    if room not in WINGS and room != "kinds":
        yield from (f"{room} names {path}" for path in WING_PATH.findall(source))


WING_PATH = re.compile(rf"probseg\.(?:{'|'.join(WINGS)})\b[\w.]*")


def files(repository):
    for path in sorted((repository / "probseg").rglob("*.py")):
        room = path.relative_to(repository / "probseg").parts[0].removesuffix(".py")
        if room != "__init__":
            yield room, path


def test_no_arrow_leads_upwards_or_into_a_wing(repository):
    found = list(files(repository))
    assert {room for room, _ in found} == set(FLOOR)
    wrong = [
        f"{path.relative_to(repository)}: {arrow}"
        for room, path in found
        for arrow in wrong_arrows(room, path.read_text(encoding="utf-8"))
    ]
    assert not wrong


@each(
    ("room", "source", "wrong"),
    [
        ("ops", "import probseg.attention.base", True),
        ("ops", "from probseg import attention", True),
        ("models", "def f():\n    from probseg.data.folder import x", True),
        ("data", "from probseg.models import x", True),
        ("cli", "from probseg.semantic import x", True),
        ("cli", "import_module('probseg.semantic.task')", True),
        ("release", "from probseg.semantic.task import x", True),
        ("losses", "from probseg.clicks import x", True),
        ("attention", "from probseg.ops.axial import x", False),
        ("images", "from probseg.errors import x", False),
        ("models", "from probseg.models.segmenter import x", False),
        ("semantic", "from probseg.tasks.base import x", False),
    ],
)
def test_wrong_arrows_are_noticed(room, source, wrong):
    assert bool(list(wrong_arrows(room, source))) == wrong


def test_readers_of_published_sets_are_imported_by_name_alone(repository):
    """Outside of their folder, only type checkers import them, as `probseg.data` gives them."""
    for room, path in files(repository):
        inside = "data/sets" in path.as_posix() or path.parts[-2:] == ("data", "__init__.py")
        if room not in WINGS and not inside:
            modules = imported_modules(path.read_text(encoding="utf-8"))
            assert not [module for module in modules if module.startswith("probseg.data.sets")]


def test_wings_and_tasks_have_what_they_name():
    for path in (path for offers in KINDS.values() for path in offers.values()):
        assert path.split(".")[1] in WINGS
        assert find(path) is not None
    for name, task in TASKS.items():
        assert find(task.network).task == name
        assert {callable(find(path)) for path in (task.variant, task.evaluation)} == {True}
        assert find(task.prediction).__base__ is Prediction
    assert all(getattr(probseg, name) is not None for name in probseg.__all__)
    assert set(probseg.__all__) <= set(dir(probseg))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = probseg.no_such_name


PROGRAM = """
import importlib, json, sys

def heavy(*more):
    names = ("lightning", "pytorch_lightning", "albumentations", "torch._dynamo", "sympy", *more)
    return sorted(n for n in names if n in sys.modules)

import probseg
seen = {"import": heavy("timm", "cv2", "matplotlib")}
for package in ("interact", "evaluation", "reports"):
    importlib.import_module(f"probseg.{package}")
    seen[package] = heavy("timm", "matplotlib", "wandb")
model = probseg.create_model("micro_csa")
assert "timm" in sys.modules
seen["create_model"] = heavy("matplotlib", "wandb")
import numpy
predictor = probseg.Predictor(model)
predictor.set_image(numpy.zeros((20, 30, 3), numpy.uint8))
shape = predictor.predict([probseg.Click(3, 4)]).binary.shape
assert shape == (20, 30), shape
seen["Predictor"] = heavy("matplotlib", "wandb")
print(json.dumps(seen))
"""


def test_packages_stay_light_and_using_a_model_imports_nothing_for_training(repository):
    """In the order of the rooms: each one brings the ones before along at most."""
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout.splitlines()[-1])
    assert len(seen) == 6
    assert not any(seen.values()), seen
