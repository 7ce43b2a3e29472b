"""Commands and examples of README and documentation: valid, run, or with a reason why not.

Every command of probseg is parsed by its verb: options, values and files of configurations must
exist. It also runs here, on drawn files, unless `NOT_RUN` gives the reason and the tests that run
its verb. Other commands, and Python that no test runs, have a comment before their block:
`<!-- not run: the reason -->`.
"""

import functools
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image
from test_docs import OF_PARTS, OF_THE_FAMILY, OF_TRAINING

import probseg
import probseg.cli.trainer as trainer
from probseg.cli import TRAINER, VERBS
from probseg.cli.arguments import Parser
from probseg.cli.invocation import Invocation
from support.drawn_sets import write_coco
from support.fakes import write_folder, write_grabcut
from support.result_folders import rising, write_result
from support.rows import each
from support.runs import command

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
}
RUN_BY_TESTS = {
    "CONTRIBUTING.md",
    *(f"docs/{page}" for page in (*OF_THE_FAMILY, *OF_TRAINING, *OF_PARTS)),
    *(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/notebooks/*.md")),
}
"""Pages whose Python runs in `test_docs.py`, `test_notebooks.py` and `test_release.py`."""

BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+?) -->\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
INLINE = re.compile(r"`(probseg [a-z]+ [^`]+)`")
PART = re.compile(
    r"\.\.\.|probseg (zoo (publish|push)|test --config|tune --held-out 10|zoo publish --zoo)$"
)
"""Text in a line that is not a whole command."""

NOT_RUN = {
    "fit": "trains: test_configs.py and test_semantic_configs.py train each kind of recipe",
    "test": "evaluates: as `fit`, and test_fit_and_test.py; .ci/run runs the quickstart",
    "ablate|compare ablation": "trains: test_compare_verb.py",
    "annotate": "serves a page: tests/annotate clicks in it",
    "serve label-studio": "serves: test_label_studio.py and test_label_studio_server.py ask it",
    "serve x-anylabeling": "serves: test_x_anylabeling.py asks it",
    "export": "checks graphs for a minute: tests/export",
    "bench": "measures for minutes: test_benchmark.py",
    "tune": "evaluates many settings: test_tune_verb.py",
    "data convert .*--storage": "needs files of Label Studio: test_label_studio_server.py",
    "data fetch": "downloads: test_data_verbs.py",
    "data check (?!my_folder)": "needs a published data set: test_data_verbs.py",
    "zoo fetch": "downloads: test_hub.py",
    "zoo import": "needs a published checkpoint: test_ritm.py, test_simpleclick.py, test_sam.py",
    "zoo publish": "needs a trained run: test_zoo_publish_verb.py",
    "zoo push": "uploads: test_publish.py",
    "zoo verify.* --metrics": "evaluates: test_zoo_verify_verb.py",
}
"""Beginnings of commands that do not run here: the reason, and the tests that run their verb."""

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
INLINE_COMMANDS = [
    Command(page, shlex.split(found), None)
    for page, text in PAGES.items()
    for found in INLINE.findall(text)
    if not PART.search(found)
]


def own(given):
    """The verb and the arguments of a command of probseg, also behind a launcher; else None."""
    for place, word in enumerate(given.words[:-1]):
        if word == "probseg" and given.words[place + 1] in VERBS:
            return given.words[place + 1 :]
    return None


OWN = [each for each in (*COMMANDS, *INLINE_COMMANDS) if own(each)]
LINES = {shlex.join(own(each)) for each in OWN}
RUN = sorted(line for line in LINES if not any(re.match(start, line) for start in NOT_RUN))


def arguments(given):
    """Verb and options of a command, with shipped configurations in place of those of runs."""
    words = [STAND_INS.get(word, word) for word in own(given) if word not in ("OPTIONS", "$last")]
    if given.page.endswith("semantic.md"):
        semantic = "configs/experiment/emanet_camvid_cpu.yaml"
        words = [semantic if word == STAND_INS["RUN/config.yaml"] else word for word in words]
    return tuple(words[: words.index(">")] if ">" in words else words)


VALID = {arguments(given): f"{given.page}: {' '.join(given.words)}" for given in OWN}
"""Different commands, each with one of its places."""


@pytest.fixture(scope="module")
def parse(tmp_path_factory):
    """Parses what follows `probseg` with a parser for each verb and its tasks."""
    with pytest.MonkeyPatch.context() as patch:
        for method in ("instantiate_classes", "_run_subcommand"):
            patch.setattr(trainer.ProbsegCLI, method, lambda *given: None)
        patch.setattr(trainer, "check_readable", lambda path: None)
        patch.setattr(Invocation, "_check_data", lambda self: None)  # there are none here
        patch.chdir(tmp_path_factory.mktemp("pages"))
        patch.syspath_prepend(Path.cwd())
        for block in BLOCKS:
            if name := re.match(r"# (\w+\.(?:yaml|py))\n", block.code):
                Path(name[1]).write_text(block.code, encoding="utf-8")
        given = ("--config", "configs/experiment/folder.yaml", "--data.root=x")
        made = functools.cache(
            lambda verb, *options: trainer.run(Invocation(verb, (*options, *given)))
        )

        def parse(words):
            invocation = Invocation(words[0], words[1:])
            invocation.check()
            trainer.import_named(invocation.words)
            semantic = "semantic" in invocation.tasks()
            cli = made(words[0], *["--semantic_evaluation.flip=true"] * semantic)
            cli.parse_arguments(cli.parser, invocation.arguments)
            assert cli.config.subcommand == words[0]

        yield parse


class ParsedError(Exception):
    """Raised after parsing: the command is valid."""


@each("words", VALID)
def test_commands_are_valid(words, parse, monkeypatch):
    def only_parse(parser, arguments):
        Parser.parse_known_args(parser, arguments)
        raise ParsedError

    monkeypatch.setattr(Parser, "parse_args", only_parse)
    verb = words[0]
    if "--print_config" in words:
        with pytest.raises(SystemExit, match=r"^0$"):
            parse(words)
    elif verb in TRAINER:
        parse(words)
    else:
        with pytest.raises(ParsedError):
            VERBS[verb](words[1:])


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The files that the commands name, in the working directory."""
    monkeypatch.chdir(tmp_path)
    gradient = Image.linear_gradient("L").resize((400, 300)).convert("RGB")
    for name in ("photo.jpg", "photographs/cat.jpg", "street/frame.jpg"):
        Path(name).parent.mkdir(exist_ok=True)
        gradient.save(name)
    prompts = re.search(r"(?:^    [^ ]*,[^ ]*\n)+", PAGES["docs/predict.md"], re.MULTILINE)[0]
    Path("prompts.csv").write_text(prompts.replace("    ", ""))
    for path in sorted(write_folder(Path("my_folder")).glob("images/*")):
        noise = np.random.default_rng(int(path.stem[-1])).integers(0, 256, (48, 64, 3))
        Image.fromarray(noise.astype(np.uint8)).save(path)  # unlike the drawn GrabCut
    monkeypatch.setenv("PROBSEG_DATA", str(write_grabcut(tmp_path / "data" / "GrabCut").parent))
    write_coco(Path("results/annotations.json"), Path("results/images"))
    shutil.copy("results/annotations.json", "truth.json")
    for name in ("baseline", "grabcut"):
        write_result(Path(f"runs/{name}/version_0/test/ritm"), {"GrabCut": rising(6)})
    for run in ("RUN_A", "RUN_B"):
        write_result(Path(f"{run}/test/ritm"), {"GrabCut": rising(6)})
    shutil.copy(ROOT / "README.md", "README.md")


@pytest.mark.parametrize("line", RUN)
def test_commands_run(line, files):
    words = shlex.split(line)
    assert command(*words[: words.index(">")] if ">" in words else words) == 0


def test_every_reason_not_to_run_is_used_and_names_tests_that_exist():
    tests = {path.name for path in ROOT.glob("tests/**/test_*.py")}
    for start, reason in NOT_RUN.items():
        assert any(re.match(start, line) for line in LINES), start
        assert {*re.findall(r"test_\w+\.py", reason)} <= tests, reason


def test_what_does_not_run_has_a_reason():
    assert [each for each in COMMANDS if not own(each) and each.reason is None] == []
    blocks = [block for block in BLOCKS if block.language == "python" and block.reason is None]
    assert [block.page for block in blocks if block.page not in {*RUN_BY_TESTS, *EXAMPLES}] == []


EXAMPLES = (
    "README.md",
    "docs/attention.md",
    "docs/models.md",
    "docs/predict.md",
    "docs/semantic.md",
)


@pytest.mark.parametrize("page", EXAMPLES)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photo = Image.linear_gradient("L").resize((400, 300)).convert("RGB")
    photo.save("photo.jpg")
    for block in BLOCKS:
        if block.page == page and block.language == "python" and block.reason is None:
            given = {"probseg": probseg, "image": np.array(photo)}
            exec(compile(block.code, page, "exec"), given)
