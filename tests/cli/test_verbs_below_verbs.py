"""The verbs of `probseg data` and `probseg zoo`, of which wings offer some."""

import pytest

from probseg.cli import data, zoo
from probseg.cli.arguments import Parser, add_verbs
from probseg.kinds import KINDS
from support.rows import each
from support.runs import command


@each(
    ("arguments", "added"),
    [
        (["one", "--help"], ["one"]),
        (["two", "one"], ["two"]),
        (["--help", "one"], ["one", "two"]),
        (["three"], ["one", "two"]),
        ([], ["one", "two"]),
    ],
)
def test_only_the_verb_that_is_called_is_added(arguments, added):
    names = []

    def add(name):
        return lambda verbs: names.append(name)

    add_verbs(Parser(prog="probseg data"), {"one": add("one"), "two": add("two")}, arguments)
    assert names == added


@pytest.mark.parametrize("module", [data, zoo])
def test_the_help_lists_all_verbs(module, capsys):
    verb = module.__name__.rpartition(".")[2]
    assert set(KINDS[f"{verb}_verb"]) < set(module.VERBS)
    with pytest.raises(SystemExit, match=r"^0$"):
        command(verb, "--help")
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("    ") and line.split()]
    assert [name for name in listed if name in module.VERBS] == list(module.VERBS)
