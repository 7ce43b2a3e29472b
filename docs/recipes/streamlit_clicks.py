"""A page of Streamlit: each person has a predictor of their own, and all share one network.

pip install streamlit streamlit-image-coordinates
streamlit run docs/recipes/streamlit_clicks.py
"""

import numpy as np
import streamlit
from streamlit_image_coordinates import streamlit_image_coordinates

import probseg
from probseg.images import decode_image

shared = streamlit.cache_resource(probseg.Predictor.from_pretrained)("lite0_unet_prop")
own = streamlit.session_state  # one for each person who has the page open
file = streamlit.file_uploader("Photograph", type=["jpg", "png", "webp"])
if file is not None:
    if own.get("file") != file.file_id:
        own.image, own.file, own.last = decode_image(file.getvalue(), file.name), file.file_id, None
        own.predictor = probseg.Predictor(shared.model)
        own.predictor.set_image(own.image)
    streamlit.write("Click on an object; where its mask ends too early, click again.")
    click = streamlit_image_coordinates(own.image, key=file.file_id)
    if click is not None and click != own.last:  # this script runs again for each action
        own.mask, own.last = own.predictor.predict([(click["x"], click["y"])]).binary, click
    if own.last is not None:
        shown = np.where(own.mask[..., None], own.image // 2 + np.uint8([0, 127, 0]), own.image)
        streamlit.image(shown, caption=f"{own.mask.sum()} pixels")
