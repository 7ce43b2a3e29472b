"""Pictures of trainings and tests; none that cannot be drawn ends a run."""

import io
import json

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image, ImageColor
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from probseg.callbacks import InteractiveEvaluation, VisualLog
from probseg.clicks.curriculum import Curriculum
from probseg.data import InteractiveDataModule, TrainBatch
from probseg.errors import log_drawing_errors
from probseg.formats.colours import CLICK_COLOURS
from probseg.semantic import (
    SemanticDataModule,
    SemanticEvaluation,
    SemanticSegmentation,
    SemanticVisualLog,
    semantic_variant,
)
from probseg.tasks import InteractiveSegmentation
from probseg.types import IGNORE, Prompts, Sample
from support.drawn_semantic import FakeStreets
from support.fakes import FakeObjects, micro_model
from support.trainings import quiet_trainer

FIRST = (
    "matplotlib.figure.Figure.subplots",
    "probseg.reports.gallery._small",
    "probseg.callbacks.visual.VisualLog.row",
    "probseg.semantic.pictures.coloured",
)
"""Where drawing begins."""
LAST = (
    "matplotlib.backends.backend_agg.FigureCanvasAgg.print_png",
    "probseg.reports.report.render",
    "torch.utils.tensorboard.SummaryWriter.add_image",
)
"""Where pictures become files."""


class Thin:
    """Objects on images of one row or column of pixels."""

    name = "Thin"

    def __init__(self):
        self.samples = []
        for number, shape in enumerate([(1, 60), (60, 1), (2, 40)]):
            mask = np.zeros(shape, np.uint8)
            mask.reshape(-1)[20:40] = 1
            image = np.full((*shape, 3), 90, np.uint8)
            self.samples.append(Sample(image, mask, f"thin{number}", self.name))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def interactive(folder, objects):
    """Train an epoch and test; return the folder of the run."""
    callbacks = (
        InteractiveEvaluation(["ritm"], max_clicks=2, pictures=2),
        VisualLog(),
    )
    data = InteractiveDataModule(
        FakeObjects(2), val=[objects], test=[objects], batch_size=2, crop_size=32, num_workers=0
    )
    task = InteractiveSegmentation(micro_model().train(), curriculum=Curriculum())
    return ran(folder, task, data, callbacks)


def semantic(folder):
    sets = [FakeStreets(2)]
    data = SemanticDataModule(FakeStreets(2), val=sets, test=sets, batch_size=2, num_workers=0)
    model = semantic_variant("micro_emanet", {"head": {"num_classes": 3}})
    callbacks = (SemanticEvaluation(pictures=2, bases=[0]), SemanticVisualLog())
    return ran(folder, SemanticSegmentation(model), data, callbacks)


def ran(folder, task, data, callbacks):
    logger = TensorBoardLogger(folder, name="toy", version=0)
    trainer = quiet_trainer(folder, *callbacks, logger=logger, max_epochs=1)
    trainer.fit(task, data)
    trainer.test(task, data, verbose=False)
    return folder / "toy" / "version_0"


@pytest.mark.parametrize("broken", [FIRST, LAST], ids=["at_first", "at_last"])
@pytest.mark.parametrize("run", [lambda place: interactive(place, FakeObjects(2)), semantic])
def test_what_cannot_be_drawn_is_named_and_the_run_goes_on(
    run, broken, tmp_path, monkeypatch, caplog
):
    def fails(*arguments, **options):
        raise TypeError("Input z must be at least a (2, 2) shaped array")

    for place in broken:
        monkeypatch.setattr(place, fails)
    place = run(tmp_path)
    results = sorted(place.rglob("results.json"))
    assert [path.relative_to(place).parts[0] for path in results] == ["test", "val"]
    assert all(json.loads(path.read_text()) for path in results)
    assert not [*place.rglob("overlays.png")]
    reported = [message for message in caplog.messages if "left out" in message]
    assert reported
    assert all("TypeError: Input z must be" in line for line in reported)
    for path in results:
        expected = path.with_name("overlays.png")
        assert any(str(expected) in line for line in reported) or broken is FIRST


def test_thin_images_are_drawn(tmp_path, caplog):
    place = interactive(tmp_path, Thin())
    assert "left out" not in caplog.text
    files = {path.name for path in (place / "test" / "ritm").iterdir()}
    assert {"overlays.png", "curve.png", "survival.png", "report.html"} <= files


def test_neither_half_a_picture_nor_an_old_one_stays(tmp_path, caplog):
    path = tmp_path / "curve.png"
    path.write_bytes(b"of an earlier run")
    with log_drawing_errors(path):
        raise ValueError("no room")
    assert not path.exists()
    reason = "left out, it cannot be drawn (ValueError: no room)"
    assert caplog.messages == [f"{path}: {reason}"]
    with pytest.raises(KeyboardInterrupt), log_drawing_errors(path):
        raise KeyboardInterrupt


CROP = 40
OUTLINE, BOX = (255, 220, 0), (255, 160, 0)
POSITIVE, NEGATIVE = (ImageColor.getrgb(CLICK_COLOURS[positive]) for positive in (True, False))


def test_a_row_shows_truth_box_clicks_and_prediction():
    mask = torch.zeros(1, CROP, CROP, dtype=torch.uint8)
    mask[0, 10:20, 5:30] = 1
    mask[0, 30:] = IGNORE
    logits = torch.where(mask == 1, 20.0, -20.0)[:, None]
    prompts = Prompts(
        points=torch.tensor([[[8.0, 12.0], [33.0, 24.0], [0.0, 0.0]]]),
        labels=torch.tensor([[1, 0, -1]]),
        boxes=torch.tensor([[3.0, 8.0, 33.0, 22.0]]),
    )
    images = torch.full((1, 3, CROP, CROP), 100, dtype=torch.uint8)
    batch = TrainBatch(images, mask, torch.zeros(1), ["a"], [])
    row = VisualLog().row({"prompts": prompts, "logits": logits}, batch, 0)
    assert row.shape == (CROP, 2 * CROP, 3)
    crop, predicted = row[:, :CROP], row[:, CROP:]
    np.testing.assert_array_equal(predicted[..., 0], (mask[0] == 1) * 255)
    for (y, x), colour in (
        ((10, 15), OUTLINE),
        ((19, 29), OUTLINE),
        ((8, 20), BOX),
        ((15, 3), BOX),
        ((21, 20), BOX),
        ((15, 32), BOX),
        ((12, 8), POSITIVE),
        ((15, 11), (100, 100, 100)),  # the corner of a disk
        ((24, 33), NEGATIVE),
        ((27, 36), NEGATIVE),  # the corner of a square
        ((0, 0), (100, 100, 100)),  # padding of the clicks
        ((35, 20), (50, 50, 50)),  # ignored
    ):
        assert tuple(crop[y, x]) == colour, (y, x)


def train(logger, callback, epochs=3):
    task = InteractiveSegmentation(micro_model().train(), curriculum=Curriculum())
    data = InteractiveDataModule(FakeObjects(6), batch_size=3, crop_size=CROP, num_workers=0)
    quiet_trainer(logger.save_dir, callback, logger=logger, max_epochs=epochs).fit(task, data)


@pytest.mark.parametrize(
    ("options", "epochs", "rows"),
    [({"max_images": 2}, 3, 2), ({"every_n_epochs": 2, "max_images": 99}, 2, 3)],
)
def test_a_sheet_of_the_first_batch_of_an_epoch(options, epochs, rows, tmp_path):
    train(TensorBoardLogger(tmp_path, name="run", version="one"), VisualLog(**options))
    folder = str(tmp_path / "run" / "one")
    sheets = EventAccumulator(folder, size_guidance={"images": 0}).Reload().Images("train/crops")
    assert len(sheets) == epochs
    for sheet in sheets:
        picture = np.asarray(Image.open(io.BytesIO(sheet.encoded_image_string)))
        assert picture.shape[:2] == (rows * CROP, 2 * CROP)
        assert picture.std() > 0
