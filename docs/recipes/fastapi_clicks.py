"""A server of FastAPI: each picture has a predictor of its own, and all share one network.

pip install fastapi uvicorn python-multipart
uvicorn --app-dir docs/recipes fastapi_clicks:app
"""

import io
import secrets
from typing import Annotated

from fastapi import FastAPI, File, HTTPException, Response
from PIL import Image

import probseg
from probseg.errors import DataError
from probseg.images import decode_image

app, shared = FastAPI(), probseg.Predictor.from_pretrained("lite0_unet_prop")
predictors: dict[str, probseg.Predictor] = {}  # by the keys of pictures, oldest first
MOST = 100


@app.post("/pictures")
def start(picture: Annotated[bytes, File()]) -> str:
    """Begin with a picture; returns a key, which nobody else can guess."""
    predictor = probseg.Predictor(shared.model)
    try:
        predictor.set_image(decode_image(picture))
    except DataError as error:
        raise HTTPException(422, str(error)) from error
    predictors[key := secrets.token_urlsafe()] = predictor
    if len(predictors) > MOST:
        del predictors[next(iter(predictors))]
    return key


@app.post("/pictures/{key}/clicks")
def click(key: str, x: float, y: float, positive: bool = True) -> Response:
    """Add a click; returns the mask as PNG, 255 on the object."""
    if key not in predictors:
        raise HTTPException(404, "no such picture: post it again")
    try:
        mask = predictors[key].predict([(x, y, positive)]).binary
    except ValueError as error:
        raise HTTPException(422, str(error)) from error
    Image.fromarray(mask).convert("L").save(content := io.BytesIO(), "PNG")
    return Response(content.getvalue(), media_type="image/png")
