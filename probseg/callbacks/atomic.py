"""Writing checkpoints so that no interruption destroys one."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from probseg.errors import CheckpointError
from probseg.paths import replacing
from probseg.zoo.trained import LAST

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, a used up quota, and a file over its limit."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file, flushes it to disk, and renames it.

    Whatever happens, the file is the old one or the new one. Lightning writes into the system's
    temporary folder, which may be another disk, and copies.
    """

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | Path,
        storage_options: Any | None = None,  # noqa: ANN401
    ) -> None:
        """Write a file; addresses with `://` are left to Lightning.

        Args:
            checkpoint: Content of the file.
            path: The file.
            storage_options: Must be None, as for Lightning's own class.

        Raises:
            CheckpointError: If it cannot be written; what was at `path` still stands.
        """
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        content = io.BytesIO()
        torch.save(checkpoint, content)
        place = Path(path)
        try:
            with replacing(place) as unfinished, unfinished.open("wb") as file:
                file.write(content.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            if sys.platform != "win32":  # which opens no folders
                folder = os.open(place.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)  # so that the renaming is on the disk, too
                finally:
                    os.close(folder)
        except OSError as error:
            raise CheckpointError(_message(place, content.tell(), error)) from error


def _message(place: Path, size: int, error: OSError) -> str:
    stands = "the file that was there still stands" if place.exists() else "nothing was written"
    cause = str(error.strerror)
    if error.errno in FULL:
        free = shutil.disk_usage(place.parent).free
        cause = f"{cause}: it needs {size / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free"
    last = place.with_name(LAST)
    elsewhere = "choose another place with --trainer.logger.save_dir DIR"
    way_out = (
        f"Make room and go on with --ckpt_path last, or {elsewhere} --ckpt_path {last}"
        if last.is_file()
        else f"There is no {LAST} to go on from: make room, or {elsewhere}, and start again"
    )
    return f"{place}: the checkpoint cannot be written ({cause}); {stands}. {way_out}"
