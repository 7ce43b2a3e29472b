"""Formats of `probseg data convert`."""

from probseg.convert import READERS


def reader_of(writer: str) -> str:
    """Return the name by which the files of a writer are read."""
    family = writer.partition("-")[0]
    return family if family in READERS else writer
