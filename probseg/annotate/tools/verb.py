"""The verb serve."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from probseg.annotate.listening import listen, need_server, serve
from probseg.cli.arguments import Parser, add_device
from probseg.descriptions import RECOMMENDED
from probseg.errors import UsageError
from probseg.paths import no_folder
from probseg.texts import tell

if TYPE_CHECKING:
    from probseg.annotate.listening import Listening
    from probseg.annotate.security import Guard
    from probseg.annotate.tools.label_studio_images import Server

PORT = 9090
"""Port of Label Studio's own backends."""

X_ANYLABELING_PORT = 8000
"""Port of X-AnyLabeling's own server."""

TOKEN = "LABEL_STUDIO_API_KEY"
"""Environment variable with the token for Label Studio."""

PASSWORD = "PROBSEG_TOKEN"
"""Environment variable with the password that tools must send."""

EXAMPLES = """\
examples:
  probseg serve label-studio --images my_photographs
  probseg serve label-studio --images my_photographs --host 172.17.0.1 \\
                             --allow-host host.docker.internal
  probseg serve x-anylabeling
  probseg serve cvat-nuclio probseg_cvat

docs/integrations.md shows how these tools find the model.
"""


def run(arguments: Sequence[str]) -> None:
    """Run `probseg serve`.

    Args:
        arguments: What follows `serve` on the command line.

    Raises:
        UsageError: If a folder, the model or the port cannot be used.
    """
    options = _parser().parse_args(list(arguments))
    password = _password(options.token)
    if options.tool == "label-studio":
        _serve_label_studio(options, password)
    elif options.tool == "x-anylabeling":
        _serve_x_anylabeling(options, password)
    else:
        _write_function(options.folder, password)


def _password(given: str | None) -> str | None:
    """Return the password that tools must send: given, from the environment, or a new one.

    Raises:
        UsageError: If it cannot stand in a header.
    """
    if given is None:
        return None
    password = given or os.environ.get(PASSWORD) or secrets.token_urlsafe(24)
    if not password.isascii() or not password.isprintable() or " " in password:
        msg = "--token must be ASCII characters without spaces; choose another password"
        raise UsageError(msg)
    return password


def _serve_label_studio(options: argparse.Namespace, password: str | None) -> None:
    need_server()
    if (fault := no_folder(options.images)) is not None:
        msg = f"--images {options.images}: {fault}; give the folder of the images"
        raise UsageError(msg)
    server = _label_studio(options.fetch_from)
    from probseg.annotate.tools.label_studio import Backend, create_app
    from probseg.annotate.tools.label_studio_images import Images
    from probseg.annotate.tools.prompted import PromptedModel

    listening = listen(options.host, options.port, options.allow_host)
    model = PromptedModel(options.model, options.device)
    backend = Backend(model, Images(options.images, server))
    where = "Basic Authentication in Label Studio, with any user"
    _serve(create_app(backend, listening.hosts, password), listening, password, where)


def _serve_x_anylabeling(options: argparse.Namespace, password: str | None) -> None:
    need_server()
    from probseg.annotate.tools.prompted import PromptedModel
    from probseg.annotate.tools.x_anylabeling import Backend, create_app

    listening = listen(options.host, options.port, options.allow_host)
    backend = Backend(PromptedModel(options.model, options.device))
    app = create_app(backend, listening.hosts, password)
    _serve(app, listening, password, "the API key in X-AnyLabeling")


def _serve(app: Guard, listening: Listening, password: str | None, where: str) -> None:
    """Serve an application, and say which password goes where."""
    if password is None:
        access = "every user of this machine can ask for masks; --token sets a password"
    else:
        access = f"password: {password} ({where})"
    tell(f"{listening.address}\n{access}\nCtrl-C ends it.\n")
    sys.stdout.flush()
    serve(app, listening)


def _label_studio(address: str | None) -> Server | None:
    """Return the server that is asked for images.

    Raises:
        UsageError: If its address is none, or there is no token.
    """
    if address is None:
        return None
    from probseg.annotate.tools.label_studio_images import Server

    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        msg = f"--fetch-from must be an address such as http://127.0.0.1:8080, got {address!r}"
        raise UsageError(msg)
    token = os.environ.get(TOKEN, "").strip()
    if not token:
        msg = (
            f"--fetch-from needs a token in the environment variable {TOKEN}; Label Studio shows "
            "it in Account & Settings"
        )
        raise UsageError(msg)
    return Server(address, token)


def _write_function(folder: Path, password: str | None) -> None:
    if folder.exists():
        msg = f"{folder}: exists already; give a new folder"
        raise UsageError(msg)
    with as_file(files("probseg.annotate.tools") / "cvat_nuclio") as template:
        shutil.copytree(template, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if password is not None:
        settings = folder / "function.yaml"
        text = settings.read_text("utf-8").replace('value: ""', f"value: {json.dumps(password)}")
        settings.chmod(0o600)
        settings.write_text(text, "utf-8")
    tell(f"wrote {folder}\n")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="probseg serve",
        description="Serve a model to an annotation tool.",
        epilog=EXAMPLES,
    )
    tools = parser.add_subparsers(dest="tool", required=True, metavar="TOOL")
    label_studio = tools.add_parser("label-studio", help="as a backend of Label Studio")
    add = label_studio.add_argument
    add(
        "--images",
        type=Path,
        required=True,
        help="folder of the images: the document root of local storage, or the folder of media for "
        "uploaded images; files outside of it are not read",
    )
    add(
        "--fetch-from",
        metavar="URL",
        help="address of Label Studio, from which images that are not in --images are fetched, "
        f"with the token in {TOKEN}; no other address is (default: nothing is fetched)",
    )
    _add_server(label_studio, PORT, "Label Studio")
    x_anylabeling = tools.add_parser("x-anylabeling", help="as a remote server of X-AnyLabeling")
    _add_server(x_anylabeling, X_ANYLABELING_PORT, "X-AnyLabeling")
    nuclio = tools.add_parser(
        "cvat-nuclio", help="write the folder of a serverless function of CVAT"
    )
    nuclio.add_argument("folder", type=Path, help="new folder")
    _add_token(nuclio, "a proxy before the function")
    return parser


def _add_server(parser: argparse.ArgumentParser, port: int, tool: str) -> None:
    """Add the options of a server for a tool."""
    add = parser.add_argument
    add(
        "--model",
        default=RECOMMENDED,
        help="model of the zoo, model folder, or folder of a run (default: %(default)s)",
    )
    add("--port", type=int, default=port, help="0 takes any free port (default: %(default)s)")
    add(
        "--host",
        default="127.0.0.1",
        help="address of the interface to listen on (default: %(default)s: this machine only)",
    )
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help=f"another name by which {tool} may call this machine, such as "
        "host.docker.internal; repeatable",
    )
    _add_token(parser, tool)
    add_device(parser)


def _add_token(parser: argparse.ArgumentParser, sender: str) -> None:
    parser.add_argument(
        "--token",
        nargs="?",
        const="",
        help=f"password that {sender} must send. Other users see what stands in a command line: "
        f"without a value, it is that of the environment variable {PASSWORD}, or a new one, which "
        "is printed (default: no password)",
    )
