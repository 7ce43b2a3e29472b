"""Interaction: simulated annotators under a protocol, and what comes out of it as files."""

from probseg.interact.loop import (
    Frame,
    InteractionState,
    ObjectRecord,
    Picture,
    Predict,
    Step,
    ask,
    image_tensor,
    predict_probability,
    run_object,
    start,
    step,
)
from probseg.interact.protocols import PROTOCOLS, Protocol, View, draw_view, get_protocol
from probseg.interact.report import (
    environment,
    markdown_table,
    print_summary,
    read_ious,
    summarise_records,
    write_report,
)

__all__ = [
    "PROTOCOLS",
    "Frame",
    "InteractionState",
    "ObjectRecord",
    "Picture",
    "Predict",
    "Protocol",
    "Step",
    "View",
    "ask",
    "draw_view",
    "environment",
    "get_protocol",
    "image_tensor",
    "markdown_table",
    "predict_probability",
    "print_summary",
    "read_ious",
    "run_object",
    "start",
    "step",
    "summarise_records",
    "write_report",
]
