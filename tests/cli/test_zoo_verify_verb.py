"""Whether models are what the index says of them."""

import dataclasses
import os
import subprocess
import sys

import pytest
from runs import command
from tested import FACTS, network_for_classes, network_for_clicks
from zoos import ship

from probseg.evaluation.recorded import read_results
from probseg.zoo.evaluations import EVALUATIONS
from probseg.zoo.facts import Facts
from probseg.zoo.index import Metric, read_index, write_index
from probseg.zoo.publish import publish
from probseg.zoo.trained import read_trained

RITM = "GrabCut/ritm+max_clicks=3"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A zoo of a model for clicks and one for classes, and the data of each."""
    zoo = tmp_path_factory.mktemp("zoo")
    tested = [
        network_for_clicks(tmp_path_factory.mktemp("clicks")),
        network_for_classes(tmp_path_factory.mktemp("classes")),
    ]
    for model, name in zip(tested, ("micro_csa.mine", "micro_emanet.streets"), strict=True):
        evaluations = [one for path in model.results for one in read_results(path)]
        publish(read_trained(model.checkpoint), name, zoo, Facts(**FACTS), evaluations)
    (tested[1].data / "camvid").rename(tested[0].data / "camvid")
    return zoo, tested[0].data


@pytest.fixture
def zoo(published, monkeypatch, tmp_path):
    """A zoo of one's own, whose index may be changed."""
    for path in published[0].iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "index.json").unlink()
    write_index(read_index(published[0]), tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(published[1]))
    return tmp_path


def falsify(zoo, figure, by, name="micro_csa.mine"):
    entries = read_index(zoo)
    metrics = dict(entries[name].metrics)
    metrics[figure] = Metric(metrics[figure].value + by, metrics[figure].error)
    entries[name] = dataclasses.replace(entries[name], metrics=metrics)
    write_index(entries, zoo)


def verify(zoo, *more):
    try:
        return command("zoo", "verify", "--zoo", zoo, *more)
    except SystemExit as stop:
        return stop.code


def test_checksums_alone(zoo, capsys, monkeypatch):
    assert verify(zoo) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "micro_csa.mine: all checksums are right",
        "micro_emanet.streets: all checksums are right",
    ]
    ship(monkeypatch, zoo)
    assert command("zoo", "verify", "micro_csa") == 0
    assert capsys.readouterr().out == "micro_csa.mine: all checksums are right\n"
    (zoo / "micro_csa.mine").unlink()
    assert verify(zoo) == 2
    assert "this file of micro_csa.mine is missing" in capsys.readouterr().err


def test_figures_are_measured_again(zoo, capsys):
    assert verify(zoo, "--metrics") == 0
    told = capsys.readouterr().out
    assert f"  {RITM}: 7 figures are right (within 0." in told
    assert "  GrabCut/gabbur2021+max_clicks=3: 8 figures are right" in told
    assert "  CamVid: 3 figures are right" in told


@pytest.mark.parametrize(
    ("figure", "by", "name"),
    [
        (f"{RITM}/miou@2", 0.006, "micro_csa.mine"),
        (f"{RITM}/miou@2", -0.006, "micro_csa.mine"),
        (f"{RITM}/noc@90", -0.2, "micro_csa.mine"),
        ("CamVid/miou", 0.006, "micro_emanet.streets"),
    ],
)
def test_falsified_figures_are_found(zoo, capsys, figure, by, name):
    falsify(zoo, figure, by, name)
    assert verify(zoo, name, "--metrics") == 1
    told = capsys.readouterr().out
    (row,) = [line for line in told.splitlines() if f"{name} {figure}" in line]
    assert f"{-by:+.4f}"[:5] in row
    assert told.count(name) == 2, "the line of the checksums, and that row"


def test_a_figure_that_the_index_lacks_is_found(zoo, capsys):
    entries = read_index(zoo)
    entries["micro_csa.mine"] = dataclasses.replace(entries["micro_csa.mine"], metrics={})
    write_index(entries, zoo)
    assert verify(zoo, "micro_csa", "--metrics") == 1
    assert capsys.readouterr().out.count(" - │") == 2 * 15, "neither recorded nor a difference"


def test_data_that_are_not_here_are_told(zoo, published, capsys, tmp_path_factory):
    place = tmp_path_factory.mktemp("data")
    assert verify(zoo, "micro_csa", "--metrics", "--data", place) == 2
    told = capsys.readouterr()
    assert f"  {RITM}: not tested. GrabCut was not found in" in told.out
    assert "none of its figures could be tested, for lack of data" in told.err
    assert verify(zoo, "micro_csa", "--metrics", "--data", place, "--on", "GrabCut") == 2
    assert "GrabCut was not found in" in capsys.readouterr().err
    (place / "GrabCut").symlink_to(published[1] / "GrabCut")
    assert verify(zoo, "micro_csa", "--metrics", "--data", place) == 0


def test_data_sets_are_chosen(zoo, capsys):
    assert verify(zoo, "micro_emanet", "--metrics", "--on", "CamVid") == 0
    assert verify(zoo, "micro_csa", "--metrics", "--on", "CamVid") == 2
    assert "micro_csa.mine was not tested on CamVid; its figures are on GrabCut" in (
        capsys.readouterr().err
    )
    assert verify(zoo, "--on", "CamVid") == 2
    assert "--on: data sets are for --metrics; add it" in capsys.readouterr().err


def test_figures_without_how_they_were_made_cannot_be_verified(published, tmp_path, capsys):
    model = published[0] / "micro_csa.mine"
    (tmp_path / "micro_csa.mine").mkdir()
    for path in model.iterdir():
        if path.name != EVALUATIONS:
            (tmp_path / "micro_csa.mine" / path.name).symlink_to(path)
    entry = read_index(published[0])["micro_csa.mine"]
    files = {name: file for name, file in entry.files.items() if name != EVALUATIONS}
    write_index({entry.name: dataclasses.replace(entry, files=files)}, tmp_path)
    assert verify(tmp_path, "--metrics") == 2
    assert "was not tested on any data that it tells of" in capsys.readouterr().err


def test_a_shipped_model_on_the_photographs_that_come_with_scikit_image():
    """Its figures in the index are what anybody measures, without any data to fetch."""
    program = "import sys; from probseg.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ("zoo", "verify", "resnet16_csa.objects", "--metrics", "--on", "SamplePhotos")
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SamplePhotos/gabbur2021: 10 figures are right" in done.stdout
