"""Masks of photographs in any storage, by any number of machines: `probseg predict` under Ray Data.

    python shards.py split prompts.json s3://bucket/shards --photographs 200
    python shards.py predict s3://bucket/shards s3://bucket/photographs s3://bucket/results

A shard is a file of prompts of some photographs. A worker copies its photographs to a temporary
folder, runs `probseg predict` there, and copies the results to a folder of the shard. The summary
of the command is copied last: a shard with a summary is done, and is skipped by the next run.
Paths are those of fsspec; `pip install "ray[data]"`, and for `s3://` also s3fs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from fsspec.core import url_to_fs

from probseg.cli import main as probseg

SUMMARY = "summary.txt"


def split(prompts: Path, shards: str, photographs: int) -> list[str]:
    """Write JSON prompts (see docs/predict.md) as files of some photographs each; name them."""
    storage, root = url_to_fs(shards)
    storage.makedirs(root, exist_ok=True)
    if storage.glob(f"{root}/*.json"):
        raise SystemExit(f"{shards} must have no JSON files, which count as shards; give another")
    content = None
    with contextlib.suppress(ValueError):
        content = json.loads(prompts.read_text("utf-8"))
    if not isinstance(content, dict) or {"images", "annotations"} <= content.keys():
        form = 'JSON such as {"cat.jpg": [{"clicks": [[120, 90]]}]}, neither CSV nor COCO'
        raise SystemExit(f"{prompts} must be {form}; convert it")
    entries, names = list(content.items()), []
    for number, first in enumerate(range(0, len(entries), photographs)):
        names.append(f"{number:05d}.json")
        part = dict(entries[first : first + photographs])
        storage.pipe_file(f"{root}/{names[-1]}", json.dumps(part).encode())
    return names


def waiting(shards: str, results: str) -> list[str]:
    """Return the names of the shards that have no summary among the results."""
    storage, root = url_to_fs(shards)
    names = sorted(PurePosixPath(path).name for path in storage.glob(f"{root}/*.json"))
    storage, root = url_to_fs(results)
    done = {PurePosixPath(path).parent.name for path in storage.glob(f"{root}/*/{SUMMARY}")}
    return [name for name in names if PurePosixPath(name).stem not in done]


def predict_shard(
    name: str, shards: str, photographs: str, results: str, options: Sequence[str] = ()
) -> dict[str, Any]:
    """Write the results of a shard.

    Args:
        name: Of the shard.
        shards: Folder of the shards.
        photographs: Folder of the photographs.
        results: Folder of all results; those of the shard are in a folder in it.
        options: Of `probseg predict`.

    Returns:
        `shard`, `status` (0; 1 if photographs failed; other numbers if there are no results) and
        what the command has printed, `text`.
    """
    with TemporaryDirectory() as temporary:
        place = Path(temporary)
        storage, root = url_to_fs(shards)
        storage.get_file(f"{root}/{name}", str(place / "prompts.json"))
        files = json.loads((place / "prompts.json").read_text("utf-8"))
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda file: _copied(photographs, file, place / "photos"), files))
        paths = [place / "photos", "--prompts", place / "prompts.json", "--output", place / "out"]
        status, text = _run(["predict", *map(str, paths), *options])
        if status in (0, 1):
            shutil.rmtree(place / "out" / ".probseg")  # serves to continue, which no shard does
            storage, root = url_to_fs(f"{results}/{PurePosixPath(name).stem}")
            storage.makedirs(root, exist_ok=True)
            storage.put(f"{place / 'out'}/", f"{root}/", recursive=True)
            storage.pipe_file(f"{root}/{SUMMARY}", text.encode())
    return {"shard": name, "status": status, "text": text}


def _copied(photographs: str, file: str, folder: Path) -> None:
    storage, root = url_to_fs(photographs)
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # the command lists it as failed
        storage.get_file(f"{root}/{file}", str(folder / file))


def _run(arguments: list[str]) -> tuple[int, str]:
    """Run a command of probseg; return its exit status and what it has printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            status = probseg(arguments)
        except SystemExit as stop:  # which would end Ray's worker
            status = int(stop.code or 0)
    return status, printed.getvalue()


def predict(options: argparse.Namespace, others: Sequence[str]) -> int:
    """Predict all shards that wait, with Ray; return 1 if photographs or shards have failed."""
    import ray

    names = waiting(options.shards, options.results)
    print(f"{len(names)} shards to do", flush=True)
    if not names:
        return 0
    items = ray.data.from_items([{"name": name} for name in names], override_num_blocks=len(names))
    places = {key: vars(options)[key] for key in ("shards", "photographs", "results")}
    rows = items.map(
        lambda row: predict_shard(row["name"], options=others, **places),
        num_cpus=options.cpus,
        num_gpus=options.gpus,
        compute=ray.data.TaskPoolStrategy(size=options.workers),
    )
    worst = 0
    for row in rows.iter_rows():
        print(f"{row['shard']}: status {row['status']}\n{row['text']}", flush=True)
        worst = max(worst, row["status"])
    return min(worst, 1)


def main() -> int:
    """Run the verb that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("split")
    verb.add_argument("prompts", type=Path)
    verb.add_argument("shards")
    verb.add_argument("--photographs", type=int, default=200, help="of a shard")
    verb = verbs.add_parser("predict", epilog="Further options are for `probseg predict`.")
    for folder in ("shards", "photographs", "results"):
        verb.add_argument(folder)
    verb.add_argument("--workers", type=int, help="shards at once (default: what fits)")
    verb.add_argument("--cpus", type=float, default=1, help="of a worker")
    verb.add_argument("--gpus", type=float, default=0, help="of a worker; with --device cuda")
    options, others = parser.parse_known_args()
    if options.verb == "predict":
        return predict(options, others)
    print(len(split(options.prompts, options.shards, options.photographs)), "shards")
    return 0


if __name__ == "__main__":
    sys.exit(main())
