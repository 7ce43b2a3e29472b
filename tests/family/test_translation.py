"""The translator of the recipe learns its language from nothing, and reads in the right order."""

import runpy
from pathlib import Path

import torch

RECIPE = Path(__file__).parents[2] / "docs" / "recipes" / "translate.py"


def test_it_learns_to_translate(capsys):
    recipe = runpy.run_path(str(RECIPE))
    pad = recipe["PAD"]
    torch.manual_seed(0)
    translator = recipe["Translator"]()
    source, target = recipe["sentences"](400)

    def right() -> float:
        written = translator(source).logits.argmax(-1)
        return ((written == target) | (target == pad)).all(1).float().mean().item()

    assert right() < 0.1
    recipe["train"](translator, steps=100)
    assert right() > 0.93
    assert "step 100: loss" in capsys.readouterr().out
    with torch.no_grad():
        weights = translator(source).weights
    assert weights.masked_select((source == pad).unsqueeze(1)).eq(0).all()
    # A sentence is written from its end: each digit comes from further left than the one before.
    whole = weights[source.ne(pad).all(1)].mean(0)  # (T, T)
    places = whole @ torch.arange(5.0)
    assert (places.diff() < 0).all()
    assert places[0] > 3
    assert places[-1] < 1.5


def test_sentences_and_their_translations():
    recipe = runpy.run_path(str(RECIPE))
    torch.manual_seed(0)
    lengths = set()
    for source, target in zip(*(part.tolist() for part in recipe["sentences"](50)), strict=True):
        digits = [digit for digit in source if digit != recipe["PAD"]]
        lengths.add(len(digits))
        wanted = [(3 * digit + 1) % 10 for digit in reversed(digits)]
        assert target == wanted + [recipe["PAD"]] * (5 - len(digits))
    assert lengths == {2, 3, 4, 5}
