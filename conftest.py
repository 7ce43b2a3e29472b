"""What holds for all tests: no network, few threads, and where real data may be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Where compiled modules are not kept, each interpreter that a test starts compiles thousands.
if sys.dont_write_bytecode:
    COMPILED = tempfile.TemporaryDirectory(prefix="probseg_compiled_")
    sys.dont_write_bytecode, sys.pycache_prefix = False, COMPILED.name
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = COMPILED.name
# Nothing is written into folders of real data.
if not os.environ.get("PROBSEG_CACHE"):
    INDICES = tempfile.TemporaryDirectory(prefix="probseg_tests_")  # until the tests are over
    os.environ["PROBSEG_CACHE"] = INDICES.name

import pytest
import torch
from hypothesis import settings
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

torch.set_num_threads(1)
# The first backward starts a thread for each device. After an export or a compilation, PyTorch
# counts eight that there are not, and no process that is forked beside such threads can train.
torch.ones((), requires_grad=True).backward()
pytest.register_assert_rewrite("support")  # whose base testers hold assertions

# Examples of each property: few for every change, many over night (HYPOTHESIS_PROFILE=thorough).
for name, examples in {"quick": 15, "thorough": 250}.items():
    settings.register_profile(name, deadline=None, max_examples=examples)  # other work disturbs
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

REPOSITORY = Path(__file__).resolve().parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Leave out tests of processes where nothing has changed: `--touched-since COMMIT`."""
    parser.addoption(
        "--touched-since", metavar="COMMIT", help="run `process` tests of rooms changed since"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep the files in their order: by default, those of few and long tests come last, alone."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out processes of untouched rooms; the files that take longest run first.

    Seconds are those of the last `make seconds`.
    """
    if since := config.getoption("--touched-since"):
        rooms = touched_rooms(since)
        left_out = [item for item in items if _is_left_out(item, rooms)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    seconds = json.loads((REPOSITORY / "tests" / "seconds.json").read_text())
    known = {item.path: item.path.relative_to(REPOSITORY).as_posix() for item in items}
    items.sort(key=lambda item: -seconds.get(known[item.path], 20))  # of new files, nobody knows


def touched_rooms(since: str) -> set[str]:
    """Name the folders of `probseg` and `tests` that differ from a commit; "*" stands for all."""
    git = ["git", "-C", str(REPOSITORY), "diff", "--name-only", since]
    paths = [Path(line) for line in subprocess.check_output(git, text=True).splitlines()]
    rooms = {path.parts[1] for path in paths if path.parts[0] in ("probseg", "tests")}
    for_all = ("conftest.py", "pyproject.toml", "probseg/*.py", "tests/support/*")
    return {"*"} if any(path.match(p) for path in paths for p in for_all) else rooms


def _is_left_out(item: pytest.Item, rooms: set[str]) -> bool:
    room = item.path.relative_to(REPOSITORY).parts[1]
    return item.get_closest_marker("process") is not None and not rooms & {room, "*"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than cores: tests also wait, for processes that they start, kill and resume."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _unlimited_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are whole in every environment; a test of a width sets it."""
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """The figures of reports are files without their pixels, which take most of a report's time."""

    def blank(figure: Figure, target: Path | IO[bytes]) -> None:
        Image.new("RGB", (8, 8)).save(target, format="PNG")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probseg.reports.figures._save", blank)
        yield


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for the pages of a file of tests."""
    from support.pages import browser

    with browser() as started:
        yield started


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    """Address of a server for the photographs of a test, whose model answers disks."""
    from support.pages import Disks, serving

    with serving(folder, Disks()) as served:
        yield served


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of real data sets; tests that ask for it are skipped where there is none."""
    places = [Path(os.environ["PROBSEG_DATA"])] if "PROBSEG_DATA" in os.environ else []
    places.append(REPOSITORY.parent / "shared" / "data")
    for place in places:
        if place.is_dir():
            return place
    pytest.skip(f"no real data: none of {[str(p) for p in places]} is a folder; set PROBSEG_DATA")
