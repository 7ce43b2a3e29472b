import io

import lightning as L
import numpy as np
import pytest
from fakes import FakeObjects, micro_model
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from probseg.callbacks import VisualLog
from probseg.clicks.curriculum import Curriculum
from probseg.data import InteractiveDataModule
from probseg.tasks import InteractiveSegmentation

CROP = 40


def train(logger, callback, epochs=3, **curriculum):
    task = InteractiveSegmentation(micro_model().train(), curriculum=Curriculum(**curriculum))
    data = InteractiveDataModule(FakeObjects(6), batch_size=3, crop_size=CROP, num_workers=0)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=logger,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(task, data)


def pictures(folder, key="train/crops"):
    events = EventAccumulator(str(folder), size_guidance={"images": 0})
    events.Reload()
    if key not in events.Tags()["images"]:
        return {}
    return {
        event.step: np.asarray(Image.open(io.BytesIO(event.encoded_image_string)).convert("RGB"))
        for event in events.Images(key)
    }


@pytest.fixture(scope="module")
def sheets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("visual")
    logger = TensorBoardLogger(folder, name="run", version="one")
    rules = {"positive_clicks": (2, 2), "negative_clicks": (1, 1)}
    train(logger, VisualLog(max_images=2), box_epochs=1, random_epochs=1, **rules)
    return pictures(folder / "run" / "one")


def is_colour(picture, colour, tolerance=8):
    return (np.abs(picture.astype(int) - colour) <= tolerance).all(axis=-1)


def test_one_sheet_per_epoch_with_crop_and_prediction_side_by_side(sheets):
    assert len(sheets) == 3
    for sheet in sheets.values():
        assert sheet.shape == (2 * CROP, 2 * CROP, 3)
        predicted = sheet[:, CROP:]
        assert (predicted == predicted[..., :1]).all(), "a probability is grey"
        assert predicted.std() > 0
        assert (sheet[:, :CROP] != sheet[:, :CROP, :1]).any(), "the photographs are coloured"


def test_truth_box_and_clicks_are_drawn(sheets):
    boxes, clicks, _ = (sheets[step][:, :CROP] for step in sorted(sheets))
    for crops in (boxes, clicks):
        assert is_colour(crops, (255, 220, 0)).sum() > 20, "outline of the truth"
        assert is_colour(crops, (255, 160, 0)).sum() > 20, "box"
    assert not is_colour(boxes, (0, 200, 0)).any(), (
        "the first stage of the curriculum has no clicks"
    )
    assert is_colour(clicks, (0, 200, 0)).sum() > 20, "positive clicks"
    assert is_colour(clicks, (230, 0, 0)).sum() > 10, "negative clicks"


def test_every_second_epoch(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="run", version="one")
    train(logger, VisualLog(every_n_epochs=2, max_images=99))
    found = pictures(tmp_path / "run" / "one")
    assert len(found) == 2, "epochs 0 and 2"
    assert all(sheet.shape[0] == 3 * CROP for sheet in found.values()), "a batch has three crops"


def test_a_logger_without_pictures_is_left_alone(tmp_path):
    train(CSVLogger(tmp_path, name="run"), VisualLog(), epochs=1)
    assert not list(tmp_path.rglob("*.png"))
