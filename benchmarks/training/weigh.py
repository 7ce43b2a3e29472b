"""Writes how often training draws each object of a folder of photographs from many sets.

    python benchmarks/training/weigh.py FOLDER

Sets are told apart by the prefix of a photograph's name, up to its first underscore. A set counts
with the square root of its number of photographs; its photographs count alike, and so do the
objects of a photograph. The result, FOLDER/weights.tsv, is for `probseg.data.Selected`.
"""

import sys
from collections import Counter
from pathlib import Path

from probseg.data import ImageMaskFolder


def weights(names: list[str]) -> list[float]:
    """Return the weight of each object `SET_PHOTOGRAPH#NUMBER`; those of a set add up to its root.

    Args:
        names: Of all objects.
    """
    photographs = [name.rpartition("#")[0] or name for name in names]
    objects = Counter(photographs)
    sizes = Counter(photograph.partition("_")[0] for photograph in objects)
    return [
        sizes[photograph.partition("_")[0]] ** -0.5 / objects[photograph]
        for photograph in photographs
    ]


def write_weights(root: Path) -> None:
    """Write the weights of all objects of a folder with `images/` and `masks/`."""
    folder = ImageMaskFolder(root)
    names = [folder.object_name(index) for index in range(len(folder))]
    rows = zip(names, weights(names), strict=True)
    (root / "weights.tsv").write_text("".join(f"{name}\t{weight:.6g}\n" for name, weight in rows))


if __name__ == "__main__":
    write_weights(Path(sys.argv[1]))
