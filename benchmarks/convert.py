"""What `probseg data convert` costs: seconds and memory for many objects of one large photograph.

Each conversion runs in a process of its own. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import numpy as np
from measure import RESULTS, append_row, provenance
from PIL import Image

from probseg.convert import FOLDERS, READERS, WRITERS, Request, convert
from probseg.masks import MAX_IDS

SIZE = 3000, 4000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--formats", nargs="+", choices=WRITERS, default=list(WRITERS))
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        source, target, reader, writer = options.run
        measure(Path(source), Path(target), reader, writer)
        return
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "photos").mkdir()
        Image.new("RGB", SIZE[::-1]).save(folder / "photos" / "a.jpg")
        for form in options.formats:
            for asked in options.objects:
                objects = min(asked, MAX_IDS) if form == "index" else asked
                compare(folder / f"{form}_{objects}", form, objects)


def compare(folder: Path, form: str, objects: int) -> None:
    """Measure a format in both directions, and print and keep a row for each."""
    folder.mkdir()
    source, target, back = folder / "a.json", folder / "b", folder / "c.json"
    draw(source, objects)
    family = form.partition("-")[0]
    reader = family if family in READERS else form
    for direction, arguments in (
        ("write", (source, target, "coco", form)),
        ("read", (target, back, reader, "coco")),
    ):
        command = [sys.executable, __file__, "--run", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = {"format": form, "direction": direction, "objects": objects}
        row |= json.loads(done.stdout.splitlines()[-1])
        print(row, flush=True)
        append_row(RESULTS / "convert.csv", row | provenance("cpu"))


def draw(path: Path, objects: int) -> None:
    """Write a COCO file with discs of 20 to 200 pixels that overlap, 48 corners each."""
    random = np.random.default_rng(0)
    angles = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    annotations = []
    for key in range(1, objects + 1):
        radius, centre = random.uniform(10, 100), random.uniform(100, np.array(SIZE[::-1]) - 100)
        corners = centre + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        outline = corners.round(2).ravel().tolist()
        annotations.append({"id": key, "image_id": 1, "category_id": 1, "segmentation": [outline]})
    image = {"id": 1, "file_name": "a.jpg", "height": SIZE[0], "width": SIZE[1]}
    content = {
        "images": [image],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "disc"}],
    }
    path.write_text(json.dumps(content))


def measure(source: Path, target: Path, reader: str, writer: str) -> None:
    """Convert, and print the seconds and the memory beyond that of the imports, in MiB."""
    assert reader in READERS
    images = source.parent.parent / "photos" if reader in FOLDERS else None
    before = peak()
    start, cpu_start = time.perf_counter(), time.process_time()
    ledger = convert(
        source, target, (reader, writer), Request(images, storage=PurePosixPath("photos"))
    )
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    found = {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "mib": round(peak() - before),
        "mib_with_imports": round(peak()),
        "written": ledger.written["objects"],
    }
    print(json.dumps(found))


def peak() -> float:
    """Largest resident memory of the process so far, in MiB (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
