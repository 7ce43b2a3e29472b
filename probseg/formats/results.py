"""Names of the results of a prediction."""

MASKS, OVERLAYS, COCO = "masks", "overlays", "coco"
FORMATS = (MASKS, COCO, OVERLAYS)
"""Kinds of results: a PNG per object (or class map), one COCO JSON, pictures."""
