"""The verbs annotate and serve."""

from __future__ import annotations

import argparse
import base64
import hmac
import json
import os
import secrets
import shutil
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from probseg.annotate.server import Guard, Listening, listen, need_server, serve
from probseg.cli.arguments import Parser, add_device, check_writable
from probseg.descriptions import RECOMMENDED
from probseg.errors import UsageError
from probseg.paths import cache_dir, no_folder, replacing
from probseg.texts import count, tell

PORT = 8808
"""Port of the page."""

LABEL_STUDIO_PORT, X_ANYLABELING_PORT = 9090, 8000
"""Ports of Label Studio's own backends, and of X-AnyLabeling's own server."""

TOKEN = "LABEL_STUDIO_API_KEY"
"""Environment variable with the token for Label Studio."""

KEY = "annotate.key"
"""File in the cache from which the secrets of addresses are made."""

PASSWORD = "PROBSEG_TOKEN"
"""Environment variable with the password that tools must send."""

ANNOTATE_EXAMPLES = """\
examples:
  probseg annotate --demo   # photographs to try it with
  probseg annotate my_photographs
  probseg annotate my_photographs --labels cat,dog --model lite2_unet_prop
  probseg annotate my_photographs --model runs/probseg/version_0   # your own training
"""

SERVE_EXAMPLES = """\
examples:
  probseg serve label-studio --images my_photographs
  probseg serve label-studio --images my_photographs --host 172.17.0.1 \\
                             --allow-host host.docker.internal
  probseg serve x-anylabeling
  probseg serve cvat-nuclio probseg_cvat

docs/integrations.md shows how these tools find the model.
"""


def run_annotate(arguments: Sequence[str]) -> None:
    """Run `probseg annotate` until Ctrl-C; the arguments are those after `annotate`."""
    options = _annotate_parser().parse_args(list(arguments))
    need_server()
    if options.demo:
        options.folder = options.folder or Path("probseg_demo")
        _copy_samples(options.folder)
    elif options.folder is None:
        raise UsageError("the folder of the photographs is missing; give it, or --demo for samples")
    if (fault := no_folder(options.folder)) is not None:
        raise UsageError(f"{options.folder}: {fault}; give a folder with photographs")
    if options.out is not None and options.out.is_file():
        raise UsageError(
            f"--out {options.out}: {no_folder(options.out)}; give a folder for the masks"
        )
    if options.imported is not None and not options.imported.exists():
        raise UsageError(
            f"--import {options.imported}: does not exist; give a file or folder of annotations"
        )
    check_writable("--out", options.out or options.folder)
    from probseg.annotate.answers import ModelHost
    from probseg.annotate.app import create_app
    from probseg.annotate.photographs import refusals
    from probseg.annotate.sessions import Sessions

    listening = listen(options.host, options.port)
    model_host = ModelHost(options.model, options.runs, options.device)
    sessions = Sessions(options.folder, options.out, model_host, options.labels, options.imported)
    token, reader = (lasting_token(use, sessions.out) for use in ("annotate", "look"))
    app = create_app(sessions, listening.hosts, token, reader)
    address = f"{listening.address}/#{token}"
    lines = [
        count(len(sessions.photographs), "photograph"),
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


def _copy_samples(folder: Path) -> None:
    """Copy photographs that installed packages have into a folder, unless it is there."""
    from probseg.data.sample_photos import photo_path, read_outlines

    if not folder.exists():
        with replacing(folder) as draft:
            draft.mkdir()
            for photo in map(photo_path, read_outlines()):
                shutil.copyfile(photo, draft / photo.name)


def lasting_token(use: str, folder: Path) -> str:
    """Return the secret of an address, the same at each start: open tabs and bookmarks still work.

    It is made from a key that only this user can read, and not kept in the folder, which may be
    sent to others. Where there can be no such key, it is a new one.
    """
    path = cache_dir() / KEY
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), open(path, "xb", opener=_private) as file:
            file.write(secrets.token_bytes(32))
        key, status = path.read_bytes(), path.stat()
    except OSError:
        return secrets.token_urlsafe(24)
    others_read = os.name == "posix" and (status.st_mode & 0o077 or status.st_uid != os.getuid())
    if len(key) != 32 or others_read:
        return secrets.token_urlsafe(24)
    digest = hmac.digest(key, use.encode() + b" " + os.fsencode(folder.resolve()), "sha256")
    return base64.urlsafe_b64encode(digest[:24]).decode()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


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


def _annotate_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="probseg annotate",
        description="Label the objects in a folder of photographs by clicks, in a browser.",
        epilog=ANNOTATE_EXAMPLES,
    )
    add = parser.add_argument
    add(
        "folder",
        type=Path,
        nargs="?",
        help="photographs, or images/ and masks/ as training reads them",
    )
    add(
        "--demo",
        action="store_true",
        help="begin with sample photographs, in a new FOLDER (default: probseg_demo)",
    )
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
    add(
        "--import",
        dest="imported",
        type=Path,
        metavar="PATH",
        help="annotations to correct: COCO, Label Studio, CVAT, VIA, or a folder of YOLO, labelme, "
        "SA-1B or masks; objects that are there already are not added",
    )
    add("--out", type=Path, help="folder for masks and annotations.json (default: FOLDER)")
    _add_address(
        parser,
        PORT,
        ". The default serves this machine only. With another address, everybody who can reach it "
        "and knows the printed address can see and change the annotations, and the connection is "
        "not encrypted",
    )
    add("--no-browser", dest="browser", action="store_false", help="only print the address")
    add_device(parser)
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def run_serve(arguments: Sequence[str]) -> None:
    """Run `probseg serve`; the arguments are those after `serve`."""
    options = _serve_parser().parse_args(list(arguments))
    password = _password(options.token)
    if options.tool == "label-studio":
        _serve_label_studio(options, password)
    elif options.tool == "x-anylabeling":
        _serve_x_anylabeling(options, password)
    else:
        _write_function(options.folder, password)


def _password(option: str | None) -> str | None:
    """Return the password that tools must send: the option's, the environment's, or a new one."""
    if option is None:
        return None
    password = option or os.environ.get(PASSWORD) or secrets.token_urlsafe(24)
    if not password.isascii() or not password.isprintable() or " " in password:
        raise UsageError("--token must be ASCII characters without spaces; choose another password")
    return password


def _serve_label_studio(options: argparse.Namespace, password: str | None) -> None:
    need_server()
    if (fault := no_folder(options.images)) is not None:
        raise UsageError(f"--images {options.images}: {fault}; give the folder of the images")
    address, token = options.fetch_from, os.environ.get(TOKEN, "").strip()
    if address is not None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise UsageError(
                f"--fetch-from must be an address such as http://127.0.0.1:8080, got {address!r}"
            )
        if not token:
            raise UsageError(
                f"--fetch-from needs a token in the environment variable {TOKEN}; Label Studio "
                "shows it in Account & Settings"
            )
    from probseg.annotate.tools.label_studio import Backend, Images, Server, create_app
    from probseg.annotate.tools.prompted import PromptedModel

    listening = listen(options.host, options.port, options.allow_host)
    model = PromptedModel(options.model, options.device)
    server = None if address is None else Server(address, token)
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


def _write_function(folder: Path, password: str | None) -> None:
    if folder.exists():
        raise UsageError(f"{folder}: exists already; give a new folder")
    template = files("probseg.annotate.tools") / "cvat_nuclio"
    with replacing(folder) as draft, as_file(template) as source:
        shutil.copytree(source, draft, ignore=shutil.ignore_patterns("__pycache__"))
        if password is not None:
            settings = draft / "function.yaml"
            text = settings.read_text("utf-8")
            settings.chmod(0o600)
            settings.write_text(
                text.replace('value: ""', f"value: {json.dumps(password)}"), "utf-8"
            )
    tell(f"wrote {folder}\n")


def _serve_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="probseg serve",
        description="Serve a model to an annotation tool.",
        epilog=SERVE_EXAMPLES,
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
    _add_server(label_studio, LABEL_STUDIO_PORT, "Label Studio")
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
    _add_address(parser, port, " (default: %(default)s: this machine only)")
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


def _add_address(parser: argparse.ArgumentParser, port: int, who: str) -> None:
    """Add the options of an address; `who` ends the help of the interface."""
    add = parser.add_argument
    add("--port", type=int, default=port, help="0 takes any free port (default: %(default)s)")
    add("--host", default="127.0.0.1", help=f"address of the interface to listen on{who}")


def _add_token(parser: argparse.ArgumentParser, sender: str) -> None:
    parser.add_argument(
        "--token",
        nargs="?",
        const="",
        help=f"password that {sender} must send. Other users see what stands in a command line: "
        f"without a value, it is that of the environment variable {PASSWORD}, or a new one, which "
        "is printed (default: no password)",
    )
