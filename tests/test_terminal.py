"""Tables on consoles of any width: no cell is cut off, and no line is too long."""

import io

import pytest
from rich.console import Console

from probseg.terminal import UNLIMITED, Grid, console, fit_table, print_table

SCORES = [f"mIoU@{k}" for k in range(8)]
FIGURES = [f"{80 + k}.5±2.9" for k in range(8)]
ONE = Grid(["data", *SCORES], [["GrabCut", *FIGURES]])
MANY = Grid(["data", *SCORES], [[f"set [{n}]", *FIGURES] for n in range(20)])


def printed(grid, width, **options):
    terminal = Console(width=width, file=io.StringIO())
    print_table(terminal, "A title", grid, **options)
    lines = terminal.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return [line.split() for line in lines if line.strip()]


def test_a_table_with_few_rows_is_turned():
    assert fit_table(ONE, 200) == [ONE]  # as it fits
    assert [*ONE.header] in printed(ONE, 200)
    lines = printed(ONE, 60)
    assert all([*row] in lines for row in zip(SCORES, FIGURES, strict=True))


@pytest.mark.parametrize("width", [30, 50, 80])
def test_a_long_table_is_cut_between_columns(width):
    parts = fit_table(MANY, width)
    assert len(parts) > 1
    assert [name for part in parts for name in part.header[1:]] == SCORES
    for part in parts:
        assert [row[0] for row in part.rows] == [row[0] for row in MANY.rows]
    text = " ".join(word for line in printed(MANY, width) for word in line)
    assert all(text.count(value) == 20 for value in FIGURES)
    assert "set [7]" in text


def test_only_words_are_wrapped():
    notes = "one two three four five six seven eight nine ten"
    grid = Grid(["name", "size", "notes"], [["first", "12,345,678 MB", notes]])
    lines = [" ".join(line) for line in printed(grid, 48, caption="Done.", texts=["notes"])]
    assert any("12,345,678 MB" in line for line in lines)
    assert notes not in lines
    assert all(word in " ".join(lines) for word in notes.split())
    assert lines[-1] == "Done."


def test_the_width_is_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert console(file=io.StringIO()).width == 80
    monkeypatch.delenv("COLUMNS")
    assert console(file=io.StringIO()).width == UNLIMITED
