"""How fine the code is: files, lines, bodies, guards, private functions that are called once.

`python benchmarks/grain.py` prints a table; `tests/test_grain.py` holds its figures. A private
function of a module counts as called once if its name occurs once beside its definition, in the
module or in an import or attribute elsewhere. A body is counted without its docstring.
"""

from __future__ import annotations

import ast
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("probseg", "tests", "benchmarks")


class Grain(NamedTuple):
    """Figures of a folder of Python files."""

    files: int
    lines: int
    private_functions: int
    called_once: int
    raises_per_1000: float
    median_body: float


def grain(folder: Path) -> Grain:
    """Count the Python files of a folder."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = sum(len(text.splitlines()) for text in texts.values())
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    used = {path: Counter(_names(tree)) for path, tree in trees.items()}
    elsewhere = Counter(name for tree in trees.values() for name in _from_outside(tree))
    private = [
        used[path][node.name] + elsewhere[node.name]
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and _is_private(node.name)
    ]
    raises = sum(isinstance(node, ast.Raise) for node in nodes)
    bodies = [_body_lines(node) for node in nodes if isinstance(node, ast.FunctionDef)]
    return Grain(
        len(texts),
        lines,
        len(private),
        sum(uses == 1 for uses in private),
        round(1000 * raises / lines, 1),
        statistics.median(bodies),
    )


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id


def _from_outside(tree: ast.Module) -> Iterator[str]:
    """Yield names that are imported, or read as attributes of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from () if node.value.id in ("self", "cls") else (node.attr,)


def _body_lines(function: ast.FunctionDef) -> int:
    statements = function.body
    if ast.get_docstring(function) is not None:
        statements = statements[1:]
    if not statements:
        return 0
    return (statements[-1].end_lineno or 0) - statements[0].lineno + 1


def main() -> None:
    header = ["folder", *(name.replace("_", " ") for name in Grain._fields)]
    print(f"| {' | '.join(header)} |\n|:--|{'--:|' * len(Grain._fields)}")
    for room in ROOMS:
        print(f"| {room} | {' | '.join(f'{value:g}' for value in grain(ROOT / room))} |")


if __name__ == "__main__":
    main()
