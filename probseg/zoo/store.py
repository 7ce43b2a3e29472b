"""Weights on disk: one folder per model with weights, description, checksums and card.

A folder holds `model.safetensors` (half precision), `config.json` (the description that
`probseg.models.build` understands), `SHA256SUMS` (checksums of the files, in the format of
`sha256sum`, which make a copied folder verifiable) and `README.md` (the card). The zoo's
`index.json` lists the folders with their files and figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import save as as_bytes
from torch import Tensor, nn

from probseg.errors import (
    USER_ERRORS,
    ChecksumError,
    ModelNotFoundError,
    WeightsError,
    ZooError,
)
from probseg.models.build import Description, build
from probseg.models.network import Network
from probseg.paths import digest, replacing, write_text
from probseg.weight_files import read_safetensors
from probseg.zoo.index import CHECKSUMS, CONFIG, WEIGHTS, File

LONGEST = 2**20  # bytes of a description that are read; a thousand are usual

# limits of the numbers in a network: if it comes without weights, and beyond its weights
FRESH, SPARE = 100_000_000, 20_000_000


_Network = TypeVar("_Network", bound=Network)


def file_of(path: Path) -> File:
    """Return checksum and size of a file, as an index has them."""
    return File(digest(path), path.stat().st_size)


def check_files(folder: Path, checksums: Mapping[str, str]) -> None:
    """Raise unless a folder has files with these checksums."""
    hint = "reinstall probseg, or copy or download the model again"
    for name, expected in checksums.items():
        path = folder / name
        if not path.is_file():
            raise ModelNotFoundError(f"{path}: no such file, although the model has one; {hint}")
        checksum = digest(path)
        if checksum != expected:
            raise ChecksumError(
                f"{path}: sha256 must be {expected}, got {checksum}; the file is damaged or was "
                f"replaced: remove {path.resolve()}, and {hint}"  # a link in the hub's cache
            )


def checksum_lines(files: Mapping[str, File]) -> str:
    """Return the content of `SHA256SUMS`, which `sha256sum --check` reads."""
    return "".join(f"{file.sha256}  {name}\n" for name, file in files.items())


def check_folder(folder: Path) -> None:
    """Check weights and description of a model folder against its own `SHA256SUMS`."""
    path = folder / CHECKSUMS
    if not path.is_file():
        raise ModelNotFoundError(
            f"{path}: no such file; a model folder with weights has the checksums that `probseg "
            "zoo publish` writes: copy or download the whole folder, or publish the run again"
        )
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    listed = {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}
    missing = [name for name in (CONFIG, WEIGHTS) if name not in listed]
    if missing:
        raise ChecksumError(
            f"{path}: must list {missing[0]}, got {sorted(listed)}; copy the model folder again"
        )
    check_files(folder, {name: listed[name] for name in (CONFIG, WEIGHTS)})


def load_into(model: nn.Module, path: Path) -> None:
    """Load a weight file into a network, strictly."""
    weights = read_safetensors(path)
    check_fit(model.state_dict(), weights, str(path))
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})


def build_to_fit(
    description: Description,
    weights: Mapping[str, Tensor] | None,
    source: str,
    kind: type[_Network],
) -> _Network:
    """Build a network from a stranger's description; its size must be about that of its weights.

    With weights it is in evaluation mode, else fresh and in training mode.
    """
    from probseg.models.schema import SizeBudget  # with pydantic, which presets do not need

    spare = FRESH if weights is None else SPARE
    numbers = sum(tensor.numel() for tensor in (weights or {}).values())
    try:
        with SizeBudget(numbers + spare, source):
            model = build(description, kind)
    except USER_ERRORS:
        raise
    except Exception as error:  # whatever a library raises for settings that do not go together
        raise ZooError(
            f"{source}: the network that it describes cannot be built: {error}"
        ) from error
    if weights is None:
        return model
    check_fit(model.state_dict(), weights, source)
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return model.eval()


def check_fit(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], source: str) -> None:
    """Raise a readable WeightsError unless two sets of weights have equal names and shapes."""
    missing = sorted(set(wanted) - set(given))
    surplus = sorted(set(given) - set(wanted))
    shapes = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(wanted[name].shape)}"
        for name in sorted(set(wanted) & set(given))
        if wanted[name].shape != given[name].shape
    ]
    if not (missing or surplus or shapes):
        return
    parts = (("missing", missing), ("unknown", surplus), ("of another shape", shapes))
    differences = "; ".join(f"{len(x)} {what}, e.g. {x[0]}" for what, x in parts if x)
    raise WeightsError(
        f"{source}: the weights are of another architecture ({differences}); build the network "
        "with the configuration that the weights were trained with"
    )


def save(
    model: nn.Module, description: Description, folder: Path, *, half: bool = True
) -> dict[str, File]:
    """Write weights, the description of a network, and their checksums."""
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        stored = tensor.half() if half and tensor.is_floating_point() else tensor
        if not torch.isfinite(stored).all():
            raise ValueError(
                f"{name}: has values beyond the range of {stored.dtype}; the training has diverged"
            )
        weights[name] = stored.contiguous()
    with replacing(folder / WEIGHTS) as draft:
        draft.write_bytes(as_bytes(weights))  # `save_file` would make it readable by us alone
    write_text(folder / CONFIG, json.dumps(description, indent=2) + "\n")
    files = {name: file_of(folder / name) for name in (WEIGHTS, CONFIG)}
    write_text(folder / CHECKSUMS, checksum_lines(files))
    return files


def read_config(folder: Path) -> Description:
    """Return the description of the network in a model folder."""
    path = folder / CONFIG
    if not path.is_file():
        others = [other.name for other in folder.parent.glob("*/")]
        near = get_close_matches(folder.name, others, n=1, cutoff=0.7)
        is_missing = not folder.is_dir()
        raise ModelNotFoundError(
            f"{folder if is_missing else path}: no such {'folder' if is_missing else 'file'}"
            f"{f', but {folder.parent / near[0]}' if is_missing and near else ''}; a model folder "
            f"holds {WEIGHTS} and {CONFIG}, the folder of a run config.yaml and checkpoints/, and "
            "a model of the Hugging Face hub is named hf-hub:owner/name"
        )
    from probseg.models.schema import checked  # with pydantic, which presets do not need

    try:
        with path.open("rb") as file:
            description = json.loads(file.read(LONGEST))
    except (ValueError, RecursionError) as error:
        raise ZooError(
            f"{path}: is not JSON ({error}); expected the description of a network"
        ) from error
    return checked(description, str(path))
