"""Settings in the database of a folder, which may come from a stranger."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

LONGEST_LABEL = 100
"""Most characters of a label."""

MOST_LABELS = 1000
"""Most classes to choose from."""


class Inference(TypedDict):
    """The model of the last session, and its settings, which `Answerer.change` checks."""

    model: Annotated[str, Field(max_length=4096)]
    settings: Annotated[dict[str, Any], Field(max_length=100)]


def is_label(text: str) -> bool:
    """Return whether a text can be a label: a short line that can be printed."""
    return 0 < len(text) <= LONGEST_LABEL and text.isprintable()


def _label(text: str) -> str:
    if not is_label(text):
        msg = f"a label must be text of at most {LONGEST_LABEL} characters, got {text!r:.100}"
        raise ValueError(msg)
    return text


SETTINGS: dict[str, TypeAdapter[Any]] = {
    "labels": TypeAdapter(
        Annotated[list[Annotated[str, AfterValidator(_label)]], Field(max_length=MOST_LABELS)]
    ),
    "avoid_finished": TypeAdapter(bool),
    "inference": TypeAdapter(Inference),
    "annotations": TypeAdapter(bool),
    "annotations_due": TypeAdapter(bool),
    "exports": TypeAdapter(Annotated[list[str], Field(max_length=100)]),
}
"""What each setting may be."""
