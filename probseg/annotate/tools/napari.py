"""A plugin of napari: points on an object become its mask in a layer of labels.

The manifest `napari.yaml` offers `segment_by_clicks` as a widget, which napari builds from its
arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from probseg.annotate.tools.prompted import PromptedModel
from probseg.descriptions import RECOMMENDED
from probseg.formats.colours import CLICK_COLOURS, CLICK_MARKERS

if TYPE_CHECKING:
    import napari.layers
    import napari.viewer

TRANSFORM = ("scale", "translate", "rotate", "shear", "affine")
"""Attributes of a layer that place it in the world."""


def segment_by_clicks(
    viewer: napari.viewer.Viewer, image: napari.layers.Image, model: str = RECOMMENDED
) -> None:
    """Add layers for points and masks; every new point segments the object again.

    The layer `object` takes points on the object, `background` those that are not. The mask is
    written with the selected label of the layer `masks`; pixels of other labels are not changed.
    Another selected label (`M` takes the next one) begins another object.

    Args:
        viewer: Where the layers are added.
        image: Of two dimensions, grey or RGB.
        model: Model of the zoo, model folder, or folder of a run.

    Raises:
        ValueError: If the image has more dimensions.
        UnknownNameError: If there is no such model.
    """
    if image.ndim != 2:
        msg = (
            f"`image` must have 2 dimensions, got {image.ndim}; choose one plane of it by Layer > "
            "Convert > Split Stack"
        )
        raise ValueError(msg)
    pixels = displayed(
        np.asarray(image.data[0] if image.multiscale else image.data),
        None if image.rgb else tuple(image.contrast_limits),
    )
    network = PromptedModel(model)
    encoded = network.encode(pixels)
    place = {name: getattr(image, name) for name in TRANSFORM}
    masks = viewer.add_labels(np.zeros(pixels.shape[:2], np.int32), name="masks", **place)
    points = {
        name: viewer.add_points(
            ndim=2,
            name=name,
            face_color=CLICK_COLOURS[positive],
            symbol=CLICK_MARKERS[positive],
            size=max(3, max(pixels.shape) / 80),
            **place,
        )
        for name, positive in (("background", False), ("object", True))
    }

    def answer(event: Any) -> None:  # noqa: ANN401
        if event.action not in ("added", "removed", "changed"):
            return
        # Whole numbers are centres of pixels in napari, and points are (row, column).
        positive, negative = (points[n].data[:, ::-1] + 0.5 for n in ("object", "background"))
        mask = network.answer(encoded, positive.tolist(), negative.tolist()).binary
        labels = masks.data
        labels[labels == masks.selected_label] = 0
        labels[mask & (labels == 0)] = masks.selected_label
        masks.refresh()

    def begin_another(event: Any) -> None:  # noqa: ANN401
        for layer in points.values():
            with layer.events.data.blocker(answer):
                layer.data = np.empty((0, 2))

    for layer in points.values():
        layer.events.data.connect(answer)
        layer.mode = "add"
    masks.events.selected_label.connect(begin_another)
    viewer.layers.selection.active = points["object"]


def displayed(
    data: npt.NDArray[Any], limits: tuple[float, float] | None = None
) -> npt.NDArray[np.uint8]:
    """Return an image as it is displayed, as 8-bit RGB.

    Args:
        data: Grey, shape `(H, W)`; or colours, shape `(H, W, 3)` or `(H, W, 4)`, floating
            point ones in [0, 1].
        limits: Grey values that are black and white; None for colours.

    Returns:
        uint8, shape `(H, W, 3)`; transparency is left out.
    """
    if limits is None:
        white = np.iinfo(data.dtype).max if np.issubdtype(data.dtype, np.integer) else 1.0
        limits, data = (0.0, white), data[..., :3]
    black, white = limits
    scaled = (data.astype(np.float64) - black) * (255 / max(white - black, 1e-12))
    pixels = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    return pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
