"""Writes how often training draws each object of a folder of photographs from many sets.

    python benchmarks/training/weigh.py FOLDER [SET ...]

Sets are told apart by the prefix of a photograph's name, up to its first underscore. A set counts
with the square root of its number of photographs, and those that are named with a tenth of it;
its photographs count alike, and so do the objects of a photograph. The result,
FOLDER/weights.tsv, is for `probseg.data.Selected`.
"""

import math
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from probseg.data import ImageMaskFolder


def weights(names: list[str], rare: Collection[str] = ()) -> list[float]:
    """Return the weight of each object `SET_PHOTOGRAPH#NUMBER`; those of a set add up to its root.

    Args:
        names: Of all objects.
        rare: Sets that count with a tenth.
    """
    photographs = [name.rpartition("#")[0] or name for name in names]
    objects = Counter(photographs)
    sizes = Counter(photograph.partition("_")[0] for photograph in objects)
    shares = {
        name: (0.1 if name in rare else 1.0) / math.sqrt(size) for name, size in sizes.items()
    }
    return [shares[name.partition("_")[0]] / objects[name] for name in photographs]


def write_weights(root: Path, rare: Collection[str] = ()) -> None:
    """Write the weights of all objects of a folder with `images/` and `masks/`."""
    folder = ImageMaskFolder(root)
    names = [folder.object_name(index) for index in range(len(folder))]
    rows = zip(names, weights(names, rare), strict=True)
    (root / "weights.tsv").write_text("".join(f"{name}\t{weight:.6g}\n" for name, weight in rows))


if __name__ == "__main__":
    write_weights(Path(sys.argv[1]), sys.argv[2:])
