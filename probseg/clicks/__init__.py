"""Clicks: how they are drawn as channels, sampled in training and simulated in evaluation."""

from probseg.clicks.curriculum import STAGES, Curriculum, Stage
from probseg.clicks.maps import ClickMaps

__all__ = ["STAGES", "ClickMaps", "Curriculum", "Stage"]
