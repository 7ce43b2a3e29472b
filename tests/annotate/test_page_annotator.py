"""A simulated annotator segments real photographs through the page."""

import numpy as np
import pytest
from PIL import Image

from probseg.clicks.annotators import largest_error_click
from probseg.data import GrabCut
from probseg.interact import InteractionLoop, begin, image_tensor
from probseg.interact.steps import tidy
from probseg.metrics.masks import iou
from probseg.types import Click
from probseg.zoo import create_interactive
from support.pages import Page, browser, serving

pytestmark = pytest.mark.process

TARGET, MOST_CLICKS = 0.9, 6


@pytest.fixture(scope="module")
def model():
    return create_interactive("lite0_unet_prop", pretrained=True)


@pytest.fixture(scope="module")
def objects(data_root):
    return [GrabCut(data_root / "grabcut")[number] for number in range(0, 50, 5)]


@pytest.fixture(scope="module")
def page(objects, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("grabcut")
    for number, sample in enumerate(objects):
        Image.fromarray(sample.image).save(folder / f"{number:02d}.png")
    with serving(folder, model) as address, browser() as chromium:
        page = Page(chromium, address).open()
        yield page
        page.close()


@pytest.mark.parametrize(
    "number",
    [0, 1, *(pytest.param(number, marks=pytest.mark.slow) for number in range(2, 10))],
)
def test_the_page_gives_the_masks_of_the_loop(page, objects, model, number):
    sample = objects[number]
    loop = InteractionLoop(model, previous_mask=model.previous_mask)
    state = begin(image_tensor(sample.image))
    page.run(f"probsegPage.open({number})")
    prediction, clicks = np.zeros(sample.mask.shape, np.bool_), []
    while len(clicks) < MOST_CLICKS and iou(prediction, sample.mask) < TARGET:
        click = largest_error_click(prediction, sample.mask, clicks)
        clicks.append(click)
        page.click(click.x + 0.5, click.y + 0.5, button="left" if click.positive else "right")
        x, y, positive = page.clicks[-1]
        # At a fraction of its size the photograph's pixels are smaller than those of the mouse.
        assert (x, y) == pytest.approx((click.x, click.y), abs=1.5)
        clicks[-1] = Click(int(x), int(y), positive)
        (state,) = loop.step([state], [clicks[-1]])
        prediction = page.mask()
        np.testing.assert_array_equal(prediction, tidy(state.probability > 0.5, clicks))
    assert iou(prediction, sample.mask) > 0.8
