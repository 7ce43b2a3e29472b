"""Whole runs: many at once as one at a time, under every protocol, with whatever truth there is."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from probseg.clicks import CLICK_RULES, Mistakes
from probseg.clicks.annotators import scribble_clicks
from probseg.errors import DataError
from probseg.evaluation import PROTOCOLS, draw_crop, run_object, run_objects
from probseg.interact import OneStep
from probseg.metrics import click_compliance, iou
from probseg.models.network import SegmenterModel
from probseg.types import IGNORE, Click, Prompts
from support.fakes import draw_sample, micro_model
from support.rows import each
from support.toy_models import (
    Spy,
    as_logits,
    paints_disks,
    plain_sample,
    sees_everything,
    sees_nothing,
    sees_the_truth,
    shades,
    toy_sample,
)

NAMES = [name for name, protocol in PROTOCOLS.items() if protocol.zoom is None]


def short(name, clicks=3, **changes):
    protocol = PROTOCOLS[name]
    return replace(protocol, max_clicks=min(clicks, protocol.max_clicks), **changes)


def timeless(records):
    """All that two runs of the same must share."""
    return [(record.key, record.photo, [step[:5] for step in record.steps]) for record in records]


def one_at_a_time(model, samples, protocol, **options):
    return [
        run_object(model, sample, protocol, trial=trial, **options)
        for sample in samples
        for trial in range(protocol.trials)
    ]


SIZES = [(40, 52), (52, 40), (33, 47), (38, 50), (40, 52)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", [shades, paints_disks(6)], ids=["shades", "disks"])
def test_runs_do_not_depend_on_what_runs_beside_them(name, model):
    samples = [toy_sample(size, seed) for seed, size in enumerate(SIZES)]
    protocol = short(name)
    alone = timeless(one_at_a_time(model, samples, protocol, seed=3))
    assert len(alone) == len(samples) * protocol.trials
    for batch_size in (1, 3):
        assert (
            timeless(run_objects(model, samples, protocol, batch_size=batch_size, seed=3)) == alone
        )
    turned = run_objects(model, samples[::-1], protocol, seed=3)
    assert sorted(timeless(turned)) == sorted(alone)
    some = run_objects(model, samples[1:3], protocol, trials=[protocol.trials - 1], seed=3)
    assert timeless(some) == alone[2 * protocol.trials - 1 : 3 * protocol.trials : protocol.trials]


class Centred:
    """A network with random weights whose answers are no longer all object or all background."""

    def __init__(self, model):
        self.model = SegmenterModel(model)
        self.batch_key, self.encode_each = self.model.batch_key, self.model.encode_each

    def decode_each(self, encoded, prompts):
        answers, quality = self.model.decode_each(encoded, prompts)
        return [logits - logits.mean() for logits in answers], quality


@pytest.mark.parametrize(
    ("name", "working_size"), [("micro_csa", 32), ("micro_fast", None), ("micro_prob_botnet", None)]
)
def test_networks_answer_in_batches_as_they_do_alone(name, working_size):
    torch.manual_seed(0)
    model = Centred(micro_model(name, working_size=working_size).double())
    samples = [draw_sample(*size, seed=seed) for seed, size in enumerate(SIZES[:4])]
    for protocol in (short("ritm"), short("gabbur2021", 1, trials=2)):
        alone = timeless(one_at_a_time(model, samples, protocol))
        assert len({step[4]["iou"] for _, _, steps in alone for step in steps}) > 8, (
            "they do differ"
        )
        assert timeless(run_objects(model, samples, protocol, batch_size=3)) == alone


@OneStep
def sees_every_second(image, prompts):
    """The truth where the blue channel of the first pixel is bright, and nothing elsewhere."""
    return as_logits((image[0, 0] > 0.5) & (image[0, 2, 0, 0] > 0.5))


def every_second(count, size=(20, 30)):
    samples = [toy_sample(size, seed) for seed in range(count)]
    for n, sample in enumerate(samples):
        sample.image[0, 0] = (0, 0, 255 * (n % 2))
    return samples


@pytest.mark.parametrize(
    ("batch_size", "calls"), [(8, [[5], [3], [3], [3]]), (2, [[2, 2, 1], [2, 1], [2, 1], [2, 1]])]
)
def test_runs_that_are_over_leave_the_batch(batch_size, calls):
    model = Spy(sees_every_second)
    records = run_objects(model, every_second(5), short("ritm", 4), batch_size=batch_size)
    assert [record.clicks for record in records] == [4, 1, 4, 1, 4]
    assert [len(call) for call in model.decoded] == [size for sizes in calls for size in sizes]
    rounds = [[prompts.labels.shape[1] for prompts in call] for call in model.decoded]
    expected = [[k] * size for k, sizes in enumerate(calls, start=1) for size in sizes]
    assert rounds == expected
    assert [len(call) for call in model.encoded] == calls[0]  # each image once


@given(
    count=st.integers(1, 6),
    batch_size=st.integers(1, 7),
    flip=st.booleans(),
    trials=st.integers(1, 2),
)
def test_no_call_has_more_images_than_asked_for(count, batch_size, flip, trials):
    model = Spy(sees_every_second)
    protocol = short("human", 2, trials=trials, flip=flip)
    run_objects(model, every_second(count, (9, 12)), protocol, batch_size=batch_size)
    most = max(2, batch_size) if flip else batch_size  # image and mirror image are one pair
    for calls in (model.encoded, model.decoded):
        assert max(map(len, calls)) <= most
    assert sum(map(len, model.encoded)) == count * (1 + flip), "trials share their image"


def test_a_target_ends_runs_and_holds_their_scores():
    samples = [toy_sample((60, 70), seed) for seed in range(1, 4)]
    free = run_objects(paints_disks(7), samples, short("ritm", 12))
    model = Spy(paints_disks(7))
    held = run_objects(model, samples, short("ritm", 12, target_iou=0.7))
    for run, stopped in zip(free, held, strict=True):
        at = next(step.k for step in run.steps if step.iou >= 0.7)
        assert 1 < at < 12
        assert timeless([replace(stopped, steps=stopped.steps[: at + 1])]) == timeless(
            [replace(run, steps=run.steps[: at + 1])]
        )
        assert stopped.clicks == at
        assert len(stopped.steps) == 13
        for k, step in enumerate(stopped.steps[at + 1 :], start=at + 1):
            assert step[:4] == (k, None, None, None)
            assert {**stopped.steps[at].scores, "jump": None} == step.scores
            assert step.seconds is None
    assert sum(map(len, model.decoded)) == sum(record.clicks for record in held)
    exact = iou(toy_sample().initial, toy_sample().mask)
    for model, protocol in (
        (sees_the_truth, short("gabbur2021", target_iou=1.0)),
        (sees_nothing, short("correction", target_iou=exact)),
    ):
        assert run_object(model, toy_sample(), protocol).clicks == 0, "a target may need no click"


def replay(model, sample, protocol, record, seed):
    """Check a run against the model asked by hand, with the clicks that the run noted."""
    (x0, y0, x1, y1), box = draw_crop(sample, protocol, trial=record.trial, seed=seed)
    pixels = torch.tensor(sample.image[y0:y1, x0:x1]).permute(2, 0, 1)[None] / 255
    drawn = torch.full((1, 4), torch.nan)
    if box is not None:
        drawn = torch.tensor([box]) - torch.tensor([x0, y0, x0, y0]).float()

    def predict(clicks):
        points = torch.tensor([[[c.x - x0, c.y - y0] for c in clicks]]).reshape(1, -1, 2).float()
        labels = torch.tensor([[int(c.positive) for c in clicks]]).long()
        answer = np.zeros(sample.mask.shape, np.float32)
        logits = model.predict(pixels, Prompts(points, labels, drawn))[0, 0]
        answer[y0:y1, x0:x1] = logits.float().sigmoid()
        return answer > protocol.threshold

    clicks = list(scribble_clicks(sample.scribbles, 8)) if protocol.scribbles else []
    strokes = len(clicks)
    prediction = np.zeros(sample.mask.shape, bool)
    if protocol.initial_mask:
        prediction = sample.initial
    if protocol.box or protocol.scribbles:
        prediction = predict(clicks)
    over = False
    for k, step in enumerate(record.steps):
        assert step.k == k
        taken = {(c.x, c.y) for c in clicks}
        wrong = (prediction != (sample.mask == 1)) & (sample.mask != IGNORE)
        left = {(x, y) for y, x in np.argwhere(wrong).tolist()} - taken
        over = over or (k > 0 and step.x is None)
        if over:
            assert step[1:4] == (None, None, None)
            assert step.seconds is None
            assert not left, "there was an error to click on"
        elif k > 0:
            assert 0 <= step.x < wrong.shape[1]
            assert 0 <= step.y < wrong.shape[0]
            if protocol.mistakes is None:
                assert (step.x, step.y) in left
                assert step.positive == (sample.mask[step.y, step.x] == 1)
            clicks.append(Click(step.x, step.y, step.positive))
            prediction = predict(clicks)
        assert step.iou == iou(prediction, sample.mask)
        assert step.scores["compliance"] == click_compliance(prediction, clicks)
        answered = k > 0 or protocol.box or protocol.scribbles
        assert (step.seconds is not None) == (answered and not over)
        if not answered:
            assert step.scores["brier"] is step.scores["ece"] is None
    assert record.clicks == len(clicks) - strokes
    assert len(record.steps) == protocol.max_clicks + 1


@OneStep
def changes_its_mind(image, prompts):
    """All is object after an even number of prompts, and a chessboard after an odd one."""
    y, x = torch.meshgrid(*map(torch.arange, image.shape[2:]), indexing="ij")
    return as_logits((x + y) % (1 + prompts.labels.shape[1] % 2) == 0)


FUNCTIONS = [
    sees_the_truth,
    sees_nothing,
    sees_everything,
    changes_its_mind,
    paints_disks(1.5),
    shades,
]
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 9))


@pytest.mark.parametrize("name", NAMES)
@given(
    mask=SHAPES.flatmap(
        lambda shape: arrays(np.uint8, shape, elements=st.sampled_from([0, 1, 255]))
    ),
    model=st.sampled_from(FUNCTIONS),
    seed=st.integers(0, 5),
    clicks=st.integers(1, 5),
)
def test_runs_on_any_truth_are_what_the_model_says(name, mask, model, seed, clicks):
    sample, protocol = plain_sample(mask), short(name, clicks)
    if not (mask == 1).any():
        with pytest.raises(DataError, match=r"Toy/plain: .*got none"):
            run_objects(model, [sample], protocol)
        return
    for record in run_objects(model, [sample], protocol, seed=seed):
        replay(model, sample, protocol, record, seed)


@each("name", NAMES)
def test_when_the_masks_are_identical_nobody_clicks(name):
    record = run_object(sees_the_truth, toy_sample(), short(name))
    first = 0 if PROTOCOLS[name].answers_at_once else 1
    assert record.clicks == first
    assert all(step.iou == 1 for step in record.steps[first:])
    corner = np.zeros((5, 6), np.uint8)
    corner[0, 0] = 1  # the one object where (0, 0) is right
    (clicked,) = run_objects(sees_the_truth, [plain_sample(corner)], short("ritm"))
    assert clicked.steps[1][1:4] == (0, 0, True)
    assert clicked.clicks == 1


@each("name", NAMES)
def test_an_answer_that_is_no_number_is_named(name):
    after = min(2, PROTOCOLS[name].max_clicks)
    samples = [toy_sample((30, 40), seed) for seed in range(3)]
    for n, sample in enumerate(samples):
        sample.image[..., 2] = 255 * (n == 1)  # which object it is
    samples[1] = samples[1]._replace(name="broken")
    strokes = len(scribble_clicks(samples[1].scribbles, 8)) if name == "scribbles" else 0

    @OneStep
    def breaks(image, prompts):
        logits = as_logits(torch.zeros(image.shape[2:], dtype=torch.bool))
        broken = image[0, 2].all() and prompts.labels.shape[1] == strokes + after
        return logits * torch.nan if broken else logits

    with pytest.raises(ValueError, match=rf"Toy/broken, trial 0, after {after} clicks: .*NaN"):
        run_objects(breaks, samples, short(name), trials=[0])


def test_corrections_begin_with_the_given_mask():
    thing = toy_sample()
    model = Spy(shades)
    record = run_object(model, thing, short("correction"))
    begun, first = record.steps[:2]
    assert begun[:4] == (0, None, None, None)
    assert begun.iou == iou(thing.initial, thing.mask)
    assert 0 < begun.scores["boundary_iou"] < 1
    assert begun.seconds is None
    assert all(begun.scores[name] is None for name in ("brier", "ece", "compliance", "jump"))
    assert thing.initial[first.y, first.x] != first.positive == (thing.mask[first.y, first.x] == 1)
    assert len(model.decoded) == 3
    assert model.decoded[0][0].labels.shape == (1, 1)
    for field, name in (("scribbles", "scribbles"), ("initial", "correction")):
        lacking = toy_sample()._replace(**{field: None})
        with pytest.raises(DataError, match=rf"Toy/object 0: expected .*{field}.*choose a data"):
            run_object(sees_nothing, lacking, short(name))
    perfect = run_object(model, thing._replace(initial=thing.mask == 1), short("correction"))
    assert perfect.clicks == 0
    assert {step.iou for step in perfect.steps} == {1.0}
    assert len(model.decoded) == 3


def test_people_repeat_by_seed_and_differ_between_trials():
    samples = [toy_sample((60, 70), seed) for seed in range(2)]
    protocol = short("human", 6)
    runs = timeless(run_objects(paints_disks(6), samples, protocol, seed=1))
    assert timeless(run_objects(paints_disks(6), samples, protocol, seed=1)) == runs
    other = timeless(run_objects(paints_disks(6), samples, protocol, seed=2))
    clicks = [tuple(step[1:4] for step in steps) for _, _, steps in runs + other]
    assert len(set(clicks)) == 2 * 2 * protocol.trials, "no two runs are the same"
    steady = run_object(paints_disks(6), samples[0], short("ritm", 6))
    assert tuple(step[1:4] for step in steady.steps) not in clicks


def test_each_click_of_each_run_has_its_own_random_numbers(monkeypatch):
    rule, drawn = CLICK_RULES["random"], []

    def noting(prediction, mask, clicked, generator):
        drawn.append(generator.random())
        return rule(prediction, mask, clicked, generator)

    monkeypatch.setitem(CLICK_RULES, "random", noting)
    samples = [toy_sample(seed=seed) for seed in range(2)]
    protocol = short("ritm", 3, click_rule="random", trials=2)
    for seed in range(2):
        run_objects(sees_nothing, samples, protocol, seed=seed)
    assert len(set(drawn)) == len(drawn) == 2 * 2 * 2 * 3


def test_who_is_late_clicks_on_the_errors_of_the_mask_before():
    thing, rule = toy_sample(), CLICK_RULES["largest_radius"]
    late = short("human", 6, mistakes=Mistakes(late=1.0), trials=1)
    record = run_object(paints_disks(6), thing, late)
    y, x = np.ogrid[:61, :83]
    masks, clicks = [np.zeros((61, 83), bool)], []
    for step in record.steps[1:]:
        seen = masks[-2] if len(masks) > 1 else masks[-1]
        click = rule(seen, thing.mask, clicks, None) or rule(masks[-1], thing.mask, clicks, None)
        assert step[1:4] == click
        clicks.append(click)
        disk = (x - click.x) ** 2 + (y - click.y) ** 2 <= 36
        masks.append(np.where(disk, click.positive, masks[-1]))
    assert record.clicks == 6


def test_pictures_keep_some_predictions_in_crop_pixels():
    thing = toy_sample()
    protocol = short("gabbur2021", 7)
    record = run_object(paints_disks(4), thing, protocol, keep_picture=True)
    x0, y0, x1, y1 = draw_crop(thing, protocol).crop
    picture = record.picture
    assert [frame.k for frame in picture.frames] == [0, 1, 3, 5, 7]
    assert np.array_equal(picture.image, thing.image[y0:y1, x0:x1])
    assert [frame.iou for frame in picture.frames] == [record.steps[k].iou for k in (0, 1, 3, 5, 7)]
    for frame in picture.frames:
        assert iou(frame.prediction, picture.mask) == frame.iou
    for click, entry in zip(picture.clicks, record.steps[1:], strict=True):
        assert (click.x + x0, click.y + y0, click.positive) == (entry.x, entry.y, entry.positive)
    drawn = np.array(draw_crop(thing, protocol).box) - (x0, y0, x0, y0)
    assert picture.box == tuple(drawn)
    assert run_object(paints_disks(4), thing, protocol).picture is None
    records = run_objects(paints_disks(4), [thing], short("human"), keep_pictures=True)
    assert [record.trial for record in records if record.picture is not None] == [0]
    strokes = run_object(paints_disks(4), thing, short("scribbles", 2), keep_picture=True)
    assert len(strokes.picture.clicks) == 2, "the strokes are not among them"
    ended = run_object(sees_the_truth, thing, short("ritm"), keep_picture=True).picture
    assert [frame.k for frame in ended.frames] == [0, 1]
    assert len(ended.clicks) == 1
