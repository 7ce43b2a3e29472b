"""Files from the network, for the data sets and the zoo alike."""

from probseg.transfer.disk import digest, require_space
from probseg.transfer.downloads import download
from probseg.transfer.network import BLOCK, Progress, WayOut, is_remote, offline, silent

__all__ = [
    "BLOCK",
    "Progress",
    "WayOut",
    "digest",
    "download",
    "is_remote",
    "offline",
    "require_space",
    "silent",
]
