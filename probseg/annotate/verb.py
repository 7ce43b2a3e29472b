"""The verb annotate."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from probseg.annotate.listening import listen, need_server, serve
from probseg.cli.arguments import Parser, add_device, check_writable
from probseg.errors import UsageError
from probseg.paths import no_folder
from probseg.texts import tell

PORT = 8808

EXAMPLES = """\
examples:
  probseg annotate my_photographs
  probseg annotate my_photographs --labels cat,dog --model lite2_unet_prop
  probseg annotate my_photographs --model runs/probseg/version_0   # your own training
"""


def run(arguments: Sequence[str]) -> None:
    """Run `probseg annotate` until Ctrl-C.

    Args:
        arguments: Command-line arguments after `annotate`.

    Raises:
        UsageError: If the folder, the model or the port cannot be used.
        DataError: If the folder has no photograph.
    """
    options = _parser().parse_args(list(arguments))
    need_server()
    if (fault := no_folder(options.folder)) is not None:
        msg = f"{options.folder}: {fault}; give a folder with photographs"
        raise UsageError(msg)
    if options.out is not None and options.out.is_file():
        msg = f"--out {options.out}: {no_folder(options.out)}; give a folder for the masks"
        raise UsageError(msg)
    check_writable("--out", options.out or options.folder)
    from probseg.annotate.app import create_app
    from probseg.annotate.models import Answerer
    from probseg.annotate.photographs import refusals
    from probseg.annotate.sessions import Sessions

    listening = listen(options.host, options.port)
    answerer = Answerer(options.model, options.runs, options.device)
    sessions = Sessions(options.folder, options.out, answerer, options.labels)
    token, reader = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    app = create_app(sessions, listening.hosts, token, reader)
    address = f"{listening.address}/#{token}"
    lines = [
        f"{len(sessions.photographs)} photographs",
        *refusals(sessions.files.refused()),
        address,
        f"to look without changing anything: {listening.address}/#{reader}",
    ]
    tell("\n".join(lines) + "\n")
    tell("Ctrl-C ends it; nothing is lost.\n")
    sys.stdout.flush()
    try:
        with _page_that_leads_to(address) as page:
            if options.browser:
                threading.Timer(0.5, webbrowser.open, [page.as_uri()]).start()
            serve(app, listening)
    finally:
        sessions.close()


@contextmanager
def _page_that_leads_to(address: str) -> Iterator[Path]:
    """Write a page that only this user can read: all see the command line of a browser."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    place = runtime if os.access(runtime, os.W_OK) else None
    with TemporaryDirectory(prefix="probseg-", dir=place, ignore_cleanup_errors=True) as folder:
        page = Path(folder) / "open.html"
        page.touch(0o600)
        page.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={address}">'
            f'<a href="{address}">probseg annotate</a>'
        )
        yield page


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="probseg annotate",
        description="Label the objects in a folder of photographs by clicks, in a browser.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("folder", type=Path, help="photographs, or images/ and masks/ as training reads them")
    add(
        "--model",
        help="model of the zoo, model folder, or folder of a run (default: the last one used in "
        "this folder if it is of the zoo or in --runs, else lite2_unet_prop)",
    )
    add(
        "--runs",
        type=Path,
        default=Path("runs"),
        help="folder of trainings, which the page offers as models (default: %(default)s)",
    )
    add("--labels", type=_names, default=[], help="classes to choose from, separated by commas")
    add("--out", type=Path, help="folder for masks and annotations.json (default: FOLDER)")
    add("--port", type=int, default=PORT, help="0 takes any free port (default: %(default)s)")
    add(
        "--host",
        default="127.0.0.1",
        help="address of the interface to listen on. The default serves this machine only. With "
        "another address, everybody who can reach it and knows the printed address can see and "
        "change the annotations, and the connection is not encrypted",
    )
    add("--no-browser", dest="browser", action="store_false", help="only print the address")
    add_device(parser)
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
