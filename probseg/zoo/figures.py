"""Figures of models as text, for tables and cards."""

from __future__ import annotations

from probseg.zoo.index import Entry, Metric

OF_CLASSES = "/miou"  # end of the names of the mean IoUs over classes


def is_clicks(name: str) -> bool:
    """Return whether a figure, by its name, is a number of clicks; the others are in [0, 1]."""
    return name.rpartition("/")[2].startswith("noc@")


def in_words(name: str, metric: Metric) -> str:
    """Return a figure with its standard error: numbers of clicks, and all others in percent."""
    scale, digits = (1, 2) if is_clicks(name) else (100, 1)
    error = "" if metric.error is None else f" ± {scale * metric.error:.{digits}f}"
    return f"{scale * metric.value:.{digits}f}{error}"


def figure(entry: Entry, name: str) -> str:
    """Return a figure of a model as `in_words` does; an empty text where it was not measured."""
    return in_words(name, entry.metrics[name]) if name in entry.metrics else ""


def class_figures(entry: Entry) -> list[str]:
    """Return the mean IoUs over classes, in percent, each with its data set."""
    names = [name for name in entry.metrics if name.endswith(OF_CLASSES)]
    return [f"{figure(entry, name)} ({name.removesuffix(OF_CLASSES)})" for name in names]
