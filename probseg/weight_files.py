"""Files of weights, which may be a stranger's: no code of theirs runs, and none takes the memory.

What a file may cost is bounded by its own size, before anything is copied or compared.
"""

from __future__ import annotations

import mmap
import pickle
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from probseg.errors import WeightsError

# bytes of the pickle in a checkpoint: names, settings and places of tensors, but no tensor
PICKLE = 16 * 2**20
SHARED = 4  # how often the bytes of a file may be in its tensors, which may be views of each other


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file, whose header must fit its size."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, KeyError, ValueError) as error:  # the latter of types without a name
        raise WeightsError(
            f"{path}: cannot be read ({error}); the file is damaged or no safetensors file"
        ) from error
    return tensors


def read_pickled(path: Path, expected: str, own: Iterable[Any] = (), legacy: bool = False) -> Any:  # noqa: ANN401
    """Read what `torch.save` has written, without running code; tensors are on the CPU.

    Damaged files, others than `expected`, and those that would take more than their size raise a
    `WeightsError`. `own` are further classes for `torch.serialization.safe_globals`; `legacy` files
    are from before PyTorch 1.6, which are not zip files.
    """
    try:
        is_zip = zipfile.is_zipfile(path)
        if is_zip or not legacy:
            _check_archive(path)
        else:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m:
                _check_pickle(path, m)
        with torch.serialization.safe_globals(list(own)):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path}: cannot be read; it holds Python objects, which are not read since they could "
            f"run code, or is damaged; expected {expected}"
        ) from error
    except PermissionError as error:
        raise WeightsError(
            f"{path}: cannot be read: {error.strerror}; change its permissions"
        ) from error
    except WeightsError:
        raise
    except Exception as error:  # PyTorch's reader raises what it happens to stumble over
        raise WeightsError(
            f"{path}: cannot be read as {expected}; the file is damaged, or of another kind"
        ) from error
    _check_tensors(path, content)
    return content


def _check_archive(path: Path) -> None:
    """Raise unless all entries are stored as they are, undamaged, and none is in another."""
    with zipfile.ZipFile(path) as file:
        entries = file.infolist()
        names = {entry.filename for entry in entries}
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        nbytes = sum(entry.file_size for entry in entries)
        if not stored or nbytes > path.stat().st_size or len(names) < len(entries):
            raise WeightsError(
                f"{path}: is packed in another way than by torch.save, and might unpack to more "
                "than its size; save it again"
            )
        for entry in entries:
            if entry.filename.endswith(".pkl"):
                if entry.file_size > PICKLE:
                    raise WeightsError(
                        f"{path}: the pickle must have at most {PICKLE:,} bytes, got "
                        + f"{entry.file_size:,}; save tensors as tensors"
                    )
                _check_pickle(path, file.read(entry))
        broken = file.testzip()  # by checksums: torch does not look at all of the tensors
    if broken is not None:
        raise WeightsError(f"{path}: the file is damaged, {broken} in it has another checksum")


def _check_pickle(path: Path, content: bytes | mmap.mmap) -> None:
    """Raise for what makes gigabytes of a number: the only call of its kind that torch allows."""
    if content.find(b"bytearray") >= 0:
        raise WeightsError(
            f"{path}: holds a bytearray, whose size a number may claim; save tensors instead"
        )


def _check_tensors(path: Path, content: object) -> None:
    """Raise unless each tensor lies in memory as a whole, and all together are of the file's size.

    A few bytes can claim a tensor of any shape: all of it one number, with strides of 0.
    """
    nbytes = 0
    for tensor in tensors_in(content):
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not plain or tensor.is_quantized or tensor.is_nested:
            raise WeightsError(
                f"{path}: must hold plain tensors, got one of {tensor.layout} {tensor.dtype}"
            )
        nbytes += (own := tensor.numel() * tensor.element_size())
        if own > tensor.untyped_storage().nbytes() or nbytes > SHARED * path.stat().st_size:
            raise WeightsError(
                f"{path}: has too few bytes for a tensor of shape {tuple(tensor.shape)}, or for "
                "all that it claims; save the tensors themselves, and no expanded views"
            )


def tensors_in(content: object) -> Iterator[Tensor]:
    """Yield the tensors in dictionaries, lists and tuples at any depth, as often as they are."""
    seen: set[int] = set()
    waiting = [content]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, dict | list | tuple) and id(item) not in seen:
            seen.add(id(item))
            waiting.extend(item.values() if isinstance(item, dict) else item)
