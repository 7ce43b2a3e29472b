"""The verbs of the zoo that show and fetch models."""

import pytest
from runs import command
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


def told(capsys, *arguments, status=0):
    assert command("zoo", *arguments) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


def rows(output):
    return {line.split()[0]: line for line in output.splitlines() if line.strip()}


def test_the_list_has_all_models_with_sizes_places_and_figures(zoos, capsys):
    listed = rows(told(capsys, "list"))
    own = listed["micro_csa.own"]
    for cell in ("interactive", " shipped ", "3.88 ± 0.51", "81.3 ± 2.0", "90.5"):
        assert cell in own
    far = listed["micro_emanet.far"]
    for cell in ("semantic", "to fetch", "50.1 (CamVid)"):
        assert cell in far
    assert "52.0 (CamVid+flip)" in " ".join(listed.values())
    command("zoo", "fetch", "micro_fast")
    capsys.readouterr()
    assert "in the cache" in rows(told(capsys, "list"))["micro_fast.far"]


def test_a_mirror_that_is_away_does_not_hide_the_rest(zoos, capsys, monkeypatch):
    monkeypatch.setenv("PROBSEG_ZOO", "http://127.0.0.1:9/zoo")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert command("zoo", "list") == 0
    captured = capsys.readouterr()
    assert "micro_csa.own" in captured.out
    assert "http://127.0.0.1:9/zoo/index.json: no connection" in captured.err


def test_show_prints_the_card_or_what_the_index_knows(zoos, capsys):
    shown = told(capsys, "show", "micro_csa")
    assert "Card" in shown
    assert "license: x" not in shown, "the front matter is for the hub"
    shown = " ".join(told(capsys, "show", "micro_emanet.far").split())
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
    assert "did you mean 'micro_csa'" in told(capsys, "show", "micro_cas", status=2)


def test_fetch_says_where_the_models_are(zoos, capsys):
    cache = zoos / "cache" / "zoo"
    assert told(capsys, "fetch", "micro_fast.far") == (
        f"micro_fast.far is in {cache / 'micro_fast.far'}\n"
    )
    both = told(capsys, "fetch").splitlines()
    assert sorted(both) == [
        f"{name} is in {cache / name}" for name in ("micro_emanet.far", "micro_fast.far")
    ]
    own = zoos / "own" / "micro_csa.own"
    assert told(capsys, "fetch", "micro_csa") == f"micro_csa is in {own}\n"
    assert "unknown zoo model 'nothing'" in told(capsys, "fetch", "nothing", status=2)


def test_fetching_all_needs_a_mirror(zoos, capsys, monkeypatch):
    monkeypatch.setenv("PROBSEG_ZOO", " , ")
    assert "PROBSEG_ZOO names no zoo to fetch all models of" in told(capsys, "fetch", status=2)


def test_a_model_of_the_hub_that_is_not_there_is_told(zoos, capsys, monkeypatch):
    monkeypatch.setenv("PROBSEG_OFFLINE", "1")
    shown = told(capsys, "fetch", "hf-hub:someone/not_here", status=2)
    assert "hf-hub:someone/not_here: config.json could not be fetched" in shown


def test_fetched_models_are_verified_and_damage_is_named(zoos, capsys):
    command("zoo", "fetch", "micro_fast")
    capsys.readouterr()
    assert told(capsys, "verify").splitlines() == [
        "micro_csa.own: all checksums are right",
        "micro_fast.far: all checksums are right",
    ]
    path = zoos / "cache" / "zoo" / "micro_fast.far" / index.WEIGHTS
    path.write_bytes(path.read_bytes()[:-1])
    shown = told(capsys, "verify", status=2)
    assert str(path) in shown
    assert "`probseg zoo fetch micro_fast.far`" in shown
