"""Evaluation: simulated annotators under a protocol, the record of each click, and the scores."""

from probseg.evaluation.journal import Journal, find_unfinished, remove_journal
from probseg.evaluation.protocols import PROTOCOLS, DrawnCrop, Protocol, draw_crop, get_protocol
from probseg.evaluation.records import (
    ClickRecord,
    Frame,
    ObjectRecord,
    Picture,
    best_and_worst,
    checksum,
    read_objects,
    unique,
    write_objects,
)
from probseg.evaluation.scores import SCORES, MaskScorer, Score, ScoredPrediction
from probseg.evaluation.simulation import run_object, run_objects
from probseg.evaluation.summary import (
    PERCENTS,
    Scores,
    Summary,
    Timing,
    percents_up_to,
    scores_of,
    summarise,
    summarise_records,
)
from probseg.evaluation.versions import environment

__all__ = [
    "PERCENTS",
    "PROTOCOLS",
    "SCORES",
    "ClickRecord",
    "DrawnCrop",
    "Frame",
    "Journal",
    "MaskScorer",
    "ObjectRecord",
    "Picture",
    "Protocol",
    "Score",
    "ScoredPrediction",
    "Scores",
    "Summary",
    "Timing",
    "best_and_worst",
    "checksum",
    "draw_crop",
    "environment",
    "find_unfinished",
    "get_protocol",
    "percents_up_to",
    "read_objects",
    "remove_journal",
    "run_object",
    "run_objects",
    "scores_of",
    "summarise",
    "summarise_records",
    "unique",
    "write_objects",
]
