"""What holds for every data set for semantic segmentation: a new one needs a subclass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from probseg.errors import DataError, DatasetNotFoundError
from probseg.semantic.dataset import SemanticDataset
from support.drawn_semantic import colour_of, draw_labels
from support.fakes import save
from support.refusals import refused


class SemanticSetTester:
    """A data set that is drawn at test time.

    Attributes:
        kind: Its class.
        write: Draws it, with three photographs in each split, into a folder that it returns.
        classes: Number of them.
        places: Folders in `$PROBSEG_DATA` that it is found in.
        strange: Numbers that its label files cannot have, and what the error says of them.
        splits: Two without a common photograph.
    """

    kind: type[SemanticDataset]
    write: Callable[[Path], Path]
    classes: int
    places: tuple[str, ...]
    strange: tuple[list[int], str]
    splits = ("train", "val")

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return self.write(tmp_path / "drawn")

    def test_labels_are_the_classes_that_were_drawn(self, root):
        data = self.kind("train", root)
        assert len(data) == 3
        assert len(data.classes) == len(set(data.classes)) == self.classes
        for i, sample in enumerate(data):
            drawn = draw_labels(36, 48, self.classes, seed=i)
            assert len(np.unique(drawn)) > 5
            assert sample.dataset == self.kind.name
            assert sample.labels.dtype == sample.image.dtype == np.uint8
            np.testing.assert_array_equal(sample.labels, drawn)
            assert abs(sample.image.astype(int) - colour_of(drawn)).mean() < 8  # some are JPEG
        assert len({sample.name for sample in data}) == 3

    def test_splits_share_no_photograph(self, root):
        one, other = ({photo for photo, _ in self.kind(split, root).pairs} for split in self.splits)
        assert len(one) == len(other) == 3
        assert not one & other

    def test_default_places(self, root, tmp_path, monkeypatch):
        monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "data"))
        for name in self.places:
            place = tmp_path / "data" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            root = root.rename(place)
            assert len(self.kind()) == 3, name

    def test_what_is_missing_is_named(self, root, tmp_path):
        ending = Path(self.kind("train", root).pairs[0][1]).suffix
        refused(
            DatasetNotFoundError, lambda: self.kind("train", tmp_path / "nowhere"), self.kind.name,
            tmp_path / "nowhere", "train", ending, "http", "`root`", "PROBSEG_DATA",
        )  # fmt: skip
        for path in self.kind("train", root).pairs[0]:
            kept = path.parent.rename(tmp_path / "kept")
            refused(DatasetNotFoundError, lambda: self.kind("train", root), self.kind.name, root)
            kept.rename(path.parent)
        for path in self.kind("train", root).pairs[1]:
            kept = path.rename(tmp_path / "kept")
            refused(DataError, lambda: self.kind("train", root), path.parent, path.stem)
            kept.rename(path)

    def test_label_files_are_read_when_they_are_asked_for(self, root):
        data = self.kind("train", root)
        _, labels = data.pairs[1]
        labels.write_bytes(b"?")
        assert len(self.kind("train", root)) == 3
        refused(DataError, lambda: data[1], labels, "cannot be read")

    def test_labels_of_another_size(self, root):
        data = self.kind("train", root)
        photo, labels = data.pairs[0]
        save(np.zeros((9, 8, 3), np.uint8), photo)
        refused(DataError, lambda: data[0], photo, labels, "8 x 9", "48 x 36")

    def test_strange_numbers_are_refused(self, root):
        data = self.kind("train", root)
        _, path = data.pairs[0]
        strange, known = self.strange
        numbers = np.resize(np.uint8([1, *strange]), (36, 48))
        if path.suffix == ".mat":
            savemat(path, {"S": numbers})
        else:
            save(numbers, path)
        refused(DataError, lambda: data[0], path, strange, known, "version")
