"""Trunk and wings of probseg, read from its imports; fails on an arrow upwards or into a wing.

`python docs/pictures/rooms.py`.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from matplotlib import pyplot as plt
from style import BLUE, GREY, INK, ORANGE, WIDTH, save

import probseg
from probseg.kinds import WINGS

ROOT = Path(probseg.__file__).parent
CONTENT = {
    "ops": "attend, assign, EM",
    "attention": "layers",
    "clicks": "maps, annotators",
    "losses": "losses",
    "metrics": "IoU, NoC",
    "backbones": "timm, ResNet",
    "heads": "decoders, heads",
    "models": "Segmenter",
    "data": "data sets",
    "formats": "PNG, RLE, outlines",
    "zoo": "models by name",
    "interact": "session, Predictor",
    "evaluation": "protocols, scores",
    "reports": "tables, pages",
    "tasks": "training",
    "callbacks": "runs",
    "cli": "probseg ...",
}
OFFERS = {
    "family": "other attentions",
    "semantic": "EMANet, classes",
    "convert": "mask formats",
    "annotate": "page, tools",
    "export": "ONNX, torch.export",
    "release": "publishing",
    "lab": "bench, tune",
    "peers": "SAM, SimpleClick",
}


@cache
def below(room: str) -> frozenset[str]:
    """Return the packages that a package imports, inside functions too."""
    found = set()
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("probseg."):
                found.add(str(node.module).split(".")[1])
    return frozenset(found & {*CONTENT, *WINGS}) - {room}


@cache
def floor(room: str) -> int:
    """Return the length of the longest chain of imports below a package."""
    return 1 + max(map(floor, below(room)), default=-1)  # a circle would never end


def draw(
    axes: plt.Axes, left: float, width: float, y: float, words: tuple[str, str], colour: str
) -> None:
    """Draw a package, its name above its content."""
    corner = (left + 0.03, y - 0.36)
    axes.add_patch(plt.Rectangle(corner, width - 0.06, 0.72, fc="white", ec=colour, lw=1.2))
    x = left + width / 2
    axes.text(x, y + 0.13, words[0], ha="center", va="center", color=INK, weight="bold")
    axes.text(x, y - 0.18, words[1], ha="center", va="center", color=GREY, size=6)


def main() -> None:
    for room in (*CONTENT, *WINGS):
        entered = below(room) & set(WINGS)
        assert not entered, f"{room} imports the wings {sorted(entered)}"
    floors: dict[int, list[str]] = {}
    for room in CONTENT:
        floors.setdefault(floor(room), []).append(room)
    top = len(floors) - 1
    figure, axes = plt.subplots(figsize=(WIDTH, 0.52 * len(floors)), layout="constrained")
    width = max(map(len, floors.values()))  # each floor rests on all of the one below
    for height, rooms in floors.items():
        for number, room in enumerate(rooms):
            share = width / len(rooms)
            draw(axes, number * share, share, height, (room, CONTENT[room]), BLUE)
    for number, wing in enumerate(sorted(WINGS, key=floor)):
        y = number * top / (len(WINGS) - 1)
        draw(axes, width + 0.3, 1, y, (wing, OFFERS[wing]), ORANGE)
    axes.axvline(width + 0.15, color=GREY, lw=0.8, ls=":")
    axes.set(xlim=(0, width + 1.3), ylim=(-0.5, top + 0.5))
    axes.axis("off")
    save(figure, "../rooms")


if __name__ == "__main__":
    main()
