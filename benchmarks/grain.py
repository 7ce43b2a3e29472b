"""How fine the code is: files, lines, bodies, guards, private functions that are called once.

`python benchmarks/grain.py` prints a table; `tests/test_grain.py` holds its figures. A private
function of a module counts as called once if its name occurs once beside its definition, in the
module or in an import or attribute elsewhere. A body is counted without its docstring. With
`--click` it counts the files in which a function runs during a click, when all are imported.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
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


def entered(call: Callable[..., object], *arguments: object) -> set[str]:
    """Return the files of probseg with a function that a call runs in this thread."""
    files = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call(*arguments)
    finally:
        sys.setprofile(None)
    return {file for file in files if file.startswith(str(ROOT / "probseg"))}


def on_the_way_of_a_click(name: str = "lite2_unet_prop") -> dict[str, set[str]]:
    """Return the files that clicks and a training step enter, when all of them are imported."""
    import torch
    from PIL import Image
    from skimage.data import coffee

    import probseg
    from probseg.annotate.answers import ModelHost
    from probseg.annotate.sessions import Sessions
    from probseg.clicks import IteratedClicks
    from probseg.data.datamodule import TrainBatch
    from probseg.tasks import InteractiveSegmentation
    from probseg.zoo import create_interactive

    files = {}
    predictor = probseg.Predictor.from_pretrained(name)
    task = InteractiveSegmentation(create_interactive(name), curriculum=IteratedClicks())
    task.log = lambda *_, **__: None  # type: ignore[method-assign]
    images, masks = torch.zeros(2, 3, 64, 64, dtype=torch.uint8), torch.zeros(2, 64, 64)
    masks[:, 16:48, 20:50] = 1
    batch = TrainBatch(images, masks.byte(), torch.arange(2), ["?"] * 2, [])
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2):
            Image.fromarray(coffee()).save(Path(folder) / f"{number}.png")
        sessions = Sessions(Path(folder), None, ModelHost(name))
        for photograph in sessions.photographs:
            predictor.set_image(coffee())
            for count, click in enumerate([(300, 150), (100, 350, False)], 1):
                files[f"predict, click {count}"] = entered(predictor.predict, [click])
            files["training step"] = entered(task.training_step, batch, 0)
            sessions.open(photograph)
            for count, (x, y) in enumerate([(300.5, 150.5), (100.5, 350.5)], 1):
                action = {"type": "click", "x": x, "y": y, "positive": count == 1}
                revision = sessions.store.photograph(photograph.name).revision
                request = {"revision": revision, "action": action}
                files[f"page, click {count}"] = entered(sessions.act, photograph, request)
        sessions.close()
    return files


def main() -> None:
    if "--click" in sys.argv[1:]:
        for what, files in on_the_way_of_a_click().items():
            print(f"{what}: {len(files)} files")
        return
    header = ["folder", *(name.replace("_", " ") for name in Grain._fields)]
    print(f"| {' | '.join(header)} |\n|:--|{'--:|' * len(Grain._fields)}")
    for room in ROOMS:
        print(f"| {room} | {' | '.join(f'{value:g}' for value in grain(ROOT / room))} |")


if __name__ == "__main__":
    main()
