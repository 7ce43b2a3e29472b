"""An interactor for agents of CVAT; docs/integrations.md has the commands that register it."""

from __future__ import annotations

import cvat_sdk.auto_annotation as cvataa
from cvat_sdk.masks import encode_mask
from cvat_sdk.models import AttributeValRequest
from PIL import Image

from probseg.annotate.tools.prompted import PromptedModel, confidence
from probseg.descriptions import RECOMMENDED
from probseg.images import rgb_pixels
from probseg.interact.loop import InteractionState


class Interactor:
    """`cvat_sdk.auto_annotation.InteractionFunction` that answers with one mask."""

    spec = cvataa.InteractionFunctionSpec(min_pos_points=0, min_neg_points=0, min_bounding_boxes=0)

    def __init__(self, model: PromptedModel) -> None:
        self._model = model

    def preprocess_image(
        self, context: cvataa.InteractionFunctionContext, image: Image.Image
    ) -> InteractionState:
        """Encode an image; `detect` does not change the result."""
        return self._model.encode(rgb_pixels(image))

    def detect(
        self,
        context: cvataa.InteractionFunctionContext,
        pp_image: InteractionState,
        prompts: cvataa.InteractionPrompts,
    ) -> list[cvataa.InteractionResultShape]:
        """Return the mask for all prompts and its mean probability; no shape for an empty mask."""
        box = prompts.bounding_box
        corners = None if box is None else (*box[0], *box[1])
        mask = self._model.answer(pp_image, prompts.pos_points, prompts.neg_points, corners)
        if not mask.binary.any():
            return []
        score = AttributeValRequest(
            spec_id=int(cvataa.InteractionResultAttributes.CONFIDENCE),
            value=f"{confidence(mask):.3f}",
        )
        points = encode_mask(mask.binary)
        return [cvataa.InteractionResultShape(type="mask", points=points, attributes=[score])]


def create(model: str = RECOMMENDED, device: str = "cpu") -> Interactor:
    """Return the function for an agent; its arguments are the parameters `-p NAME=TYPE:VALUE`.

    Args:
        model: Model of the zoo, model folder, or folder of a run.
        device: `cpu`, `cuda`, `cuda:N` or `mps`.
    """
    return Interactor(PromptedModel(model, device))
