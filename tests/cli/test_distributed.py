"""Two processes: the command line starts the second one, and a test counts each object once.

Trainings by two processes are tested in test_distributed_training.py.
"""

import json

import pytest

from support.fakes import write_folder
from support.runs import TEST, clicks, command, figures, separately

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """Folders of the same test by one process and by two.

    Seven objects make blocks of 3, 3 and 1: the sampler repeats the first for the second process.
    """
    place = tmp_path_factory.mktemp("ddp_test")
    write_folder(place / "data", images=7, size=(24, 32))
    blocks = ("--data.eval_batch_size=3", "--evaluation.max_clicks=3", "--evaluation.trials=2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert command(*TEST, *blocks) == 0
    ddp = ("--trainer.strategy=ddp", "--trainer.devices=2")
    output = separately(place, *TEST, *blocks, *ddp)
    assert "GLOBAL_RANK: 1, MEMBER: 2/2" in output
    assert "taken over" not in output
    runs = place / "runs" / "grabcut"
    assert {path.name for path in runs.iterdir()} == {"version_0", "version_1"}
    return runs / "version_0" / "test", runs / "version_1" / "test"


def test_a_test_gives_the_same_with_two_processes(tested):
    for protocol in ("gabbur2021", "ritm"):
        alone, shared = (folder / protocol for folder in tested)
        expected = clicks(alone)
        assert len({row["iou"] for row in expected}) > 7, "the scores must differ"
        assert clicks(shared) == expected
        assert figures(shared) == figures(alone)
        assert figures(shared)["folder"]["n_objects"] == 7
        names, expected = ({path.name for path in place.iterdir()} for place in (shared, alone))
        assert names == expected, "nothing of the second process is left"
        assert "results.json" in names
        assert not any("rank" in name or name == "evaluation.json" for name in names)
        ours, theirs = (
            json.loads((place / "results.json").read_text())["metadata"]
            for place in (shared, alone)
        )
        for key in ("weights_sha256", "data"):
            assert ours[key] == theirs[key]
