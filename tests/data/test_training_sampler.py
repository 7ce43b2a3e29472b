"""Which crops the processes of a training get: the same ones in all whatever their number."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.data import InteractiveDataModule
from probseg.data.loading import SkipCounter
from probseg.data.sampling import RETRIES, Shuffled, TrainingSampler
from probseg.errors import DataError
from support.fakes import FakeObjects


def batches(sampler):
    """What a sampler deals, cut into its batches."""
    dealt = list(sampler)
    size = sampler.batch_size
    return [dealt[start : start + size] for start in range(0, len(dealt), size)]


@given(
    count=st.integers(1, 60),
    together=st.sampled_from([(1, 4), (2, 2), (4, 1)]),
    epoch=st.integers(0, 5),
    seed=st.integers(0, 2**63 - 1),
)
def test_the_global_batch_does_not_depend_on_the_number_of_processes(count, together, epoch, seed):
    size, processes = together
    alone = TrainingSampler(Shuffled(count), seed=seed, batch_size=4)
    shares = [
        TrainingSampler(Shuffled(count), seed=seed, batch_size=size, processes=processes, rank=rank)
        for rank in range(processes)
    ]
    for sampler in (alone, *shares):
        sampler.set_epoch(epoch)
    expected = batches(alone)
    joined = [[*chain(*parts)] for parts in zip(*map(batches, shares), strict=True)]
    assert joined == expected
    assert len(expected) == count // 4
    assert [len(share) for share in shares] == [count // 4 * size] * processes
    indices = [draw.number for draw in chain(*expected)]
    assert len(set(indices)) == len(indices)


@given(count=st.integers(8, 40), epoch=st.integers(0, 3), batch=st.integers(0, 10))
def test_an_epoch_goes_on_where_it_was(count, epoch, batch):
    whole = TrainingSampler(Shuffled(count), seed=1, batch_size=3)
    whole.set_epoch(epoch)
    rest = TrainingSampler(Shuffled(count), seed=1, batch_size=3)
    rest.go_to(epoch, batch)
    rest.set_epoch(epoch)  # as Lightning does before the epoch
    assert batches(rest) == batches(whole)[batch:]
    assert len(rest) == len(whole), "the length is that of a whole epoch"
    for sampler in (whole, rest):
        sampler.set_epoch(epoch + 1)
    assert list(rest) == list(whole)


def test_epochs_and_seeds_have_orders_and_seeds_of_their_own():
    def dealt(seed, epoch):
        sampler = TrainingSampler(Shuffled(20), seed=seed, batch_size=4)
        sampler.set_epoch(epoch)
        return list(sampler)

    runs = [dealt(0, 0), dealt(0, 1), dealt(1, 0)]
    orders = {tuple(draw.number for draw in run) for run in runs}
    seeds = {draw.seed for run in runs for draw in run}
    assert len(orders) == 3
    assert len(seeds) == 60
    assert all(0 <= seed < 2**63 for seed in seeds)


class Broken(FakeObjects):
    """Some of its objects cannot be read, and one may have no pixel."""

    def __init__(self, count, broken, empty=None):
        super().__init__(count, size=(32, 32))
        self.broken = broken
        self.empty = empty

    def __getitem__(self, index):
        if index in self.broken:
            msg = f"photo{index}.jpg: cannot be read"
            raise DataError(msg)
        sample = super().__getitem__(index)
        return sample._replace(mask=sample.mask * 0) if index == self.empty else sample


def loaded(data, workers=0, **options):
    options = {"batch_size": 4, "crop_size": 32, "num_workers": workers, **options}
    return InteractiveDataModule(data, **options)


@pytest.mark.parametrize("workers", [0, 1])
def test_another_object_takes_the_place_of_a_broken_one(workers):
    whole = list(loaded(Broken(16, set())).train_dataloader())
    holed = list(loaded(Broken(16, {3}, empty=7), workers).train_dataloader())
    skipped = set(chain(*(batch.skipped for batch in holed)))
    empty = "object7 of fakes: the mask has no pixel of the object"
    assert skipped == {"photo3.jpg: cannot be read", empty}
    for before, after in zip(whole, holed, strict=True):
        assert torch.equal(before.seeds, after.seeds)
        pairs = zip(before.names, after.names, before.images, after.images, strict=True)
        for name, other, image, crop in pairs:
            replaced = name in ("object3", "object7")
            assert (other != name) == replaced
            assert replaced or torch.equal(crop, image)


def test_what_takes_a_place_is_of_the_same_epoch():
    """Objects that the order never deals, those of weight 0 for instance, are no replacements."""

    class First(Shuffled):
        def indices(self, seed, epoch):
            return super().indices(seed, epoch) % 8

    data = loaded(Broken(40, {0, 1, 2}))
    data.order = First(16)
    names = {name for batch in data.train_dataloader() for name in batch.names}
    assert names <= {f"object{number}" for number in range(3, 8)}


def test_a_set_that_cannot_be_read_at_all_is_given_up():
    everything = loaded(Broken(16, set(range(16)))).train_dataloader()
    with pytest.raises(DataError, match=rf"{RETRIES + 1} samples cannot be used, one after the"):
        next(iter(everything))


def test_too_many_broken_files_stop_the_training_with_their_list():
    skips = SkipCounter(2)
    with pytest.warns(UserWarning, match="left out") as warned:
        skips.add(["a.jpg: bad", "a.jpg: bad", "b.jpg: bad", "a.jpg: bad"])
    assert len(warned) == 2
    with (
        pytest.warns(UserWarning, match=r"left out of the training: c\.jpg: bad"),
        pytest.raises(DataError, match=r"3 samples .* `max_skipped` \(2\)") as caught,
    ):
        skips.add(["c.jpg: bad"])
    assert all(f"\n  {name}.jpg: bad" in str(caught.value) for name in "abc")
    assert "probseg data check" in str(caught.value)


def test_data_that_are_no_fault_of_a_file_are_not_skipped():
    class Wrong(FakeObjects):
        def __getitem__(self, index):
            msg = "a slip in the code of a data set"
            raise TypeError(msg)

    with pytest.raises(TypeError, match="a slip"):
        next(iter(loaded(Wrong(8)).train_dataloader()))
