"""Data modules: batches, chance in worker processes, and the split of one's own folder."""

import re
import time
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image
from torch.utils.data import DataLoader, DistributedSampler

from probseg.cli import main
from probseg.data import COCO, FolderDataModule, ImageMaskFolder, InteractiveDataModule, loading
from probseg.data.loading import CachedObjects
from probseg.data.selection import Selected, held_out
from probseg.data.transforms import TrainingCrop
from probseg.errors import DataError
from probseg.images import read_image
from support.fakes import FakeObjects, write_folder
from support.refusals import refused
from support.rows import each


def module(train=None, **options):
    options = {"batch_size": 2, "crop_size": 32, "num_workers": 0, **options}
    return InteractiveDataModule(train=train, **options)


def epochs(number, workers, seed=0, objects=8):
    """Crops of some epochs of one object again and again: equal ones come from equal chance."""
    same = FakeObjects(objects)
    same.samples = same.samples[:1] * objects
    data = module(same, num_workers=workers)
    data.seed = seed
    loader = data.train_dataloader()
    crops = []
    for epoch in range(number):
        loader.sampler.set_epoch(epoch)
        crops += [crop.numpy().tobytes() for batch in loader for crop in batch.images]
    return crops


def test_training_batches():
    objects = FakeObjects(7)
    red = np.full((48, 64, 3), (250, 60, 0), np.uint8)
    objects.samples = [sample._replace(image=red) for sample in objects.samples]
    loader = module(objects, batch_size=3).train_dataloader()
    (batch, *others) = list(loader)
    assert len(others) == 1  # the seventh object would be a batch of its own
    assert batch.images.shape == (3, 3, 32, 32)
    assert batch.masks.shape == (3, 32, 32)
    assert batch.images.dtype == batch.masks.dtype == torch.uint8
    assert set(batch.masks.unique().tolist()) <= {0, 1, 255}
    assert (batch.seeds.shape, batch.seeds.dtype) == ((3,), torch.int64)
    assert len({*batch.names, *others[0].names}) == 6
    assert batch.skipped == []
    r, g, b = (batch.images[:, c][batch.masks == 1].float().mean() for c in range(3))
    assert r >= g >= b
    assert r > 120
    loader.sampler.set_epoch(1)  # objects are shuffled each epoch
    assert [*batch.names, *others[0].names] != [name for batch in loader for name in batch.names]


def test_no_crop_is_seen_twice_and_seeds_repeat_with_any_number_of_workers():
    crops = epochs(2, workers=0)
    assert len({*crops, *epochs(1, workers=0, seed=1)}) == 24
    assert epochs(2, workers=2) == crops


def test_no_more_processes_read_than_there_are_cores(monkeypatch):
    monkeypatch.setattr("probseg.data.loading.available_cores", lambda: 1)
    assert module(FakeObjects(4), num_workers=3).train_dataloader().num_workers == 1


def names(batches):
    return [[sample.name for sample in batch] for batch in batches]


@given(length=st.integers(1, 20), size=st.none() | st.integers(1, 10))
def test_evaluation_sees_blocks_of_whole_objects_in_order(length, size):
    objects = [FakeObjects(length, size=(8, 8), name=name) for name in ("first", "second")]
    options = {} if size is None else {"eval_batch_size": size}
    size = size or 16
    data = InteractiveDataModule(val=objects, test=objects[0], num_workers=0, **options)
    loaders = (*data.val_dataloader(), *data.test_dataloader())
    for loader, inner in zip(loaders, (*objects, objects[0]), strict=True):
        batches = list(loader)
        assert [*chain(*batches)] == inner.samples
        assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
        assert 1 <= len(batches[-1]) <= size
        assert len(loader) == len(batches)


@each("processes", [2, 3, 5])
def test_blocks_stay_whole_when_processes_share_them(processes):
    """The composition of a block decides how batched kernels round."""
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


@each(("most", "kept"), [(None, range(10)), (3, [0, 3, 6]), (99, range(10))])
def test_validation_takes_objects_from_all_over_the_set(most, kept):
    data = InteractiveDataModule(val=FakeObjects(10), val_objects=most)
    (loader,) = data.val_dataloader()
    assert [*chain(*names(loader))] == [f"object{i}" for i in kept]


@each(
    ("options", "words"),
    [
        ({"eval_batch_size": 0}, ["eval_batch_size", "at least 1, got 0"]),
        ({"val_objects": 0}, ["val_objects", "at least 1"]),
        ({"max_skipped": -1}, ["max_skipped", "got -1"]),
        ({"val_fraction": 0}, ["val_fraction", "got 0"]),
        ({"val_fraction": 1}, ["val_fraction", "got 1"]),
    ],
)
def test_arguments_out_of_range(tmp_path, options, words):
    root = write_folder(tmp_path)
    refused(ValueError, lambda: FolderDataModule(root, **options), *words)
    if "val_fraction" not in options:
        refused(ValueError, lambda: InteractiveDataModule(**options), *words)


def test_missing_and_too_few_data_are_named():
    assert module(FakeObjects(2)).val_dataloader() == []
    refused(ValueError, module().train_dataloader, "no training data", "`data.train`")
    refused(ValueError, module().test_dataloader, "no test data", "`data.test`")
    for count, options in ((4, {}), (20, {"samples_per_epoch": 4})):
        data = module(FakeObjects(count), batch_size=5, **options)
        refused(ValueError, data.train_dataloader, "`batch_size`", "4 training objects", "got 5")
    sets = [FakeObjects(1, name=name) for name in ("one", "twice", "twice")]
    for role in ("val", "test"):
        words = (f"{role}: ", "got one, twice, twice", "`name`")
        refused(DataError, lambda r=role: InteractiveDataModule(**{r: sets}), *words)
    InteractiveDataModule(train=sets, val=sets[:2], test=sets[:2])


def stems(folder):
    return {path.stem for path in folder.photographs}


def test_a_folder_is_split_by_image_as_its_seed_says(tmp_path):
    write_folder(tmp_path, images=10, objects=3)

    def split(**options):
        data = FolderDataModule(tmp_path, **{"val_fraction": 0.3, **options})
        assert data.test == data.val
        return data.train[0], data.val[0]

    train, val = split()
    assert len(train) == 3 * len(stems(train))
    assert not stems(train) & stems(val)
    assert len(stems(train) | stems(val)) == 10
    np.random.seed(2)
    splits = [stems(split(split_seed=seed)[1]) for seed in range(5)]
    assert splits[0] == stems(val)
    assert any(other != splits[0] for other in splits)
    for fraction, count in ((1e-6, 1), (1 - 1e-6, 9)):
        assert len(stems(split(val_fraction=fraction)[1])) == count
    for path in list((tmp_path / "masks").iterdir())[1:]:
        path.unlink()
    refused(ValueError, split, tmp_path, "at least 2 images, got 1")


@each(
    ("free", "workers", "said"),
    [
        (None, 4, ""),  # systems without it
        (64, 4, ""),
        (9, 3, "3 processes read instead of 4"),
        (1, 0, "0 processes read instead of 4 (the training reads itself)"),
    ],
)
def test_no_more_processes_read_than_shared_memory_has_room_for(
    free, workers, said, monkeypatch, caplog
):
    monkeypatch.setattr(loading, "_free_shared_memory", lambda: free and free * 2**20)
    monkeypatch.setattr(loading, "available_cores", lambda: 4)
    loader = module(FakeObjects(8), crop_size=512, batch_size=1, num_workers=4).train_dataloader()
    assert (loader.num_workers, said in caplog.text) == (workers, True)


class Late(FakeObjects):
    """Objects that arrive too late, as without shared memory."""

    def __getitem__(self, index):
        time.sleep(4)
        return super().__getitem__(index)


@pytest.mark.parametrize(("free", "said"), [(0, "for 0 s.* has 0.0 MB free"), (2**30, "for 1 s")])
def test_no_batch_is_waited_for_without_end(free, said, monkeypatch, caplog):
    monkeypatch.setattr(loading, "HEARTBEAT", 0.2)
    monkeypatch.setattr(loading, "LONGEST_WAIT", 0.5)
    loader = module(Late(4), batch_size=1, num_workers=1).train_dataloader()
    monkeypatch.setattr(loading, "_free_shared_memory", lambda: free)
    with pytest.raises(RuntimeError, match=f"no batch has come {said}"):
        next(iter(loader))
    assert ("no batch has come for 0 s" in caplog.text) == (free > 0)


@each(
    ("count", "expected"), [(2, 1), (30, 10), (60, 20), (72, 24), (120, 24), (160, 24), (400, 60)]
)
def test_of_a_few_photographs_more_are_held_out(count, expected):
    assert len(held_out({place: (place + 0.5) / count for place in range(count)})) == expected


@given(
    st.lists(st.floats(0, 0.99), min_size=3, max_size=200),
    st.integers(2, 200),
    st.sampled_from([None, 0.15]),
)
def test_what_was_trained_on_is_never_held_out_when_others_are_added(places, count, fraction):
    parts = (places[:count], places)
    small, large = (set(held_out(dict(enumerate(some)), fraction)) for some in parts)
    assert small
    assert len(large) < len(places)
    trained = set(range(min(count, len(places)))) - small
    assert len(trained) == 1 or not trained & large


def test_images_of_a_group_are_on_one_side(tmp_path):
    write_folder(tmp_path, images=10)
    refused(ValueError, lambda: FolderDataModule(tmp_path, group="[13]$"), "`group`", "[13]$")
    refused(ValueError, lambda: FolderDataModule(tmp_path, group="^."), "2 groups", "got 1")
    folder = str(tmp_path)  # where a list is looked for
    refused(ValueError, lambda: FolderDataModule(tmp_path, group="none.tsv"), "`group`", folder)
    refused(ValueError, lambda: FolderDataModule(tmp_path, group="[("), "`group`", "[(", folder)
    for path in [*tmp_path.glob("*/*.*")]:
        number = int(re.search(r"\d+", path.stem)[0])
        path.rename(path.with_name(f"drive{number % 4}_{path.name}"))
    data = FolderDataModule(tmp_path, val_fraction=0.4, group=r"^drive\d+")
    sides = [{stem[:6] for stem in stems(part)} for part in (data.train[0], data.val[0])]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 4


def test_groups_of_images_are_read_from_a_list(tmp_path):
    write_folder(tmp_path, images=6)
    rows = [f"photo{number}.jpg\tplace {number % 3}\tsunny" for number in range(6)]
    for lines, part in ((rows[:5], "photo5"), ([*rows, "photo5"], "groups.tsv, line 7")):
        (tmp_path / "groups.tsv").write_text("\n".join(lines))
        refused(ValueError, lambda: FolderDataModule(tmp_path, group="groups.tsv"), part)
    (tmp_path / "groups.tsv").write_text("\n".join(rows))
    data = FolderDataModule(tmp_path, 0.15, group="groups.tsv")
    assert {int(stem[-1]) % 3 for stem in stems(data.val[0])} < {0, 1, 2}
    assert len(stems(data.val[0])) == 2


def test_large_photographs_are_cut_out_once(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "ROOM", 0)
    write_folder(tmp_path, images=1, size=(1600, 2000), suffix=".png")
    (photograph,) = tmp_path.glob("images/*")
    samples = ImageMaskFolder(tmp_path)
    # Crops that show the object at its size are the same; smaller ones are nearly so.
    for crop, tolerance in ((TrainingCrop(800), 0), (TrainingCrop(64), 8)):
        prepared = CachedObjects(samples, crop)
        seeds = range(6)
        whole = [crop.cut(samples[0], np.random.default_rng(seed)) for seed in seeds]
        parts = [crop.cut(prepared[0], np.random.default_rng(seed)) for seed in seeds]
        pairs = [*zip(whole, parts, strict=True)]
        differences = [np.abs(one[0].astype(int) - other[0]).mean() for one, other in pairs]
        assert np.median(differences) <= tolerance  # rounded, a window may be drawn elsewhere
        shares = [[(mask == 1).mean() for _, mask in pair] for pair in pairs]
        assert abs(np.diff(np.mean(shares, axis=0))) <= tolerance / 100
        assert prepared[0].mask.size <= samples[0].mask.size / (30 if tolerance else 1)
    content = photograph.read_bytes()
    photograph.write_bytes(b"")  # no longer read
    assert prepared[0].name == samples.object_name(0)
    photograph.write_bytes(content)
    folder = prepared.folder
    assert [path.name for path in folder.iterdir()] == ["0.npz"]
    del prepared
    assert not folder.exists()


@pytest.mark.parametrize("turn", [1, 3, 6])
@pytest.mark.parametrize("kind", ["folder", "coco", "selected"])
def test_a_large_photograph_is_decoded_once_for_all_its_objects(tmp_path, monkeypatch, kind, turn):
    """Crops that show it smaller need a part of its pixels: masks fit them as before."""
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
    rows, columns = np.indices((1600, 2400))
    discs = [np.hypot(rows - 800, columns - x) < 350 for x in (500, 1300, 2000)]
    labels = sum(number * disc for number, disc in enumerate(discs, 1)).astype(np.uint8)
    upright = Image.fromarray(np.repeat(labels[..., None] * 80, 3, 2))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = turn
    back = {1: 0, 3: 180, 6: 90}[turn]
    upright.rotate(back, expand=True).save(tmp_path / "images/a.jpg", exif=exif, quality=95)
    Image.fromarray(labels).save(tmp_path / "masks/a.png")
    whole = ImageMaskFolder(tmp_path)
    if kind == "coco":
        images, masks, file = (tmp_path / name for name in ("images", "masks", "a.json"))
        kinds = ["--from", "index", "--to", "coco", "--images", str(images)]
        assert main(["data", "convert", *kinds, str(masks), str(file)]) == 0
        whole = COCO(file, images)
    samples = Selected(whole, min_area=10) if kind == "selected" else whole
    decoded = []

    def read(path, coarse):
        decoded.append(coarse)
        return read_image(path, coarse=coarse)

    monkeypatch.setattr(loading, "read_image", read)
    monkeypatch.setattr(loading, "ROOM", 0)
    prepared = CachedObjects(samples, TrainingCrop(96))
    for number in (1, 0, 2):
        image, mask, *_ = prepared[number]
        assert image.shape[:2] == mask.shape
        disc = 80 * (number + 1)
        assert np.abs(image[mask == 1].astype(int) - disc).mean() < 2  # the edges, too
        for shift in (-1, 1):  # and not half a pixel of the part beside
            moved = np.roll(mask, shift, 1) == 1
            assert (
                np.abs(image[moved].astype(int) - disc).mean()
                > np.abs(image[mask == 1].astype(int) - disc).mean()
            )
    assert decoded == [4]


def test_no_photograph_that_a_run_was_trained_on_is_tested(tmp_path):
    """Not even where settings or files have changed since."""
    write_folder(tmp_path, images=10)
    before, now = (FolderDataModule(tmp_path, val_fraction=f) for f in (0.2, 0.8))
    with pytest.warns(UserWarning, match="were trained on, and are left out"):
        now.load_state_dict(before.state_dict())
    assert stems(now.test[0]) == stems(now.val[0]) == stems(before.val[0])
    assert set(now.state_dict()["trained_on"]) == stems(before.train[0])
    old = {"seed": 0, "global_batch_size": 2}  # as earlier versions kept it
    with pytest.warns(UserWarning, match="an earlier version"):
        before.load_state_dict(old)
    everything = {**old, "trained_on": sorted(stems(before.train[0]) | stems(before.val[0]))}
    refused(DataError, lambda: before.load_state_dict(everything), "trained on all")
