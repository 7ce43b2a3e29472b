"""The last answer as one more input of the network."""

import copy
from functools import partial

import pytest
import torch

from probseg.backbones import PromptStem, rgb_parameters
from probseg.heads import Head
from probseg.models import Segmenter
from support.fakes import micro_model
from support.micro import FUSION
from support.network_cases import Recorder, Through, prompts
from support.refusals import refused
from support.rows import each

ENTRIES = ["stem", "head"]


def build(entry="stem", previous_mask=True, **changes):
    torch.manual_seed(0)
    if entry == "head":
        changes = {"fusion": FUSION, **changes}
    return micro_model("micro_csa", prompts=entry, previous_mask=previous_mask, **changes)


asked = partial(prompts, (9, 12, 1), (30, 4, 0))


def noise(*size, seed=0):
    return torch.rand(size, generator=torch.Generator().manual_seed(seed))


class Last(Head):
    """Returns the last map, and sees to it that the clicks are still the two before it."""

    def __init__(self, inputs, value_channels, stride=1):
        super().__init__()
        self.stride = stride

    def forward(self, features, clicks, value_features=None):
        assert torch.equal(features[:, 1:3], clicks)
        return features[:, 3:]


def echo(working_size=None, stride=1):
    """A network whose logits are the previous mask as it sees it."""
    head = partial(Last, stride=stride)
    return Segmenter(
        Recorder(maps=4), Through, head, working_size=working_size, previous_mask=True
    ).eval()


@each("working_size", [None, 30])
@each("entry", ENTRIES)
def test_the_previous_mask_changes_the_answer_and_none_is_zeros(entry, working_size):
    model, image = build(entry, working_size=working_size), noise(1, 3, 37, 41)
    zeros, half, other = (
        torch.zeros(1, 1, 37, 41),
        torch.full((1, 1, 37, 41), 0.5),
        noise(1, 1, 37, 41),
    )
    with torch.no_grad():
        encoded = model.encode(image)
        answers = [model.decode(encoded, asked(previous=one)) for one in (zeros, half, other)]
        assert torch.equal(model.decode(encoded, asked()), answers[0])
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (answers[a] - answers[b]).abs().max() > 1e-4


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_gradient_flows_into_it(entry):
    model = build(entry).train()
    previous = noise(2, 1, 32, 32).requires_grad_()
    model(noise(2, 3, 32, 32), asked(previous=previous, batch=2)).sum().backward()
    assert previous.grad is None
    first = model.backbone if entry == "stem" else model.fusion.embed
    (weight,) = [p for p in first.parameters() if p.ndim == 4 and p.shape[1] == 4]
    assert weight.grad[:, 3].abs().sum() > 0


def test_it_is_the_last_channel_filled_up_with_zeros():
    model, previous = echo(stride=4), noise(1, 1, 9, 7) + 0.1
    assert torch.equal(model(torch.zeros(1, 3, 9, 7), asked(previous=previous)), previous)
    assert model.backbone.seen.shape == (1, 7, 12, 8)
    seen = model.backbone.seen[:, 6:]
    assert torch.equal(seen[..., :9, :7], previous)
    assert seen.count_nonzero() == 9 * 7


@pytest.mark.parametrize("stride", [1, 4])
def test_a_square_lands_where_it_should(stride):
    # The image is reduced to a third: pixels 30 to 59 become 10 to 19.
    model = echo(working_size=41, stride=stride)
    previous = torch.zeros(1, 1, 90, 123)
    previous[..., 30:60, 60:96] = 1
    answer = model(torch.zeros(1, 3, 90, 123), asked(previous=previous))
    seen = model.backbone.seen[0, 6]
    expected = torch.zeros_like(seen)
    expected[10:20, 20:32] = 1
    assert torch.equal(seen > 0.5, expected > 0.5)
    wrong = ((answer > 0.5) != (previous > 0.5))[0, 0].nonzero().tolist()
    corners = [[30, 60], [30, 95], [59, 60], [59, 95]]  # enlarged, corners are round
    assert all(pixel in corners for pixel in wrong)


def test_resizing_is_that_of_the_image():
    model, previous = echo(working_size=41), noise(1, 1, 90, 123)
    model(previous.expand(1, 3, 90, 123), asked(previous=previous))
    grey = 0.5 * model.backbone.seen[:, :1] + 0.5
    torch.testing.assert_close(model.backbone.seen[:, 6:], grey)


def test_wrong_previous_masks_are_refused():
    image, model = torch.zeros(1, 3, 8, 8), build()
    for previous in (
        torch.zeros(1, 1, 8, 9),
        torch.zeros(1, 8, 8),
        torch.zeros(2, 1, 8, 8),
        torch.zeros(1, 1, 8, 8, dtype=torch.bool),
    ):
        got = (tuple(previous.shape), previous.dtype)
        refused(
            ValueError, partial(model, image, asked(previous=previous)), "prompts.previous", *got
        )
    without, given = build(previous_mask=False), asked(previous=torch.zeros(1, 1, 8, 8))
    refused(ValueError, lambda: without(image, given), "prompts.previous", "previous_mask=True")


@pytest.mark.parametrize("entry", ENTRIES)
def test_with_blind_weights_it_is_the_network_without(entry):
    """The channel that is new is last: a network without it is one whose weights there are 0."""
    plain, model = build(entry, previous_mask=False), build(entry)
    state, changed = copy.deepcopy(plain.state_dict()), 0
    assert state.keys() == model.state_dict().keys()
    for key, tensor in model.state_dict().items():
        if tensor.shape != state[key].shape:
            state[key] = torch.cat([state[key], torch.zeros_like(tensor[:, 3:])], dim=1)
            changed += 1
    assert changed == 1
    model.load_state_dict(state)
    image = noise(1, 3, 37, 41)
    with torch.no_grad():
        answer = model(image, asked(previous=noise(1, 1, 37, 41)))
        torch.testing.assert_close(answer, plain(image, asked()), rtol=1e-5, atol=1e-5)


def test_parameters_of_the_image_alone():
    backbone = Recorder(maps=4)
    known = set(backbone.parameters())
    Segmenter(backbone, Through, Last, previous_mask=True)
    assert isinstance(backbone.first, PromptStem)
    assert backbone.first.prompts.weight.shape[1] == 4
    assert set(rgb_parameters(backbone)) == known
