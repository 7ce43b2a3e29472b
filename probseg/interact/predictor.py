"""Interface for annotation tools: one image, then clicks, then masks."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from probseg.attention import Adaptation
from probseg.errors import check_name, require
from probseg.geometry import RECOMMENDED_ZOOM, ZOOMS, Box, Size
from probseg.images import rgb_pixels
from probseg.interact.loop import InteractionState
from probseg.interact.mask import Mask
from probseg.interact.photograph import Photograph, as_photograph, open_photograph
from probseg.interact.session import (
    Answer,
    Session,
    answer_prompts,
    build_loop,
    encode_image,
    prepare_model,
    with_steps,
)
from probseg.models import Segmenter
from probseg.types import BoxStep, Click, MaskStep, Step
from probseg.zoo import create_interactive

SHARED = (
    "another thread uses this predictor with another image; make one for each thread by "
    "Predictor(predictor.model), which shares the network"
)


def _usable(device: torch.device | str) -> torch.device:
    """Return a device that PyTorch sees on this machine; raise a ValueError for others."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        expected = "a device that PyTorch sees on this machine, such as 'cpu'"
        raise ValueError(f"`device` must be {expected}, got {device!r}: {reason}") from error
    return found


class Predictor:
    """Segments one image at a time by clicks.

    With a box, the model sees the part of the image around box and clicks, cut as in the protocol
    `gabbur2021`; without one it sees the whole image. If prompts enter at the head, this part is
    encoded once, and each click then takes a fraction of the time.

    Models that take a previous mask get their last answer as an input, so their next answer depends
    on which clicks came together. All answers to an object are kept: `undo` and `redo` are exact
    and cost nothing.

    A predictor has one image. Threads may share it as long as they ask about the same image: their
    calls wait for each other. If one thread sets an image while another one asks, a RuntimeError
    says so. For several images at once, each thread needs its own predictor; these may share the
    network.

    Args:
        model: The network; it is moved to the device, laid out with channels last and put into
            evaluation mode. If it has batch normalisations, a copy answers, in which they are
            folded into convolutions. Change its settings through `adapt` alone: otherwise earlier
            encodings would be used with the new settings.
        device: Where to compute.
        zoom: A name in `probseg.interact.ZOOMS`. With "scales", the first click is answered from
            the whole image and from windows of a half and a quarter of its side around the click,
            and the surest answer is taken; from the second click on, the model sees the
            surroundings of the predicted object, enlarged. Each new window costs an encoding.
            "look" adds a second look around each further click, in a smaller window, and answers
            the first click once more with its answer as the previous mask. "fixed" has only the
            surroundings of the object. None always shows the whole image, or the
            surroundings of the box.

    Raises:
        UnknownNameError: If there is no such zoom.
        ValueError: If PyTorch sees no such device on this machine.
    """

    def __init__(
        self,
        model: Segmenter,
        device: torch.device | str = "cpu",
        zoom: str | None = RECOMMENDED_ZOOM,
    ) -> None:
        hint = "Predictor.from_pretrained(NAME) takes a name"
        require(isinstance(model, Segmenter), "model", "a Segmenter", type(model).__name__, hint)
        if zoom is not None:
            check_name("zoom", zoom, ZOOMS)
        self.device = _usable(device)
        self.model = prepare_model(model, self.device)
        self._loop = build_loop(self.model, zoom)
        self._image: InteractionState | None = None  # without prompts
        self._session: Session | None = None
        self._lock = _Lock()

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        device: torch.device | str = "cpu",
        zoom: str | None = RECOMMENDED_ZOOM,
    ) -> Predictor:
        """Load a model of the zoo, a run, a local folder or the hub; see `probseg.create_model`.

        Raises:
            UsageError: If it is a model for semantic segmentation.
            UnknownNameError: If there is no such zoom.
            ValueError: If PyTorch sees no such device on this machine.
        """
        named = str(name.absolute()) if isinstance(name, Path) else name
        return cls(create_interactive(named, pretrained=True), _usable(device), zoom)

    def fresh(self) -> Predictor:
        """Return a predictor without an image, of the same network, device and zoom."""
        other = copy.copy(self)
        other._image = other._session = None
        other._lock = _Lock()
        return other

    @property
    def session(self) -> Session:
        """The steps on the object, of this image, and their answers.

        Raises:
            RuntimeError: If no image was set.
        """
        if self._session is None:
            raise RuntimeError("no image: call set_image(image) before predict(...)")
        return self._session

    @property
    def clicks(self) -> tuple[Click, ...]:
        """The clicks so far, in order."""
        return () if self._session is None else self._session.clicks

    @property
    def view(self) -> Box | None:
        """Box `(x0, y0, x1, y1)` of the last view, in pixels; None before the first prediction.

        It moves with the window of a zoom, and the model then encodes the new view.
        """
        view = None if self._session is None else self._session.answer.state.view
        return None if view is None else view.box

    def set_image(self, image: npt.NDArray[np.uint8] | Image.Image | Path | str) -> None:
        """Start with a new image; mask, box and clicks of the last one are discarded.

        Models whose prompts enter at the head encode it now, all others at each prediction.

        Args:
            image: RGB, uint8, shape `(H, W, 3)`, any size; or a Pillow image or the path of an
                image file, of any mode, see `probseg.images.read_image`.

        Raises:
            ValueError: If it is something else.
            DataError: If the file cannot be read.
            RuntimeError: If another thread is using this predictor.
        """
        if not self._lock.held.acquire(blocking=False):
            raise RuntimeError(SHARED)
        try:
            photograph = self._to_photograph(image)
            self._image = encode_image(self.model, photograph)
            self._session = Session(self._loop, self._image)
        finally:
            self._lock.held.release()

    def _to_photograph(self, image: npt.NDArray[np.uint8] | Image.Image | Path | str) -> Photograph:
        """Check an image of any form, and move it to the device."""
        if isinstance(image, Path | str):
            return open_photograph(Path(image), self.device)
        if isinstance(image, Image.Image):
            image = rgb_pixels(image)
        kind, expected = type(image).__name__, "an array (H, W, 3), a Pillow image or a path"
        hint = "np.asarray(image) makes one" if kind == "list" else ""
        require(isinstance(image, np.ndarray), "image", expected, kind, hint)
        fits = image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8 and image.size
        got = f"shape {image.shape} and dtype {image.dtype}"
        require(fits, "image", "RGB, uint8, of shape (H, W, 3)", got, _to_rgb(image))
        return as_photograph(image, self.device)

    @contextmanager
    def _locked_session(self) -> Iterator[Session]:
        """Give the session to one thread at a time; refuse if another thread has set an image."""
        photograph = None if self._image is None else self._image.photograph
        with self._lock.held:
            if self._image is not None and self._image.photograph is not photograph:
                raise RuntimeError(SHARED)
            yield self.session

    def adapt(self, adaptation: Adaptation) -> None:
        """Switch key adaptation and value propagation, for this image and those to come.

        The prompts so far are answered again, in order, by the next `predict`, `undo` or `redo`.

        Args:
            adaptation: The settings; those that are None stay as they are.

        Raises:
            UsageError: If the network has no layer to change, or a prior is given for iterations
                that are 0 and stay so.
        """
        with self._lock.held:
            self.model.adapt(adaptation)
            if self._image is not None:
                self._image = encode_image(self.model, self._image.photograph)
                self.session.begin_again(self._image)

    def predict(
        self,
        clicks: Sequence[Click | tuple[float, float] | tuple[float, float, bool]] = (),
        box: tuple[float, float, float, float] | None = None,
        mask: Mask | npt.NDArray[np.bool_ | np.integer | np.floating] | None = None,
    ) -> Mask:
        """Add prompts and segment the object.

        Without new prompts the answer is the last one, or a new one under changed settings. Each
        click, box and mask is a step that `undo` takes back: those of one call in the order mask,
        box, clicks.

        Args:
            clicks: New clicks, in pixels of the image: `Click`, `(x, y)` for a positive one, or
                `(x, y, positive)`.
            box: Half-open box `(x0, y0, x1, y1)` around the object, which is rounded outwards to
                whole pixels; replaces an earlier one. Where it reaches up to 2 pixels over the
                edge of the image, it is cut there with a warning.
            mask: A mask to begin with, which the prompts correct, or which the model refines where
                it is given alone: a `Mask`, bool, probabilities in [0, 1], or integers with 255 or
                1 on the object and 0 elsewhere, shape `(H, W)`. Earlier prompts are forgotten.

        Returns:
            The mask for all prompts so far.

        Raises:
            RuntimeError: If no image was set, or another thread has set one meanwhile.
            ValueError: If a click or the box is outside the image, a prompt is of another form, the
                model takes no mask, or there is neither click nor box and the mask is empty.
            DataError: If the image is a file of more than 2000 pixels on its longer side, which is
                read again for small views, and is gone or has changed since `set_image`.
        """
        added = [_as_click(click, f"clicks[{n}]") for n, click in enumerate(clicks)]
        steps: list[Step] = [] if mask is None else [_as_mask(mask, self.session.photograph.size)]
        if box is not None:
            steps.append(_as_box(box))
        steps += added
        has_pixels = [type(step) for step in steps] != [MaskStep] or np.any(mask)
        require(has_pixels, "mask", "not empty without clicks and `box`", "no pixel of the object")
        with self._locked_session() as session:
            answer = session.add(*steps) if steps else session.answer
        if answer.mask is None:
            raise ValueError("`clicks` must be at least one without `box` and `mask`, got none")
        return answer.mask

    def predict_many(self, boxes: Sequence[Sequence[float]] | npt.NDArray[np.number]) -> list[Mask]:
        """Segment the object in each of several boxes, together, which takes less time.

        The prompts so far and `undo` have no part in it, and do not change.

        Args:
            boxes: As `box` of `predict`, in an array `(N, 4)` or a list.

        Returns:
            The masks that `predict(box=box)` gives for each box alone, up to rounding.

        Raises:
            RuntimeError: As for `predict`.
            ValueError: If a box is outside the image, or does not have four numbers.
        """
        with self._locked_session():
            blank = Answer(cast("InteractionState", self._image))
            steps = [_as_box(box, f"boxes[{n}]") for n, box in enumerate(boxes)]
            states = answer_prompts(self._loop, [with_steps(blank, [s]).state for s in steps])
            return [Mask(state.answer) for state in states]

    def undo(self) -> Mask | None:
        """Take back the last step: a click, a box or a mask.

        Returns:
            The mask for the prompts that are left; None where none are.

        Raises:
            RuntimeError: If there is nothing to take back.
        """
        with self._locked_session() as session:
            if not session.steps:
                raise RuntimeError("nothing to undo; call predict(...) with a prompt first")
            session.move_to(len(session.steps) - 1)
            return session.answer.mask

    def redo(self) -> Mask | None:
        """Bring back the step that was taken back last.

        Returns:
            The mask for the prompts so far; None for an empty mask while its clicks and box are
            still taken back.

        Raises:
            RuntimeError: If no step was taken back since the last `predict` with a prompt.
        """
        with self._locked_session() as session:
            if not session.undone:
                raise RuntimeError("nothing to redo; redo() brings back what undo() took back last")
            session.move_to(len(session.steps) + 1)
            return session.answer.mask

    def reset(self) -> None:
        """Discard mask, box and clicks; the image stays."""
        with self._lock.held:
            self._session = None if self._image is None else Session(self._loop, self._image)


class _Lock:
    """A lock that copies and pickles of its owner do not share."""

    def __init__(self) -> None:
        self.held = threading.RLock()

    def __reduce__(self) -> tuple[type[_Lock], tuple[()]]:
        """Return what makes another one."""
        return _Lock, ()


def _to_rgb(image: npt.NDArray[Any]) -> str:
    """Say how to make an array an RGB image, as the end of a sentence."""
    if np.issubdtype(image.dtype, np.integer) and image.dtype != np.uint8:
        few, many = "image.astype(np.uint8)", "(image / 257).astype(np.uint8)"
        return f"integers from 0 to 255 become uint8 by {few}, from 0 to 65535 by {many}"
    if image.dtype != np.uint8:
        return "values in [0, 1] become uint8 by (255 * image).astype(np.uint8)"
    pillow = "or give Image.fromarray"
    if image.ndim == 2:
        return f"grey becomes RGB by np.stack([image] * 3, axis=-1), {pillow}(image)"
    channels = image.shape[2] if image.ndim == 3 else 0
    if channels == 1:
        return f"grey becomes RGB by np.repeat(image, 3, axis=2), {pillow}(image[..., 0])"
    if channels == 4:
        return f"image[..., :3] leaves the fourth channel out, {pillow}(image), laid over white"
    if image.ndim == 3 and image.shape[0] == 3:
        return "channels become last by image.transpose(1, 2, 0)"
    return ""


def _as_click(value: object, name: str) -> Click:
    """Return a `Click` for one, `(x, y)` or `(x, y, positive)`; raise a ValueError for others."""
    if isinstance(value, Click):
        return value
    if isinstance(value, Sequence | np.ndarray) and len(value) in (2, 3):
        x, y, positive = (*value, True)[:3]
        numbers = (isinstance(n, int | float | np.number) and math.isfinite(n) for n in (x, y))
        if all(numbers) and positive in (0, 1):
            return Click(float(x), float(y), bool(positive))
    raise ValueError(
        f"`{name}` must be a Click, (x, y) or (x, y, positive), got {value!r}; give a sequence of "
        "clicks, such as [(120, 90), (300, 40, False)]"
    )


def _as_box(value: Sequence[float], name: str = "box") -> BoxStep:
    """Return a box as a step; a ValueError refuses anything but four numbers."""
    try:
        x0, y0, x1, y1 = (float(number) for number in value)
    except (TypeError, ValueError) as error:
        expected = "four numbers (x0, y0, x1, y1)"
        raise ValueError(f"`{name}` must be {expected}, got {value!r}") from error
    return BoxStep((x0, y0, x1, y1))


def _as_mask(
    mask: Mask | npt.NDArray[np.bool_ | np.integer | np.floating], shape: Size
) -> MaskStep:
    """Return a mask of any form as a step."""
    array = np.asarray(mask)
    if np.issubdtype(array.dtype, np.integer):
        values = set(np.unique(array))
        array = array > 0 if values <= {0, 1} or values <= {0, 255} else array
    number = array.dtype == np.bool_ or np.issubdtype(array.dtype, np.floating)
    if array.shape != shape or not number or not ((array >= 0) & (array <= 1)).all():
        remedy = "; (mask > 0) is True on the object if 0 is the background"
        raise ValueError(
            "`mask` must be a Mask, bool, float in [0, 1], or integers 0 and 255, of the image's "
            f"shape {shape}, got {array.dtype} of shape {array.shape}"
            f"{remedy if array.shape == shape else ''}"
        )
    return MaskStep(array.astype(np.float32))
