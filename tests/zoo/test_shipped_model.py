"""The shipped model on photographs it has not seen."""

import dataclasses

import numpy as np
import pytest

from probseg.data import GrabCut, SamplePhotos
from probseg.descriptions import RECOMMENDED
from probseg.evaluation import get_protocol, run_object
from probseg.zoo import create_model


@pytest.mark.parametrize("protocol", ["gabbur2021", "ritm"])
def test_clicks_raise_the_iou_on_grabcut(data_root, protocol):
    model = create_model(RECOMMENDED, pretrained=True)
    rules = get_protocol(protocol)
    rules = dataclasses.replace(rules, max_clicks=6, trials=1)
    photos = GrabCut(data_root / "grabcut")
    runs = [run_object(model, photos[i], rules) for i in range(0, 50, 10)]
    ious = np.array([[step.iou for step in run.steps] for run in runs]).mean(axis=0)
    first = 0 if rules.box else 1
    assert 1 - ious[6] < 0.8 * (1 - ious[first])
    assert ious[6] > 0.9


def test_a_box_and_five_clicks_find_the_cat():
    model = create_model(RECOMMENDED, pretrained=True)
    cat = next(sample for sample in SamplePhotos() if sample.name == "cat")
    rules = dataclasses.replace(get_protocol("gabbur2021"), max_clicks=5, trials=1)
    assert run_object(model, cat, rules).steps[5].iou > 0.8
