"""The order of the three tasks."""

import pytest

from probseg.clicks import Curriculum


def test_published_order_and_lengths():
    stages = [Curriculum().stage(epoch) for epoch in range(150)]
    assert stages == ["box"] * 20 + ["random"] * 20 + ["corrective"] * 110


@pytest.mark.parametrize(
    ("box", "random", "expected"),
    [(0, 0, "CCC"), (1, 0, "BCC"), (0, 1, "RCC"), (1, 1, "BRC"), (5, 5, "BBB")],
)
def test_tasks_can_be_left_out(box, random, expected):
    curriculum = Curriculum(box_epochs=box, random_epochs=random)
    letters = {"B": "box", "R": "random", "C": "corrective"}
    assert [curriculum.stage(e) for e in range(3)] == [letters[c] for c in expected]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"box_epochs": -1}, "box_epochs"),
        ({"random_epochs": -2}, "random_epochs"),
        ({"positive_clicks": (3, 1)}, "positive_clicks"),
        ({"negative_clicks": (-1, 1)}, "negative_clicks"),
        ({"rounds": (2, 0)}, "rounds"),
        ({"box_dropout": 1.5}, "box_dropout"),
        ({"margin": -1}, "margin"),
        ({"box_dropout": 0.5, "positive_clicks": (0, 3)}, "positive_clicks"),
    ],
)
def test_wrong_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=f"{name} must"):
        Curriculum(**arguments)
