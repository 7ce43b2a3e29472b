import pytest
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
    task = InteractiveSegmentation(micro_model())
    with pytest.warns(UserWarning, match="older version of probseg"):
        task.on_load_checkpoint({"state_dict": task.state_dict()})
    (notice,) = migrate(checkpoint)
    assert "older version" in notice
    assert "new draws" in notice
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


def test_a_header_of_another_kind_is_refused():
    for found in (None, 2, {}, {"format": "2"}, {"format": 0}, {"format": 2.5}):
        with pytest.raises(WeightsError, match="format"):
            migrate({HEADER: found})
