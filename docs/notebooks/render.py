"""Runs the notebooks and writes each as a page with its results: Markdown and pictures.

`python docs/notebooks/render.py` runs all of them, `... render.py NAME` one. A page is
`NAME.md` next to its notebook, its pictures are `docs/images/notebooks/NAME_<cell>.png`. Cells
are plain Python, without magics.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from PIL import Image

HERE = Path(__file__).resolve().parent


def cells(notebook: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook."""
    read: list[dict[str, Any]] = json.loads(notebook.read_text("utf-8"))["cells"]
    return read


def source(cell: Mapping[str, Any]) -> str:
    """Return a cell's text as it stands on the page: code in a fenced block."""
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"


def render(
    notebook: Path, page: Path, pictures: Path, parameters: Mapping[str, Any] | None = None
) -> None:
    """Run a notebook and write its page.

    Args:
        notebook: An `.ipynb` file.
        page: The Markdown file to write.
        pictures: Folder for the figures.
        parameters: Values of variables that replace those of the cell with the tag `parameters`.

    Raises:
        Exception: Whatever a cell raises.
    """
    mpl.use("agg")
    pictures.mkdir(parents=True, exist_ok=True)
    names: dict[str, Any] = {"__name__": "__main__"}
    parts = []
    with plt.rc_context({"figure.dpi": 80, "font.size": 9}):
        for number, cell in enumerate(cells(notebook)):
            parts.append(source(cell))
            if cell["cell_type"] == "markdown":
                continue
            text = run("".join(cell["source"]), f"{notebook.name}, cell {number}", names)
            if text:
                parts.append(f"```text\n{text}\n```")
            if "parameters" in cell["metadata"].get("tags", []):
                names.update(parameters or {})
            for figure in plt.get_fignums():
                picture = pictures / f"{page.stem}_{number}.png"
                _save(plt.figure(figure), picture)
                parts.append(f"![Figure]({os.path.relpath(picture, page.parent)})")
            plt.close("all")
    parts.append(f"*This page is a notebook: [{notebook.name}]({notebook.name}).*")
    page.write_text("\n\n".join(parts) + "\n", "utf-8")


def run(code: str, name: str, names: dict[str, Any]) -> str:
    """Run a cell as a notebook does.

    Args:
        code: Plain Python.
        name: Of the cell in tracebacks.
        names: Variables of the notebook, which the cell changes.

    Returns:
        The printed text, then the value of the last expression unless it is None.
    """
    statements = ast.parse(code).body
    last = statements.pop() if isinstance(statements[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(statements, []), name, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
            if value is not None:
                print(repr(value))
    return printed.getvalue().rstrip()


def _save(figure: plt.Figure, path: Path) -> None:
    """Write a figure in 256 colours, half of the size of all colours."""
    buffer = io.BytesIO()
    figure.savefig(buffer)
    drawn = Image.open(buffer).convert("RGB")
    drawn.quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


if __name__ == "__main__":
    for notebook in sorted(HERE.glob("*.ipynb")):
        if notebook.stem in (sys.argv[1:] or [notebook.stem]):
            pictures = HERE.parent / "images" / "notebooks"
            render(notebook, notebook.with_suffix(".md"), pictures)
