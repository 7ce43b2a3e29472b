"""Data sets that are not there, and which of them a test can do without."""

import json

import pytest

from support.fakes import write_berkeley, write_grabcut
from support.runs import MICRO, QUIET, usage_error

TEST = (
    *("test", "--config", "configs/experiment/gabbur2021_sbd.yaml", *MICRO, *QUIET),
    *("--data.train=null", "--data.val=null"),
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory whose data folder has GrabCut alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "data"))
    write_grabcut(tmp_path / "data" / "GrabCut")
    return tmp_path


def test_one_of_several_data_sets_is_missing(here, capsys):
    message = usage_error(capsys, *TEST)
    assert message.startswith(f"Berkeley was not found in {here / 'data' / 'Berkeley'}, which ")
    assert "probseg data fetch Berkeley" in message


def test_one_of_several_data_sets_cannot_be_used(here, capsys):
    mask = next((write_berkeley(here / "data" / "Berkeley") / "masks").iterdir())
    mask.rename(mask.with_name("stranger.png"))
    message = usage_error(capsys, *TEST)
    assert "Berkeley" in message
    assert "['stranger']" in message


def test_wrong_arguments_of_one_of_several_data_sets_are_named(here, capsys):
    sets = [{"class_path": "probseg.data.GrabCut", "init_args": {"rot": "x"}}]
    assert "'rot'" in usage_error(capsys, *TEST, f"--data.test={json.dumps(sets)}")
