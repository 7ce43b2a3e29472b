"""The notebooks of the documentation: they run, and their pages show what they do."""

import json
import re

import pytest

from support.runs import separately

pytestmark = pytest.mark.process

SMALL = {"photographs": 6, "epochs": 1, "steps": 2}
"""Values for the cells with the tag `parameters`."""

PROGRAM = f"""
import sys
from pathlib import Path

notebooks, output = map(Path, sys.argv[1:])
sys.path.insert(0, str(notebooks))
from render import render

(output / "notebooks").mkdir()
for notebook in sorted(notebooks.glob("*.ipynb")):
    page = output / "notebooks" / (notebook.stem + ".md")
    render(notebook, page, output / "images" / "notebooks", {SMALL})
"""

PRINTED = re.compile(r"^```text\n.*?^```\n", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def notebooks(repository):
    return repository / "docs" / "notebooks"


def test_notebooks_run_and_their_pages_are_theirs(notebooks, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    separately(tmp_path, notebooks, tmp_path, script=tmp_path / "program.py")
    pages = {page.name: page.read_text("utf-8") for page in tmp_path.glob("notebooks/*.md")}
    assert len(pages) == len(list(notebooks.glob("*.ipynb"))) > 0
    for name, text in pages.items():
        committed = (notebooks / name).read_text("utf-8")
        remedy = f"render it: python docs/notebooks/render.py {name.removesuffix('.md')}"
        assert PRINTED.sub("", committed) == PRINTED.sub("", text), remedy


def test_notebooks_are_kept_without_results(notebooks):
    for notebook in notebooks.glob("*.ipynb"):
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                assert (cell["outputs"], cell["execution_count"]) == ([], None), notebook
