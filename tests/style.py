"""Style that ruff does not know of; `make style` and pre-commit run this on the whole checkout.

- Rows of tables in Markdown have the cells of their header.
- Commands in Markdown stand in fenced blocks, where tests find them.
- probseg is on no index: extras are `pip install -e ".[extra]"`.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"^    (?:probseg|python|pip) .*", re.MULTILINE)
FROM_AN_INDEX = re.compile(r"pip install [^\n`&;]*(?<=[ \"'])probseg\b(?!-)|\bprobseg\[\w+\]")


def in_tables(text: str) -> Iterator[str]:
    """Faults of the tables of a page."""
    header = None
    for line in CODE.sub("", text).splitlines():
        cells = line.count("|") if line.startswith(("| ", "|:")) else None
        header = cells and (header or cells)
        if cells != header:
            yield f"{cells} bars, {header} in the header: {line}"


def faults() -> Iterator[str]:
    """All faults, each with its file."""
    files = [REPOSITORY / "mkdocs.yml", *REPOSITORY.glob("*.md")]
    for room in ("probseg", "configs", "docs", "benchmarks"):
        for suffix in ("py", "yaml", "md", "ipynb", "html", "js"):
            files += sorted((REPOSITORY / room).rglob(f"*.{suffix}"))
    for path in files:
        text = path.read_text(encoding="utf-8")
        wrong = [f"not from a checkout: {match[0]}" for match in FROM_AN_INDEX.finditer(text)]
        if path.suffix == ".md":
            wrong += in_tables(text)
            if not path.is_relative_to(REPOSITORY / "benchmarks"):  # whose commands take hours
                left = INDENTED.findall(FENCED.sub("", text))
                wrong += [f"not in a fenced block: {line.strip()}" for line in left]
        yield from (f"{path.relative_to(REPOSITORY)}: {fault}" for fault in wrong)


if __name__ == "__main__":
    sys.exit("\n".join(faults()) or 0)
