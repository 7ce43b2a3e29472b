"""A release: one version and date in all files, and old names that go when they should."""

import json
import re
import subprocess
import sys
import types
import warnings

import pytest
import yaml

import probseg
from probseg.annotate.verbs import LABEL_STUDIO_PORT, PORT, X_ANYLABELING_PORT
from support.rows import each

ALIAS = re.compile(r"renamed\([^)]*removed_in=\"([\d.]+)\"")
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def numbers(version):
    """Parts of a version as numbers, which have an order."""
    return tuple(map(int, version.split(".")))


def overdue(source, version):
    """Versions that should have removed an alias in this source, up to a version."""
    return [end for end in ALIAS.findall(source) if numbers(end) <= numbers(version)]


def test_version_and_date_are_the_same_everywhere(repository):
    changelog = (repository / "CHANGELOG.md").read_text("utf-8")
    first, *sections = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    assert first == "Unreleased"
    released = [re.fullmatch(r"(\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)", title) for title in sections]
    assert all(released), sections
    versions = [numbers(section[1]) for section in released]
    assert versions == sorted(set(versions), reverse=True)
    citation = yaml.safe_load((repository / "CITATION.cff").read_text("utf-8"))
    version, date = released[0].groups()
    assert citation["version"] == probseg.__version__ == version
    assert str(citation["date-released"]) == date


@pytest.fixture
def example(repository, monkeypatch):
    """The module in the deprecation policy of CONTRIBUTING.md."""
    (code,) = EXAMPLE.findall((repository / "CONTRIBUTING.md").read_text("utf-8"))
    module = types.ModuleType("example")
    exec(code, vars(module))
    monkeypatch.setitem(sys.modules, "example", module)
    return module


def test_an_old_name_works_and_warns_where_it_is_used(example):
    with pytest.warns(FutureWarning, match=r"`example.widen` is now `example.grow`; .* 0\.3") as of:
        from example import widen
    assert widen is example.grow
    with pytest.warns(FutureWarning, match=r"`radius` is now `pixels`") as later:
        assert widen(1, radius=2) == example.grow(1, pixels=2)
    assert {warning.filename for warning in (*of, *later)} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert example.grow(1, pixels=2) == 3
        with pytest.raises(AttributeError, match="no attribute 'shrink'"):
            example.shrink  # noqa: B018


def test_no_old_name_outlives_its_version(repository):
    example = (repository / "CONTRIBUTING.md").read_text("utf-8")
    assert overdue(example, "0.2.9") == []
    assert overdue(example, "0.3.0") == ["0.3", "0.3"]
    for path in (repository / "probseg").rglob("*.py"):
        assert overdue(path.read_text("utf-8"), probseg.__version__) == [], path


@each(
    ("arguments", "host"),
    [
        (["annotate", "/data", "--no-browser"], True),
        (["serve", "label-studio", "--images", "my photographs"], True),
        (["serve", "x-anylabeling", "--host", "10.0.0.1"], False),
        (["serve", "cvat-nuclio", "folder"], False),
        (["fit", "--config", "a.yaml"], False),
    ],
)
def test_servers_in_a_container_listen_where_ports_are_published(
    arguments, host, repository, tmp_path
):
    text = (repository / "Dockerfile").read_text("utf-8")
    ports = f"{PORT} {LABEL_STUDIO_PORT} {X_ANYLABELING_PORT}"
    assert f"EXPOSE {ports}\n" in text
    assert f"for port in {ports};" in text
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    for name, script in (
        ("probseg", 'printf "%s\\n" "$@"'),
        ("hostname", "echo 172.17.0.2 fe80::1"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = [*json.loads(entry), *arguments]
    printed = subprocess.check_output(command, env=environment, text=True).splitlines()
    assert printed == [*arguments, *(["--host", "172.17.0.2"] if host else [])]
