"""Data modules: batches, chance in worker processes, and the split of one's own folder."""

from itertools import chain

import numpy as np
import pytest
import torch
from fakes import FakeObjects, draw_sample, write_folder
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from probseg.data import FolderDataModule, InteractiveDataModule
from probseg.errors import DataError


class OneObject(FakeObjects):
    """The same object again and again, so that equal crops can only come from equal chance."""

    def __getitem__(self, index):
        return self.samples[0]


def module(train=None, **options):
    options = {"batch_size": 2, "crop_size": 32, "num_workers": 0, **options}
    return InteractiveDataModule(train=train, **options)


def epochs(number, workers, seed=0, objects=8):
    """Batches of some epochs, each a list of tensors."""
    data = module(OneObject(objects), num_workers=workers)
    data.seed = seed
    loader = data.train_dataloader()
    batches = []
    for epoch in range(number):
        loader.sampler.set_epoch(epoch)
        batches.append([batch.images for batch in loader])
    return batches


def test_training_batches():
    (batch, *others) = list(module(FakeObjects(7), batch_size=3).train_dataloader())
    assert len(others) == 1  # the seventh object would be a batch of its own
    assert batch.images.shape == (3, 3, 32, 32)
    assert batch.masks.shape == (3, 32, 32)
    assert batch.images.dtype == batch.masks.dtype == torch.uint8
    assert set(batch.masks.unique().tolist()) <= {0, 1, 255}
    assert batch.seeds.shape == (3,)
    assert batch.seeds.dtype == torch.int64
    assert len({*batch.names, *others[0].names}) == 6
    assert batch.skipped == []


def test_images_are_red_first():
    red = draw_sample()._replace(image=np.full((48, 64, 3), (250, 60, 0), np.uint8))
    data = FakeObjects(2)
    data.samples = [red, red]
    batch = next(iter(module(data).train_dataloader()))
    r, g, b = (batch.images[:, c][batch.masks == 1].float().mean() for c in range(3))
    assert r >= g >= b
    assert r > 120


def test_objects_are_shuffled_each_epoch():
    data = FakeObjects(16)
    seen = []
    original = type(data).__getitem__

    class Recording(FakeObjects):
        def __getitem__(self, index):
            seen.append(index)
            return original(self, index)

    loader = module(Recording(16)).train_dataloader()
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        list(loader)
    assert sorted(seen[:16]) == sorted(seen[16:]) == list(range(16))
    assert seen[:16] != seen[16:]
    assert seen[:16] != list(range(16))


def test_no_crop_is_seen_twice():
    seen = epochs(2, workers=0)
    crops = torch.cat([image for epoch in seen for image in epoch])
    assert len(crops) == 16
    assert len({crop.numpy().tobytes() for crop in crops}) == 16
    other = epochs(1, workers=0, seed=1)[0]
    assert not any(torch.equal(a, b) for a, b in zip(other, seen[0], strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_seeds_repeat_with_any_number_of_workers(workers):
    for first, again in zip(epochs(2, workers=0), epochs(2, workers), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def names(batches):
    return [[sample.name for sample in batch] for batch in batches]


def test_evaluation_sees_whole_objects_in_order():
    val = [FakeObjects(2, name="first"), FakeObjects(3, name="second")]
    data = InteractiveDataModule(val=val, test=FakeObjects(1))
    for objects, loader in zip(val, data.val_dataloader(), strict=True):
        (samples,) = loader
        assert names([samples]) == [[f"object{i}" for i in range(len(objects))]]
        for sample, expected in zip(samples, objects, strict=True):
            assert sample.dataset == objects.name
            np.testing.assert_array_equal(sample.image, expected.image)
            np.testing.assert_array_equal(sample.mask, expected.mask)
    assert [len(loader) for loader in data.test_dataloader()] == [1]


def test_evaluation_reads_16_objects_at_once_unless_told():
    loader = InteractiveDataModule(test=FakeObjects(17, size=(8, 8))).test_dataloader()[0]
    assert [len(batch) for batch in loader] == [16, 1]


@given(length=st.integers(1, 9), size=st.integers(1, 10))
def test_blocks_are_neighbours_and_the_last_one_is_what_is_left(length, size):
    objects = FakeObjects(length, size=(8, 8))
    data = InteractiveDataModule(val=objects, test=objects, eval_batch_size=size)
    expected = [f"object{i}" for i in range(length)]
    for loader in (*data.val_dataloader(), *data.test_dataloader()):
        batches = names(loader)
        assert [*chain(*batches)] == expected
        assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
        assert 1 <= len(batches[-1]) <= size
        assert len(loader) == len(batches)


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_blocks_stay_whole_when_processes_share_them(processes):
    """What a block is made of decides how batched kernels round."""
    (loader,) = InteractiveDataModule(test=FakeObjects(10), eval_batch_size=3).test_dataloader()
    alone = names(loader)
    assert [len(block) for block in alone] == [3, 3, 3, 1]
    shares = []
    for rank in range(processes):
        sampler = DistributedSampler(loader.dataset, processes, rank, shuffle=False)
        of_process = DataLoader(
            loader.dataset, batch_size=1, sampler=sampler, collate_fn=loader.collate_fn
        )
        shares.append(names(of_process))
    assert all(block in alone for share in shares for block in share)
    assert all(block in [*chain(*shares)] for block in alone)
    assert {len(share) for share in shares} == {-(-len(alone) // processes)}


def test_an_evaluation_of_no_object_at_once_is_refused(tmp_path):
    told = "eval_batch_size must be at least 1, got 0"
    with pytest.raises(ValueError, match=told):
        InteractiveDataModule(test=FakeObjects(1), eval_batch_size=0)
    with pytest.raises(ValueError, match=told):
        FolderDataModule(write_folder(tmp_path), eval_batch_size=0)


def test_no_validation_is_possible():
    assert module(FakeObjects(2)).val_dataloader() == []


@pytest.mark.parametrize("role", ["val", "test"])
def test_sets_of_one_name_would_overwrite_each_other(role):
    sets = [FakeObjects(1, name=name) for name in ("one", "twice", "twice")]
    with pytest.raises(DataError, match=f"^{role}: .* got one, twice, twice; .*'twice'.*`name`"):
        InteractiveDataModule(**{role: sets})
    InteractiveDataModule(train=sets, val=sets[:2], test=sets[:2])


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


@pytest.mark.parametrize("fraction", [0, 1, -1])
def test_the_fraction_is_checked(tmp_path, fraction):
    with pytest.raises(ValueError, match=f"val_fraction must lie between 0 and 1, got {fraction}"):
        FolderDataModule(write_folder(tmp_path), val_fraction=fraction)


def test_one_image_cannot_be_split(tmp_path):
    with pytest.raises(ValueError, match="at least 2 images, got 1") as caught:
        FolderDataModule(write_folder(tmp_path, images=1, objects=3))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("most", "kept"), [(None, range(10)), (3, [0, 3, 6]), (99, range(10))])
def test_validation_takes_objects_from_all_over_the_set(most, kept):
    data = InteractiveDataModule(val=FakeObjects(10), val_objects=most)
    (loader,) = data.val_dataloader()
    assert [*chain(*names(loader))] == [f"object{i}" for i in kept]


def test_a_validation_of_no_object_is_refused():
    with pytest.raises(ValueError, match="val_objects must be at least 1"):
        InteractiveDataModule(val_objects=0)
