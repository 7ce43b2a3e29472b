"""A plugin of napari: points on an object become its mask in a layer of labels.

The manifest `napari.yaml` offers `segment_by_clicks` as a widget, which napari builds from its
arguments. `python -m probseg.annotate.tools.napari photo.jpg` opens photographs upright, with the
widget.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags

from probseg.annotate.tools.prompted import PromptedModel, is_inside
from probseg.descriptions import RECOMMENDED
from probseg.errors import DataError
from probseg.formats.colours import CLICK_COLOURS, CLICK_MARKERS
from probseg.images import opened, read_image
from probseg.picture_formats import IMAGE_SUFFIXES

if TYPE_CHECKING:
    import napari.layers
    import napari.viewer

TRANSFORM = ("scale", "translate", "rotate", "shear", "affine")
"""Attributes of a layer that place it in the world."""

LAYER_OF, CALLBACK = "probseg layer of", "probseg callback"
"""Keys of `metadata`: image layer and role of a layer, and what the layer of masks calls."""


def segment_by_clicks(
    viewer: napari.viewer.Viewer, image: napari.layers.Image, model: str = RECOMMENDED
) -> None:
    """Add layers for points and masks; every new point segments the object again.

    The layer `object` takes points on the object, `background` those that are not. The mask is
    written with the selected label of the layer `masks`; pixels of other labels are not changed.
    Another selected label (`M` takes the next one) begins another object. Points outside of the
    image are not used, and a message says so. A second call for an image goes on with the points
    and masks of the first.

    Args:
        viewer: Where the layers are added.
        image: Of two dimensions, grey or RGB.
        model: Model of the zoo, model folder, or folder of a run.

    Raises:
        ValueError: If the image has more dimensions.
        UnknownNameError: If there is no such model.
    """
    from napari.utils.notifications import show_warning

    if image.ndim != 2:
        raise ValueError(
            f"`image` must have 2 dimensions, got {image.ndim}; choose one plane of it by Layer > "
            "Convert > Split Stack"
        )
    pixels = displayed(
        np.asarray(image.data[0] if image.multiscale else image.data),
        None if image.rgb else tuple(image.contrast_limits),
    )
    if _is_stored_turned(image.source.path):
        show_warning(
            f"{image.source.path} is stored turned: so are its layer and its masks, while other "
            "programs turn it upright; open it by python -m probseg.annotate.tools.napari"
        )
    network = PromptedModel(model)
    encoded = network.encode(pixels)
    size = pixels.shape[:2]
    place = {name: getattr(image, name) for name in TRANSFORM}
    masks = _layer_of(viewer, image, "masks")
    if masks is None:
        masks = viewer.add_labels(
            np.zeros(size, np.int32), name="masks", metadata={LAYER_OF: (image, "masks")}, **place
        )
    else:
        masks.events.selected_label.disconnect(masks.metadata[CALLBACK])
    points = {}
    for name, positive in (("background", False), ("object", True)):
        before = _layer_of(viewer, image, name)
        if before is not None:
            viewer.layers.remove(before)
        points[name] = viewer.add_points(
            None if before is None else before.data,
            ndim=2,
            name=name,
            face_color=CLICK_COLOURS[positive],
            symbol=CLICK_MARKERS[positive],
            size=max(3, max(pixels.shape) / 80),
            metadata={LAYER_OF: (image, name)},
            **place,
        )

    def answer() -> None:
        # Whole numbers are centres of pixels in napari, and points are (row, column).
        places = [(points[n].data[:, ::-1] + 0.5).tolist() for n in ("object", "background")]
        positive, negative = (
            [point for point in some if is_inside(point, size)] for some in places
        )
        if outside := sum(map(len, places)) - len(positive) - len(negative):
            show_warning(f"{outside} of the points are outside of the image and not used")
        mask = network.answer(encoded, positive, negative).binary
        labels = masks.data
        labels[labels == masks.selected_label] = 0
        labels[mask & (labels == 0)] = masks.selected_label
        masks.refresh()

    def changed(event: Any) -> None:  # noqa: ANN401
        if event.action in ("added", "removed", "changed"):
            answer()

    def begin_another(event: Any) -> None:  # noqa: ANN401
        for layer in points.values():
            with layer.events.data.blocker(changed):
                layer.data = np.empty((0, 2))

    for layer in points.values():
        layer.events.data.connect(changed)
        layer.mode = "add"
    masks.events.selected_label.connect(begin_another)
    masks.metadata[CALLBACK] = begin_another
    viewer.layers.selection.active = points["object"]
    if any(len(layer.data) for layer in points.values()):
        answer()


def _layer_of(viewer: napari.viewer.Viewer, image: napari.layers.Image, name: str) -> Any:  # noqa: ANN401
    """Return a layer that an earlier call added for an image; None if it is not there."""
    layers = (layer for layer in viewer.layers if layer.metadata.get(LAYER_OF) == (image, name))
    return next(layers, None)


def _is_stored_turned(path: str | None) -> bool:
    """Say whether a layer is of a photograph with an EXIF orientation, which napari ignores."""
    if path is None or Path(path).suffix.lower() not in IMAGE_SUFFIXES:
        return False
    with opened(Path(path), path) as picture:
        return bool(picture.getexif().get(ExifTags.Base.Orientation, 1) != 1)


def displayed(
    data: npt.NDArray[Any], limits: tuple[float, float] | None = None
) -> npt.NDArray[np.uint8]:
    """Return an image as it is displayed, as 8-bit RGB."""
    if limits is None:
        white = np.iinfo(data.dtype).max if np.issubdtype(data.dtype, np.integer) else 1.0
        limits, data = (0.0, white), data[..., :3]
    black, white = limits
    scaled = (data.astype(np.float64) - black) * (255 / max(white - black, 1e-12))
    pixels = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    return pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)


def open_viewer(photographs: Sequence[str]) -> None:
    """Open photographs upright in a new viewer, with the widget; return when it is closed."""
    # Before OpenGL: the LLVM of Mesa's software renderer and that of torch's compiler, which
    # torchvision imports for timm, break each other in the other order.
    import napari
    import timm  # noqa: F401

    layers = {path: read_image(Path(path)) for path in photographs}
    viewer = napari.Viewer()
    for path, pixels in layers.items():
        viewer.add_image(pixels, rgb=True, name=Path(path).stem)
    viewer.window.add_plugin_dock_widget("probseg", "Segment by clicks")
    napari.run()


if __name__ == "__main__":
    try:
        open_viewer(sys.argv[1:])
    except DataError as error:
        sys.exit(str(error))
