"""Notices that nobody can do anything about are silent, and no others."""

import logging
import warnings

import pytest

from probseg.cli.noise import without_notices, without_notices_about_checkpoints

ALWAYS = [
    ("`isinstance(treespec, LeafSpec)` is deprecated, use ...", FutureWarning),
    ("LightningCLI's args parameter is intended to run from within Python ...", UserWarning),
    ("The 'val_dataloader' does not have many workers which may be a bottleneck.", UserWarning),
]
GOING_ON = [
    ("Checkpoint directory runs/a/checkpoints exists and is not empty.", UserWarning),
    ("The dirpath has changed from 'a' to 'b', therefore `best_model_score` ...", UserWarning),
]
USEFUL = [
    ("The 'train_dataloader' does not have many workers which may be a bottleneck.", UserWarning),
    ("left out of the training: a.jpg: broken", UserWarning),
    ("isinstance() is deprecated", FutureWarning),
]


@pytest.mark.parametrize("goes_on", [False, True])
def test_only_notices_are_silent(goes_on):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        without_notices()
        if goes_on:
            without_notices_about_checkpoints()
        for text, category in [*ALWAYS, *GOING_ON, *USEFUL]:
            warnings.warn(text, category, stacklevel=1)
    expected = USEFUL if goes_on else [*GOING_ON, *USEFUL]
    assert [str(one.message) for one in heard] == [text for text, _ in expected]


def test_advertisements_are_not_logged(caplog):
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    filters = list(logger.filters)
    without_notices()
    try:
        with caplog.at_level(logging.INFO, logger.name):
            logger.info("Tip: for seamless cloud logging, try installing [litlogger]")
            logger.info("GPU available: False")
    finally:
        logger.filters = filters
    assert "Tip" not in caplog.text
    assert "GPU available" in caplog.text
