import io

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from PIL import Image, ImageColor
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from probseg.callbacks import VisualLog
from probseg.clicks.curriculum import Curriculum
from probseg.data import InteractiveDataModule, TrainBatch
from probseg.formats.colours import CLICK_COLOURS
from probseg.tasks import InteractiveSegmentation
from probseg.types import IGNORE, Prompts
from support.fakes import FakeObjects, micro_model
from support.trainings import quiet_trainer

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


def test_a_logger_without_pictures_is_left_alone(tmp_path):
    train(CSVLogger(tmp_path, name="run"), VisualLog(), epochs=1)
    assert not list(tmp_path.rglob("*.png"))
