"""The order of the three tasks."""

import pytest

from probseg.clicks import STAGES, Curriculum


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


def test_all_tasks_are_listed_in_order():
    assert STAGES == ("box", "random", "corrective")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"box_epochs": -1}, ["box_epochs", ">= 0", "-1"]),
        ({"random_epochs": -2}, ["random_epochs", ">= 0", "-2"]),
        ({"positive_clicks": (3, 1)}, ["positive_clicks", "fewest <= most", "(3, 1)"]),
        ({"negative_clicks": (-1, 1)}, ["negative_clicks", "0 <= fewest", "(-1, 1)"]),
        ({"rounds": (2, 0)}, ["rounds", "fewest <= most", "(2, 0)"]),
        ({"box_dropout": 1.5}, ["box_dropout", "probability", "1.5"]),
        ({"margin": -1}, ["margin", ">= 0", "-1"]),
        ({"box_dropout": 0.5, "positive_clicks": (0, 3)}, ["box_dropout", "positive_clicks", "0"]),
    ],
)
def test_wrong_arguments_are_named(arguments, parts):
    with pytest.raises(ValueError, match="must") as caught:
        Curriculum(**arguments)
    for part in parts:
        assert part in str(caught.value)
