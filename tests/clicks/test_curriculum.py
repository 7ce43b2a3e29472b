"""The order of the three stages."""

import pytest
import torch

from probseg.clicks import Curriculum
from probseg.seeds import Draws
from support.rows import each


def test_published_order_and_lengths():
    stages = [Curriculum().stage(epoch) for epoch in range(150)]
    assert stages == ["box"] * 20 + ["random"] * 20 + ["corrective"] * 110


@each(
    ("box", "random", "expected"),
    [(0, 0, "CCC"), (1, 0, "BCC"), (0, 1, "RCC"), (1, 1, "BRC"), (5, 5, "BBB")],
)
def test_tasks_can_be_left_out(box, random, expected):
    curriculum = Curriculum(box_epochs=box, random_epochs=random)
    letters = {"B": "box", "R": "random", "C": "corrective"}
    assert [curriculum.stage(e) for e in range(3)] == [letters[c] for c in expected]


@each(
    "arguments",
    [
        {"box_epochs": -1},
        {"random_epochs": -2},
        {"positive_clicks": (3, 1)},
        {"negative_clicks": (-1, 1)},
        {"rounds": (2, 0)},
        {"box_dropout": 1.5},
        {"margin": -1},
        {"positive_clicks": (0, 3), "box_dropout": 0.5},
    ],
)
def test_wrong_arguments_are_named(arguments):
    with pytest.raises(ValueError, match=f"`{next(iter(arguments))}`"):
        Curriculum(**arguments)


def test_images_without_clicks_keep_their_boxes():
    boxes = torch.tensor([[2.0, 3, 9, 8]]).repeat(8, 1)
    masks = torch.zeros(8, 12, 12, dtype=torch.uint8)
    masks[:, 3:8, 2:9] = 1
    drawn = []
    for rounds in (0, 1):
        curriculum = Curriculum(0, 0, box_dropout=1.0, rounds=(rounds, rounds))
        draws = Draws(torch.arange(8))
        drawn.append(curriculum.draw(masks, boxes, draws, nothing, epoch=0, batch_seed=0))
    assert torch.equal(drawn[0].boxes, boxes)
    assert drawn[1].boxes.isnan().all()


def nothing(prompts):
    return torch.full((len(prompts.boxes), 1, 12, 12), -3.0)
