"""Clicks: how they are drawn as channels, sampled in training and simulated in evaluation."""

from probseg.clicks.annotators import CLICK_RULES, HUMAN, Mistakes
from probseg.clicks.curriculum import STAGES, Curriculum, IteratedClicks, Stage
from probseg.clicks.maps import ClickMaps
from probseg.clicks.propagated import PropagatedClicks

__all__ = [
    "CLICK_RULES",
    "HUMAN",
    "STAGES",
    "ClickMaps",
    "Curriculum",
    "IteratedClicks",
    "Mistakes",
    "PropagatedClicks",
    "Stage",
]
