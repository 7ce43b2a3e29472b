"""The verbs of the zoo that show, fetch and verify models."""

import pytest

import probseg.zoo.index as index
from probseg.cli.zoo import PURPOSES
from probseg.zoo.index import Metric
from support.runs import command, usage_error
from support.zoos import add_model, ship

FIGURES = {
    "GrabCut/ritm/noc@90": Metric(3.875, 0.512),
    "GrabCut/gabbur2021/miou@0": Metric(0.81349, 0.02),
    "GrabCut/gabbur2021/miou@5": Metric(0.905, None),
}


@pytest.fixture
def zoos(tmp_path, monkeypatch):
    """A shipped zoo, and another with two more models."""
    add_model(tmp_path / "own", "micro_csa.own", metrics=FIGURES)
    (tmp_path / "own" / "micro_csa.own" / index.CARD).write_text("---\nlicense: x\n---\n# Card\n")
    semantic = {"CamVid/miou": Metric(0.501, None), "CamVid+flip/miou": Metric(0.52, None)}
    add_model(tmp_path / "other", "micro_emanet.far", metrics=semantic)
    add_model(tmp_path / "other", "micro_conv.far")
    (tmp_path / "other" / "micro_emanet.far" / index.CARD).write_text("# Other card\n")
    ship(monkeypatch, tmp_path / "own")
    monkeypatch.setattr("probseg.cli.zoo.zoo_dir", lambda: tmp_path / "own")
    monkeypatch.setenv("PROBSEG_ZOO", str(tmp_path / "other"))
    return tmp_path


def printed(capsys, *arguments):
    assert command("zoo", *arguments) == 0
    return capsys.readouterr().out


def test_the_list_has_figures_and_show_prints_the_card(zoos, capsys):
    output = printed(capsys, "list")
    listed = {line.split()[0]: line for line in output.splitlines() if line.strip()}
    for cell in (" shipped ", "3.88 ± 0.51", "81.3 ± 2.0", "90.5"):
        assert cell in listed["micro_csa.own"]
    assert "50.1 (CamVid)" in listed["micro_emanet.far"]
    lines = [line.strip() for line in output.splitlines()]
    groups = [lines.index(title) for title in PURPOSES.values() if title in lines]
    places = [lines.index(listed[name].strip()) for name in ("micro_csa.own", "micro_emanet.far")]
    assert groups[0] < places[0] < groups[1] < places[1], "a group for each purpose"
    assert " shipped " not in listed["micro_emanet.far"]
    assert "52.0 (CamVid+flip)" in output
    shown = printed(capsys, "show", "micro_csa")
    assert "Card" in shown
    assert "license: x" not in shown, "the front matter is for the hub"
    assert "Other card" in printed(capsys, "show", "micro_emanet.far")
    assert "did you mean 'micro_csa'" in usage_error(capsys, "zoo", "show", "micro_cas")


@pytest.mark.parametrize("columns", [80, 200])
def test_figures_of_a_card_are_whole_at_any_width(columns, zoos, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    names = [f"mIoU@{clicks}" for clicks in range(9)]
    figures = [f"{60 + clicks}.5 ± 2.9" for clicks in range(9)]
    rows = [["data", *names], ["--"] * 10, ["GrabCut", *figures], ["DAVIS", *figures[::-1]]]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    card = zoos / "own" / "micro_csa.own" / index.CARD
    card.write_text(f"---\nlicense: x\n---\n# Card\n\n{table}\nMore text.\n", encoding="utf-8")
    shown = [line.split() for line in printed(capsys, "show", "micro_csa").splitlines()]
    flat = [" ".join(words) for words in shown]
    if columns == 200:
        assert " ".join(["GrabCut", *figures]) in flat
    else:
        assert "data GrabCut DAVIS" in flat
        for name, one, other in zip(names, figures, figures[::-1], strict=True):
            assert f"{name} {one} {other}" in flat
    assert "More text." in flat


def test_only_models_of_the_hub_are_fetched(zoos, capsys, monkeypatch):
    monkeypatch.setenv("PROBSEG_OFFLINE", "1")
    shown = usage_error(capsys, "zoo", "fetch", "hf-hub:someone/not_here")
    assert "hf-hub:someone/not_here: config.json could not be fetched" in shown
    assert "`name`" in usage_error(capsys, "zoo", "fetch", "micro_conv.far")


def test_all_zoos_are_verified_and_damage_is_named(zoos, capsys):
    names = ["micro_csa.own", "micro_emanet.far", "micro_conv.far"]
    lines = printed(capsys, "verify").splitlines()
    assert lines == [f"{name}: all checksums are right" for name in names]
    path = zoos / "other" / "micro_conv.far" / index.WEIGHTS
    path.write_bytes(path.read_bytes()[:-1])
    assert command("zoo", "verify") == 2
    assert str(path) in capsys.readouterr().err
