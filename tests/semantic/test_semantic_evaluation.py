"""Evaluation of semantic segmentation: its scores, what it asks of the network, and its files."""

import csv
import json
from contextlib import nullcontext

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader

import probseg.semantic.evaluation as module
from probseg.attention.bases import Bases
from probseg.errors import DataError, UsageError
from probseg.semantic import (
    SemanticDataModule,
    SemanticEvaluation,
    SemanticSegmentation,
    SemanticVisualLog,
)
from probseg.semantic.network import class_probabilities
from probseg.semantic.pictures import class_colours, coloured
from probseg.semantic.scores import semantic_scores
from support.drawn_semantic import FakeStreets, draw_labels, micro, semantic_batch
from support.rows import each
from support.trainings import quiet_trainer

FILES = {"results.json", "classes.csv", "confusion.csv", "overlays.png"}


def lively(**head):
    """A network that tells the classes of the drawn photographs apart, after a fashion."""
    model = micro(**head)
    images = torch.cat([floats(sample.image) for sample in FakeStreets(6).samples])
    with torch.no_grad():
        for _ in range(20):  # settles the statistics of batch normalisation
            logits = model.train()(images)
        model.head.classify.weight *= 20
        model.head.classify.bias -= 20 * logits.mean(dim=(0, 2, 3))
    return model.eval()


def evaluated(place, model, *sets, verb="test", logger=None, **options):
    """Evaluate a network on data sets; return the trainer."""
    logger = logger or CSVLogger(place, name="", version="")
    trainer = quiet_trainer(place, SemanticEvaluation(**options), logger=logger)
    data = SemanticDataModule(val=list(sets), test=list(sets), num_workers=0)
    getattr(trainer, verb)(SemanticSegmentation(model), data, verbose=False)
    return trainer


def floats(image):
    return torch.tensor(image).permute(2, 0, 1)[None] / 255


def by_hand(model, dataset, scales=(1.0,), flip=False):
    """Confusion matrix of a data set, photograph by photograph."""
    model.eval()
    count = len(dataset.classes)
    matrix = np.zeros((count, count), np.int64)
    for sample in dataset.samples:
        with torch.no_grad():
            chosen = class_probabilities(model, floats(sample.image), scales, flip)[0].argmax(0)
        counted = sample.labels != 255
        np.add.at(matrix, (sample.labels[counted], chosen.numpy()[counted]), 1)
    return matrix


def miou_of(matrix):
    right = matrix.diagonal()
    union = matrix.sum(axis=0) + matrix.sum(axis=1) - right
    return (right[union > 0] / union[union > 0]).mean()


def results(place, stage="test", name="streets"):
    return json.loads((place / stage / name / "results.json").read_text())


@pytest.mark.parametrize("verb", ["test", "validate"])
def test_scores_are_those_of_all_pixels_of_a_data_set(verb, tmp_path):
    model = lively()
    sets = FakeStreets(5), FakeStreets(2, (33, 50), "avenues")
    trainer = evaluated(tmp_path, model, *sets, verb=verb, pictures=0)
    figures = trainer.callback_metrics
    stage = "val" if verb == "validate" else "test"
    mious = []
    for dataset in sets:
        matrix = by_hand(model, dataset)
        assert 0 < matrix.trace() < matrix.sum(), "some pixels are right and some are not"
        mious.append(miou_of(matrix))
        assert figures[f"{stage}/{dataset.name}/miou"].item() == pytest.approx(mious[-1], abs=1e-6)
        written = results(tmp_path, stage, dataset.name)
        assert written["miou"] == pytest.approx(mious[-1], abs=1e-12)
        assert written["pixels"] == matrix.sum()
        assert written["metadata"]["photographs"] == len(dataset)
        rows = list(csv.reader((tmp_path / stage / dataset.name / "confusion.csv").open()))
        assert rows[0] == ["truth", *dataset.classes]
        assert [row[0] for row in rows[1:]] == list(dataset.classes)
        np.testing.assert_array_equal(np.array(rows[1:])[:, 1:].astype(int), matrix)
    if stage == "val":
        assert figures["val/miou"].item() == pytest.approx(np.mean(mious), abs=1e-6)
    else:
        matrix = by_hand(model, sets[0])
        assert figures["test/streets/pixel_accuracy"].item() == pytest.approx(
            matrix.trace() / matrix.sum(), abs=1e-6
        )


def test_a_fast_dev_run_leaves_no_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = SemanticDataModule(val=FakeStreets(1), test=FakeStreets(1), num_workers=0)
    for verb in ("test", "validate"):
        trainer = quiet_trainer(tmp_path, SemanticEvaluation(pictures=1), fast_dev_run=True)
        getattr(trainer, verb)(SemanticSegmentation(micro()), data, verbose=False)
    assert "pixel accuracy" in capsys.readouterr().out
    assert not [*tmp_path.rglob("*")]


def test_sizes_and_mirror_images_are_for_tests(tmp_path):
    model, dataset = lively(), FakeStreets(3)
    options = {"scales": [0.75, 1.5], "flip": True, "pictures": 0}
    evaluated(tmp_path, model, dataset, **options)
    plain, averaged = by_hand(model, dataset), by_hand(model, dataset, (0.75, 1.5), True)
    assert (plain != averaged).any()
    assert results(tmp_path)["miou"] == pytest.approx(miou_of(averaged), abs=1e-12)
    assert results(tmp_path)["metadata"]["scales"] == [0.75, 1.5]
    assert results(tmp_path)["metadata"]["flip"] is True
    evaluated(tmp_path, model, dataset, verb="validate", **options)
    assert results(tmp_path, "val")["miou"] == pytest.approx(miou_of(plain), abs=1e-12)
    assert results(tmp_path, "val")["metadata"]["scales"] == [1.0]
    assert results(tmp_path, "val")["metadata"]["flip"] is False


@pytest.mark.parametrize("verb", ["test", "validate"])
@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_iterations_and_stride_hold_in_evaluations_only(verb, error, tmp_path, monkeypatch):
    """Each change of the stride builds the backbone once more: once for all photographs."""
    model, seen, changed = micro(eval_iterations=2), [], []
    predict_classes, at_output_stride = (
        module.predict_classes,
        type(model.backbone).at_output_stride,
    )

    def spied(network, *arguments):
        seen.append(settings_of(network))
        if error:
            raise error
        return predict_classes(network, *arguments)

    def counting(backbone, number):
        changed.append(number)
        return at_output_stride(backbone, number)

    monkeypatch.setattr(module, "predict_classes", spied)
    monkeypatch.setattr(type(model.backbone), "at_output_stride", counting)
    with pytest.raises((error, SystemExit)) if error else nullcontext():
        evaluated(tmp_path, model, FakeStreets(3), verb=verb, **ASKED)
    assert set(seen) == {(7, 16)}
    assert settings_of(model) == (2, 8)
    assert changed == [16, 16], "once to see whether it can be, once for the evaluation"
    if not error:
        metadata = results(tmp_path, "val" if verb == "validate" else "test")["metadata"]
        assert (metadata["iterations"], metadata["output_stride"]) == (7, 16)


def settings_of(model):
    (bases,) = (part for part in model.modules() if isinstance(part, Bases))
    return bases.eval_iterations, model.backbone.features.strides[-1]


ASKED = {"iterations": 7, "output_stride": 16, "pictures": 0}


def test_training_between_evaluations_has_the_network_as_it_was(tmp_path):
    """Also behind the sanity check, and where a validation lies inside an epoch."""
    model, strides = micro(eval_iterations=2), []
    trained, evaluated_at = [], []
    model.backbone.register_forward_hook(
        lambda network, args, maps: strides.append(network.features.strides[-1])
    )

    class Watch(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            trained.append(settings_of(model))

        def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, *_):
            evaluated_at.append(settings_of(model))

    callbacks = (SemanticEvaluation(**ASKED), Watch())
    trainer = quiet_trainer(tmp_path, *callbacks, max_epochs=1, val_check_interval=1)
    data = SemanticDataModule(
        FakeStreets(6), FakeStreets(2), batch_size=3, crop_size=32, num_workers=0
    )
    trainer.fit(SemanticSegmentation(model), data)
    assert trained == [(2, 8)] * 2
    assert evaluated_at == [(7, 16)] * 6, "sanity check and two validations"
    assert strides == [16, 16, 8, 16, 16, 8, 16, 16]
    assert settings_of(model) == (2, 8)


def test_a_network_without_bases(tmp_path):
    evaluated(tmp_path, micro(of="micro_fcn"), FakeStreets(2), pictures=1)
    assert results(tmp_path)["metadata"]["iterations"] is None
    wide = Image.open(tmp_path / "test" / "streets" / "overlays.png").width
    evaluated(tmp_path, micro(), FakeStreets(2), pictures=1)
    wider = Image.open(tmp_path / "test" / "streets" / "overlays.png").width
    assert wider == pytest.approx(wide * 7 / 3, abs=3), "truth, prediction and four maps"


@each(
    ("model", "options", "message"),
    [
        ("micro_fcn", {"iterations": 3}, "semantic_evaluation: `head` .*iterations"),
        ("micro_emanet", {"iterations": 0}, "semantic_evaluation: .*at least 1, got 0"),
        ("micro_emanet", {"output_stride": 5}, "semantic_evaluation: .*got 5"),
        ("micro_emanet", {"bases": [0, 4]}, r"has 4 bases, numbered from 0, got \[0, 4\]"),
        ("micro_emanet", {"scales": []}, "`scales`"),
        ("micro_emanet", {"scales": [1.0, 0.0]}, "`scales`"),
        ("micro_emanet", {"pictures": -1}, "`pictures` .* got -1"),
        ("micro_emanet", {"bases": [-1]}, "`bases`"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_runs(model, options, message, tmp_path):
    with pytest.raises((UsageError, ValueError), match=message):
        evaluated(tmp_path, micro(of=model), FakeStreets(2), **options)
    assert not list(tmp_path.iterdir())


def test_a_class_that_nobody_knows_is_left_out(tmp_path, capsys):
    model = micro()
    with torch.no_grad():
        model.head.classify.bias[2] = -100.0
    dataset = FakeStreets(2)
    dataset.samples = [s._replace(labels=s.labels % 2) for s in dataset.samples]
    evaluated(tmp_path, model, dataset, pictures=0, bases=[99])
    written = results(tmp_path)
    assert written["iou"]["sky"] is None
    known = [written["iou"][name] for name in ("road", "car")]
    assert written["miou"] == pytest.approx(sum(known) / 2)
    told = capsys.readouterr().out
    cells = [[c.strip() for c in line.strip("│ ").split("│")] for line in told.splitlines()]
    road = written["iou"]["road"]
    assert ["sky", "-", "0.00", "-"] in cells
    assert ["road", f"{100 * road:.2f}"] in [row[:2] for row in cells]
    assert f"mIoU {100 * written['miou']:.2f}, pixel accuracy" in told
    assert FILES - {path.name for path in (tmp_path / "test" / "streets").iterdir()} == {
        "overlays.png"
    }
    text = (tmp_path / "test" / "streets" / "classes.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert rows[2] == {"class": "sky", "iou": "", "share": "0.000000", "accuracy": ""}


def test_photographs_of_ignored_pixels_are_told(tmp_path, caplog):
    dataset = FakeStreets(2)
    dataset.samples = [s._replace(labels=np.full_like(s.labels, 255)) for s in dataset.samples]
    evaluated(tmp_path, micro(), dataset, FakeStreets(1, name="avenues"), pictures=0)
    (told,) = [text for text in caplog.messages if "ignored" in text]
    assert told == "streets: no score: in all 2 photographs all pixels are ignored (255)"


def test_files_and_pictures_of_the_first_photographs(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="run", version="one")
    evaluated(tmp_path, micro(), FakeStreets(5), logger=logger, pictures=2, bases=[3])
    folder = tmp_path / "run" / "one" / "test" / "streets"
    assert {path.name for path in folder.iterdir()} == FILES
    events = EventAccumulator(str(tmp_path / "run" / "one"), size_guidance={"images": 0}).Reload()
    (event,) = events.Images("test/streets/overlays")
    sheet = np.asarray(Image.open(folder / "overlays.png").convert("RGB"))
    assert (event.height, event.width) == sheet.shape[:2]
    for colour in class_colours(("road", "car", "sky")):
        assert (np.abs(sheet.astype(int) - colour) < 3).all(axis=-1).sum() > 100
    metadata = results(tmp_path / "run" / "one")["metadata"]
    assert metadata["data"]["batch_size"] == 16
    assert len(metadata["weights_sha256"]) == 64


def test_pictures_show_what_was_predicted_and_the_responsibilities(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(module, "draw_sheet", lambda *arguments: drawn.append(arguments))
    monkeypatch.setattr(module, "log_picture", lambda *arguments: None)
    model, dataset = lively(), FakeStreets(3, (37, 50))
    evaluated(tmp_path, model, dataset, pictures=2, bases=[2, 0])
    ((path, pictures, classes, bases),) = drawn
    assert path == tmp_path / "test" / "streets" / "overlays.png"
    assert (classes, bases) == (dataset.classes, (2, 0))
    assert [picture.name for picture in pictures] == ["photo0", "photo1"]
    for picture, sample in zip(pictures, dataset.samples, strict=False):
        with torch.no_grad():
            shares = model.responsibilities(floats(sample.image))[0, [2, 0]].numpy()
            expected = model(floats(sample.image))[0].argmax(dim=0).numpy()
        np.testing.assert_array_equal(picture.image, sample.image)
        np.testing.assert_array_equal(picture.labels, sample.labels)
        np.testing.assert_array_equal(picture.prediction, expected)
        assert picture.maps.shape == (2, 37, 50)
        stride = model.backbone.features.strides[-1]
        samples = picture.maps[:, ::stride, ::stride]
        rows, columns = samples.shape[1:]
        np.testing.assert_allclose(samples, shares[:, :rows, :columns], atol=1e-5)


def test_loaders_without_a_data_module(tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    trainer = quiet_trainer(tmp_path, SemanticEvaluation(pictures=0), logger=logger)
    loader = DataLoader(FakeStreets(2), batch_size=1, collate_fn=list)
    task = SemanticSegmentation(micro())
    trainer.test(task, loader, verbose=False)
    assert set(results(tmp_path)["iou"]) == {"0", "1", "2"}
    too_many = DataLoader(FakeStreets(2, classes=tuple("abcdefg")), batch_size=1, collate_fn=list)
    with pytest.raises(DataError, match=r"streets, photo\d: has a pixel of class \d, and the net"):
        trainer.test(task, too_many, verbose=False)


def test_a_row_shows_crop_truth_and_prediction():
    colours = class_colours([""] * 171)
    image, truth = draw_labels(20, 30, 171, seed=1), draw_labels(20, 30, 171, seed=2)
    predicted = draw_labels(20, 30, 170, seed=3) % 171
    pixels = np.stack([image] * 3)
    batch = semantic_batch(torch.tensor(pixels[None]), torch.tensor(truth[None]))
    row = SemanticVisualLog().row({"classes": torch.tensor(predicted[None])}, batch, 0)
    shown, right, found = np.split(row, 3, axis=1)
    np.testing.assert_array_equal(shown, pixels.transpose(1, 2, 0))
    np.testing.assert_array_equal(right, coloured(truth, colours))
    np.testing.assert_array_equal(found, coloured(predicted, colours))
    np.testing.assert_array_equal(right[truth == 255], 255)
    np.testing.assert_array_equal(right[truth != 255], colours[truth[truth != 255]])
    assert class_colours(["background", "a"]).tolist() == [[0, 0, 0], colours[1].tolist()]


def test_training_crops_are_shown_in_colours(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="run", version="one")
    sheets = SemanticVisualLog(every_n_epochs=2, max_images=2)
    trainer = quiet_trainer(tmp_path, sheets, logger=logger, max_epochs=3)
    data = SemanticDataModule(FakeStreets(6), batch_size=3, crop_size=32, num_workers=0)
    trainer.fit(SemanticSegmentation(micro()), data)
    folder = tmp_path / "run" / "one"
    events = EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()
    sheets = events.Images("train/crops")
    assert [sheet.step for sheet in sheets] == [0, 4], "the first steps of epochs 0 and 2"
    assert (sheets[0].height, sheets[0].width) == (2 * 32, 3 * 32)


@given(
    pixels=arrays(np.int64, st.tuples(st.integers(0, 40), st.just(2)), elements=st.integers(0, 4))
)
def test_scores_are_those_of_the_sets_of_pixels(pixels):
    """Class 5 is nowhere, and without any pixel nothing is known."""
    matrix = np.zeros((6, 6), np.int64)
    np.add.at(matrix, tuple(pixels.T), 1)
    scores = semantic_scores(matrix)
    classes = [(pixels == number).T for number in range(6)]

    def ratios(parts, wholes):
        return [
            p.sum() / w.sum() if w.any() else np.nan for p, w in zip(parts, wholes, strict=True)
        ]

    both = [truth & predicted for truth, predicted in classes]
    ious = ratios(both, [truth | predicted for truth, predicted in classes])
    accuracies = ratios(both, [truth for truth, _ in classes])
    shares = ratios([truth for truth, _ in classes], [np.ones(len(pixels), bool)] * 6)
    right = ratios([pixels[:, 0] == pixels[:, 1]], [np.ones(len(pixels), bool)])
    means = [np.nanmean(of) if len(pixels) else np.nan for of in (ious, accuracies)]
    expected = [*ious, *accuracies, *shares, means[0], right[0], means[1]]
    np.testing.assert_allclose(np.hstack(scores), expected, rtol=0, atol=1e-12)
