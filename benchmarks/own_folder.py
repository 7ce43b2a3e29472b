"""Clicks for a whole folder, with a model that learns from it now and then, and without.

`python benchmarks/own_folder.py FOLDER...` clicks through the photographs of a folder with
`images/` and `masks/` in the order of their names, each object up to an IoU of 90 %, as the page
does. After every 20 photographs the model learns from all of them for 5 minutes, as *Learn from
finished photographs* does, and answers from then on where it saves clicks on those held out. A row
of `results/own_folder.csv` has the clicks after each learning, and those of the recommended model.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import torch
from measure import append_row, provenance
from own_objects import clicked

import probseg
from probseg.data import ImageMaskFolder
from probseg.descriptions import RECOMMENDED
from probseg.metrics import noc

RESULTS = Path(__file__).parent / "results" / "own_folder.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--minutes", type=float, default=5, help="of each learning")
    parser.add_argument("--every", type=int, default=20, help="photographs before a learning")
    parser.add_argument("--photographs", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for folder in options.folders:
        row = worked(folder, options.minutes, options.every, options.photographs)
        append_row(RESULTS, row)
        print(row, flush=True)


def worked(folder: Path, minutes: float, every: int, most: int) -> dict[str, object]:
    """Click through a folder twice, once with learning; return a row."""
    objects, name, learned = ImageMaskFolder(folder), RECOMMENDED, 0
    photographs = objects.photographs[:most]
    without: list[float] = []
    taken: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        done = Path(place) / "done"
        for part in ("images", "masks"):
            (done / part).mkdir(parents=True)
        for first in range(0, len(photographs), every):
            batch = photographs[first : first + every]
            of_batch = objects.of_photographs(batch)
            without.append(clicks(RECOMMENDED, of_batch))
            taken.append(without[-1] if name == RECOMMENDED else clicks(name, of_batch))
            print(first, name, f"{taken[-1]:.0f} clicks, without {without[-1]:.0f}", flush=True)
            if batch[-1] == photographs[-1]:
                break
            for image in batch:
                shutil.copy(image, done / "images")
            for mask in {path for _, path, _ in of_batch.objects}:
                shutil.copy(mask, done / "masks")
            settings = {
                "data.num_workers": 0,
                "trainer.logger.init_args.save_dir": place,
                "model.model.init_args.name": name,
            }
            run = probseg.train(done, settings, minutes=minutes)
            if run.better:
                name, learned = str(run), learned + 1
    return {
        "folder": folder.parent.name,
        "photographs": len(photographs),
        "objects": len(objects.of_photographs(photographs)),
        "every": every,
        "minutes": minutes,
        "learned": learned,
        "clicks_without": round(sum(without)),
        "clicks": round(sum(taken)),
        "batches_without": " ".join(f"{value:.0f}" for value in without),
        "batches": " ".join(f"{value:.0f}" for value in taken),
        **provenance("cpu"),
    }


def clicks(name: str, objects: ImageMaskFolder) -> float:
    """Return all clicks that a network takes; 20 where it does not reach 90 %."""
    (scores,) = clicked(name, objects).scores.values()
    return float(noc(scores.ious, 0.9).sum())


if __name__ == "__main__":
    main()
