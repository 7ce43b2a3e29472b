"""Clicks on a large photograph: as on a small one, at the cost of a small one."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.errors import DataError
from probseg.geometry import LARGE, SHOWN, View, object_box
from probseg.images import read_image
from probseg.interact import InteractionLoop, Zoom, begin, image_tensor
from probseg.interact.mask import ProbabilityMap
from probseg.interact.photograph import as_photograph, open_photograph
from probseg.metrics import iou
from probseg.types import Click
from support.toy_models import shades

ZOOM = Zoom(target=120, first=(1.0, 0.5, 0.25))
SIZE = (1500, 2600)


@pytest.fixture(scope="module")
def scene():
    """An image of a disk, and a click on it."""
    image = np.full((*SIZE, 3), (60, 90, 40), np.uint8)
    cv2.circle(image, (1400, 800), 420, (230, 120, 90), cv2.FILLED)
    return cv2.GaussianBlur(image, (0, 0), 4), Click(1350, 700)


@pytest.mark.parametrize("zoom", [None, ZOOM])
def test_answers_are_those_at_full_size(scene, zoom):
    image, click = scene
    loop = InteractionLoop(shades, zoom=zoom)
    clicks = [click, Click(click.x + 40, click.y + 20)]
    exact, fast = begin(image_tensor(image)), begin(as_photograph(image))
    for place in clicks:
        (exact,), (fast,) = loop.step([exact], [place]), loop.step([fast], [place])
        masks = [state.probability > 0.5 for state in (exact, fast)]
        assert masks[0].any()
        assert masks[1].shape == SIZE
        assert iou(*masks) > 0.97
        assert max(fast.answer.values.shape) <= SHOWN
        assert exact.window == fast.window or zoom is not None


def test_small_photographs_are_shown_as_they_are():
    for longer, large in ((LARGE, False), (LARGE + 1, True)):
        assert as_photograph(np.zeros((3, longer, 3), np.uint8)).is_large == large


@pytest.mark.parametrize("name", ["photograph.png", "photograph.jpg"])
def test_a_file_answers_as_its_pixels_and_is_read_again_when_a_view_needs_all(
    scene, tmp_path, name
):
    path = tmp_path / name
    cv2.imwrite(str(path), scene[0][..., ::-1])
    given, read = as_photograph(read_image(path)), open_photograph(path)
    assert read.nbytes < given.nbytes / 1.5
    for box, size in (((0, 0, 2600, 1500), (577, 1000)), ((500, 100, 1700, 1300), (120, 120))):
        assert torch.equal(read.render(View(box, size)), given.render(View(box, size)))
    assert "full" not in vars(read)
    small = View((500, 100, 600, 200), (120, 120))
    assert torch.equal(read.render(small), given.render(small))
    assert torch.equal(read.full, given.full)
    loop = InteractionLoop(shades, zoom=ZOOM)
    (one,), (other,) = (loop.step([begin(photo)], [scene[1]]) for photo in (given, read))
    np.testing.assert_array_equal(one.probability, other.probability)


def test_copies_show_what_the_photograph_shows(scene):
    image, _ = scene
    photograph = as_photograph(cv2.GaussianBlur(image, (0, 0), 12))
    for box in ((0, 0, 2600, 1500), (1, 2, 2599, 1499), (300, 200, 1900, 1300)):
        size = 150, round(150 * (box[2] - box[0]) / (box[3] - box[1]))
        exact = type(photograph).from_tensor(photograph.full).render(View(box, size))
        torch.testing.assert_close(photograph.render(View(box, size)), exact, atol=0.02, rtol=0)


def test_a_changed_file_is_refused(scene, tmp_path):
    path = tmp_path / "photograph.png"
    cv2.imwrite(str(path), scene[0])
    photograph = open_photograph(path)
    cv2.imwrite(str(path), scene[0] // 2)  # of the same size
    with pytest.raises(DataError, match="has changed since it was opened; open it again"):
        _ = photograph.full
    path.unlink()
    with pytest.raises(DataError, match="is gone"):
        _ = photograph.full


def test_a_relative_path_outlives_a_change_of_folder(scene, tmp_path, monkeypatch):
    cv2.imwrite(str(tmp_path / "photograph.png"), scene[0][..., ::-1])
    monkeypatch.chdir(tmp_path)
    photograph = open_photograph(Path("photograph.png"))
    monkeypatch.chdir("/")
    assert torch.equal(photograph.full, image_tensor(scene[0]))


BOXES = st.tuples(
    st.integers(0, 18), st.integers(0, 11), st.integers(1, 20), st.integers(1, 12)
).map(lambda n: (n[0], n[1], min(30, n[0] + n[2]), min(20, n[1] + n[3])))


@given(place=BOXES, box=BOXES, size=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_a_part_is_that_of_all_pixels(place, box, size):
    torch.manual_seed(0)
    values = torch.rand(place[3] - place[1], place[2] - place[0])
    answer = ProbabilityMap(values, place, (20, 30))
    full = torch.tensor(answer.full())
    assert full.sum() == pytest.approx(float(values.sum()), rel=1e-5)
    x0, y0, x1, y1 = box
    part = ProbabilityMap.from_array(full.numpy()[y0:y1, x0:x1]).part(
        View((0, 0, x1 - x0, y1 - y0), size)
    )
    torch.testing.assert_close(answer.part(View(box, size)), part)


def test_values_at_fewer_places_are_interpolated():
    grid = torch.linspace(0, 1, 11)[None].expand(6, 11).contiguous()  # rises from left to right
    answer = ProbabilityMap(grid, (10, 20, 111, 71), (100, 200))
    full = answer.full()
    np.testing.assert_allclose(full[40, 10:111], np.linspace(0, 1, 101), atol=1e-6)
    assert full[19].max() == full[71].max() == full[:, :10].max() == full[:, 111:].max() == 0
    part = answer.part(View((30, 30, 51, 41), (11, 21)))
    np.testing.assert_allclose(part[0], full[30:41, 30:51], atol=1e-5)
    assert answer.part(View((0, 0, 8, 100), (10, 4))).max() == 0
    x0, y0, x1, y1 = object_box(answer, 0.5)
    assert (y0, x1, y1) == (20, 111, 71)
    assert abs(x0 - 71) <= 10, "the first place above"


def test_nothing_is_an_answer_without_pixels():
    answer = ProbabilityMap.zero((7, 9))
    assert not answer.any()
    assert object_box(answer, 0.5) is None
    assert answer.full().shape == (7, 9)
    assert answer.part(View((1, 1, 5, 4), (3, 3))).shape == (1, 3, 3)
