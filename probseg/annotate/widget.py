"""A photograph to click on in a notebook, answered by a `Predictor` in the kernel."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import numpy.typing as npt
import traitlets
from PIL import Image

from probseg.annotate.frames import bounding_window, pack
from probseg.annotate.steps import as_step
from probseg.interact.mask import Mask
from probseg.interact.predictor import Predictor
from probseg.models import Segmenter
from probseg.page import SHARED
from probseg.types import Click, read_only

_PAGE = Path(__file__).parent / "page"


class Clicker(anywidget.AnyWidget):
    """A photograph to click on; masks are computed in the kernel.

    Some kernels answer clicks in a thread of their own, beside the cells (ipykernel 7). A cell that
    reads `clicks`, `mask` or `masks` meanwhile waits for the answer.

    Args:
        image: RGB, uint8, shape `(H, W, 3)`; or a Pillow image or the path of an image file.
        model: A name for `probseg.create_model`, a network, or a predictor, whose network, device
            and zoom are taken; its own image and clicks stay as they are.
        height: Of the widget in CSS pixels.

    Raises:
        ValueError: If the image is of another shape or type.
        DataError: If the file cannot be read.
        UnknownNameError: If there is no model of this name.
    """

    _esm = "\n".join(
        path.read_text("utf-8") for path in (SHARED / "canvas.js", _PAGE / "notebook.js")
    )
    _css = (SHARED / "page.css").read_text("utf-8")
    height = traitlets.Int(560).tag(sync=True)

    def __init__(
        self,
        image: npt.NDArray[np.uint8] | Image.Image | Path | str,
        model: str | Segmenter | Predictor = "lite2_unet_prop",
        height: int = 560,
    ) -> None:
        if isinstance(model, Predictor):
            self._predictor = model.fresh()
        elif isinstance(model, str):
            self._predictor = Predictor.from_pretrained(model)
        else:
            self._predictor = Predictor(model)
        self._predictor.set_image(image)
        super().__init__(height=height)  # from here on the notebook knows it
        self._finished: list[tuple[npt.NDArray[np.bool_], int]] = []
        self._last: Mask | None = None  # of the finished objects
        self._answering = threading.RLock()
        self.on_msg(self._receive)

    @property
    def clicks(self) -> tuple[Click, ...]:
        """The clicks on the object that is not finished yet."""
        with self._answering:
            return self._predictor.clicks

    @property
    def mask(self) -> Mask | None:
        """The answer for the open object, else the object finished last; None before any."""
        with self._answering:
            return self._last if self._open is None else self._open

    @property
    def _open(self) -> Mask | None:
        return self._predictor.session.answer.mask

    @property
    def masks(self) -> list[npt.NDArray[np.bool_]]:
        """The finished objects, each bool of shape `(H, W)`, read-only."""
        with self._answering:
            return [read_only(mask) for mask, _ in self._finished]

    def _receive(self, _: object, content: Mapping[str, Any], buffers: Sequence[bytes]) -> None:
        """Answer a question of the front end, with its number."""
        asked = {"number": content["number"], "action": content["action"]["type"]}
        try:
            with self._answering:
                answer = self._answer(content["action"], content["sequence"])
        except (ValueError, RuntimeError) as error:
            self.send({**asked, "error": str(error)})
        else:
            self.send(asked, [answer])

    def _answer(self, action: Mapping[str, Any], sequence: int) -> bytes:
        """Return the photograph as a PNG, or a frame (see `probseg.annotate.frames`)."""
        started = time.perf_counter()
        header: dict[str, Any] = {}
        maps: npt.NDArray[Any] | None = None
        match action["type"]:
            case "image":
                written, pixels = io.BytesIO(), self._predictor.session.photograph.full
                shown = Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())
                shown.save(written, "PNG", compress_level=1)
                return written.getvalue()
            case "masks":
                masks = self.masks
                return b"".join(pack({"object": n}, masks[n]) for n in action["objects"])
            case "preview":
                answer = self._predictor.session.preview(as_step({**action, "type": "click"}))
                maps = None if answer.mask is None else answer.mask.binary
            case "uncertainty" if self._open is not None:
                maps = np.round(255 * self._open.uncertainty).astype(np.uint8)
            case kind:
                self._change(kind, action)
                header = self._state()
                maps = None if self._open is None else self._open.binary
        milliseconds = 1000 * (time.perf_counter() - started)
        return pack({**header, "sequence": sequence, "milliseconds": milliseconds}, maps)

    def _change(self, kind: str, action: Mapping[str, Any]) -> None:
        predictor = self._predictor
        match kind:
            case "click" | "box":
                predictor.session.add(as_step(action))
            case "undo" if predictor.session.steps:
                predictor.undo()
            case "redo" if predictor.session.undone:
                predictor.redo()
            case "clear":
                predictor.reset()
            case "finish" if self._open is not None:
                self._last = self._open
                self._finished.append((self._last.binary, len(self.clicks)))
                predictor.reset()
            case "open" | "mask" | "undo" | "redo" | "finish" | "uncertainty":
                pass  # nothing to change
            case _:
                raise ValueError(f"`type` must be an action of the notebook, got {kind!r}")

    def _state(self) -> dict[str, Any]:
        session = self._predictor.session
        clicks = [{"x": x + 0.5, "y": y + 0.5, "positive": sign} for x, y, sign in self.clicks]
        objects = [
            {
                "id": number,
                "label": None,
                "area": int(mask.sum()),
                "window": bounding_window(mask),
                "clicks": clicks_given,
            }
            for number, (mask, clicks_given) in enumerate(self._finished)
        ]
        marked = {"object": None, "clicks": clicks, "box": session.box}
        height, width = session.photograph.size
        return {
            "width": width,
            "height": height,
            "undo": bool(session.steps),
            "redo": bool(session.undone),
            "current": marked if session.steps else None,
            "objects": objects,
        }
