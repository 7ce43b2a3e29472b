"""The packages of probseg by floor, read from their imports: each imports from lower floors only.

`python docs/pictures/rooms.py`.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from matplotlib import pyplot as plt
from style import BLUE, GREY, INK, WIDTH, save

import probseg

ROOT = Path(probseg.__file__).parent
CONTENT = {
    "ops": "attend, assign, EM",
    "transfer": "downloads",
    "attention": "layers",
    "clicks": "maps, annotators",
    "losses": "losses",
    "metrics": "IoU, NoC",
    "backbones": "timm, ResNet, HRNet",
    "heads": "decoders, heads",
    "models": "Segmenter",
    "data": "data sets",
    "baselines": "without a network",
    "formats": "PNG, RLE, outlines",
    "zoo": "weights, cards",
    "interact": "loop, Predictor",
    "evaluation": "protocols, scores",
    "reports": "tables, pages",
    "tasks": "training",
    "callbacks": "runs",
    "annotate": "page, server",
    "export": "ONNX, torch.export",
    "integrations": "CVAT, Label Studio",
    "cli": "probseg ...",
}


@cache
def below(room: str) -> frozenset[str]:
    """Return the packages that a package imports."""
    found = set()
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("probseg."):
                found.add(str(node.module).split(".")[1])
    return frozenset(found & CONTENT.keys()) - {room}


@cache
def floor(room: str) -> int:
    """Return the length of the longest chain of imports below a package."""
    return 1 + max(map(floor, below(room)), default=-1)


def main() -> None:
    floors: dict[int, list[str]] = {}
    for room in CONTENT:
        floors.setdefault(floor(room), []).append(room)
    figure, axes = plt.subplots(figsize=(WIDTH, 0.52 * len(floors)), layout="constrained")
    for height, rooms in floors.items():
        for number, room in enumerate(rooms):
            x = number - (len(rooms) - 1) / 2
            box = plt.Rectangle((x - 0.47, height - 0.36), 0.94, 0.72, fc="white", ec=BLUE, lw=1.2)
            axes.add_patch(box)
            axes.text(x, height + 0.13, room, ha="center", va="center", color=INK, weight="bold")
            axes.text(x, height - 0.18, CONTENT[room], ha="center", va="center", color=GREY, size=7)
    width = max(map(len, floors.values())) / 2
    axes.set(xlim=(-width, width), ylim=(-0.5, len(floors) - 0.5))
    axes.axis("off")
    save(figure, "../rooms")


if __name__ == "__main__":
    main()
