"""Second looks: where the window lies, and that clicks, mask and answer move with it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.clicks.rounds import halve, look_again
from probseg.types import Prompts

H, W = 32, 48


def prompts_at(points, labels):
    shape = (1, len(points), 2)
    return Prompts(
        torch.tensor(points, dtype=torch.float32).reshape(shape),
        torch.tensor([labels], dtype=torch.long).reshape(shape[:2]),
        torch.tensor([[0.0, 0, 4, 4]]),
    )


def places():
    """A crop whose pixels say where they are: red the column, green the row."""
    rows, columns = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
    return torch.stack([columns, rows, rows * 0]).float()[None]


@given(st.lists(st.tuples(st.integers(0, W // 2 - 1), st.integers(0, H // 2 - 1)), max_size=4))
def test_clicks_stay_on_their_pixels(points):
    mask = (torch.arange(H * W).reshape(1, H, W) % 3).to(torch.uint8)
    logits = places()[:, :1, ::2, ::2] / 10 - 2
    look = look_again(places(), mask, prompts_at(points, [1] * len(points)), logits)
    assert look.images.shape == (1, 3, H // 2, W // 2)
    x0, y0 = look.images[0, :2, 0, 0].long().tolist()
    assert torch.equal(look.images, places()[..., y0 : y0 + H // 2, x0 : x0 + W // 2])
    assert torch.equal(look.masks, mask[..., y0 : y0 + H // 2, x0 : x0 + W // 2])
    whole = torch.nn.functional.interpolate(logits.sigmoid(), (H, W), mode="bilinear")
    assert torch.equal(look.prompts.previous, whole[..., y0 : y0 + H // 2, x0 : x0 + W // 2])
    assert look.prompts.boxes.isnan().all()
    for (x, y), moved, label in zip(
        points, look.prompts.points[0].tolist(), look.prompts.labels[0].tolist(), strict=True
    ):
        inside = x0 <= 2 * x + 0.5 <= x0 + W // 2 - 1 and y0 <= 2 * y + 0.5 <= y0 + H // 2 - 1
        assert label == (1 if inside else -1)
        if inside:
            assert moved == [2 * x + 0.5 - x0, 2 * y + 0.5 - y0]
    if points:
        assert look.prompts.labels[0, -1] == 1, "the last click is seen"


def test_padding_is_no_click():
    look = look_again(
        places(),
        torch.zeros(1, H, W, dtype=torch.uint8),
        prompts_at([(2, 3), (20, 12)], [0, -1]),
        torch.zeros(1, 1, H // 2, W // 2),
    )
    assert look.images[0, :2, 0, 0].tolist() == [0, 0], "the window is around the first click"
    assert look.prompts.labels.tolist() == [[0, -1]]


def test_half_size_keeps_places():
    images, masks = halve(places(), places()[:, 0].to(torch.uint8))
    assert torch.equal(images[0, 0, 0], torch.arange(W // 2) * 2 + 0.5)
    assert ((masks[0, 0].float() - images[0, 0, 0]).abs() == 0.5).all()
