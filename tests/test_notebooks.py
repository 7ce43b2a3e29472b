"""The notebooks of the documentation: they run, and their pages show what they do."""

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SMALL = {"photographs": 6, "epochs": 1, "steps": 2}
"""Values for the cells with the tag `parameters`."""

PRINTED = re.compile(r"^```text\n.*?^```\n", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def notebooks(repository):
    return repository / "docs" / "notebooks"


NAMES = sorted(path.stem for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_run_and_their_pages_are_theirs(name, notebooks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(notebooks)
    render = importlib.import_module("render").render
    page = tmp_path / "notebooks" / f"{name}.md"
    page.parent.mkdir()
    render(notebooks / f"{name}.ipynb", page, tmp_path / "images" / "notebooks", SMALL)
    committed = (notebooks / page.name).read_text("utf-8")
    remedy = f"render it: python docs/notebooks/render.py {name}"
    assert PRINTED.sub("", committed) == PRINTED.sub("", page.read_text("utf-8")), remedy


def test_notebooks_are_kept_without_results(notebooks):
    for notebook in notebooks.glob("*.ipynb"):
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                assert (cell["outputs"], cell["execution_count"]) == ([], None), notebook


def test_pictures_are_small(repository):
    pictures = list((repository / "docs" / "images" / "notebooks").glob("*.png"))
    assert pictures
    assert sum(picture.stat().st_size for picture in pictures) < 300_000
