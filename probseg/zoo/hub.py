"""Models of the Hugging Face hub, `hf-hub:owner/name` or `hf-hub:owner/name@revision`."""

from __future__ import annotations

from pathlib import Path

from probseg.errors import DownloadError
from probseg.paths import offline
from probseg.zoo.index import CHECKSUMS, CONFIG, WEIGHTS

PREFIX = "hf-hub:"


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
