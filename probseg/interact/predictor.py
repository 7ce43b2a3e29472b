"""Interface for annotation tools: one image, then clicks, then masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from probseg.attention import Adaptation
from probseg.clicks.boxes import Box, mask_box
from probseg.errors import UnknownNameError
from probseg.formats import png, run_lengths
from probseg.formats.polygons import Polygon, trace
from probseg.images import read_image, rgb_pixels
from probseg.interact.loop import InteractionLoop
from probseg.interact.states import (
    InteractionState,
    as_click,
    begin,
    check_click,
    fitted_box,
    image_tensor,
    with_crop,
)
from probseg.interact.zoom import RECOMMENDED_ZOOM, ZOOMS
from probseg.models import Segmenter
from probseg.types import Click, read_only
from probseg.zoo import create_interactive


@dataclass(frozen=True, repr=False)
class Mask:
    """Answer of the model, at the image's own size.

    Args:
        probability: Probability of the object, float32, shape `(H, W)`; the attribute is
            read-only, as the next answer may depend on it: change a copy.
    """

    probability: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", read_only(self.probability))

    def __repr__(self) -> str:
        height, width = self.probability.shape
        binary = self.binary
        area = int(binary.sum())
        if not area:
            return f"Mask({width} x {height} pixels, empty)"
        return (
            f"Mask({width} x {height} pixels, object of {area} pixels "
            f"({100 * area / binary.size:.1f} %) in the box {mask_box(binary)})"
        )

    @property
    def binary(self) -> npt.NDArray[np.bool_]:
        """Pixels that are more likely object than not, shape `(H, W)`."""
        return self.probability > 0.5

    @property
    def uncertainty(self) -> npt.NDArray[np.float32]:
        """Entropy of each pixel's label in bits, from 0 (sure) to 1, shape `(H, W)`."""
        p = self.probability.astype(np.float64)
        entropy = np.zeros_like(p)
        for q in (p, 1 - p):
            np.subtract(entropy, q * np.log2(q, where=q > 0, out=np.zeros_like(q)), out=entropy)
        return entropy.astype(np.float32)

    @property
    def rle(self) -> dict[str, Any]:
        """The binary mask as run lengths of COCO, `{"size": [H, W], "counts": text}`.

        pycocotools reads it, and it is the `segmentation` of an annotation in JSON.
        """
        return run_lengths.encode(self.binary)

    def save(self, path: Path | str) -> None:
        """Write the binary mask as a PNG of its size: 255 on the object, 0 elsewhere.

        Args:
            path: The file to be, ending in `.png`; it appears whole, in a folder that is made if
                need be.

        Raises:
            ValueError: If the path has another suffix.
        """
        if Path(path).suffix.lower() != ".png":
            msg = f"`path` must end in .png, a lossless format, got {str(path)!r}"
            raise ValueError(msg)
        png.write_binary(Path(path), self.binary)

    def polygons(self, tolerance: float = 0.0) -> list[Polygon]:
        """Return the outlines of the binary mask, one polygon with its holes for each part.

        Args:
            tolerance: Largest distance in pixels of a simplified outline from the exact one; 0
                keeps every pixel, and `probseg.formats.polygons.fill` gives the mask back.

        Raises:
            ValueError: If `tolerance` is negative.
        """
        return trace(self.binary, tolerance)

    def crop(self, image: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], Box]:
        """Cut the object out of its image.

        Args:
            image: The RGB image that was segmented, uint8, shape `(H, W, 3)`.

        Returns:
            RGBA, uint8, shape `(h, w, 4)`, with alpha 255 on the object and 0 elsewhere, and the
            smallest box around the object, half-open `(x0, y0, x1, y1)`, that it was cut from.

        Raises:
            ValueError: If `image` has another size, or the mask is empty.
        """
        if image.shape != (*self.probability.shape, 3):
            msg = (
                f"`image` must be the image of the mask, of shape {(*self.probability.shape, 3)}, "
                f"got {image.shape}"
            )
            raise ValueError(msg)
        binary = self.binary
        if not binary.any():
            msg = "the mask is empty: there is nothing to crop; add a click on the object"
            raise ValueError(msg)
        x0, y0, x1, y1 = box = mask_box(binary)
        alpha = np.where(binary, 255, 0).astype(np.uint8)
        return np.dstack([image, alpha])[y0:y1, x0:x1], box


class _Answered(NamedTuple):
    """A state with the model's answer, and the number of changes of settings before it."""

    state: InteractionState
    settings: int


class Predictor:
    """Segments one image at a time by clicks.

    With a box, the model sees the part of the image around box and clicks, cut as in the protocol
    `gabbur2021`; without one it sees the whole image. Models whose prompts enter at the head pay
    for what they see once, and then answer each click in a fraction of the time.

    Models that take a previous mask get their last answer as an input: their next answer depends
    on which clicks came together. All answers to an image are kept, so that `undo` is exact and
    costs nothing.

    Args:
        model: The network; it is moved to the device, laid out with channels last and put into
            evaluation mode. Change its settings through `adapt`: what was encoded with others is
            not recognised as out of date.
        device: Where to compute.
        zoom: A name in `probseg.interact.ZOOMS`. With "scales", the first click is answered from
            the whole image and from windows of a half and a quarter of its side around the click,
            and the surest answer is taken; from the second click on, the model sees the
            surroundings of the predicted object, enlarged. Each new window costs an encoding.
            "fixed" has the second part alone. None always shows the whole image, or the
            surroundings of the box.

    Raises:
        UnknownNameError: If there is no such zoom.
    """

    def __init__(
        self,
        model: Segmenter,
        device: torch.device | str = "cpu",
        zoom: str | None = RECOMMENDED_ZOOM,
    ) -> None:
        if zoom is not None and zoom not in ZOOMS:
            raise UnknownNameError(kind="zoom", name=zoom, known=ZOOMS)
        self.device = torch.device(device)
        # With channels last, convolutions need not rearrange their maps: a fifth faster on the CPU.
        self.model = model.to(self.device).to(memory_format=torch.channels_last).eval()
        self._loop = InteractionLoop(
            self.model,
            previous_mask=self.model.previous_mask,
            zoom=None if zoom is None else ZOOMS[zoom],
        )
        self._empty: InteractionState | None = None  # of the image, without prompts
        self._begun: InteractionState | None = None  # the same with the mask to begin with
        self._state: InteractionState | None = None
        self._answers: list[_Answered] = []  # to all prompts of this object, in order
        self._settings = 0

    @classmethod
    def from_pretrained(
        cls, name: str, device: torch.device | str = "cpu", zoom: str | None = RECOMMENDED_ZOOM
    ) -> Predictor:
        """Load a model of the zoo, a run, a local folder or the hub; see `probseg.create_model`.

        Raises:
            UsageError: If it is a model for semantic segmentation.
            UnknownNameError: If there is no such zoom.
        """
        return cls(create_interactive(name, pretrained=True), device, zoom)

    @property
    def clicks(self) -> tuple[Click, ...]:
        """The clicks so far, in order."""
        return () if self._state is None else self._state.clicks

    @property
    def view(self) -> Box | None:
        """Box `(x0, y0, x1, y1)` of the last view, in pixels; None before the first prediction.

        It moves with the window of a zoom, and the model then encodes the new view.
        """
        if self._state is None or self._state.view is None:
            return None
        return self._state.view.box

    def set_image(self, image: npt.NDArray[np.uint8] | Image.Image | Path | str) -> None:
        """Start with a new image; mask, box and clicks of the last one are discarded.

        Models whose prompts enter at the head encode it now, all others at each prediction.

        Args:
            image: RGB, uint8, shape `(H, W, 3)`, any size; or an image of Pillow or the path of
                an image file, of any mode, see `probseg.images.read_image`.

        Raises:
            ValueError: If it is something else.
            DataError: If the file cannot be read.
        """
        if isinstance(image, Path | str):
            image = read_image(Path(image))
        elif isinstance(image, Image.Image):
            image = rgb_pixels(image)
        if not isinstance(image, np.ndarray):
            msg = (
                "`image` must be an array (H, W, 3), an image of Pillow or a path, got "
                f"{type(image).__name__}"
            )
            raise ValueError(msg)
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
            msg = (
                f"`image` must be RGB, uint8, of shape (H, W, 3), got shape {image.shape} and "
                f"dtype {image.dtype}{_to_rgb(image)}"
            )
            raise ValueError(msg)
        self._empty = self._encoded(begin(image_tensor(image, self.device)))
        self.reset()

    def adapt(self, adaptation: Adaptation) -> None:
        """Switch key adaptation and value propagation, for this image and those to come.

        Args:
            adaptation: The settings; those that are None stay as they are.

        Raises:
            ValueError: If the network has no layer to change, or a prior is given for iterations
                that are 0 and stay so.
        """
        self.model.adapt(adaptation)
        self._settings += 1
        if self._empty is not None and self._begun is not None and self._state is not None:
            # What was encoded with other keys is out of date.
            self._empty = self._encoded(self._empty._replace(view=None, encoded=None))
            view, encoded = self._empty.view, self._empty.encoded
            self._begun = self._begun._replace(view=view, encoded=encoded)
            self._state = self._state._replace(view=view, encoded=encoded)

    def predict(
        self,
        clicks: Sequence[Click | tuple[float, float] | tuple[float, float, bool]] = (),
        box: tuple[float, float, float, float] | None = None,
        mask: npt.NDArray[np.bool_ | np.uint8 | np.floating] | None = None,
    ) -> Mask:
        """Add prompts and segment the object.

        Without new prompts the answer is the last one, or a new one under changed settings.

        Args:
            clicks: New clicks, in pixels of the image: `Click`, `(x, y)` for a positive one, or
                `(x, y, positive)`.
            box: Half-open box `(x0, y0, x1, y1)` around the object, which is rounded outwards to
                whole pixels; replaces an earlier one. Where it reaches up to 2 pixels over the
                edge of the image, it is cut there with a warning.
            mask: A mask to begin with, which the prompts correct, or which the model refines where
                it is given alone: bool, probabilities in [0, 1], or uint8 with 255 or 1 on the
                object and 0 elsewhere, shape `(H, W)`. Earlier prompts are forgotten.

        Returns:
            The mask for all prompts so far.

        Raises:
            RuntimeError: If no image was set.
            ValueError: If a click or the box is outside the image, a prompt is of another form, the
                model takes no mask, or there is neither click nor box and the mask is empty.
        """
        state = self._current()
        added = tuple(as_click(click, f"clicks[{n}]") for n, click in enumerate(clicks))
        for click in added:
            check_click(click, state.image)
        drawn = None if box is None else fitted_box(box, state.image)
        if mask is not None:
            state = self._with_mask(mask)
        if drawn is not None:
            state = state._replace(box=drawn)
        state = state._replace(clicks=(*state.clicks, *added))
        begun = self._begun if mask is None else state._replace(clicks=(), box=None)
        assert begun is not None, "there is an image"
        if not state.clicks and state.box is None and not begun.probability.any():
            if mask is None:
                msg = "`clicks` must have at least one click without `box` and `mask`, got none"
            else:
                msg = "`mask` must have a pixel of the object without clicks and `box`, got none"
            raise ValueError(msg)
        if mask is not None:
            self._begun, self._answers = begun, []
        if self._answers and not added and box is None:
            if self._answers[-1].settings == self._settings:
                return Mask(state.probability)
            self._answers.pop()
            return self._answer_again(state)
        return self._answer(state)

    def _with_mask(self, mask: npt.NDArray[np.bool_ | np.uint8 | np.floating]) -> InteractionState:
        """Return the state of the image without prompts, with a mask as its last answer."""
        assert self._empty is not None, "there is an image"
        if not self.model.previous_mask:
            msg = (
                "`mask` must be None: this model takes no mask to begin with; choose one with "
                "previous_mask, such as 'lite0_unet_prop'"
            )
            raise ValueError(msg)
        given = np.asarray(mask)
        if given.dtype == np.uint8 and set(np.unique(given)) in ({0}, {1}, {255}, {0, 1}, {0, 255}):
            given = given > 0
        shape = self._empty.probability.shape
        number = given.dtype == np.bool_ or np.issubdtype(given.dtype, np.floating)
        if given.shape != shape or not number or not ((given >= 0) & (given <= 1)).all():
            msg = (
                f"`mask` must be bool, float in [0, 1], or uint8 with 0 and 255, of the image's "
                f"shape {shape}, got {given.dtype} of shape {given.shape}; (mask > 0) is True on "
                "the object if 0 is the background"
            )
            raise ValueError(msg)
        return self._empty._replace(probability=read_only(given.astype(np.float32)))

    def undo(self) -> Mask | None:
        """Undo the last click.

        Returns:
            The mask for the prompts that are left, as it was unless box or settings have changed
            since; None where neither click nor box is left, nor an answer to a mask alone.

        Raises:
            RuntimeError: If there is no click to take back.
        """
        if not self.clicks:
            msg = "no click to undo; call predict(...) with a click first"
            raise RuntimeError(msg)
        state = self._current()
        left = state._replace(clicks=state.clicks[:-1])
        while self._answers and len(self._answers[-1].state.clicks) > len(left.clicks):
            self._answers.pop()
        if not left.clicks and left.box is None and not self._answers:
            self._state = self._begun
            return None
        if self._answers:
            last = self._answers[-1].state
            if self._answers[-1].settings == self._settings and last.box == left.box:
                if last.clicks == left.clicks:
                    self._state = last
                    return Mask(last.probability)
            elif last.clicks == left.clicks:
                self._answers.pop()
        return self._answer_again(left)  # clicks came together, or box or settings are others

    def reset(self) -> None:
        """Discard mask, box and clicks; the image stays."""
        self._begun = self._state = self._empty
        self._answers = []

    def _encoded(self, state: InteractionState) -> InteractionState:
        """Return a state encoded where that does not depend on prompts."""
        return self._loop.encode(state) if self.model.prompts == "head" else state

    def _answer_again(self, state: InteractionState) -> Mask:
        """Answer the prompts of a state, which correct the last answer that is kept."""
        before = self._answers[-1].state if self._answers else self._begun
        assert before is not None, "there is an image"
        return self._answer(state._replace(probability=before.probability, window=before.window))

    def _answer(self, state: InteractionState) -> Mask:
        (self._state,) = self._loop.answer([with_crop(state)])
        self._answers.append(_Answered(self._state, self._settings))
        return Mask(self._state.probability)

    def _current(self) -> InteractionState:
        if self._state is None:
            msg = "no image: call set_image(image) before predict(...)"
            raise RuntimeError(msg)
        return self._state


def _to_rgb(image: npt.NDArray[Any]) -> str:
    """Return how an array that is no RGB image becomes one, as the end of a sentence."""
    if image.dtype != np.uint8:
        return "; values in [0, 1] become uint8 by (255 * image).astype(np.uint8)"
    pillow = "or give Image.fromarray"
    if image.ndim == 2:
        return f"; grey becomes RGB by np.stack([image] * 3, axis=-1), {pillow}(image)"
    channels = image.shape[2] if image.ndim == 3 else 0
    if channels == 1:
        return f"; grey becomes RGB by np.repeat(image, 3, axis=2), {pillow}(image[..., 0])"
    if channels == 4:
        return f"; image[..., :3] leaves the fourth channel out, {pillow}(image), laid over white"
    if image.ndim == 3 and image.shape[0] == 3:
        return "; channels become last by image.transpose(1, 2, 0)"
    return ""
