"""The verb zoo import."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from probseg.models import Segmenter
from probseg.peers.ritm import import_ritm
from probseg.peers.sam_files import import_sam
from probseg.peers.simpleclick import import_simpleclick
from probseg.texts import tell

if TYPE_CHECKING:
    from probseg.cli.arguments import Verbs

# conversions by the name of the origin
ORIGINS: dict[str, Callable[[Path, Path], Segmenter]] = {
    "ritm": import_ritm,
    "sam": import_sam,
    "simpleclick": import_simpleclick,
}

KIND = (
    "origin: RITM (HRNet with OCR, or DeepLabV3+), SimpleClick (ViT-B, L or H), or SAM (SAM, SAM "
    "2, SAM 2.1 or the tracker of SAM 3; needs the extra `sam`)"
)


def add_import(verbs: Verbs) -> None:
    """Add import to the verbs of `probseg zoo`."""
    verb = verbs.add_parser("import", help="convert a published checkpoint to a model folder")
    verb.add_argument("kind", choices=tuple(ORIGINS), help=KIND)
    verb.add_argument("file", type=Path, help="the checkpoint; no code in it is run")
    verb.add_argument("folder", type=Path, help="model folder to write; must not exist")

    def action(options: argparse.Namespace) -> None:
        ORIGINS[options.kind](options.file, options.folder)
        name = f"{options.folder.resolve()}/"
        tell(
            f"wrote {options.folder}; test it under the protocols with\n"
            f"  probseg test --config configs/experiment/grabcut.yaml --model.model.name {name}\n"
        )

    verb.set_defaults(action=action)
