"""Interaction: simulated annotators under a protocol, and what comes out of it as files."""

from probseg.interact.journal import Journal, find_unfinished, retire
from probseg.interact.loop import InteractionLoop, Model, OneStep
from probseg.interact.protocols import PROTOCOLS, Protocol, View, draw_view, get_protocol
from probseg.interact.records import (
    Frame,
    ObjectRecord,
    Picture,
    Step,
    checksum,
    most_telling,
    read_objects,
    unique,
    write_objects,
)
from probseg.interact.report import environment, scores_of, summarise_records, write_report
from probseg.interact.simulation import run_object, run_objects
from probseg.interact.states import InteractionState, begin, image_tensor
from probseg.interact.tables import markdown_table, print_summary
from probseg.interact.zoom import ZOOMS, Zoom

__all__ = [
    "PROTOCOLS",
    "ZOOMS",
    "Frame",
    "InteractionLoop",
    "InteractionState",
    "Journal",
    "Model",
    "ObjectRecord",
    "OneStep",
    "Picture",
    "Protocol",
    "Step",
    "View",
    "Zoom",
    "begin",
    "checksum",
    "draw_view",
    "environment",
    "find_unfinished",
    "get_protocol",
    "image_tensor",
    "markdown_table",
    "most_telling",
    "print_summary",
    "read_objects",
    "retire",
    "run_object",
    "run_objects",
    "scores_of",
    "summarise_records",
    "unique",
    "write_objects",
    "write_report",
]
