"""Packs photographs into shards that travel to a machine with a GPU, for trainings of minutes.

    python benchmarks/training/pack.py FOLDER SHARDS --megabytes 60 --shards 1
    mkdir photographs; for shard in SHARDS/*.tar; do tar -xf $shard -C photographs; done  # there

Photographs are drawn by FOLDER/weights.tsv (benchmarks/training/weigh.py) without replacement, and
written as WebP with their masks as palette PNG. Each shard is a folder for training.
"""

import argparse
import io
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image


def draw(root: Path, seed: int = 0) -> list[str]:
    """Return the photographs of a folder in the order in which they are packed."""
    weights: Counter[str] = Counter()
    for line in (root / "weights.tsv").read_text().splitlines():
        name, _, weight = line.partition("\t")
        weights[name.rpartition("#")[0]] += float(weight)
    # The largest of `uniform ** (1 / weight)` are a draw without replacement (Efraimidis and
    # Spirakis 2006, "Weighted random sampling with a reservoir").
    uniform = np.random.default_rng(seed).random(len(weights))
    keys = dict(zip(weights, np.log(uniform) / np.array([*weights.values()]), strict=True))
    return sorted(keys, key=keys.__getitem__, reverse=True)


def files_of(root: Path, name: str, side: int, quality: int) -> dict[str, bytes]:
    """Return the files of a photograph and its mask by path, reduced to the longer side."""
    (path,) = root.glob(f"images/{name}.*")
    with Image.open(path) as image, Image.open(root / f"masks/{name}.png") as mask:
        scale = min(1.0, side / max(image.size))
        width, height = (max(1, round(scale * length)) for length in image.size)
        photograph, labels = io.BytesIO(), io.BytesIO()
        image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS).save(
            photograph, "webp", quality=quality
        )
        mask.resize((width, height), Image.Resampling.NEAREST).save(labels, "png", optimize=True)
    return {f"images/{name}.webp": photograph.getvalue(), f"masks/{name}.png": labels.getvalue()}


def main() -> None:
    """Write the shards."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=float, default=60)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--quality", type=int, default=75)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = draw(options.root)[::-1]
    for number in range(options.shards):
        path, before = options.out / f"photographs{number:02d}.tar", len(names)
        with tarfile.open(path, "w") as shard:
            while names:
                files = files_of(options.root, names[-1], options.side, options.quality)
                # Each entry of an archive has a header and is filled up, of 512 bytes each.
                size = sum(len(content) + 1024 for content in files.values())
                if shard.offset + size > 1e6 * options.megabytes:
                    break
                for file, content in files.items():
                    entry = tarfile.TarInfo(file)
                    entry.size = len(content)
                    shard.addfile(entry, io.BytesIO(content))
                names.pop()
        count = before - len(names)
        print(f"{path}: {count} photographs, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
