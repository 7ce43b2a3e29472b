"""Clicks look the same in all pictures, and to people with any vision of colours; overlays."""

import re

import numpy as np
from PIL import ImageColor
from skimage.color import rgb2lab

from probseg.formats.colours import CLICK_COLOURS, overlay
from support.rows import each

# From linear RGB to what a person sees without one kind of cones (Machado, Oliveira and Fernandes
# 2009, severity 1).
VISION = {
    "all cones": np.eye(3),
    "without long": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "without medium": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "without short": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def seen(colour, vision):
    """The colour as a person sees it, in CIELAB."""
    values = np.array(ImageColor.getrgb(colour)) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(vision) @ linear, 0, 1)
    return rgb2lab(
        np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    )


@each("vision", VISION)
def test_colours_of_clicks_are_far_apart(vision):
    one, other = (seen(colour, VISION[vision]) for colour in CLICK_COLOURS.values())
    assert np.linalg.norm(one - other) > 40


def test_the_page_has_the_colours_of_the_figures(repository):
    page = (repository / "probseg" / "page" / "canvas.js").read_text("utf-8")
    for name, positive in (("OBJECT", True), ("BACKGROUND", False)):
        assert re.search(rf'^const {name} = "(#\w+)"', page, re.M)[1] == CLICK_COLOURS[positive]


def test_a_layer_is_half_transparent_where_it_covers_the_image():
    image = np.full((2, 3, 3), 250, np.uint8)
    layer = np.array([200, 10, 255], np.uint8)
    covered = np.eye(2, 3, dtype=bool)
    shown = overlay(image, layer, covered)
    assert shown.dtype == np.uint8
    assert (shown[covered] == [225, 130, 252]).all()
    assert (shown[~covered] == 250).all()
    assert np.array_equal(overlay(image, np.tile(layer, (2, 3, 1)), covered), shown)
