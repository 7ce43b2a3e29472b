"""Photographs for training: how often each is drawn, and shards that are folders, too."""

import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.training.weigh import weights, write_weights
from probseg.data import ImageMaskFolder
from support.fakes import write_folder

PACK = Path(__file__).parents[1] / "training" / "pack.py"


def test_a_set_counts_with_the_root_of_its_photographs():
    names = [f"pets_{photo}#{number}" for photo in range(9) for number in (1, 2)]
    names += [f"voc_{photo}" for photo in range(4)] + ["rare_0"]
    by_photograph = Counter()
    for name, weight in zip(names, weights(names, ["rare"]), strict=True):
        by_photograph[name.partition("#")[0]] += weight
    assert sum(by_photograph[f"pets_{photo}"] for photo in range(9)) == pytest.approx(3)
    assert [by_photograph[f"voc_{photo}"] for photo in range(4)] == pytest.approx([0.5] * 4)
    assert by_photograph["rare_0"] == pytest.approx(0.1)


def test_a_shard_is_a_folder_for_training(tmp_path):
    root = write_folder(tmp_path / "photographs", images=3, size=(40, 60))
    write_weights(root)
    options = ("--side", "30", "--megabytes", "0.006", "--shards", "2")
    subprocess.run([sys.executable, PACK, root, tmp_path / "shards", *options], check=True)
    names = []
    for number, shard in enumerate(sorted((tmp_path / "shards").glob("*.tar"))):
        assert shard.stat().st_size < 20_000
        with tarfile.open(shard) as archive:
            archive.extractall(tmp_path / f"{number}", filter="data")
            names += archive.getnames()
        objects = ImageMaskFolder(tmp_path / f"{number}")
        assert objects[0].image.shape == (20, 30, 3)
    assert len(names) == len({*names}) == 6, "each photograph is in one shard"
