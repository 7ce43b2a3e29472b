from dataclasses import asdict, replace

import numpy as np
import pytest

from probseg.errors import DataError, UnknownNameError
from probseg.evaluation import PROTOCOLS, draw_crop, get_protocol
from probseg.evaluation.protocols import trial_generator
from probseg.types import Sample
from support.rows import each

GABBUR, RITM = PROTOCOLS["gabbur2021"], PROTOCOLS["ritm"]


def sample(name="a", dataset="Toy", size=(120, 150), box=(40, 30, 90, 80)):
    mask = np.zeros(size, dtype=np.uint8)
    mask[box[1] : box[3], box[0] : box[2]] = 1
    return Sample(np.zeros((*size, 3), dtype=np.uint8), mask, name, dataset)


@each(
    ("protocol", "change"),
    [
        (RITM, {"max_clicks": 0}),
        (RITM, {"threshold": 1.0}),
        (RITM, {"trials": 2}),
        (RITM, {"crop_padding": 0.2}),
        (GABBUR, {"trials": 0}),
        (GABBUR, {"corner_noise": 0.5}),
        (GABBUR, {"crop_padding": 0.12}),  # the noise could push the object out
        (GABBUR, {"threshold": float("nan")}),
        (RITM, {"target_iou": 0.0}),
        (RITM, {"target_iou": 1.01}),
        (RITM, {"corner_noise": 0.1, "crop_padding": 0.2}),
        (RITM, {"min_padding": 16}),
        (GABBUR, {"zoom": "ritm"}),
        (PROTOCOLS["correction"], {"max_clicks": 0}),
        (PROTOCOLS["scribbles"], {"trials": 5}),
        (PROTOCOLS["human"], {"mistakes": None}),
    ],
)
def test_impossible_protocols_are_refused(protocol, change):
    field = "trials" if "mistakes" in change else next(iter(change))
    with pytest.raises(ValueError, match=field):
        replace(protocol, **change)


@each(
    ("protocol", "change"),
    [
        (GABBUR, {"max_clicks": 0}),
        (RITM, {"target_iou": 1.0}),
        (RITM, {"click_rule": "random", "trials": 3}),
    ],
)
def test_limits_of_the_fields_are_accepted(protocol, change):
    assert asdict(replace(protocol, **change)) == asdict(protocol) | change


@each(
    ("action", "near"),
    [
        (lambda: get_protocol("gabbur"), "gabbur2021"),
        (lambda: replace(GABBUR, click_rule="largest_are"), "largest_area"),
        (lambda: replace(RITM, zoom="fixd"), "'fixed'"),
    ],
)
def test_unknown_names_say_what_is_near(action, near):
    with pytest.raises(UnknownNameError, match=near):
        action()


def test_when_the_first_answer_comes_and_what_trials_are_for():
    for name, first, at_once, random in (
        ("ritm", 1, False, False),
        ("ritm_zoom", 1, False, False),
        ("human", 1, False, True),
        ("scribbles", 0, True, False),
        ("correction", 0, False, False),
        ("gabbur2021", 0, True, True),
        ("box", 0, True, True),
    ):
        protocol = PROTOCOLS[name]
        seen = (protocol.first_result, protocol.answers_at_once, protocol.is_random)
        assert seen == (first, at_once, random), name
    assert all(p.trials > 1 for p in PROTOCOLS.values() if p.is_random)
    assert all(protocol.name == name for name, protocol in PROTOCOLS.items())
    assert replace(RITM, click_rule="random").is_random


def test_what_a_run_draws_for_is_its_own():
    draws = {
        (purpose, trial): trial_generator(0, "Toy", "a", trial, *purpose).integers(2**60)
        for trial in range(3)
        for purpose in ((), ("click", 1), ("click", 2), ("click1",))
    }
    assert len(set(draws.values())) == len(draws)
    again = trial_generator(0, "Toy", "a", 2, "click", 2).integers(2**60)
    assert again == draws[("click", 2), 2]
    runs = [(name, dataset, seed) for name in "ab" for dataset in ("T", "O") for seed in range(5)]
    crops = [draw_crop(sample(*run[:2]), GABBUR, trial=1, seed=run[2]) for run in runs]
    assert len(set(crops)) > 0.9 * len(runs)  # chance repeats a box now and then


def test_the_noise_is_the_same_on_every_machine():
    assert draw_crop(sample(), GABBUR, trial=3, seed=7) == ((21, 12, 104, 100), (37, 28, 88, 84))
    assert draw_crop(sample(), RITM) == ((0, 0, 150, 120), None)
    empty = sample("cat 7")._replace(mask=np.full((120, 150), 255, dtype=np.uint8))
    with pytest.raises(DataError, match="Toy/cat 7"):
        draw_crop(empty, RITM)


@each("box", [(0, 0, 150, 120), (0, 50, 3, 52), (149, 119, 150, 120)])
def test_the_object_is_always_inside_the_crop(box):
    x0, y0, x1, y1 = box
    for trial in range(30):
        crop, drawn = draw_crop(sample(box=box), GABBUR, trial=trial)
        assert crop[0] <= min(x0, drawn[0])
        assert crop[1] <= min(y0, drawn[1])
        assert crop[2] >= max(x1, drawn[2])
        assert crop[3] >= max(y1, drawn[3])
