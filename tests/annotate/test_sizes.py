"""What an action touches depends on its object and its photograph, not on the folder."""

import sys

import pytest

from benchmarks.sizes import fill, growth, measure
from probseg.annotate.answers import ModelHost
from support.annotate_client import MODEL
from support.pages import Disks

SIZES = (50, 1000)


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux says of a thread")
def test_actions_touch_as_much_in_large_folders_as_in_small_ones(tmp_path):
    model_host = ModelHost(MODEL)
    model_host.model, model_host.zoom = Disks(), None
    costs = []
    for size in SIZES:
        (tmp_path / str(size)).mkdir()
        fill(tmp_path / str(size), size, objects=5)
        costs.append(measure(tmp_path / str(size), model_host))
    small, large = costs
    for action in small.keys() - {"start", "session"}:
        few, many = small[action], large[action]
        assert few.files == many.files <= 25, action
        assert many.rows <= 1.2 * few.rows + 0.2, action  # trees of the database are deeper
        assert many.written <= 1.2 * few.written + 20, action


def test_growth_is_named():
    assert [growth((10, 1000), (1, most)) for most in (1.5, 90, 9000)] == [
        *("constant", "linear", "quadratic")
    ]
