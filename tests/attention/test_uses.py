"""Attentions in other people's code: the table of `docs/parts.md`, cell by cell."""

import pytest
import torch

from support.attention_uses import ATTENTIONS, REFUSED, SLOW, USES
from support.refusals import refused
from support.rows import COMPILES_WHOLE, each


def marks(use):
    whole = [COMPILES_WHOLE] if "compile" in use or "graphs" in use else []
    return [*whole, pytest.mark.slow] if use in SLOW else whole


@pytest.mark.parametrize("use", [pytest.param(use, marks=marks(use)) for use in USES])
@each("name", ATTENTIONS)
def test_each_use_works_or_is_refused(name, use):
    torch.manual_seed(0)
    layer = ATTENTIONS[name]().eval()
    if (name, use) in REFUSED:
        error, sentence = REFUSED[name, use]
        refused(error, lambda: USES[use](layer), sentence)
    else:
        USES[use](layer)
