import pytest
import torch
from fakes import micro_model

import probseg
from probseg.errors import WeightsError
from probseg.tasks import InteractiveSegmentation
from probseg.tasks.migration import FORMAT, HEADER, format_of, header, migrate


def test_what_is_written_is_of_the_present_format():
    task = InteractiveSegmentation(micro_model())
    checkpoint = {}
    task.trainer = None
    task._trainer = type("Trainer", (), {"current_epoch": 0})()
    task.on_save_checkpoint(checkpoint)
    assert checkpoint[HEADER] == {"format": FORMAT, "version": probseg.__version__}
    assert migrate(checkpoint) == []


def test_a_checkpoint_without_header_is_of_the_first_format():
    checkpoint = {"state_dict": {}, "epoch": 3}
    assert format_of(checkpoint) == 1
    (notice,) = migrate(checkpoint)
    assert "older version" in notice
    assert "drawn anew" in notice
    assert checkpoint == {"state_dict": {}, "epoch": 3, HEADER: header()}
    assert migrate(checkpoint) == [], "it is migrated once"


def test_a_newer_format_is_refused():
    checkpoint = {HEADER: {"format": FORMAT + 1, "version": "9.1.0"}}
    before = {**checkpoint}
    for function in (format_of, migrate):
        with pytest.raises(WeightsError) as raised:
            function(checkpoint)
        told = str(raised.value)
        assert f"has the format {FORMAT + 1}, written by probseg 9.1.0" in told
        assert f"this is probseg {probseg.__version__}" in told
        assert "install probseg 9.1.0 or newer" in told
    assert checkpoint == before


@pytest.mark.parametrize(
    "found", [None, 2, "2", {}, {"format": "2"}, {"format": 0}, {"format": 2.5}]
)
def test_a_header_of_another_kind_is_refused(found):
    with pytest.raises(WeightsError, match="of its format, expected a whole number"):
        migrate({HEADER: found})


def test_a_checkpoint_of_the_first_format_is_loaded_with_a_notice():
    task = InteractiveSegmentation(micro_model())
    checkpoint = {"state_dict": {k: torch.ones_like(v) for k, v in task.state_dict().items()}}
    with pytest.warns(UserWarning, match="older version of probseg"):
        task.on_load_checkpoint(checkpoint)
    task.on_load_checkpoint(checkpoint)
