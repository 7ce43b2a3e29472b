"""What LVIS costs to open: the first time, later, and in each worker process.

Measured on the training split, or on a file of its size that `--draw` draws: with polygons about as
many and as long, and photographs that are links to a few files of noise. Each figure is taken in a
process of its own, of an index that is built anew, in a folder inside that of the data that is gone
afterwards. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import RESULTS, Row, append_row, provenance
from PIL import Image
from torch.utils.data import DataLoader

from probseg.data import LVIS
from probseg.types import Sample

MIB = 2**20
SIZE = (480, 640)
MIN_AREA = 400
ANNOTATIONS = "lvis_v1_train.json"


def main() -> None:
    """Draw the data, or measure and write a row."""
    args = _parser().parse_args()
    if args.measure is not None:
        print(json.dumps(_MEASURED[args.measure](args)))
        return
    if args.draw:
        _draw(args.root, args.images, args.objects)
        return
    row: Row = {"json_mib": round((args.root / ANNOTATIONS).stat().st_size / MIB)}
    with tempfile.TemporaryDirectory(prefix="index_", dir=args.root) as cache:
        for what in _MEASURED:
            row |= _apart(what, args, cache)
    print("\n".join(f"{key:26} {value}" for key, value in row.items()))
    path = RESULTS / "lvis_index.csv"
    path.unlink(missing_ok=True)
    append_row(path, {**row, **provenance("cpu")})
    print(f"wrote {path}")


def _apart(what: str, args: argparse.Namespace, cache: str) -> dict[str, float]:
    """Measure something in a new process, which has its indices in a folder."""
    command = [sys.executable, __file__, str(args.root), "--measure", what]
    command += ["--workers", str(args.workers), "--samples", str(args.samples)]
    environment = {**os.environ, "PROBSEG_CACHE": cache}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _build(args: argparse.Namespace) -> dict[str, float]:
    before = _peak()
    began, began_work = time.perf_counter(), time.process_time()
    data = LVIS("train", args.root, MIN_AREA)
    seconds, work = time.perf_counter() - began, time.process_time() - began_work
    place = Path(os.environ["PROBSEG_CACHE"])
    kept = sum(path.stat().st_size for path in place.rglob("*.npy"))
    return {
        "images": len(data.index.image_sizes),
        "annotations": len(data.index.ids),
        "objects": len(data),
        "build_seconds": round(seconds, 1),
        "build_cpu_seconds": round(work, 1),
        "build_peak_mib": round(_peak() - before),
        "index_mib": round(kept / MIB),
    }


def _open(args: argparse.Namespace) -> dict[str, float]:
    before = _memory(os.getpid())
    began, began_work = time.perf_counter(), time.process_time()
    data = LVIS("train", args.root, MIN_AREA)
    seconds, work = time.perf_counter() - began, time.process_time() - began_work
    after = _memory(os.getpid())
    assert len(data) > 0
    return {
        "open_seconds": round(seconds, 2),
        "open_cpu_seconds": round(work, 2),
        "open_private_mib": round(after["private"] - before["private"]),
    }


def _work(args: argparse.Namespace) -> dict[str, float]:
    """Let each worker read samples from all over the file, and look at its memory."""
    data = LVIS("train", args.root, MIN_AREA)
    order = np.random.default_rng(0).permutation(len(data))[: args.samples * args.workers]
    loader = DataLoader(
        data, batch_size=1, sampler=order.tolist(), num_workers=args.workers, collate_fn=_only
    )
    parent = _memory(os.getpid())
    batches = iter(loader)
    began = time.perf_counter()
    largest: dict[str, float] = {}
    for number, sample in enumerate(batches, 1):
        assert sample.mask.any()
        if number % 500 == 0 or number > len(order) - 2 * args.workers:
            now = [_memory(process.pid) for process in batches._workers]  # type: ignore[attr-defined]
            for key in now[0]:
                largest[key] = max(largest.get(key, 0), *(memory[key] for memory in now))
    return {
        "workers": args.workers,
        "samples_per_worker": args.samples,
        "samples_per_second": round(len(order) / (time.perf_counter() - began)),
        "parent_private_mib": round(parent["private"]),
        "worker_private_mib": round(largest["private"]),
        "worker_proportional_mib": round(largest["proportional"]),
    }


_MEASURED = {"build": _build, "open": _open, "work": _work}


def _only(samples: list[Sample]) -> Sample:
    (sample,) = samples
    return sample


def _peak() -> float:
    """Largest resident memory of this process so far in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _memory(process: int) -> dict[str, float]:
    """Memory of a process in MiB: what is its own, and that plus its share of what is shared."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):  # a worker that has ended
        return {"private": 0.0, "proportional": 0.0}
    kib = {key: int(value) for key, value in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)}
    return {
        "private": (kib["Private_Clean"] + kib["Private_Dirty"]) / 1024,
        "proportional": kib["Pss"] / 1024,
    }


def _draw(root: Path, images: int, objects: int) -> None:
    """Write annotations and photographs."""
    random = np.random.default_rng(0)
    folder = root / "train2017"
    folder.mkdir(parents=True)
    originals = [root / f"{number}.jpg" for number in range(64)]
    for original in originals:  # a file has 65000 links at most
        noise = random.integers(0, 256, (SIZE[0] // 8, SIZE[1] // 8, 3), dtype=np.uint8)
        Image.fromarray(noise).resize(SIZE[::-1]).save(original)
    with (root / ANNOTATIONS).open("w") as file:
        file.write('{"info": {"version": "v1.0"}, "annotations": [')
        for number in range(objects):
            entry = json.dumps(_annotation(number, number * images // objects, random))
            file.write(entry if number == 0 else f", {entry}")
        file.write('], "images": [')
        for number in range(images):
            name = f"{number:012d}.jpg"
            (folder / name).hardlink_to(originals[number % len(originals)])
            entry = json.dumps(_image(number, name))
            file.write(entry if number == 0 else f", {entry}")
        file.write('], "categories": [{"id": 1, "name": "thing"}]}')


def _annotation(number: int, image: int, random: np.random.Generator) -> dict[str, object]:
    """Draw an annotation: an uneven ring of corners, sometimes in two parts."""
    polygons, area = [], 0.0
    for _ in range(1 + (random.random() < 0.1)):
        corners = min(1000, int(random.lognormal(3.5, 0.9)) + 4)
        radius = min(220.0, float(random.lognormal(3.0, 0.9)) + 2)
        angles = np.linspace(0, 2 * np.pi, corners, endpoint=False)
        reach = radius * random.uniform(0.7, 1.0, corners)
        centre = random.uniform(radius, SIZE[1] - radius), random.uniform(radius, SIZE[0] - radius)
        x, y = centre[0] + reach * np.cos(angles), centre[1] + reach * np.sin(angles)
        polygons.append(np.stack([x, y], axis=1).ravel().round(2).tolist())
        area += abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2
    return {
        "area": round(area, 2),
        "id": number + 1,
        "segmentation": polygons,
        "image_id": image,
        "bbox": [1.0, 2.0, 30.0, 40.0],
        "category_id": 1,
    }


def _image(number: int, name: str) -> dict[str, object]:
    return {
        "id": number,
        "height": SIZE[0],
        "width": SIZE[1],
        "coco_url": f"http://images.cocodataset.org/train2017/{name}",
        "not_exhaustive_category_ids": [],
        "neg_category_ids": [1, 2, 3],
        "license": 1,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("root", type=Path, help="LVIS: the real one, or what --draw has drawn")
    add("--draw", action="store_true", help="draw LVIS there, which takes 3 GB, and do no more")
    add("--images", type=int, default=100_000, help="to draw")
    add("--objects", type=int, default=1_270_000, help="to draw")
    add("--workers", type=int, default=2)
    add("--samples", type=int, default=2000, help="that each worker reads")
    add("--measure", choices=list(_MEASURED), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
