"""Models by name, from the shipped zoo and the zoo folders in `PROBSEG_ZOO`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from probseg.errors import DownloadError, UsageError
from probseg.kinds import TASKS
from probseg.models import list_presets, preset_task, read_preset
from probseg.models.build import Description, unknown_model
from probseg.paths import is_path, offline, zoo_dir
from probseg.zoo.index import CHECKSUMS, CONFIG, INDEX, WEIGHTS, Entry, description_of, read_index
from probseg.zoo.store import check_files, check_folder, read_config

PREFIX = "hf-hub:"  # of the names of models on the hub


class ZooModel(NamedTuple):
    """A model's line in the index, and the folder of the zoo."""

    entry: Entry
    root: Path

    @property
    def folder(self) -> Path:
        """The model's folder."""
        return self.root / self.entry.name


def zoo_folders() -> list[Path]:
    """Return the folders of all zoos: the shipped one, then those in `PROBSEG_ZOO`."""
    folders = [zoo_dir()]
    for part in filter(None, map(str.strip, os.environ.get("PROBSEG_ZOO", "").split(","))):
        if not (Path(part) / INDEX).is_file():
            raise UsageError(
                f"`PROBSEG_ZOO` must name folders with {INDEX}, separated by commas, got {part!r}; "
                "copy the zoo to this machine, or use a model of the Hugging Face hub, "
                "hf-hub:owner/name"
            )
        folders.append(Path(part))
    return folders


def find_model(name: str, root: Path | None = None) -> ZooModel:
    """Find a model by `architecture.tag`, or the first tag of an `architecture`.

    By default all of `zoo_folders` are searched, in their order.
    """
    known: dict[str, Entry] = {}
    for folder in zoo_folders() if root is None else [root]:
        entries = read_index(folder)
        tagged = (full for full in entries if full.startswith(f"{name}."))
        full_name = name if name in entries else next(tagged, None)
        if full_name is not None:
            return ZooModel(entries[full_name], folder)
        known |= entries
    checkout = zoo_dir().parent / "benchmarks" / "zoo"
    if (checkout / INDEX).is_file() and any(
        full.startswith(f"{name}.") for full in read_index(checkout)
    ):
        raise UsageError(f"`{name}` has weights in {checkout}; set PROBSEG_ZOO to this folder")
    for task, facts in TASKS.items():
        if name in list_presets(task):
            parts = _parts(read_preset(name, task))
            shares = {}  # of the parts and arguments that trained models have in common with it
            for trained, entry in known.items():
                if entry.task == task:
                    others = _parts(description_of(entry))
                    shares[trained] = len(parts & others) / len(parts | others)
            near = max(shares, key=shares.__getitem__, default=None)
            hint = f"The nearest is {near}: {known[near].description.rstrip('.')}. " if near else ""
            raise UsageError(
                f"`{name}` is known, but not trained. {hint}Models with weights: "
                f"{', '.join(sorted(known))}. To train it: {facts.training.format(name)}"
            )
    if Path(name).is_dir():
        raise UsageError(f"no zoo has a model {name!r}; for the folder of this name, give {name}/")
    names = {*known, *(full.split(".")[0] for full in known)}
    raise unknown_model(kind="zoo model", name=name, known=names)


def _parts(node: object, at: str = "") -> set[str]:
    """Return all values of a description with their places."""
    if isinstance(node, Mapping):
        return {part for key, value in node.items() for part in _parts(value, f"{at}/{key}")}
    return {f"{at}={node}"}


def all_models(root: Path | None = None) -> list[ZooModel]:
    """Return all models, each from the first zoo that has it."""
    models: dict[str, ZooModel] = {}
    for folder in zoo_folders() if root is None else [root]:
        for name, entry in read_index(folder).items():
            models.setdefault(name, ZooModel(entry, folder))
    return list(models.values())


def find_verified(name: str, root: Path | None = None) -> ZooModel:
    """Find a model and check all its files against the index."""
    model = find_model(name, root)
    checksums = {file: recorded.sha256 for file, recorded in model.entry.files.items()}
    check_files(model.folder, checksums)
    return model


def find_run(name: str) -> Path | None:
    """Return the run that a model's name means; None if it means another kind of model.

    It is a checkpoint, the folder of a run with checkpoints, or a folder with one run in it; the
    name of the latter needs a slash, as those of model folders do.
    """
    path = Path(name)
    if path.suffix == ".ckpt":
        return path
    runs = [
        folder
        for folder in (path, *(sorted(path.glob("*/")) if is_path(name) else ()))
        if (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir()
    ]
    if len(runs) > 1 and path not in runs:
        newest = max(runs, key=lambda run: (run / "checkpoints").stat().st_mtime)
        raise UsageError(
            f"{name}: holds {len(runs)} runs; give one of them, the newest is {newest}"
        )
    return runs[0] if runs else None


def find_description(name: str, pretrained: bool) -> tuple[Path | None, Description]:
    """Find the description of a network, and the folder of its weights if it is pretrained.

    Weights are then downloaded if they are on the hub, and all files are checked.
    """
    if name.startswith(PREFIX):
        folder = hub_folder(name, weights=pretrained)
    elif is_path(name):
        folder = Path(name)
    elif pretrained:
        folder = find_verified(name).folder  # by the checksums of the index
        return folder, read_config(folder)
    elif "." in name:
        return None, description_of(find_model(name).entry)
    else:
        return None, read_preset(name, preset_task(name))
    description = read_config(folder)
    if not pretrained:
        return None, description
    check_folder(folder)
    return folder, description


def hub_folder(name: str, weights: bool = True) -> Path:
    """Return a folder with the files of a model on the hub, fetched unless they are there.

    Without `weights`, that is the description alone.

    They are in the cache of huggingface_hub, which its variables govern: `HF_HOME`,
    `HF_ENDPOINT`, `HF_TOKEN` and others.
    """
    # Half a second to import, which models of the zoo need not wait for.
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        EntryNotFoundError,
        HTTPError,
    )

    repository, _, revision = name.removeprefix(PREFIX).partition("@")
    commit = revision or None
    path = Path()
    for file in (CONFIG, CHECKSUMS, WEIGHTS) if weights else (CONFIG,):
        try:
            path = Path(
                hf_hub_download(repository, file, revision=commit, local_files_only=offline())
            )
        except (EntryNotFoundError, OSError, ValueError, HTTPError) as error:
            reason = str(error).strip().split("\n")[0]
            hint = (
                "PROBSEG_OFFLINE or HF_HUB_OFFLINE is set, and the cache of huggingface_hub does "
                "not have it: create the model once without them"
                if offline()
                else "check the name, which is hf-hub:owner/name or hf-hub:owner/name@revision, "
                "and the network; a private model needs HF_TOKEN. `probseg zoo push` uploads all "
                "files of a model"
            )
            raise DownloadError(
                f"{name}: {file} could not be fetched ({reason}); {hint}"
            ) from error
        commit = path.parent.name  # later files are of this commit: a branch may move meanwhile
    return path.parent
