"""Whether models are what the index says of them."""

import dataclasses

import pytest

from probseg.release.evaluations import read_evaluations
from probseg.release.publish import Facts, publish
from probseg.release.reevaluation import read_results
from probseg.zoo.index import Metric, read_index, write_index
from probseg.zoo.trained import read_trained
from support.runs import command, usage_error
from support.tested import FACTS, network_for_classes, network_for_clicks
from support.zoos import ship

pytestmark = pytest.mark.usefixtures("undrawn")

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


def verify(zoo, *more):
    try:
        return command("zoo", "verify", "--zoo", zoo, *more)
    except SystemExit as stop:
        return stop.code


def test_checksums_alone(zoo, capsys, monkeypatch):
    assert verify(zoo) == 0
    assert capsys.readouterr().out.splitlines() == [
        "micro_csa.mine: all checksums are right",
        "micro_emanet.streets: all checksums are right",
    ]
    ship(monkeypatch, zoo)
    assert command("zoo", "verify", "micro_csa") == 0
    assert capsys.readouterr().out == "micro_csa.mine: all checksums are right\n"
    (zoo / "micro_csa.mine").unlink()
    assert verify(zoo) == 2
    message = capsys.readouterr().err
    assert "micro_csa.mine" in message
    assert "no such file" in message


FALSIFIED = {
    f"{RITM}/miou@2": 0.006,
    f"{RITM}/miou@3": -0.006,
    f"{RITM}/noc@90": -0.2,
    "CamVid/miou": 0.006,
}


def test_falsified_and_missing_figures_are_found(zoo, capsys):
    def falsified(metrics):
        return {
            figure: Metric(metric.value + FALSIFIED.get(figure, 0), metric.error)
            for figure, metric in metrics.items()
            if figure != f"{RITM}/miou@1"
        }

    assert verify(zoo, "--metrics") == 0
    output = capsys.readouterr().out
    assert f"  {RITM}: 7 figures are right (within 0." in output
    assert "  CamVid: 3 figures are right" in output
    entries = read_index(zoo).values()
    write_index(
        {e.name: dataclasses.replace(e, metrics=falsified(e.metrics)) for e in entries}, zoo
    )
    assert verify(zoo, "--metrics") == 1
    output = capsys.readouterr().out
    assert f"  {RITM}: 3 figures are right" in output
    rows = {line.split()[1]: line for line in output.splitlines() if line.startswith(" micro_")}
    assert set(rows) == {*FALSIFIED, f"{RITM}/miou@1"}
    for figure, by in FALSIFIED.items():
        assert f"{-by:+.4f}"[:5] in rows[figure]
    assert rows[f"{RITM}/miou@1"].count(" - ") == 2, "neither recorded nor a difference"


def test_data_that_are_not_here_are_told(zoo, published, capsys, tmp_path_factory):
    place = tmp_path_factory.mktemp("data")
    assert verify(zoo, "micro_csa", "--metrics", "--data", place) == 2
    captured = capsys.readouterr()
    assert f"  {RITM}: not tested. GrabCut was not found in" in captured.out
    assert "none of its figures could be tested" in captured.err
    assert verify(zoo, "micro_csa", "--metrics", "--data", place, "--on", "GrabCut") == 2
    assert "GrabCut was not found in" in capsys.readouterr().err
    (place / "GrabCut").symlink_to(published[1] / "GrabCut")
    assert verify(zoo, "micro_csa", "--metrics", "--data", place) == 0


def test_data_sets_are_chosen(zoo, capsys):
    assert verify(zoo, "micro_emanet", "--metrics", "--on", "CamVid") == 0
    assert verify(zoo, "micro_csa", "--metrics", "--on", "CamVid") == 2
    assert "micro_csa.mine was not tested on CamVid" in capsys.readouterr().err
    assert verify(zoo, "--metrics", "--on", "CamVid") == 0
    assert "not tested: its figures are on GrabCut" in capsys.readouterr().out
    assert verify(zoo, "--metrics", "--on", "SBD") == 2
    assert "--on SBD: no model was tested on it" in capsys.readouterr().err
    assert "--on" in usage_error(capsys, "zoo", "verify", "--zoo", zoo, "--on", "CamVid")


SHIPPED = ("zoo", "verify", "lite2_unet_prop.objects", "--metrics", "--on", "SamplePhotos")
"""Its figures are what anybody measures, without any data to fetch."""


def test_a_shipped_model_after_two_clicks_on_the_photographs_of_scikit_image(monkeypatch, capsys):
    def shortened(folder):
        names = [f"miou@{k}" for k in range(3)]
        return [
            dataclasses.replace(
                one,
                protocol={**one.protocol, "max_clicks": 2},
                figures={name: one.figures[name] for name in names},
            )
            for one in read_evaluations(folder)
            if one.dataset == "SamplePhotos"
        ]

    monkeypatch.setattr("probseg.release.verbs.read_evaluations", shortened)
    assert command(*SHIPPED) == 0
    assert "SamplePhotos/gabbur2021: 3 figures are right" in capsys.readouterr().out


@pytest.mark.slow
def test_a_shipped_model_on_the_photographs_of_scikit_image(capsys):
    assert command(*SHIPPED) == 0
    assert "SamplePhotos/gabbur2021: 10 figures are right" in capsys.readouterr().out
