"""Messages of errors name arguments in one way: in backticks."""

import ast
import re

from support.rows import each


def arguments(node):
    """Names of the arguments of a function, or of the arguments and fields of a class."""
    if isinstance(node, ast.FunctionDef):
        found = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        return {argument.arg for argument in found} - {"self", "cls"}
    if isinstance(node, ast.ClassDef):
        fields = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
        return {field.id for field in fields if isinstance(field, ast.Name)}.union(
            *(arguments(part) for part in node.body if getattr(part, "name", "") == "__init__")
        )
    return set()


def messages(node, names=frozenset()):
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


def bare(text, names):
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


def test_arguments_stand_in_backticks(repository):
    wrong, count = [], 0
    for path in sorted((repository / "probseg").rglob("*.py")):
        for text, names in messages(ast.parse(path.read_text(encoding="utf-8"))):
            count += 1
            wrong += [f"{path.name}: {word}: {text}" for word in bare(text, names)]
    assert count > 500
    assert not wrong


@each(
    ("message", "found"),
    [
        ('"size must be at least 1"', ["size"]),
        ('f"{name} must be at least 1"', ["{}"]),
        ('"`size` needs a batch_size"', ["batch_size"]),
        ('"other_name must be at least 1"', ["other_name"]),
        ('f"`size` must be at least 1, got {size}; set `batch_size` or batch_size=2"', []),
        ('"the size must be at least 1"', []),
        ('f"{path}: has no size"', []),
    ],
)
def test_bare_names_are_noticed(message, found):
    source = f"def f(size, batch_size):\n    msg = {message}\n    raise ValueError(msg)"
    ((text, names),) = messages(ast.parse(source))
    assert list(bare(text, names)) == found
