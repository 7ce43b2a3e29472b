"""The verbs zoo push and table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from probseg.paths import zoo_dir
from probseg.release.push import push
from probseg.release.table import render_table, write_table
from probseg.terminal import Terminal
from probseg.texts import tell
from probseg.zoo.index import read_index

if TYPE_CHECKING:
    from probseg.cli.arguments import Verbs


def add_push(verbs: Verbs) -> None:
    """Add push to the verbs of `probseg zoo`."""
    verb = verbs.add_parser("push", help="upload a model to the Hugging Face hub")
    verb.add_argument("name", help="architecture.tag")
    verb.add_argument("repository", help="owner/name on the hub; created if necessary")
    verb.add_argument("--private", action="store_true", help="a new repository is private")
    verb.add_argument("--zoo", type=Path, help="zoo folder; probseg's by default")
    verb.set_defaults(action=_push)


def add_table(verbs: Verbs) -> None:
    """Add table to the verbs of `probseg zoo`."""
    verb = verbs.add_parser("table", help="the models of a zoo as a table in Markdown")
    verb.add_argument("--into", type=Path, metavar="FILE", help="write it between the marks there")
    verb.add_argument("--check", action="store_true", help="only check whether FILE is up to date")
    verb.add_argument("--zoo", type=Path, help="zoo folder; probseg's by default")
    verb.set_defaults(action=_table)


def _push(options: argparse.Namespace) -> None:
    address = push(options.name, options.repository, private=options.private, root=options.zoo)
    Terminal(highlight=False, markup=False, soft_wrap=True).print(
        f"pushed {options.name}: {address}"
    )


def _table(options: argparse.Namespace) -> None:
    table = render_table(read_index(options.zoo or zoo_dir()).values())
    if options.into is None:
        tell(table)
    else:
        write_table(options.into, table, check=options.check)
