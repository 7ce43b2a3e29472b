"""Data modules: batches, chance in worker processes, and the split of one's own folder."""

import numpy as np
import pytest
import torch
from fakes import FakeObjects, draw_sample, write_folder
from lightning import seed_everything

from probseg.data import FolderDataModule, InteractiveDataModule
from probseg.errors import DatasetNotFoundError


class OneObject(FakeObjects):
    """The same object again and again, so that equal crops can only come from equal chance."""

    def __getitem__(self, index):
        return self.samples[0]


def module(train=None, **options):
    options = {"batch_size": 2, "crop_size": 32, "num_workers": 0, **options}
    return InteractiveDataModule(train=train, **options)


def epochs(number, workers, seed=0, objects=8):
    """Batches of some epochs, each a list of tensors."""
    seed_everything(seed, workers=True, verbose=False)
    loader = module(OneObject(objects), num_workers=workers).train_dataloader()
    return [[batch.images for batch in loader] for _ in range(number)]


def test_training_batches():
    (batch, *others) = list(module(FakeObjects(7), batch_size=3).train_dataloader())
    assert len(others) == 1  # the seventh object would be a batch of its own
    assert batch.images.shape == (3, 3, 32, 32)
    assert batch.masks.shape == (3, 32, 32)
    assert batch.images.dtype == batch.masks.dtype == torch.uint8
    assert set(batch.masks.unique().tolist()) <= {0, 1, 255}


def test_images_are_red_first():
    red = draw_sample()._replace(image=np.full((48, 64, 3), (250, 60, 0), np.uint8))
    data = FakeObjects(2)
    data.samples = [red, red]
    batch = next(iter(module(data).train_dataloader()))
    r, g, b = (batch.images[:, c][batch.masks == 1].float().mean() for c in range(3))
    assert r >= g >= b
    assert r > 120


def test_data_sets_are_joined():
    joined = module([FakeObjects(3), FakeObjects(4)], batch_size=1)
    assert len(joined.train_dataloader()) == 7


def test_objects_are_shuffled_each_epoch():
    data = FakeObjects(16)
    seen = []
    original = type(data).__getitem__

    class Recording(FakeObjects):
        def __getitem__(self, index):
            seen.append(index)
            return original(self, index)

    loader = module(Recording(16)).train_dataloader()
    for _ in range(2):
        list(loader)
    assert sorted(seen[:16]) == sorted(seen[16:]) == list(range(16))
    assert seen[:16] != seen[16:]
    assert seen[:16] != list(range(16))


@pytest.mark.parametrize("workers", [0, 2])
def test_no_crop_is_seen_twice_and_seeds_repeat(workers):
    # albumentations' own generator is copied by fork: unseeded, the workers and the epochs repeat.
    runs = [epochs(2, workers) for _ in range(2)]
    crops = torch.cat([image for epoch in runs[0] for image in epoch])
    assert len(crops) == 16
    assert len({crop.numpy().tobytes() for crop in crops}) == 16
    for first, again in zip(runs[0], runs[1], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    other = epochs(1, workers, seed=1)[0]
    assert not any(torch.equal(a, b) for a, b in zip(other, runs[0][0], strict=True))


def test_evaluation_sees_whole_objects_in_order():
    val = [FakeObjects(2, name="first"), FakeObjects(3, name="second")]
    data = InteractiveDataModule(val=val, test=FakeObjects(1))
    loaders = data.val_dataloader()
    assert [len(loader) for loader in loaders] == [2, 3]
    for objects, loader in zip(val, loaders, strict=True):
        for index, batch in enumerate(loader):
            (sample,) = batch
            assert sample.name == f"object{index}"
            assert sample.dataset == objects.name
            np.testing.assert_array_equal(sample.image, objects[index].image)
    assert [len(loader) for loader in data.test_dataloader()] == [1]


def test_no_validation_is_possible():
    assert module(FakeObjects(2)).val_dataloader() == []


def test_missing_training_and_test_data_are_named():
    with pytest.raises(ValueError, match=r"no training data: set `data\.train`"):
        module().train_dataloader()
    with pytest.raises(ValueError, match=r"no test data: set `data\.test`"):
        module().test_dataloader()


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match=r"batch_size 5 .* the 4 training objects.*smaller"):
        module(FakeObjects(4), batch_size=5).train_dataloader()


def stems(subset):
    everything = subset.dataset
    return {everything.objects[i][0].stem for i in subset.indices}


def test_a_folder_is_split_by_image(tmp_path):
    data = FolderDataModule(write_folder(tmp_path, images=10, objects=3), val_fraction=0.3)
    train, val = stems(data.train[0]), stems(data.val[0])
    assert len(val) == 3
    assert not train & val
    assert len(train | val) == 10
    assert len(data.train[0]) == 21
    assert len(data.val[0]) == 9
    assert stems(data.test[0]) == val


def test_the_split_follows_its_seed_alone(tmp_path):
    write_folder(tmp_path, images=10)

    def split(seed):
        return stems(FolderDataModule(tmp_path, val_fraction=0.3, split_seed=seed).val[0])

    np.random.seed(1)
    first = split(0)
    np.random.seed(2)
    assert split(0) == first
    assert any(split(seed) != first for seed in range(1, 5))


@pytest.mark.parametrize(("fraction", "expected"), [(0.01, 1), (0.5, 2), (0.99, 2)])
def test_both_sides_of_the_split_get_an_image(tmp_path, fraction, expected):
    data = FolderDataModule(write_folder(tmp_path), val_fraction=fraction)
    assert len(stems(data.val[0])) == expected
    assert len(stems(data.train[0])) == 3 - expected


def test_a_folder_trains_and_validates(tmp_path):
    data = FolderDataModule(
        write_folder(tmp_path, images=5), batch_size=2, crop_size=32, num_workers=0
    )
    assert next(iter(data.train_dataloader())).images.shape == (2, 3, 32, 32)
    (sample,) = next(iter(data.val_dataloader()[0]))
    assert sample.image.shape == (48, 64, 3)


@pytest.mark.parametrize("fraction", [0, 1, -1])
def test_the_fraction_is_checked(tmp_path, fraction):
    with pytest.raises(ValueError, match=f"val_fraction must lie between 0 and 1, got {fraction}"):
        FolderDataModule(write_folder(tmp_path), val_fraction=fraction)


def test_one_image_cannot_be_split(tmp_path):
    with pytest.raises(ValueError, match="at least 2 images, got 1") as caught:
        FolderDataModule(write_folder(tmp_path, images=1, objects=3))
    assert str(tmp_path) in str(caught.value)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="images/ and masks/"):
        FolderDataModule(tmp_path / "nowhere")


@pytest.mark.parametrize(("most", "kept"), [(None, range(10)), (3, [0, 3, 6]), (99, range(10))])
def test_validation_takes_objects_from_all_over_the_set(most, kept):
    data = InteractiveDataModule(val=FakeObjects(10), val_objects=most)
    (loader,) = data.val_dataloader()
    assert [batch[0].name for batch in loader] == [FakeObjects(10)[i].name for i in kept]


def test_a_validation_of_no_object_is_refused():
    with pytest.raises(ValueError, match="val_objects must be at least 1"):
        InteractiveDataModule(val_objects=0)
