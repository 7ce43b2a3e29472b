"""From a zoo to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from probseg.errors import DownloadError, UsageError
from probseg.paths import offline
from probseg.zoo.hub import PREFIX
from probseg.zoo.index import CARD, CHECKSUMS
from probseg.zoo.lookup import verify
from probseg.zoo.store import checksum_lines


def push(name: str, repository: str, *, private: bool = False, root: Path | None = None) -> str:
    """Upload a model's folder in one commit.

    The card on the hub loads the model from there. `HF_TOKEN`, or the token that
    `hf auth login` keeps, says who uploads; `HF_ENDPOINT` is the hub.

    Args:
        name: Of the model, as for `probseg.zoo.lookup.find_model`.
        repository: `owner/name` on the hub; made if need be.
        private: Whether a new repository is for its owner alone; that of an old one stays.
        root: Folder of the only zoo to search.

    Returns:
        Address of the commit.

    Raises:
        UsageError: If the network must not be used.
        ChecksumError: If a file of the model is not the recorded one.
        DownloadError: If the hub refuses, or cannot be reached.
    """
    # Half a second to import, which models of the zoo need not wait for.
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    if offline():
        msg = (
            f"push {name}: PROBSEG_OFFLINE or HF_HUB_OFFLINE is set, and the hub must not be asked;"
            " push without them"
        )
        raise UsageError(msg)
    model = verify(name, root)
    entry, folder = model.entry, model.folder
    card = (folder / CARD).read_text(encoding="utf-8")
    card = card.replace(f'"{entry.name}"', f'"{PREFIX}{repository}"')
    files = [CommitOperationAdd(file, folder / file) for file in entry.files]
    files.append(CommitOperationAdd(CHECKSUMS, checksum_lines(entry.files).encode()))
    files.append(CommitOperationAdd(CARD, card.encode()))
    try:
        hub = HfApi(library_name="probseg")
        hub.create_repo(repository, private=private, exist_ok=True)
        commit = hub.create_commit(repository, files, commit_message=f"Publish {entry.name}")
    except (OSError, ValueError, HTTPError) as error:
        reason = str(error).strip().split("\n")[0]
        msg = (
            f"{entry.name} could not be pushed to {repository} ({reason}); check the name, which "
            "is owner/name, the network, and that HF_TOKEN is one that may write there"
        )
        raise DownloadError(msg) from error
    return commit.commit_url
