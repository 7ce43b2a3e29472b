"""What all networks share: base class, images and prompts, and models of many images at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.errors import require
from probseg.geometry import Size
from probseg.heads.base import DecoderMaps, Units
from probseg.kinds import TaskName
from probseg.ops.backends import transformed
from probseg.ops.numerics import HALF, working_dtype
from probseg.types import Prompts

if TYPE_CHECKING:
    from probseg.models.segmenter import Segmenter


class Network(nn.Module):
    """Base of the networks of all tasks.

    Attributes:
        task: Name of the task, one of `probseg.kinds.TASKS`.
        mean: Of the channels of images in [0, 1], shape `(3, 1, 1)`.
        std: Their standard deviations.
    """

    task: ClassVar[TaskName]
    mean: Tensor
    std: Tensor


def check_head(head: Callable[..., nn.Module], expected: type[nn.Module], network: str) -> None:
    """Raise a ValueError if the head to be built, a class or a partial, is one of another task."""
    kind: Any = head.func if isinstance(head, partial) else head
    require(
        not isinstance(kind, type) or issubclass(kind, expected),
        "head",
        f"a {expected.__name__}, which a {network} is built with",
        getattr(kind, "__name__", kind),
        "a Segmenter takes the heads of interactive segmentation, a SemanticSegmenter those of "
        "semantic segmentation",
    )


def check_image(image: Tensor) -> None:
    """Raise a ValueError unless images are RGB, float, of shape `(B, 3, H, W)`."""
    is_tensor = isinstance(image, Tensor)
    fits = is_tensor and image.ndim == 4 and image.shape[1] == 3 and image.is_floating_point()
    got = f"{image.dtype} of shape {tuple(image.shape)}" if is_tensor else type(image).__name__
    require(fits, "image", "a float tensor in [0, 1] of shape (B, 3, H, W)", got)


def check_values(image: Tensor, prompts: Prompts | None = None) -> None:
    """Refuse images that are not in [0, 1] and clicks outside of them, unless a graph is made.

    For calls of a whole network: it waits for the device, and other doors know what they pass.
    """
    recorded = torch.compiler.is_compiling() or transformed() or image.is_meta
    if recorded or not image.numel():
        return
    low, high = (float(value) for value in image.detach().aminmax())
    require(
        -0.5 <= low <= high <= 1.5,  # cubic interpolation leaves [0, 1] by a little
        "image",
        "RGB in [0, 1]",
        f"values from {low:g} to {high:g}",
        "divide 0 ... 255 by 255, and leave the normalisation to the network",
    )
    if prompts is None:
        return
    labels = torch.unique(prompts.labels).tolist()
    require({*labels} <= {-1, 0, 1}, "prompts.labels", "1, 0, or -1 for no click", labels)
    boxes = prompts.boxes[~prompts.boxes.isnan().all(-1)]
    ordered, form = (boxes[:, :2] < boxes[:, 2:]).all(), "x0 < x1 and y0 < y1, or all NaN for none"
    require(ordered, "prompts.boxes", form, boxes.tolist())
    clicks = prompts.points[prompts.labels >= 0]
    outside = ~((clicks >= -0.5) & (clicks < clicks.new_tensor(image.shape[:1:-1]))).all(-1)
    require(
        not outside.any(),
        "prompts.points",
        f"(x, y) in pixels of an image {tuple(image.shape[2:])}",
        clicks[outside].tolist(),
        "where there is no click the label is -1",
    )


def normalise(image: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Normalise images by the mean and deviation that the backbone expects, in its dtype."""
    # Under true half precision the weights, and with them the network's buffers, are not float32.
    return ((image - mean) / std).to(mean.dtype)


def resize_maps(maps: Tensor, size: Size) -> Tensor:
    """Resize maps `(B, C, H, W)`, without aliasing; those of this size are returned unchanged."""
    if tuple(maps.shape[-2:]) == size:
        return maps
    if size[1] == 1 < size[0]:  # PyTorch on the CPU errs where columns become one, not with rows
        return resize_maps(maps.mT, size[::-1]).mT
    # On the CPU, half precision has no antialiasing.
    wide = maps.float() if maps.dtype in HALF else maps
    resized = F.interpolate(wide, size, mode="bilinear", align_corners=False, antialias=True)
    return resized.to(maps.dtype)


if hasattr(os, "register_at_fork"):  # on Windows, no process is forked
    # A fork has none of the threads of its parent, for which it would wait for ever once the parent
    # has computed anything, such as loading a model. With one thread it waits for none.
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


class Encoded(NamedTuple):
    """Output of the image encoder: everything that depends on the images alone.

    The normalised images, `(B, 3, h + ..., w + ...)`, are padded at the right and at the bottom to
    whole cells of the decoder's and the head's grids.
    """

    size: Size  # `(H, W)` of the images; prompts are in their pixels
    working_size: Size  # `(h, w)` that the network works at
    image: Tensor
    decoder_maps: DecoderMaps | None  # None where they depend on prompts

    def repeat(self, times: int) -> Encoded:
        """Repeat each image `times` times in a row."""
        return self if times == 1 else self.map(lambda maps: maps.repeat_interleave(times, dim=0))

    def map(self, change: Callable[[Tensor], Tensor]) -> Encoded:
        """Apply a function to every tensor."""
        decoder_maps = None if self.decoder_maps is None else self.decoder_maps.map(change)
        return self._replace(image=change(self.image), decoder_maps=decoder_maps)

    def unpad(self, maps: Tensor) -> Tensor:
        """Remove the padding of maps `(B, C, h + ..., w + ...)`: `(B, C, h, w)`."""
        return maps[..., : self.working_size[0], : self.working_size[1]]

    def unpad_and_resize(self, logits: Tensor) -> Tensor:
        """Remove the padding of logits, if it is still there, and resize them to the images."""
        logits = self.unpad(logits.to(working_dtype(logits.dtype)))
        if self.working_size == self.size:
            return logits
        return F.interpolate(logits, self.size, mode="bilinear", align_corners=False)


def resize_prompts(prompts: Prompts, size: Size, new_size: Size) -> Prompts:
    """Convert prompts on images of `size`, `(H, W)`, to pixels of these images at `new_size`."""
    if size == new_size:
        return prompts
    scale = prompts.boxes.new_tensor([new_size[1] / size[1], new_size[0] / size[0]])
    # A point is the centre of a pixel, half a pixel from the pixel's border; boxes are borders.
    return Prompts(
        points=(prompts.points + 0.5) * scale - 0.5,
        labels=prompts.labels,
        boxes=prompts.boxes * scale.repeat(2),
        previous=None if prompts.previous is None else resize_maps(prompts.previous, new_size),
    )


def check_prompts(prompts: Prompts, batch: int, size: Size, previous_mask: bool) -> None:
    """Raise a ValueError unless prompts fit `batch` images `(H, W)` and what the network takes."""
    are_prompts = isinstance(prompts, Prompts)
    require(are_prompts, "prompts", "`probseg.types.Prompts`", type(prompts).__name__)
    points, labels, boxes = (tuple(part.shape) for part in prompts[:3])
    require(
        points == (*labels, 2) and labels[:1] == (batch,) and boxes == (batch, 4),
        "prompts",
        f"`points` (B, S, 2), `labels` (B, S) and `boxes` (B, 4) of {batch} images",
        f"{points}, {labels} and {boxes}",
    )
    if prompts.previous is None:
        return
    require(
        previous_mask,
        "prompts.previous",
        "None for a network without previous mask",
        "a mask",
        "choose a protocol without `previous_mask`, or a network with previous_mask=True",
    )
    shape, expected = tuple(prompts.previous.shape), (batch, 1, *size)
    require(
        shape == expected and prompts.previous.is_floating_point(),
        "prompts.previous",
        f"probabilities, float of shape {expected}",
        f"{prompts.previous.dtype} of shape {shape}",
    )


# logits `(H, W)` of each image, and the predicted IoU of each answer with the truth, from 0 to 1;
# None of models that do not predict it
Decoded = tuple[Sequence[Tensor], Sequence[Tensor] | Tensor | None]


class Model(Protocol):
    """A model for clicks on many images at once; `SegmenterModel` adapts a `Segmenter` to it."""

    def batch_key(self, size: Size) -> Hashable:
        """Return what images of size `(H, W)` must have in common to be computed together."""

    def encode_each(self, images: Sequence[Tensor]) -> Sequence[Any]:
        """Encode images `(3, H, W)` in [0, 1] of one `batch_key`; called once for each image."""

    def decode_each(self, encoded: Sequence[Any], prompts: Sequence[Prompts]) -> Decoded:
        """Answer all prompts so far (a batch of 1) on each image."""


class OneStep(NamedTuple):
    """A model that is one function of image `(1, 3, H, W)` and prompts to logits `(1, 1, H, W)`."""

    predict: Callable[[Tensor, Prompts], Tensor]

    def batch_key(self, size: Size) -> Size:
        """Compute images of one size together."""
        return size

    def encode_each(self, images: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the images unchanged."""
        return images

    def decode_each(self, encoded: Sequence[Tensor], prompts: Sequence[Prompts]) -> Decoded:
        """Call the function for each image."""
        pairs = zip(encoded, prompts, strict=True)
        return [self.predict(image[None], asked)[0, 0] for image, asked in pairs], None


class SegmenterModel(NamedTuple):
    """The `Model` of a `Segmenter` in evaluation mode: images of several sizes in one call.

    The answers are those of `Segmenter.encode` and `Segmenter.decode` for each image, up to the
    rounding of batched kernels. Images that are padded to one size share a call.
    """

    network: Segmenter

    def batch_key(self, size: Size) -> Size:
        """Return the size of the padded image that the network sees, for one of size `(H, W)`."""
        return self.network.sizes(size)[1]

    def encode_each(self, images: Sequence[Tensor]) -> list[Encoded]:
        """Compute what does not depend on prompts, for images of one `batch_key`."""
        prepared = [self.network.preprocess(image[None]) for image in images]
        decoder_maps = self.network.image_features(
            torch.cat([encoded.image for encoded in prepared])
        )
        if decoder_maps is None:
            return prepared
        decoder_maps = decoder_maps._replace(auxiliary=None)  # for the loss alone
        return [
            encoded._replace(decoder_maps=decoder_maps.map(lambda maps, n=n: maps[n : n + 1]))  # type: ignore[misc]
            for n, encoded in enumerate(prepared)
        ]

    def decode_each(self, encoded: Sequence[Encoded], prompts: Sequence[Prompts]) -> Decoded:
        """Answer clicks and box of each image, a batch of 1 in its pixels."""
        network = self.network
        moved = [
            network.to_network_pixels(network.uncalibrate(asked), image)
            for image, asked in zip(encoded, prompts, strict=True)
        ]
        images = torch.cat([image.image for image in encoded])
        parts = [image.decoder_maps for image in encoded if image.decoder_maps is not None]
        features = parts[0] if parts else None  # None where prompts enter at the stem
        if len(parts) > 1:
            units = [maps.units for maps in parts if maps.units is not None]
            features = DecoderMaps(
                torch.cat([maps.features for maps in parts]),
                coarser=tuple(map(torch.cat, zip(*(maps.coarser for maps in parts), strict=True))),
                units=Units(*map(torch.cat, zip(*units, strict=True))) if units else None,
            )
        raw, _, quality = network.padded_logits(images, features, _join_prompts(moved))
        logits = []
        for n, image in enumerate(encoded):
            refined = network.refine(raw[n : n + 1], image, moved[n])
            logits.append(network.calibrate(image.unpad_and_resize(refined))[0, 0])
        return logits, None if quality is None else quality.sigmoid()


def _join_prompts(prompts: Sequence[Prompts]) -> Prompts:
    """Return the prompts of several images as one batch, padded with rows of label -1.

    Either all have previous masks of one size, or none has one.
    """
    if len(prompts) == 1:
        return prompts[0]
    previous = [each.previous for each in prompts if each.previous is not None]
    most = max(each.labels.shape[1] for each in prompts)
    missing = [most - each.labels.shape[1] for each in prompts]
    pairs = list(zip(prompts, missing, strict=True))
    return Prompts(
        points=torch.cat([F.pad(each.points, (0, 0, 0, n)) for each, n in pairs]),
        labels=torch.cat([F.pad(each.labels, (0, n), value=-1) for each, n in pairs]),
        boxes=torch.cat([each.boxes for each in prompts]),
        previous=torch.cat(previous) if previous else None,
    )
