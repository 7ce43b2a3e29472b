"""Semantic segmentation: crops, batches, chance in worker processes, and shares of photographs."""

from types import SimpleNamespace

import cv2
import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonargparse import ArgumentParser

from probseg.errors import DataError
from probseg.seeds import mix_seeds
from probseg.semantic import SemanticBatch, SemanticDataModule
from probseg.semantic.datamodule import SemanticCrop
from probseg.semantic.dataset import SemanticSample
from support.drawn_semantic import FakeStreets, colour_of, draw_labels, write_camvid
from support.rows import each


def photograph(labels):
    return SemanticSample(colour_of(labels), labels, "photo", "drawn")


def crops(sample, number, seed=0, size=48, **options):
    crop = SemanticCrop(size, **options)
    return [crop(sample, mix_seeds(seed, n)) for n in range(number)]


@given(
    size=st.tuples(st.integers(2, 90), st.integers(2, 90)),
    crop=st.one_of(st.integers(32, 64), st.tuples(st.integers(32, 64), st.integers(32, 64))),
    seed=st.integers(0, 2**64 - 1),
)
def test_crops_of_any_photograph_have_the_size_that_was_asked_for(size, crop, seed):
    labels = draw_labels(*size, 171, seed % 1000)
    known = {*np.unique(labels), 255}
    for image, cut in crops(photograph(labels), 2, seed, crop):
        assert cut.shape == ((crop, crop) if isinstance(crop, int) else crop)
        assert image.shape == (*cut.shape, 3)
        assert image.dtype == cut.dtype == np.uint8
        assert set(np.unique(cut)) <= known  # nearest neighbour: no class between two others


@each("scale", [(0.5, 2.0), (0.5, 0.5), (1.37, 1.37)])
def test_every_label_stays_on_its_pixel(scale):
    """Away from borders between classes, the colour of a pixel tells its class."""
    seen = 0
    for seed in range(5):
        labels = draw_labels(120, 160, 171, seed)
        for image, cut in crops(photograph(labels), 6, seed, (64, 80), scale=scale):
            wide = np.ones((5, 5), np.uint8)
            inside = cv2.erode(cut, wide) == cv2.dilate(cut, wide)
            inside[[0, 1, -2, -1]] = inside[:, [0, 1, -2, -1]] = False  # unknown beyond
            inside &= cut != 255
            seen += inside.sum()
            wrong = abs(image.astype(int) - colour_of(cut)).max(axis=-1) > 1
            assert not (wrong & inside).any()
    assert seen > 20_000


@each("scale", [0.5, 0.75, 1.3, 1.9])
def test_borders_of_labels_and_of_the_photograph_coincide(scale):
    for column in range(70, 90):
        labels = np.zeros((100, 160), np.uint8)
        labels[:, column:] = 1
        image = np.repeat(labels[..., None] * 255, 3, axis=2)
        sample = SemanticSample(image, labels, "edge", "drawn")
        for cut_image, cut in crops(sample, 3, column, 40, scale=(scale, scale)):
            grey = cut_image[..., 0].astype(int)
            assert (cut[grey > 128] != 0).all()
            assert (cut[grey < 127] != 1).all()


def test_only_what_was_filled_up_is_ignored():
    white = np.full((20, 90, 3), 255, np.uint8)
    sample = SemanticSample(white, np.full((20, 90), 3, np.uint8), "white", "drawn")
    places = set()
    for image, cut in crops(sample, 30, size=64, scale=(0.5, 2.0)):
        filled = (image == 0).all(axis=-1)
        assert ((image == 255).all(axis=-1) | filled).all()
        np.testing.assert_array_equal(cut, np.where(filled, 255, 3))
        assert filled.any()
        assert not filled.all()
        places.add(int(np.nonzero(~filled)[0].min()))
    assert len(places) > 5  # the photograph lies anywhere in the crop


def test_scales_cover_their_range_and_crops_are_mirrored():
    labels = np.zeros((100, 100), np.uint8)
    labels[:, :50] = 1  # on the left
    sample = photograph(labels)
    sides, mirrored = [], 0
    for _, cut in crops(sample, 200, size=220, scale=(0.5, 2.0)):
        columns = (cut != 255).any(axis=0)
        sides.append(columns.sum())
        ones, zeros = ((cut == number).any(axis=0).nonzero()[0].mean() for number in (1, 0))
        mirrored += ones > zeros
    assert 50 <= min(sides) < 60
    assert 190 < max(sides) <= 200
    assert np.mean(sides) == pytest.approx(125, rel=0.08)
    assert 70 < mirrored < 130


def test_seeds_of_crops_repeat_and_differ():
    sample = photograph(draw_labels(60, 80, 11))
    before = sample.image.copy(), sample.labels.copy()

    def cut(seed):
        np.random.seed(seed + 1)  # plays no part
        return np.stack([image for image, _ in crops(sample, 5, seed // 2)])

    np.testing.assert_array_equal(cut(4), cut(5))
    assert (cut(4) != cut(6)).any()
    assert (cut(4)[0] != cut(4)[1]).any()
    assert all(np.array_equal(*pair) for pair in zip(before, sample, strict=False))  # left alone


@each(
    ("arguments", "parts"),
    [
        ({"size": 31}, ["size", "at least 32", "31"]),
        ({"size": (64, 16)}, ["size", "at least 32", "(64, 16)"]),
        ({"scale": (0, 1)}, ["scale", "0 < smallest <= largest", "(0, 1)"]),
        ({"scale": (2, 1)}, ["scale", "(2, 1)"]),
    ],
)
def test_wrong_arguments_are_named(arguments, parts):
    with pytest.raises(ValueError, match=r"^`(size|scale)`") as caught:
        SemanticCrop(**arguments)
    assert all(part in str(caught.value) for part in parts)


def module(train=None, **options):
    return SemanticDataModule(
        train, **{"batch_size": 2, "crop_size": 32, "num_workers": 0, **options}
    )


def test_training_batches():
    data = module(FakeStreets(7), batch_size=3, crop_size=(32, 40))
    batch, *others = list(data.train_dataloader())
    assert len(others) == 1  # the seventh photograph would be a batch of its own
    assert isinstance(batch, SemanticBatch)
    assert batch.images.shape == (3, 3, 32, 40)
    assert batch.labels.shape == (3, 32, 40)
    assert batch.images.dtype == batch.labels.dtype == torch.uint8
    assert set(batch.labels.unique().tolist()) <= {0, 1, 2, 255}


def test_data_sets_are_joined_and_shuffled():
    seen = []

    class Recording(FakeStreets):
        def __getitem__(self, index):
            seen.append((self.name, index))
            return self.samples[index]

    data = module([Recording(8, name="a"), Recording(4, name="b")], batch_size=1)
    loader = data.train_dataloader()
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        list(loader)
    assert (
        sorted(seen[:12])
        == sorted(seen[12:])
        == sorted([("a", i) for i in range(8)] + [("b", i) for i in range(4)])
    )
    assert seen[:12] != seen[12:]


def test_a_process_without_a_photograph_is_refused():
    data = module(val=FakeStreets(2, name="small"), test=FakeStreets(2, name="small"))
    data.trainer = SimpleNamespace(world_size=3, global_rank=0)
    for loaders in (data.val_dataloader, data.test_dataloader):
        with pytest.raises(DataError, match=r"small has 2 photographs for 3 processes.*fewer dev"):
            loaders()


@pytest.mark.parametrize("role", ["val", "test"])
def test_sets_of_one_name_would_overwrite_each_other(role):
    sets = [FakeStreets(1, name=name) for name in ("one", "twice", "twice")]
    with pytest.raises(DataError, match=rf"^{role}: .* got one, twice, twice; .*'twice'.*its own"):
        module(**{role: sets})
    module(train=sets, val=sets[:2], test=sets[:2])


def test_classes_are_those_of_all_sets():
    streets = FakeStreets(1)
    assert module(streets).classes == ("road", "car", "sky")
    assert module([streets], val=[streets], test=streets).classes == ("road", "car", "sky")
    assert module(test=streets).classes == ("road", "car", "sky")
    other = FakeStreets(1, name="fields", classes=("sky", "grass"))
    for sets in ({"train": [streets, other]}, {"val": streets, "test": other}):
        with pytest.raises(DataError, match=r"streets with 3 classes \(road.*fields with 2 clas"):
            _ = module(**sets).classes
    with pytest.raises(DataError, match=r"no data: set `data\.train`"):
        _ = module().classes


def test_missing_training_and_test_data_are_named():
    with pytest.raises(DataError, match=r"no training data: set `data\.train`"):
        module().train_dataloader()
    with pytest.raises(DataError, match=r"no test data: set `data\.test`"):
        module().test_dataloader()
    with pytest.raises(DataError, match=r"`batch_size` .* 4 training photographs .*got 5"):
        module(FakeStreets(4), batch_size=5).train_dataloader()


def instantiated(*arguments):
    parser = ArgumentParser()
    parser.add_subclass_arguments(L.LightningDataModule, "data")
    return parser.instantiate(parser.parse_args([str(a) for a in arguments])).data


def test_lists_of_sets_and_sizes_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBSEG_DATA", str(write_camvid(tmp_path / "camvid").parent))
    path = tmp_path / "data.yaml"
    sets = [
        {"class_path": "probseg.semantic.CamVid", "init_args": {"split": split}}
        for split in ("train", "val")
    ]
    path.write_text(str({
        "class_path": "probseg.semantic.SemanticDataModule",
        "init_args": {"train": sets, "crop_size": [32, 40], "scale": [1.0, 1.5]},
    }))  # fmt: skip
    data = instantiated("--data", path, "--data.num_workers=0", "--data.batch_size=6")
    assert next(iter(data.train_dataloader())).labels.shape == (6, 32, 40)
