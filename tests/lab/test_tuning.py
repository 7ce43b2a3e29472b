"""The search for the settings with the fewest clicks."""

from dataclasses import asdict, replace
from itertools import count
from math import nan

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

import probseg.lab.tuning as tuning
from probseg.attention import Adaptation, probabilistic_layers
from probseg.evaluation import ObjectRecord, get_protocol, run_objects
from probseg.lab.tuning import Grid, Trial, Tuning, tune
from probseg.metrics import clustered_bootstrap
from probseg.models import variant
from probseg.ops import KeyAdaptation, ValuePropagation
from support.fakes import draw_sample, micro_model
from support.result_folders import step

LAST = 6
SHORT = replace(get_protocol("gabbur2021"), max_clicks=4, trials=2)
SMALL = Grid(key_iterations=(0, 1, 2), key_priors=(0.0, 0.5), value_iterations=(3,),
             value_priors=(2.0, 7.0), click_iterations=(2,), click_priors=(5.0,))  # fmt: skip
KEYS = [Adaptation(0), *(Adaptation(n, p) for n in (1, 2) for p in (0.0, 0.5))]
VALUES = [{"value_iterations": 0}, *({"value_iterations": 3, "value_prior": p} for p in (2.0, 7.0))]
CLICKS = [Adaptation(click_iterations=0), Adaptation(click_iterations=2, click_prior=5.0)]
OBJECTS = [draw_sample(24, 32, seed=i) for i in range(3)]


@pytest.fixture(scope="module")
def both():
    """A network whose keys adapt and whose values propagate, and whose similarities differ."""
    return adaptable()


def adaptable():
    torch.manual_seed(2)
    model = micro_model("micro_csa_bp5")
    for layer in probabilistic_layers(model):
        layer.query.weight.data *= 10
        layer.key.weight.data *= 10
    return model


def layers(model):
    return [layer.settings for layer in probabilistic_layers(model)]


def state(model):
    """Iterations and prior precisions of keys and values; a learnt prior is None."""
    if not layers(model):
        return ()
    found = next((layer for layer in layers(model) if layer.can_propagate), layers(model)[0])
    keys, values = found.key_adaptation, found.value_propagation
    return (
        keys.iterations,
        None if found.learnt_key_prior else keys.prior_precision,
        values.iterations,
        None if found.learnt_value_prior else values.prior_precision,
    )


def reached_at(sample, first, clicks=LAST):
    """A run that reaches an IoU of 90 % with one click, and keeps it."""
    steps = [step(k, iou=0.9 if k >= first else 0.2, boundary_iou=0.0) for k in range(clicks + 1)]
    return ObjectRecord(sample.dataset, sample.name, 0, tuple(steps), sample.name)


def searched(monkeypatch, model, clicks, grid=SMALL, samples=OBJECTS[:1]):
    """Search with an annotator who needs as many clicks as a function of the state says.

    Returns:
        What was found, the states of the network at each evaluation, and what was told.
    """
    states, told = [], []

    def run(given, samples, **options):
        assert given is model
        states.append(state(model))
        return [reached_at(sample, clicks(states[-1])) for sample in samples]

    monkeypatch.setattr(tuning, "run_objects", run)
    return tune(model, samples, SHORT, grid, tell=told.append), states, told


def test_all_settings_are_tried_once_and_the_network_as_trained_first(monkeypatch, both):
    trained = state(both)
    found, states, told = searched(monkeypatch, both, lambda state: LAST)
    expected = [Adaptation(), *KEYS, *(Adaptation(**values) for values in VALUES)]
    assert [trial.adaptation for trial in found.trials] == expected
    assert told == list(found.trials)
    assert found.best is found.trials[0], "all need the same clicks"
    for adaptation, during in zip(expected, states, strict=True):
        settings = asdict(adaptation)
        wanted = [
            settings[f"{of}_{what}"] for of in ("key", "value") for what in ("iterations", "prior")
        ]
        assert during == tuple(
            of_trained if value is None else value
            for value, of_trained in zip(wanted, trained, strict=True)
        )


@given(clicks=st.lists(st.integers(0, LAST), min_size=9, max_size=9))
def test_the_best_is_the_first_with_the_fewest_clicks(clicks, both):
    with pytest.MonkeyPatch.context() as patch:
        remaining = iter(clicks)
        found, _, _ = searched(patch, both, lambda state: next(remaining))
    assert [trial.clicks for trial in found.trials] == clicks
    fewest = min(range(9), key=lambda i: (clicks[i], i))
    assert found.best is found.trials[fewest]
    start = found.trials[min(range(6), key=lambda i: (clicks[i], i))].adaptation
    for trial in found.trials[6:]:
        assert (trial.adaptation.key_iterations, trial.adaptation.key_prior) == (
            start.key_iterations,
            start.key_prior,
        )


def test_networks_tune_what_they_have(monkeypatch):
    for name, expected in (("micro_prob_botnet", [*KEYS, *CLICKS]), ("micro_conv", CLICKS)):
        found, _, _ = searched(monkeypatch, micro_model(name), lambda state: LAST)
        assert [trial.adaptation for trial in found.trials] == [Adaptation(), *expected]
    model = variant("micro_csa", {"head": {"attention": "standard", "options": None}}).eval()
    with pytest.raises(ValueError, match=r"model.* probabilistic attention"):
        tune(model, OBJECTS, SHORT, SMALL)


def by_hand(adaptation, target):
    """Mean clicks of each object, of a network whose layers were changed one by one."""
    model = adaptable()
    for layer in probabilistic_layers(model):
        keys, values = layer.settings.key_adaptation, layer.settings.value_propagation
        if adaptation.key_iterations is not None:
            keys = KeyAdaptation(adaptation.key_iterations, adaptation.key_prior or 0.0)
        if adaptation.value_iterations is not None and layer.settings.can_propagate:
            prior = values.prior_precision
            if adaptation.value_prior is not None:
                prior = adaptation.value_prior
            values = ValuePropagation(adaptation.value_iterations, prior)
        layer.settings = replace(layer.settings, key_adaptation=keys, value_propagation=values)
    clicks = {}
    for block in (OBJECTS[:2], OBJECTS[2:]):
        for record in run_objects(model, block, SHORT, seed=5):
            good = [step.k for step in record.steps if step.iou >= target]
            clicks.setdefault(record.name, []).append(min(good, default=SHORT.max_clicks))
    return np.array([sum(runs) / len(runs) for runs in clicks.values()])


def test_figures_are_those_of_a_network_changed_by_hand(monkeypatch, both):
    """Random weights never reach 90 %; at this target, they need different numbers of clicks."""
    target = 0.4
    monkeypatch.setattr(tuning, "TARGET", target)
    monkeypatch.setattr(tuning, "OBJECTS_AT_ONCE", 2)
    levels = []

    def noting(*given, level, **options):
        levels.append(level)
        return clustered_bootstrap(*given, level=level, **options)

    monkeypatch.setattr(tuning, "clustered_bootstrap", noting)
    found = tune(both, OBJECTS, SHORT, Grid((2,), (0.0, 1.0), (1,), (0.1, 100.0)), seed=5)
    assert levels == pytest.approx([1 - 0.05 / 6] * 6), "for all settings at once"
    assert len(found.trials) == 7
    clicks = {trial.adaptation: by_hand(trial.adaptation, target) for trial in found.trials}
    assert len(set(map(tuple, clicks.values()))) >= 4, "the settings must make a difference"
    for trial in found.trials:
        alone = clicks[trial.adaptation]
        assert trial.clicks == pytest.approx(alone.mean())
        assert trial.clicks_se == pytest.approx(alone.std(ddof=1) / len(OBJECTS) ** 0.5)
        if trial is found.trials[0]:
            assert trial.difference is None
            continue
        difference = alone - clicks[Adaptation()]
        bounds = clustered_bootstrap(difference, [sample.name for sample in OBJECTS])
        assert trial.difference == pytest.approx(tuple(map(float, bounds)))


def test_objects_of_one_photograph_count_together(monkeypatch, both):
    """A photograph is drawn with all of its objects; one alone tells nothing of others."""
    gains = dict(zip((sample.name for sample in OBJECTS), (1, 3, 5), strict=True))
    for photos, expected in (("abc", (-5, -1)), ("aab", (-5, -2)), ("aaa", (nan, nan))):

        def run(given, samples, photos=photos, **options):
            gain = 1 if state(given)[:2] == (2, 0.0) else 0
            return [
                replace(
                    reached_at(sample, LAST - gain * gains[sample.name]),
                    photo=photos[[*gains].index(sample.name)],
                )
                for sample in samples
            ]

        monkeypatch.setattr(tuning, "run_objects", run)
        found = tune(both, OBJECTS, SHORT, SMALL)
        assert found.best.adaptation == Adaptation(2, 0.0)
        assert found.best.difference == pytest.approx(expected, nan_ok=True)


def test_the_network_keeps_its_own_settings(monkeypatch, both):
    before, training = layers(both), both.training
    searched(monkeypatch, both, lambda state: state[0])
    assert layers(both) == before
    assert both.training == training
    calls = count()

    def fails(state):
        if next(calls) < 3:
            return LAST
        assert layers(both) != before
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        searched(monkeypatch, both, fails)
    assert layers(both) == before


positive = st.floats(1e-6, 1e6)


@given(
    keys=st.none() | st.tuples(st.integers(1, 9), st.none() | positive),
    values=st.none() | st.tuples(st.integers(1, 9), st.none() | positive),
)
def test_the_best_setting_is_read_back(keys, values):
    best = Adaptation(*(keys or (None, None)), *(values or (None, None)))
    written = Tuning((), Trial(best, 1.0, 0.1, None)).as_yaml("found on\ntwo: lines # here")
    assert written.splitlines()[:2] == ["# found on", "# two: lines # here"]
    assert Adaptation(**yaml.safe_load(written)) == best


def test_a_trial_on_one_object_has_no_standard_error():
    assert str(Trial(Adaptation(), 3.0, nan, None)) == "as trained: 3.00"
    assert str(Trial(Adaptation(), 3.0, 0.5, None)) == "as trained: 3.00 ± 0.50"
