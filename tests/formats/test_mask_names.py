"""Every mask that is written belongs to its own photograph, whatever the photographs are called."""

from collections import Counter
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from probseg.annotate.folder import existing_masks, list_masks, write_masks
from probseg.annotate.photographs import list_photographs
from probseg.callbacks.predictions import PredictionWriter
from probseg.convert import READERS, Ledger, Request
from probseg.convert.masks import write_binary
from probseg.convert.parts import AnnotatedImage, LabelledRegion
from probseg.data import ImageMaskFolder
from probseg.data.checks import check_folder
from probseg.data.prompts import PromptedImage, PromptedObject
from probseg.errors import DataError
from probseg.formats import png
from probseg.formats.mask_names import MaskNames, mask_names
from probseg.formats.regions import as_region
from probseg.tasks.prediction import Job, Photo, PhotoResult
from probseg.types import Click

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"
ENDS = ["", "_1", "_2", "_01", "_1_1", "_2_1", "_\u0661"]
GROUPS = [["a", "A"], [COMPOSED, DECOMPOSED], ["ß", "ss"], ["a b", "a.b", "a "], ["#", "日本", "1"]]
counted = st.sampled_from(GROUPS).flatmap(  # of one group: names of several rarely meet
    lambda stems: st.dictionaries(
        st.builds(str.__add__, st.sampled_from(stems), st.sampled_from(ENDS)),
        st.integers(0, 3),
        min_size=2,
        max_size=7,
    )
)
"""Photographs without suffix, and the number of objects of each."""
CLASH = {"a": 3, "a_1": 2, "a_01": 1, "a_1_1": 1, "A_2": 1, "b": 1}


@given(counted)
@example(CLASH)
@example({COMPOSED: 1, f"{DECOMPOSED}_1": 1})
def test_names_lead_back_and_are_one_file_nowhere(objects):
    names = MaskNames(objects)
    written = {mask: photo for photo, n in objects.items() for mask in names.first(photo, n)}
    assert {mask: names.owner(mask) for mask in written} == written
    assert all(names.owner(photo) == photo for photo in objects)
    as_files = Counter(_where_case_and_form_are_ignored(name) for name in [*written, *objects])
    alike = Counter(map(_where_case_and_form_are_ignored, objects))
    assert len(written) == sum(objects.values())
    assert as_files == alike + Counter(map(_where_case_and_form_are_ignored, written))
    assert all(as_files[_where_case_and_form_are_ignored(name)] == 1 for name in written)


def _where_case_and_form_are_ignored(name):
    return normalize("NFD", normalize("NFD", name).casefold())


def draw(place, objects):
    """Photographs with these names, and for each a mask of one pixel per object, all different."""
    number = iter(range(10_000))
    place.mkdir(parents=True)
    drawn = []
    for stem, count in objects.items():
        Image.new("RGB", (8, 8)).save(place / f"{stem}.png")
        masks = [np.arange(64).reshape(8, 8) == next(number) for _ in range(count)]
        drawn.append(
            AnnotatedImage(
                f"{stem}.png", (8, 8), [LabelledRegion(as_region(mask)) for mask in masks]
            )
        )
    return drawn


def pixels(images):
    return {
        image.file: [int(one.region.mask().argmax()) for one in image.objects] for image in images
    }


@pytest.mark.parametrize("writer", ["convert", "annotate", "predict"])
@settings(max_examples=max(1, settings().max_examples // 2))
@given(objects=counted.filter(lambda objects: any(objects.values())))
@example(objects=CLASH)
@example(objects={COMPOSED: 2, f"{DECOMPOSED}_1": 1})
def test_all_readers_find_the_objects_of_all_writers(writer, objects):
    with TemporaryDirectory() as temporary:
        root = Path(temporary)
        drawn = draw(root / "images", objects)
        WRITERS[writer](root, drawn)
        wanted = pixels(drawn)
        request = Request(root / "images")
        assert pixels(READERS["png"](root, request, Ledger())) == wanted
        found = {image.file: [] for image in drawn}
        for image, mask, _ in ImageMaskFolder(root, min_area=1).objects:
            found[image.name].append(int(np.asarray(Image.open(mask)).argmax()))
        assert {file: sorted(numbers) for file, numbers in found.items()} == wanted
        assert check_folder(root).objects == sum(objects.values())
        names = mask_names(root / "images")
        files = list_masks(root, names).owned
        for photograph in list_photographs(root):
            read = existing_masks(files.get(photograph.stem, []), photograph).values()
            assert sorted(int(png.decode(x.png).argmax()) for x in read) == wanted[photograph.name]


def converted(root, drawn):
    write_binary(root / "masks", iter(drawn), Request(), Ledger())


def annotated(root, drawn):
    names = mask_names(root / "images")
    for photograph, image in zip(list_photographs(root), sorted(drawn), strict=True):
        assert photograph.name == image.file
        contents = [png.encode(one.region.mask().astype(np.uint8)) for one in image.objects]
        masks = [(n, partial(bytes, content)) for n, content in enumerate(contents)]
        write_masks(root, photograph, masks, names)


def predicted(root, drawn):
    jobs = []
    for image in drawn:
        clicks = (Click(0, 0),)
        prompts = [PromptedObject(str(n), 1, clicks) for n, _ in enumerate(image.objects)]
        one = PromptedImage(image.file, tuple(prompts))
        jobs.append(Job(one, root / "images" / image.file, "digest"))
    writer = PredictionWriter(root, root / "images", jobs, {1: "object"}, ["masks"])
    answers = []
    for job, image in zip(jobs, drawn, strict=True):
        masks = {n: one.region for n, one in enumerate(image.objects)}
        photo, sure = Photo(job, np.zeros((8, 8, 3), np.uint8)), dict.fromkeys(masks, 1.0)
        answers.append(PhotoResult(photo, masks, None, {}, sure))
    trainer = SimpleNamespace(received_sigterm=False)
    writer.on_predict_batch_end(trainer, None, answers[::-1], None, 0)  # the order is no matter
    writer.on_predict_end(trainer, None)
    assert all(writer.finished(job) for job in jobs)


WRITERS = {"convert": converted, "annotate": annotated, "predict": predicted}


def test_an_unreadable_photograph_keeps_its_masks(tmp_path):
    """`cat_1.png` is a mask of `cat_1.arw`, and not one of `cat.jpg` until that is converted."""
    draw(tmp_path / "images", {"cat": 1})
    (tmp_path / "images" / "cat_1.arw").write_bytes(b"no picture")
    (tmp_path / "masks").mkdir()
    for name in ("cat_1", "cat_2"):
        Image.fromarray(np.eye(8, dtype=np.uint8) * 255).save(tmp_path / "masks" / f"{name}.png")
    with pytest.raises(DataError, match=r"cat_1\.png.*convert cat_1\.arw"):
        ImageMaskFolder(tmp_path)
    with pytest.raises(DataError, match=r"cat_1\.png"):
        list(READERS["png"](tmp_path, Request(tmp_path / "images"), Ledger()))
    problems = [problem.path for problem in check_folder(tmp_path).problems]
    assert str(tmp_path / "masks" / "cat_1.png") in problems
    names = mask_names(tmp_path / "images")
    assert list_masks(tmp_path, names).owned.keys() == {"cat", "cat_1"}


def test_a_conversion_keeps_off_photographs_without_objects(tmp_path):
    draw(tmp_path / "images" / "sub", {"cat": 0, "cat_1": 0})
    cat = AnnotatedImage("sub/cat.png", (8, 8), [LabelledRegion(as_region(np.eye(8, dtype=bool)))])
    write_binary(tmp_path / "masks", iter([cat]), Request(tmp_path / "images"), Ledger())
    written = [path.relative_to(tmp_path / "masks") for path in (tmp_path / "masks").rglob("*.png")]
    assert written == [Path("sub/cat_2.png")]


def test_masks_of_hidden_photographs_are_not_written(tmp_path):
    for file in (".cat.jpg", "sub/.cat.jpg", ".sub/cat.jpg"):
        image = AnnotatedImage(file, (8, 8), [LabelledRegion(as_region(np.eye(8, dtype=bool)))])
        with pytest.raises(DataError, match="hidden"):
            write_binary(tmp_path / "masks", iter([image]), Request(), Ledger())
        assert not list((tmp_path / "masks").iterdir()), "nothing half written is left"
