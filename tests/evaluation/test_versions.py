"""Versions, commit and machine of a result."""

import hashlib
import json
from importlib import metadata

import pytest
import torch

from probseg.evaluation.versions import _git, environment


def test_environment_is_json_and_names_the_versions():
    found = json.loads(json.dumps(environment()))
    assert found["versions"]["torch"] == torch.__version__
    assert found["device"] == "cpu"
    assert found["commit"] is None or len(found["commit"]) == 40
    assert {"python", "platform", "dirty"} <= found.keys()
    for name in ("scikit-image", "scipy"):  # baselines depend on them
        assert found["versions"][name] == metadata.version(name)


@pytest.mark.parametrize("diff", [None, b"", b"- old\n+ \xff\n"])
def test_environment_tells_changes_apart(monkeypatch, diff):
    answers = {"rev-parse": b"ab" * 20 + b"\n", "status": diff and b" M x\n", "diff": diff}
    monkeypatch.setattr(
        "probseg.evaluation.versions._git", lambda *arguments: answers[arguments[0]]
    )
    if diff is None:  # no git
        monkeypatch.setenv("PATH", "")
        monkeypatch.setattr("probseg.evaluation.versions._git", _git.__wrapped__)  # no cache
    found = environment()
    assert found["commit"] == (None if diff is None else "ab" * 20)
    assert found["dirty"] == (None if diff is None else bool(diff))
    assert found["changes_sha256"] == (hashlib.sha256(diff).hexdigest() if diff else None)
