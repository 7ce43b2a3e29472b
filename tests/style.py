"""Style that ruff does not know of; `make style` and pre-commit run this on the whole checkout.

- Messages of errors name arguments in backticks.
- Rows of tables in Markdown have the cells of their header.
- Commands in Markdown stand in fenced blocks, where tests find them.
- probseg is on no index: extras are `pip install -e ".[extra]"`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"^    (?:probseg|python|pip) .*", re.MULTILINE)
FROM_AN_INDEX = re.compile(r"pip install [^\n`&;]*(?<=[ \"'])probseg\b(?!-)|\bprobseg\[\w+\]")


def arguments(node: ast.AST) -> set[str]:
    """Names of the arguments of a function, or of the arguments and fields of a class."""
    if isinstance(node, ast.FunctionDef):
        taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        return {argument.arg for argument in taken} - {"self", "cls"}
    if isinstance(node, ast.ClassDef):
        fields = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
        return {field.id for field in fields if isinstance(field, ast.Name)}.union(
            *(arguments(part) for part in node.body if getattr(part, "name", "") == "__init__")
        )
    return set()


def messages(
    node: ast.AST, names: set[str] | frozenset[str] = frozenset()
) -> Iterator[tuple[str, set[str]]]:
    """Messages of the errors raised in a tree, "{}" for each value, with the arguments in scope."""
    names = names | arguments(node)
    for child in ast.iter_child_nodes(node):
        yield from messages(child, names)
    for block in ("body", "orelse", "finalbody"):
        assigned = {}
        lines = getattr(node, block, None)
        for line in lines if isinstance(lines, list) else []:
            if isinstance(line, ast.Assign):
                assigned[ast.unparse(line.targets[0])] = line.value
            elif isinstance(line, ast.Raise) and isinstance(line.exc, ast.Call) and line.exc.args:
                text = line.exc.args[0]
                text = assigned.get(ast.unparse(text), text)
                if isinstance(text, ast.JoinedStr):
                    parts = (getattr(part, "value", "") for part in text.values)
                    yield "".join(p if isinstance(p, str) else "{}" for p in parts), names
                elif isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text.value, names


def bare(text: str, names: set[str]) -> Iterator[str]:
    """Arguments that a message names without backticks.

    Checked are the first word, a value before "must", and names with an underscore; `name=value`,
    options of the command line and keys of settings (`data.train`) stand without.
    """
    text = re.sub(r"`[^`]*`", "``", text)
    first = re.match(r"(\{\}|\w+)(?= must )|\w+(?=[ ,])", text)
    if first and (first[0] in names | {"{}"} or "_" in first[0]):
        yield first[0]
    for word in re.findall(r"(?<![\w.`'\"=/-])\w+_\w+(?![\w=`'.(/])", text):
        if word in names:
            yield word


def in_messages(text: str) -> Iterator[str]:
    """Faults of the messages of a module."""
    for message, names in messages(ast.parse(text)):
        for word in bare(message, names):
            yield f"no backticks around {word}: {message}"


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
        if path.suffix == ".py" and path.is_relative_to(REPOSITORY / "probseg"):
            wrong += in_messages(text)
        if path.suffix == ".md":
            wrong += in_tables(text)
            if not path.is_relative_to(REPOSITORY / "benchmarks"):  # whose commands take hours
                left = INDENTED.findall(FENCED.sub("", text))
                wrong += [f"not in a fenced block: {line.strip()}" for line in left]
        yield from (f"{path.relative_to(REPOSITORY)}: {fault}" for fault in wrong)


if __name__ == "__main__":
    sys.exit("\n".join(faults()) or 0)
