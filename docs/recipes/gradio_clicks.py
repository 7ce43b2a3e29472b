"""A page of Gradio: each person has a predictor of their own, and all share one network.

pip install gradio
python docs/recipes/gradio_clicks.py
"""

from typing import Any

import gradio
import numpy as np

import probseg

shared = probseg.Predictor.from_pretrained("lite0_unet_prop")


def start(picture: Any) -> Any:  # noqa: ANN401 (None where it was removed)
    """Begin with a picture."""
    predictor = probseg.Predictor(shared.model)
    if picture is not None:
        predictor.set_image(picture)
    return predictor, None


def click(picture: Any, predictor: probseg.Predictor, event: gradio.SelectData) -> Any:  # noqa: ANN401
    """Add a click, and show the mask."""
    mask = predictor.predict([(event.index[0], event.index[1])]).binary
    return picture, [(mask.astype(np.uint8), f"{mask.sum()} pixels")]


with gradio.Blocks() as page:
    own = gradio.State(None)  # one for each person who has the page open
    opened, segmented = gradio.Image(label="Click on an object"), gradio.AnnotatedImage()
    opened.input(start, opened, [own, segmented])
    opened.select(click, [opened, own], segmented)

if __name__ == "__main__":
    page.launch()
