"""The models of a zoo as a table in Markdown, and its place in a page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from probseg.errors import UsageError
from probseg.paths import write_text
from probseg.zoo.figures import class_figures, figure
from probseg.zoo.index import Entry

BEGIN, END = "<!-- zoo: begin -->", "<!-- zoo: end -->"

FIGURES = {
    "mIoU@0": "GrabCut/gabbur2021/miou@0",
    "mIoU@5": "GrabCut/gabbur2021/miou@5",
    "NoC@85": "GrabCut/ritm/noc@85",
    "NoC@90": "GrabCut/ritm/noc@90",
}
"""Columns of models for clicks, all on GrabCut: IoUs after a box, clicks without one."""


def render_table(entries: Iterable[Entry]) -> str:
    """Write a table of models, with a column for the mean IoU of classes if one has it.

    Args:
        entries: Lines of an index, in the order of the table.

    Returns:
        Markdown, with a line break at its end.
    """
    entries = list(entries)
    semantic = any(entry.task == "semantic" for entry in entries)
    header = ["model", "task", "parameters", "MB", *FIGURES]
    header += ["mIoU of classes"] if semantic else []
    lines = [
        f"| {' | '.join(header)} | what it is |",
        f"|:--|:--|{'--:|' * (len(header) - 2)}:--|",
    ]
    for entry in entries:
        cells = [
            f"`{entry.name}`",
            entry.task,
            f"{entry.parameters / 1e6:.2f} M",
            f"{entry.nbytes / 1e6:.1f}",
            *(figure(entry, key) for key in FIGURES.values()),
        ]
        if semantic:
            cells.append(", ".join(class_figures(entry)))
        lines.append(f"| {' | '.join([*cells, _few_words(entry.description)])} |")
    return "\n".join(lines) + "\n"


def with_table(text: str, table: str, source: Path) -> str:
    """Return a page with a table between its marks.

    Args:
        text: The page, with `BEGIN` and `END` once each, on lines of their own.
        table: New content between them.
        source: File of the page, for the error.

    Raises:
        UsageError: If the marks are not there.
    """
    before, begin, rest = text.partition(f"{BEGIN}\n")
    old, end, after = rest.partition(f"{END}\n")
    if not begin or not end or BEGIN in old + after or END in after:
        msg = f"{source}: expected one line {BEGIN} and below it one line {END}; add them"
        raise UsageError(msg)
    return f"{before}{begin}\n{table}\n{end}{after}"


def write_table(path: Path, table: str, *, check: bool = False) -> None:
    """Put a table into a page.

    Args:
        path: The page.
        table: The table.
        check: Write nothing, and refuse another table.

    Raises:
        UsageError: If the page has no marks, or with `check` another table.
    """
    text = path.read_text(encoding="utf-8")
    wanted = with_table(text, table, path)
    if text == wanted:
        return
    if check:
        msg = f"{path}: its table is not that of the zoo; run `probseg zoo table --into {path}`"
        raise UsageError(msg)
    write_text(path, wanted)


def _few_words(sentence: str) -> str:
    """Return a description up to its remarks on training, or to its end."""
    return sentence.partition(", trained ")[0].removesuffix(".").replace("|", "\\|")
