"""Notice of threads that spin beside a busy process."""

import numpy as np
import pytest
import torch

import probseg
from probseg.interact import waiting


@pytest.fixture
def slow(monkeypatch):
    """Two threads whose parallel regions are slow, in an environment without a choice."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(waiting, "_seconds", lambda: 2 * waiting.SLOW)
    waiting.warn_of_spinning.cache_clear()
    yield monkeypatch
    waiting.warn_of_spinning.cache_clear()


def test_the_predictor_warns_once(slow, recwarn):
    predictor = probseg.Predictor(probseg.create_model("micro_csa"))
    for _ in range(2):
        predictor.set_image(np.zeros((20, 30, 3), np.uint8))
    found = [str(one.message) for one in recwarn if "OMP_WAIT_POLICY=PASSIVE" in str(one.message)]
    assert len(found) == 1


def test_it_is_silent_where_nothing_can_be_gained(slow, recwarn):
    slow.setattr(waiting, "_seconds", lambda: waiting.SLOW / 2)
    waiting.warn_of_spinning()
    slow.setattr(waiting, "_seconds", lambda: 2 * waiting.SLOW)
    slow.setenv("GOMP_SPINCOUNT", "0")
    waiting.warn_of_spinning.cache_clear()
    waiting.warn_of_spinning()
    slow.delenv("GOMP_SPINCOUNT")
    slow.setattr(torch, "get_num_threads", lambda: 1)
    waiting.warn_of_spinning.cache_clear()
    waiting.warn_of_spinning()
    assert not recwarn.list
