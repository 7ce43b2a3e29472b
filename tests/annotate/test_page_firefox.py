"""Ten objects in Firefox, in Chromium and in Python: the same clicks, and the same masks."""

import json
from collections import defaultdict

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

import probseg
from probseg.annotate.steps import as_step
from support.fakes import draw_scene
from support.firefox import FirefoxPage, firefox
from support.pages import Page, browser, serving

pytestmark = pytest.mark.process

MODEL = "lite0_unet_prop"
SCENES = ((301, 423, 4), (97, 131, 3), (640, 903, 3))
"""Height, width and objects of each photograph; none is shown at a whole scale."""


@pytest.fixture(scope="module")
def scenes():
    return [draw_scene(*scene, seed=n) for n, scene in enumerate(SCENES)]


def whole(page, x, y):
    """Return the place in the window of a point of the photograph, in whole pixels as mice do."""
    return tuple(round(value) for value in page.place(x, y))


def drag(page, *places):
    page.tab.mouse.move(*places[0])
    page.tab.mouse.down()
    for place in places[1:]:
        page.tab.mouse.move(*place)
    page.tab.mouse.up()
    page.settle()


def annotate(page, scenes):
    """Mark all objects with clicks, boxes, strokes, keys and views of several scales."""
    page.open()
    for number, (_, labels) in enumerate(scenes):
        page.run(f"probsegPage.open({number})")
        page.settle()
        for one in range(1, labels.max() + 1):
            rows, columns = np.nonzero(labels == one)
            x, y = columns.mean(), rows.mean()
            x0, x1, y0, y1 = columns.min(), columns.max(), rows.min(), rows.max()
            page.tab.mouse.move(*whole(page, x, y))
            page.tab.mouse.wheel(0, -90 * one)
            page.settle()
            if one == 2:
                page.press("x")
                drag(page, whole(page, x0, y0), whole(page, x1, y1))
            page.tab.mouse.click(*whole(page, x, y))
            page.settle()
            page.tab.mouse.click(*whole(page, x1 + 3, y0 - 3), button="right")
            page.settle()
            if one == 3:
                page.press("b")
                drag(page, *(whole(page, *place) for place in ((x0, y), (x, y1), (x, y))))
                page.press("e")
                drag(page, whole(page, x1, y), whole(page, x1 + 5, y0))
                page.press("e")
            if one == 4:
                page.tab.mouse.click(*whole(page, x0 + 2, y))
                page.settle()
                page.press("ArrowLeft", "a", "z")
            page.press("1" if one % 2 else "2", "Enter", "0")
        page.until_stored()
    page.close()


def results(folder):
    """Return the annotations without their times, and the mask files by their names."""
    content = (folder / "annotations.json").read_text("utf-8")
    # Engines of JavaScript differ in the last bit of `Math.exp`, by which the wheel zooms.
    read = json.loads(content, parse_float=lambda number: round(float(number), 9))
    annotations = read["annotations"]
    for annotation in annotations:
        del annotation["seconds"]
    files = sorted((folder / "masks").iterdir())
    masks = {path.name: np.array(Image.open(path)) == 255 for path in files}
    return annotations, masks


@pytest.fixture(scope="module")
def folders(scenes, tmp_path_factory):
    """Folders that were annotated in Firefox and in Chromium."""
    folders = [tmp_path_factory.mktemp(name) for name in ("firefox", "chromium")]
    for folder in folders:
        for number, (image, _) in enumerate(scenes):
            Image.fromarray(image).save(folder / f"{number}.png")
    with serving(folders[1]) as address, browser() as chromium:
        annotate(Page(chromium, address), scenes)
    profile = tmp_path_factory.mktemp("profile") / "new"
    with serving(folders[0]) as address, firefox(profile) as tab:
        annotate(FirefoxPage(tab, address), scenes)
    return folders


def test_firefox_and_chromium_give_the_same_prompts_and_masks(folders):
    (firefox, masks), (chromium, others) = map(results, folders)
    assert len(firefox) == len(masks) == 10
    assert [one["prompts"] for one in firefox] == [one["prompts"] for one in chromium]
    assert firefox == chromium
    differ = {name: int((mask != others[name]).sum()) for name, mask in masks.items()}
    assert differ == dict.fromkeys(others, 0)


def test_the_recorded_prompts_give_the_masks_in_python(folders, scenes):
    annotations, masks = results(folders[0])
    predictor = probseg.Predictor.from_pretrained(MODEL, zoom=None)
    finished, differ = defaultdict(list), {}
    for annotation in annotations:
        number = annotation["image_id"] - 1
        predictor.set_image(scenes[number][0])
        for prompt in annotation["prompts"]:
            mask = predictor.session.add(as_step(prompt)).mask.binary
        for other in finished[number]:  # finished objects are left out of those that follow
            mask = mask & ~other
        finished[number].append(mask)
        name = f"{number}_{len(finished[number])}.png"
        differ[name] = int((mask != masks[name]).sum())
        assert np.array_equal(coco_mask.decode(annotation["segmentation"]), masks[name])
    assert differ == dict.fromkeys(masks, 0)
