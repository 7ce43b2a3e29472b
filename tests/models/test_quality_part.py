"""Networks that predict the IoU of their answers."""

import numpy as np
import pytest
import torch

from probseg.interact import InteractionLoop, Predictor, begin
from probseg.interact.mask import Mask
from probseg.models.network import SegmenterModel
from probseg.types import Click, Stroke
from support.fakes import micro_model
from support.network_cases import prompts

QUALITY = {
    "class_path": "probseg.heads.MaskQuality",
    "init_args": {"channels": 4, "hidden": 8},
}
PLACES = [("micro_conv", {}), ("micro_fast", {})]
SIZE = (40, 56)
CLICKS = prompts((20, 12, 1), (4, 5, 0))


def network(name="micro_fast", **changes):
    torch.manual_seed(0)
    model = micro_model(name, quality=QUALITY, temperature=0.5, **changes).eval()
    torch.nn.init.normal_(model.quality.layers[-1].weight)
    return model


def photo(size=SIZE):
    return np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)


@pytest.mark.parametrize(("name", "changes"), PLACES)
def test_the_answers_are_those_of_the_network_without_the_part(name, changes):
    model = network(name, **changes)
    plain = micro_model(name, temperature=0.5, **changes).eval()
    weights = {k: v for k, v in model.state_dict().items() if not k.startswith("quality.")}
    plain.load_state_dict(weights)
    image = torch.rand(1, 3, *SIZE)
    with torch.no_grad():
        assert torch.equal(model(image, CLICKS), plain(image, CLICKS))
        encoded = model.encode(image)
        assert model.raw_logits(encoded, CLICKS).quality.shape == (1,)
        assert plain.raw_logits(encoded, CLICKS).quality is None


def test_images_together_have_the_quality_of_each():
    model = network()
    images = [torch.rand(3, *size) for size in (SIZE, (38, 54))]
    asked = [CLICKS, prompts((9, 30, 1))]
    each = SegmenterModel(model)
    with torch.inference_mode():
        logits, quality = each.decode_each(each.encode_each(images), asked)
        for n, (image, clicks) in enumerate(zip(images, asked, strict=True)):
            alone = model.raw_logits(model.encode(image[None]), clicks)
            torch.testing.assert_close(quality[n], alone.quality[0].sigmoid())
            torch.testing.assert_close(logits[n], model.calibrated(alone.main)[0, 0])


@pytest.mark.parametrize("flip", [False, True])
def test_the_predicted_iou_goes_with_the_answer(flip):
    model = network()
    loop = InteractionLoop(model, flip=flip)
    state = begin(torch.from_numpy(photo()).permute(2, 0, 1))
    (state,) = loop.step([state], [Click(20, 12)])
    image = state.image[None] / 255
    sides = [(image, 20), (image.flip(-1), SIZE[1] - 1 - 20)][: 1 + flip]
    with torch.inference_mode():
        answers = [model.raw_logits(model.encode(x), prompts((c, 12, 1))) for x, c in sides]
    expected = np.mean([answer.quality.sigmoid().item() for answer in answers])
    assert state.answer.quality == pytest.approx(expected, abs=1e-5)


def test_masks_have_it_until_somebody_paints():
    model = network()
    torch.nn.init.constant_(model.head.bias, 20.0)
    predictor = Predictor(model, zoom=None)
    predictor.set_image(photo())
    mask = predictor.predict([(20, 12)])
    assert mask.quality == predictor.session.answer.state.answer.quality
    painted = predictor.session.add(Stroke(((5.0, 5.0),), 3.0, False)).mask
    p = painted.probability.astype(np.float64)
    assert painted.quality == pytest.approx(
        p[p > 0.5].sum() / ((p > 0.5).sum() + p[p <= 0.5].sum())
    )
    assert Mask(np.zeros((4, 4), np.float32)).quality == 0
    assert Mask(np.ones((4, 4), np.float32)).quality == 1
