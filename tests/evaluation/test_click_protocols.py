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


def test_the_named_protocols_are_what_the_papers_say():
    assert (RITM.max_clicks, RITM.threshold, RITM.box, RITM.trials) == (20, 0.49, False, 1)
    assert (GABBUR.threshold, GABBUR.box, GABBUR.trials) == (0.5, True, 5)
    assert all(protocol.name == name for name, protocol in PROTOCOLS.items())


def test_unknown_name_says_what_is_near():
    with pytest.raises(UnknownNameError, match="gabbur2021"):
        get_protocol("gabbur")
    with pytest.raises(UnknownNameError, match="largest_area"):
        replace(GABBUR, click_rule="largest_are")
    with pytest.raises(UnknownNameError, match="'fixed'"):
        replace(RITM, zoom="fixd")


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


def test_limits_of_the_fields_are_accepted():
    for protocol, change in (
        (GABBUR, {"max_clicks": 0}),
        (PROTOCOLS["scribbles"], {"max_clicks": 0}),
        (RITM, {"target_iou": 1.0}),
        (RITM, {"click_rule": "random", "trials": 3}),
        (RITM, {"zoom": "fixed_600", "flip": True, "previous_mask": True}),
    ):
        assert asdict(replace(protocol, **change)) == asdict(protocol) | change


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
        seen = (protocol.first_answer, protocol.answers_at_once, protocol.is_random)
        assert seen == (first, at_once, random), name
    assert all(p.trials > 1 for p in PROTOCOLS.values() if p.is_random)
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


def test_the_noise_of_a_run_is_its_own():
    runs = [
        (name, dataset, trial, seed)
        for name in "ab"
        for dataset in ("Toy", "Other")
        for trial in range(3)
        for seed in range(3)
    ]

    def crop(run):
        name, dataset, trial, seed = run
        return draw_crop(sample(name, dataset), GABBUR, trial=trial, seed=seed)

    forwards = [crop(run) for run in runs]
    backwards = [crop(run) for run in reversed(runs)][::-1]
    assert forwards == backwards
    assert len(set(forwards)) > 0.9 * len(runs)  # chance repeats a box now and then


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
