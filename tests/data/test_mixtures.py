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
from lightning import seed_everything
from scipy.stats import chisquare

import probseg.data.sampling as mixing
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
from support.fakes import FakeObjects, draw_sample
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


def per_set(indices, sizes):
    """Count the indices of each set."""
    ends = np.cumsum(sizes)
    assert min(indices) >= 0
    assert max(indices) < ends[-1]
    return np.bincount(np.searchsorted(ends, indices, side="right"), minlength=len(ends)).tolist()


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
    assert indices.dtype == np.int64
    counts = per_set(indices, sizes)
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


@pytest.mark.parametrize("size", [20, 33])
def test_the_parts_of_a_set_differ_from_epoch_to_epoch(size):
    """Half of the objects per epoch: the halves of each pass and of each seed are others."""
    first_halves = {
        frozenset(evenly(2 * size, size, seed, 2 * number).tolist())
        for seed in range(2)
        for number in range(10)
    }
    assert len(first_halves) == 20


def test_every_object_is_as_likely_as_any_other():
    # 3 of 7 objects: most hands are dealt from two packs, whose orders depend on each other.
    drawn = [evenly(7, 3, seed, epoch) for seed in range(700) for epoch in (2, 3)]
    assert chisquare(np.bincount(np.concatenate(drawn), minlength=7)).pvalue > 0.01
    hands = Counter(tuple(sorted(hand.tolist())) for hand in drawn[::2])  # epoch 2: two packs
    assert len(hands) == math.comb(7, 3)
    assert chisquare(list(hands.values())).pvalue > 0.01


def test_epochs_are_functions_of_seed_and_number_alone(tmp_path):
    def mixture():
        return MixedOrder([*sets(9, 40), weighted(tmp_path, range(11))], [0.3, 0.3, 0.4], 50)

    forwards = mixture()
    epochs = [forwards.indices(5, epoch) for epoch in range(6)]
    np.random.seed(1)
    for epoch in reversed(range(6)):
        np.testing.assert_array_equal(mixture().indices(5, epoch), epochs[epoch])
    others = [forwards.indices(6, epoch) for epoch in range(6)]
    assert len({indices.tobytes() for indices in (*epochs, *others)}) == 12
    assert len({tuple(sorted(indices)) for indices in (*epochs, *others)}) == 12


def test_sets_of_one_size_have_orders_of_their_own():
    indices = MixedOrder(sets(50, 50), None, 40).indices(0, 0)
    first, second = indices[indices < 50], indices[indices >= 50] - 50
    assert set(first.tolist()) != set(second.tolist())
    everything = MixedOrder(sets(1000, 1000)).indices(0, 0)  # by default all of them once
    assert sorted(everything) == list(range(2000))
    assert 440 < (everything[:1000] < 1000).sum() < 560  # neither set comes first


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


def test_weights_are_followed_on_average():
    weights = np.array([0.5, 0, 3, 1, 2.5, 1])
    single = np.concatenate([systematic(weights, 1, seed) for seed in range(4000)])
    times = np.bincount(single, minlength=6)
    assert times[1] == 0
    real = weights > 0
    expected = weights[real] / weights.sum() * 4000
    assert chisquare(times[real], expected).pvalue > 0.01
    several = np.concatenate([systematic(weights, 5, seed) for seed in range(800)])
    times = np.bincount(several, minlength=6)
    np.testing.assert_allclose(times[real], expected, rtol=0.1)
    assert sorted(systematic(np.array([1.7e308, 0, 1.7e308]), 4, 0)) == [0, 0, 2, 2]


def test_weights_count_within_their_set(tmp_path):
    heavy = weighted(tmp_path, [0, 1, 3])
    mixture = MixedOrder([Numbers(10), heavy], [1, 4], 50)
    for epoch in range(5):
        used = np.bincount(mixture.indices(0, epoch), minlength=13)
        assert used[:10].tolist() == [1] * 10
        assert used[10:].tolist() == [0, 10, 30]
    mixture = MixedOrder([weighted(tmp_path, [1] * 40)], None, 10)
    assert len({tuple(sorted(mixture.indices(0, epoch))) for epoch in range(9)}) == 9


def test_the_rounding_of_the_last_point_leads_to_an_object():
    class Latest:
        """Draws the number closest to 1."""

        def random(self):
            return np.nextafter(1, 0)

        def permutation(self, numbers):
            return numbers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "default_rng", lambda seed: Latest())
        drawn = systematic(np.array([0.1, 0.3, 0.2, 0]), 1000, 0)
    assert drawn[-1] == 2


@each(
    ("arguments", "words"),
    [
        ({"proportions": [0.5]}, ["proportions", "(2: set0_, set1_), got 1"]),
        ({"proportions": [1, 0]}, ["proportions", "got 0 for set1_"]),
        ({"proportions": [-1, 1]}, ["proportions", "got -1 for set0_"]),
        ({"proportions": [1, math.nan]}, ["proportions", "got nan for set1_"]),
        ({"proportions": [math.inf, 1]}, ["proportions", "got inf for set0_"]),
        ({"samples_per_epoch": 0}, ["samples_per_epoch", "got 0"]),
        ({"proportions": [1, 999], "samples_per_epoch": 100}, ["set0_", "100 samples"]),
        ({"samples_per_epoch": 1}, ["set0_", "1 samples"]),
    ],
)
def test_what_does_not_fit_is_refused(arguments, words):
    for make in (MixedOrder, InteractiveDataModule):
        refused(DataError, lambda make=make: make(sets(5, 10), **arguments), *words)


def test_empty_sets_and_epochs_smaller_than_a_batch_are_refused():
    refused(DataError, lambda: MixedOrder(sets(5, 0), [1, 1]), "set1_: has no object")
    refused(DataError, lambda: InteractiveDataModule(proportions=[1, 1]), "(0: none), got 2")
    data = InteractiveDataModule(sets(20), batch_size=8, samples_per_epoch=7)
    refused(DataError, data.train_dataloader, "`batch_size`", "7 training objects", "got 8")


class Named(FakeObjects):
    """Drawn objects whose names say which set they are of."""

    def __init__(self, length, name):
        self.name = name
        samples = [draw_sample(16, 16, seed=i) for i in range(length)]
        self.samples = [s._replace(name=f"{name}#{i}") for i, s in enumerate(samples)]


def test_batches_have_the_proportions():
    seed_everything(0, verbose=False)
    data = InteractiveDataModule(
        [Named(3, "few"), Named(30, "many")],
        batch_size=4,
        crop_size=32,
        num_workers=0,
        proportions=[0.6, 0.4],
        samples_per_epoch=20,
    )
    loader = data.train_dataloader()
    assert len(loader) == 5
    seen = []
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        seen.append(Counter(name for batch in loader for name in batch.names))
        of_set = Counter(name.split("#")[0] for name in seen[-1].elements())
        assert of_set == {"few": 12, "many": 8}
        assert [seen[-1][f"few#{i}"] for i in range(3)] == [4, 4, 4]
    assert max(sum(seen, Counter())[f"many#{i}"] for i in range(30)) == 1


def test_no_epoch_needs_all_epochs_before_it(monkeypatch):
    shuffled = []
    original = mixing._shuffled

    def counted(size, seed, pack):
        shuffled.append(size)
        return original(size, seed, pack)

    monkeypatch.setattr(mixing, "_shuffled", counted)
    for epoch in (0, 46, 47, 10**6):
        indices = MixedOrder(sets(12_700, 200), [0.9, 0.1], 300).indices(0, epoch)
        assert len(np.unique(indices)) == 300
        assert max(Counter(shuffled).values()) <= 4  # two packs, and what each looks at
        shuffled.clear()


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
