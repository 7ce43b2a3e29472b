"""Mixtures: how many objects of each set an epoch has, how evenly, and by which weights."""

import math
from collections import Counter
from fractions import Fraction
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import chisquare

from probseg.data import InteractiveDataModule
from probseg.data.base import InteractiveDataset
from probseg.data.loading import SkipCounter
from probseg.data.sampling import (
    RETRIES,
    MixedOrder,
    Shuffled,
    TrainingSampler,
    evenly,
    largest_remainders,
    systematic,
)
from probseg.data.selection import Selected
from probseg.errors import DataError
from support.fakes import FakeObjects
from support.refusals import refused
from support.rows import each


class Numbers(InteractiveDataset):
    """Objects without images, named by their numbers."""

    def __init__(self, length, name="numbers"):
        self.length = length
        self.name = name

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        pytest.fail("nothing has to be read")

    def object_name(self, index):
        return f"{self.name}{index}#1"


def sets(*sizes):
    return [Numbers(size, f"set{number}_") for number, size in enumerate(sizes)]


def weighted(tmp_path, weights, name="heavy"):
    """A data set whose objects have weights."""
    path = tmp_path / f"{name}.tsv"
    lines = [f"{name}{number}#1\t{weight!r}\n" for number, weight in enumerate(weights)]
    path.write_text("".join(lines))
    return Selected(Numbers(len(weights), name), weights=path)


sizes_of_sets = st.lists(st.integers(1, 30), min_size=1, max_size=4)
seeds = st.integers(0, 2**63 - 1)


@given(sizes=sizes_of_sets, samples=st.integers(1, 200), epoch=st.integers(0, 99), data=st.data())
def test_each_set_has_its_share(sizes, samples, epoch, data):
    positive = st.floats(1e-3, 1e3)
    shares = data.draw(st.lists(positive, min_size=len(sizes), max_size=len(sizes)))
    quotas = [samples * Fraction(share) / sum(map(Fraction, shares)) for share in shares]
    assume(all(quota >= 1 for quota in quotas))
    mixture = MixedOrder(sets(*sizes), shares, samples)
    indices = mixture.indices(data.draw(seeds), epoch)
    assert len(mixture) == len(indices) == samples
    ends = np.cumsum(sizes)
    assert 0 <= min(indices) <= max(indices) < ends[-1]
    counts = np.bincount(np.searchsorted(ends, indices, side="right"), minlength=len(ends)).tolist()
    assert counts == mixture.counts
    assert all(math.floor(q) <= c <= math.ceil(q) for c, q in zip(counts, quotas, strict=True))
    up = [q - math.floor(q) for c, q in zip(counts, quotas, strict=True) if c > q]
    down = [q - math.floor(q) for c, q in zip(counts, quotas, strict=True) if c < q]
    assert not (up and down) or min(up) >= max(down)


@each(
    ("total", "shares", "expected"),
    [
        (10, [1, 1, 1], [4, 3, 3]),
        (100, [0.7, 0.2, 0.1], [70, 20, 10]),
        (30000, [0.1] * 3, [10000] * 3),
        (21, [41, 53, 6], [9, 11, 1]),
        (5, [1e-9, 1], [0, 5]),
        (3_000_000_019, [2, 1], [2_000_000_013, 1_000_000_006]),
    ],
)
def test_largest_remainders(total, shares, expected):
    assert largest_remainders(total, shares) == expected


@given(size=st.integers(1, 13), count=st.integers(0, 40), seed=seeds, late=st.integers(30, 1000))
def test_objects_are_used_evenly_in_each_epoch_and_over_all(size, count, seed, late):
    total = np.zeros(size, dtype=int)
    for epoch in (*range(30), late):
        used = np.bincount(evenly(size, count, seed, epoch), minlength=size)
        assert used.shape == (size,)
        assert used.sum() == count
        total += used
        for uses in (used, total) if epoch < 30 else (used,):
            assert uses.max() - uses.min() <= 1


def test_every_object_is_as_likely_as_any_other():
    # 3 of 7 objects: most hands are dealt from two packs, whose orders depend on each other.
    drawn = [evenly(7, 3, seed, epoch) for seed in range(700) for epoch in (2, 3)]
    assert chisquare(np.bincount(np.concatenate(drawn), minlength=7)).pvalue > 0.01
    hands = Counter(tuple(sorted(hand.tolist())) for hand in drawn[::2])  # epoch 2: two packs
    assert len(hands) == math.comb(7, 3)
    assert chisquare(list(hands.values())).pvalue > 0.01
    weights = np.array([0.5, 0, 3, 1, 2.5, 1])
    times = np.bincount(np.concatenate([systematic(weights, 1, seed) for seed in range(4000)]))
    assert times[1] == 0
    assert chisquare(times[weights > 0], weights[weights > 0] / 8 * 4000).pvalue > 0.01
    assert sorted(systematic(np.array([1.7e308, 0, 1.7e308]), 4, 0)) == [0, 0, 2, 2]


def test_epochs_are_functions_of_seed_and_number_alone(tmp_path):
    def mixture():
        return MixedOrder([*sets(20, 20), weighted(tmp_path, range(11))], [0.3, 0.3, 0.4], 50)

    forwards = mixture()
    epochs = [forwards.indices(5, epoch) for epoch in range(6)]
    np.random.seed(1)
    for epoch in reversed(range(6)):
        np.testing.assert_array_equal(mixture().indices(5, epoch), epochs[epoch])
    others = [forwards.indices(6, epoch) for epoch in range(6)]
    assert len({tuple(sorted(indices)) for indices in (*epochs, *others)}) == 12
    of_sets = [{int(i) % 20 for i in epochs[0] if i // 20 == number} for number in range(2)]
    assert of_sets[0] != of_sets[1]


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-300, 1e-3, 0.5, 1, 2, 7.25, 1e300]), min_size=1),
    count=st.integers(1, 60),
    seed=seeds,
)
def test_weights_are_followed_to_a_sample(weights, count, seed):
    assume(any(weights))
    drawn = systematic(np.array(weights), count, seed)
    assert drawn.shape == (count,)
    assert drawn.dtype == np.int64
    for index, weight in enumerate(weights):
        exact = Fraction(weight) * count / sum(map(Fraction, weights))
        times = (drawn == index).sum()
        assert abs(times - exact) < 1 + 1e-9
        assert weight > 0 or times == 0


def test_weights_count_within_their_set(tmp_path):
    heavy = weighted(tmp_path, [0, 1, 3])
    mixture = MixedOrder([Numbers(10), heavy], [1, 4], 50)
    for epoch in range(5):
        used = np.bincount(mixture.indices(0, epoch), minlength=13)
        assert used[:10].tolist() == [1] * 10
        assert used[10:].tolist() == [0, 10, 30]
    mixture = MixedOrder([weighted(tmp_path, [1] * 40)], None, 10)
    assert len({tuple(sorted(mixture.indices(0, epoch))) for epoch in range(9)}) == 9


@each(
    ("sizes", "arguments", "words"),
    [
        ((5, 10), {"proportions": [0.5]}, ["proportions", "(2: set0_, set1_), got [0.5]"]),
        *(
            ((5, 10), {"proportions": x}, [f"got {x}"])
            for x in ([1, 0], [1, math.nan], [math.inf, 1])
        ),
        ((5, 10), {"samples_per_epoch": 0}, ["set0_", "0 samples", "raise `samples_per_epoch`"]),
        ((5, 10), {"proportions": [1, 999], "samples_per_epoch": 100}, ["set0_", "100 samples"]),
        ((5, 0), {}, ["set1_: has no object"]),
        ((), {"proportions": [1, 1]}, ["(0: none), got [1, 1]"]),
    ],
)
def test_what_does_not_fit_is_refused(sizes, arguments, words):
    for make in (MixedOrder, InteractiveDataModule):
        refused(DataError, lambda make=make: make(sets(*sizes), **arguments), *words)


def dealt(count=20, epoch=0, position=None, seed=1, **options):
    """A sampler, and what it deals in an epoch, cut into its batches."""
    sampler = TrainingSampler(Shuffled(count), seed=seed, **{"batch_size": 4, **options})
    if position is not None:
        sampler.go_to(epoch, position)
    sampler.set_epoch(epoch)  # as Lightning does before the epoch
    draws, size = list(sampler), sampler.batch_size
    return sampler, [draws[start : start + size] for start in range(0, len(draws), size)]


@given(
    count=st.integers(1, 60),
    together=st.sampled_from([(1, 4), (2, 2), (4, 1)]),
    epoch=st.integers(0, 5),
    seed=seeds,
)
def test_the_global_batch_does_not_depend_on_the_number_of_processes(count, together, epoch, seed):
    size, processes = together
    _, alone = dealt(count, epoch, seed=seed)
    options = {"seed": seed, "batch_size": size, "processes": processes}
    shares = [dealt(count, epoch, rank=rank, **options) for rank in range(processes)]
    joined = [[*chain(*parts)] for parts in zip(*(batches for _, batches in shares), strict=True)]
    assert joined == alone
    assert len(alone) == count // 4
    assert [len(sampler) for sampler, _ in shares] == [count // 4 * size] * processes
    indices = [draw.number for draw in chain(*alone)]
    assert len(set(indices)) == len(indices)


@given(count=st.integers(8, 40), epoch=st.integers(0, 3), batch=st.integers(0, 10))
def test_an_epoch_goes_on_where_it_was(count, epoch, batch):
    whole, batches = dealt(count, epoch)
    rest, later = dealt(count, epoch, position=batch)
    assert later == batches[batch:]
    assert len(rest) == len(whole), "the length is that of a whole epoch"
    for sampler in (whole, rest):
        sampler.set_epoch(epoch + 1)
    assert list(rest) == list(whole)


def test_epochs_and_seeds_have_orders_and_seeds_of_their_own():
    runs = [[*chain(*dealt(20, epoch, seed=seed)[1])] for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(draw.number for draw in run) for run in runs}) == 3
    crops = {draw.seed for run in runs for draw in run}
    assert len(crops) == 60
    assert all(0 <= seed < 2**63 for seed in crops)


class Broken(FakeObjects):
    """Some of its objects cannot be read, and one may have no pixel."""

    def __init__(self, count, broken, empty=None):
        super().__init__(count, size=(32, 32))
        self.broken, self.empty = broken, empty

    def __getitem__(self, index):
        if index in self.broken:
            raise DataError(f"photo{index}.jpg: cannot be read")
        sample = super().__getitem__(index)
        return sample._replace(mask=sample.mask * 0) if index == self.empty else sample

    def loader(self, workers=0, order=None):
        data = InteractiveDataModule(self, batch_size=4, crop_size=32, num_workers=workers)
        data.order = order or data.order
        return data.train_dataloader()


@pytest.mark.parametrize("workers", [0, 1])
def test_another_object_takes_the_place_of_a_broken_one(workers):
    whole = list(Broken(16, set()).loader())
    holed = list(Broken(16, {3}, empty=7).loader(workers))
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

    loader = Broken(40, {0, 1, 2}).loader(order=First(16))
    names = {name for batch in loader for name in batch.names}
    assert names <= {f"object{number}" for number in range(3, 8)}


def test_a_set_that_cannot_be_read_at_all_is_given_up():
    with pytest.raises(DataError, match=rf"{RETRIES + 1} samples cannot be used, one after the"):
        next(iter(Broken(16, set(range(16))).loader()))
    wrong = Broken(8, set())
    wrong.samples = [None] * 8  # a slip in the code of a data set is no fault of a file
    with pytest.raises(AttributeError):
        next(iter(wrong.loader()))


def test_too_many_broken_files_stop_the_training_with_their_list():
    skips = SkipCounter(2)
    with pytest.warns(UserWarning, match="left out") as warned:
        skips.add(["a.jpg: bad", "a.jpg: bad", "b.jpg: bad", "a.jpg: bad"])
    assert len(warned) == 2
    words = ("3 samples", "`max_skipped` (2)", "probseg data check")
    words += tuple(f"\n  {name}.jpg: bad" for name in "abc")
    with pytest.warns(UserWarning, match=r"left out of the training: c\.jpg: bad"):
        refused(DataError, lambda: skips.add(["c.jpg: bad"]), *words)
