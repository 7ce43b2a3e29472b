"""Folders to compare: their results by protocol, and the names of their models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probseg.errors import DataError
from probseg.evaluation.journal import RESULTS
from probseg.reports.comparison_inputs import check_results, default_names
from probseg.texts import read_json


def pairings(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the results to compare, by protocol.

    Args:
        folders: Results, or runs, at least two. The results of a run are those in its `test/`,
            and without any the newest tests of its checkpoints in other runs of the same folder.

    Returns:
        For each protocol that all folders have, one folder of results of each; only results are
        compared as they are, whatever their protocols.

    Raises:
        DataError: If a folder is missing or is no run and no results, if a run has no results, or
            there is no protocol that all have.
    """
    for folder in folders:
        if not _is_run(folder):
            check_results(folder)
    if not any(_is_run(folder) for folder in folders):
        return {"": list(folders)}
    found = [_results(folder) for folder in folders]
    shared = [name for name in found[0] if all(name in others for others in found)]
    if not shared:
        each = [f"{folder}: {', '.join(of)}" for folder, of in zip(folders, found, strict=True)]
        lines = "\n".join(f"  {line}" for line in each)
        msg = f"the folders have no protocol in common:\n{lines}\ntest all under the same one"
        raise DataError(msg)
    return {name: [of[name] for of in found] for name in shared}


def model_names(folders: Sequence[Path]) -> list[str]:
    """Return the names of tested models: of the zoo, or of the run of the tested checkpoint.

    Where models have the same name, a part of their folder's path follows; results that name no
    model have that part alone.

    Args:
        folders: Results, all different.

    Raises:
        DataError: If a folder is given twice.
    """
    parts = default_names(folders)
    names = [_model(_metadata(folder)) for folder in folders]
    return [
        part if name is None else name if names.count(name) == 1 else f"{name} ({part})"
        for name, part in zip(names, parts, strict=True)
    ]


def _is_run(folder: Path) -> bool:
    has_tests = any(folder.glob(f"test/*/{RESULTS}")) or (folder / "config.yaml").is_file()
    return has_tests and not (folder / RESULTS).is_file()


def _results(folder: Path) -> dict[str, Path]:
    """Return the results in or of a folder, by protocol.

    Raises:
        DataError: If there are none.
    """
    if not _is_run(folder):
        return {folder.resolve().name: folder}
    own = sorted(path.parent for path in folder.glob(f"test/*/{RESULTS}"))
    if own:
        return {path.name: path for path in own}
    run = folder.resolve()
    others = sorted(run.parent.glob(f"*/test/*/{RESULTS}"), key=lambda path: path.stat().st_mtime)
    of_run = {path.parent.name: path.parent for path in others if _tests(path.parent, run)}
    if not of_run:
        msg = f"{folder}: has no results; run `probseg test --config {folder / 'config.yaml'}`"
        raise DataError(msg)
    return of_run


def _tests(folder: Path, run: Path) -> bool:
    """Return whether results in the same folder of runs are those of a run's checkpoint."""
    checkpoint = _metadata(folder).get("checkpoint")
    return checkpoint is not None and Path(checkpoint).parent.parent.name == run.name


def _metadata(folder: Path) -> Mapping[str, Any]:
    """Return the metadata of results; nothing where `read_result` will refuse them."""
    try:
        metadata = read_json(folder / RESULTS)["metadata"]
    except (ValueError, KeyError, TypeError):
        return {}
    known = isinstance(metadata, Mapping) and isinstance(metadata.get("checkpoint"), str | None)
    return metadata if known else {}


def _model(metadata: Mapping[str, Any]) -> str | None:
    if metadata.get("checkpoint"):
        return "/".join(Path(metadata["checkpoint"]).parts[-4:-2]) or None
    model = metadata.get("model")
    if not isinstance(model, Mapping) or "class_path" not in model:
        return None
    parts = (model.get("init_args"), model.get("dict_kwargs"))
    arguments = {k: v for part in parts if isinstance(part, Mapping) for k, v in part.items()}
    kind = str(model["class_path"]).rpartition(".")[2]
    name = arguments.get("name") or arguments.get("of") or kind
    return str(name).rstrip("/").rpartition("/")[2]
