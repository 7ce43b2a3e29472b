"""Commands and examples of README and documentation: valid, run, or marked with a reason.

Every command of probseg in a code block is parsed by its verb: options, values and files of
configurations must exist. Other commands, and Python that no test runs, have a comment before
their block: ``<!-- not run: the reason -->``.
"""

import importlib
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image
from runs import command
from test_docs import OF_PARTS, OF_THE_FAMILY, OF_TRAINING

import probseg
import probseg.cli.trainer as trainer
from probseg.cli import VERBS

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
}
RUN_BY_TESTS = {f"docs/{page}" for page in (*OF_THE_FAMILY, *OF_TRAINING, *OF_PARTS)} | {
    str(path.relative_to(ROOT)) for path in ROOT.glob("docs/notebooks/*.md")
}
"""Pages whose Python runs in `test_docs.py` and `test_notebooks.py`."""

BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+?) -->\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
INLINE = re.compile(r"`(probseg [a-z]+ [^`]+)`")
STAND_INS = {
    "RUN/config.yaml": "configs/experiment/gabbur2021.yaml",
    "runs/probseg/version_0/config.yaml": "configs/experiment/folder.yaml",
}
"""Configurations in place of those of a run."""


class Block(NamedTuple):
    """A code block of a page."""

    page: str
    language: str
    code: str
    reason: str | None


class Command(NamedTuple):
    """A command of a block, as words."""

    page: str
    words: list[str]
    reason: str | None


BLOCKS = [
    Block(page, found["language"], found["code"], found["reason"])
    for page, text in PAGES.items()
    for found in BLOCK.finditer(text)
]


def commands(block):
    """Commands of a shell block, without comments and variables."""
    lines, pending = block.code.replace("\\\n", " ").splitlines(), ""
    for line in lines:
        pending += line + "\n"
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quotation that goes on
            continue
        pending = ""
        for part in " ".join(map(shlex.quote, words)).split(" '&&' "):
            given = [word for word in shlex.split(part) if not re.match(r"[A-Z_]+=", word)]
            if given:
                yield Command(block.page, given, block.reason)
    assert not pending, block


COMMANDS = [each for block in BLOCKS if block.language == "bash" for each in commands(block)]
OWN = [each for each in COMMANDS if "probseg" in each.words] + [
    Command("README.md", shlex.split(text), None) for text in INLINE.findall(PAGES["README.md"])
]


@pytest.fixture
def parsed_only(tmp_path, monkeypatch):
    """Verbs of training and evaluation stop after their arguments; files of a page exist."""
    for method in ("instantiate_classes", "_run_subcommand"):
        monkeypatch.setattr(trainer.ProbsegCLI, method, lambda *given: None)
    monkeypatch.setattr(trainer, "check_readable", lambda path: None)
    monkeypatch.chdir(tmp_path)
    for block in BLOCKS:
        if name := re.match(r"# (\w+\.yaml)\n", block.code):
            (tmp_path / name[1]).write_text(block.code, encoding="utf-8")


@pytest.mark.parametrize("given", OWN, ids=lambda given: f"{given.page}: {' '.join(given.words)}")
def test_commands_are_valid(given, parsed_only):
    verb, *words = given.words[given.words.index("probseg") + 1 :]
    words = [STAND_INS.get(word, word) for word in words if word not in ("OPTIONS", "$last")]
    if given.page.endswith("semantic.md"):
        semantic = "configs/experiment/emanet_camvid_cpu.yaml"
        words = [semantic if word == STAND_INS["RUN/config.yaml"] else word for word in words]
    if ">" in words:
        words = words[: words.index(">")]
    if "--print_config" in words:
        with pytest.raises(SystemExit, match=r"^0$"):
            command(verb, *words)
    elif VERBS[verb] == "trainer":
        assert command(verb, *words) == 0
    else:
        importlib.import_module(f"probseg.cli.{VERBS[verb]}")._parser().parse_args(words)


def test_other_commands_have_a_reason_not_to_run():
    assert COMMANDS
    assert OWN
    left = [each for each in COMMANDS if "probseg" not in each.words and each.reason is None]
    assert left == []


def test_python_runs_or_has_a_reason_not_to():
    blocks = [block for block in BLOCKS if block.language == "python" and block.reason is None]
    assert [block.page for block in blocks if block.page not in {*RUN_BY_TESTS, *EXAMPLES}] == []


EXAMPLES = ("README.md", "docs/attention.md", "docs/models.md", "docs/semantic.md")


@pytest.mark.parametrize("page", EXAMPLES)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.linear_gradient("L").resize((400, 300)).save("photo.jpg")
    for block in BLOCKS:
        if block.page == page and block.language == "python" and block.reason is None:
            exec(compile(block.code, page, "exec"), {"probseg": probseg})
