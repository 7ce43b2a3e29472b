"""The verbs of the zoo that show and fetch models."""

import pytest
from runs import command, usage_error
from zoos import add_model, ship

import probseg.zoo.index as index
from probseg.zoo.index import Metric

FIGURES = {
    "GrabCut/ritm/noc@90": Metric(3.875, 0.512),
    "GrabCut/gabbur2021/miou@0": Metric(0.81349, 0.02),
    "GrabCut/gabbur2021/miou@5": Metric(0.905, None),
}


@pytest.fixture
def zoos(tmp_path, monkeypatch):
    """A shipped zoo, and a mirror with two models more, in folders; the cache is empty."""
    add_model(tmp_path / "own", "micro_csa.own", metrics=FIGURES)
    (tmp_path / "own" / "micro_csa.own" / index.CARD).write_text("---\nlicense: x\n---\n# Card\n")
    semantic = {"CamVid/miou": Metric(0.501, None), "CamVid+flip/miou": Metric(0.52, None)}
    add_model(tmp_path / "other", "micro_emanet.far", metrics=semantic)
    add_model(tmp_path / "other", "micro_fast.far")
    ship(monkeypatch, tmp_path / "own")
    monkeypatch.setenv("PROBSEG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PROBSEG_ZOO", str(tmp_path / "other"))
    return tmp_path


def printed(capsys, *arguments):
    assert command("zoo", *arguments) == 0
    return capsys.readouterr().out


def rows(output):
    return {line.split()[0]: line for line in output.splitlines() if line.strip()}


def test_the_list_has_all_models_with_sizes_places_and_figures(zoos, capsys):
    listed = rows(printed(capsys, "list"))
    own = listed["micro_csa.own"]
    for cell in ("interactive", " shipped ", "3.88 ± 0.51", "81.3 ± 2.0", "90.5"):
        assert cell in own
    far = listed["micro_emanet.far"]
    for cell in ("semantic", "to fetch", "50.1 (CamVid)"):
        assert cell in far
    assert "52.0 (CamVid+flip)" in " ".join(listed.values())
    command("zoo", "fetch", "micro_fast")
    capsys.readouterr()
    assert "in the cache" in rows(printed(capsys, "list"))["micro_fast.far"]


def test_a_mirror_that_is_away_does_not_hide_the_rest(zoos, capsys, monkeypatch):
    monkeypatch.setenv("PROBSEG_ZOO", "http://127.0.0.1:9/zoo")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert command("zoo", "list") == 0
    captured = capsys.readouterr()
    assert "micro_csa.own" in captured.out
    assert "http://127.0.0.1:9/zoo/index.json: no connection" in captured.err


def test_show_prints_the_card_or_what_the_index_knows(zoos, capsys):
    shown = printed(capsys, "show", "micro_csa")
    assert "Card" in shown
    assert "license: x" not in shown, "the front matter is for the hub"
    shown = " ".join(printed(capsys, "show", "micro_emanet.far").split())
    for fact in (
        "micro_emanet.far",
        "A tiny network.",
        "For semantic segmentation",
        "licence of the weights: CC0-1.0",
        "drawn ellipses (CC0)",
        "Seed 7, commit abcdef",
        "one core; 0.5 hours",
        "CamVid/miou: 50.1",
        "It knows nothing.",
        "(to fetch)",
    ):
        assert fact in shown
    assert "'micro_csa'" in usage_error(capsys, "zoo", "show", "micro_cas")


def test_fetch_says_where_the_models_are(zoos, capsys):
    cache = zoos / "cache" / "zoo"
    assert printed(capsys, "fetch", "micro_fast.far") == (
        f"micro_fast.far is in {cache / 'micro_fast.far'}\n"
    )
    both = printed(capsys, "fetch").splitlines()
    assert sorted(both) == [
        f"{name} is in {cache / name}" for name in ("micro_emanet.far", "micro_fast.far")
    ]
    own = zoos / "own" / "micro_csa.own"
    assert printed(capsys, "fetch", "micro_csa") == f"micro_csa is in {own}\n"


def test_what_cannot_be_fetched_is_named(zoos, capsys, monkeypatch):
    assert "unknown zoo model 'nothing'" in usage_error(capsys, "zoo", "fetch", "nothing")
    monkeypatch.setenv("PROBSEG_OFFLINE", "1")
    absent = "hf-hub:someone/not_here"
    assert f"{absent}: config.json" in usage_error(capsys, "zoo", "fetch", absent)
    monkeypatch.setenv("PROBSEG_ZOO", " , ")
    assert "PROBSEG_ZOO" in usage_error(capsys, "zoo", "fetch")


def test_fetched_models_are_verified_and_damage_is_named(zoos, capsys):
    command("zoo", "fetch", "micro_fast")
    capsys.readouterr()
    assert printed(capsys, "verify").splitlines() == [
        "micro_csa.own: all checksums are right",
        "micro_fast.far: all checksums are right",
    ]
    path = zoos / "cache" / "zoo" / "micro_fast.far" / index.WEIGHTS
    path.write_bytes(path.read_bytes()[:-1])
    assert command("zoo", "verify") == 2
    message = capsys.readouterr().err
    assert str(path) in message
    assert "`probseg zoo fetch micro_fast.far`" in message
