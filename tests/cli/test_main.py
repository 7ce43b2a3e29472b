import logging
import os
import re
import signal
import subprocess
import sys

import pytest
import yaml

import probseg
import probseg.cli
import probseg.cli.trainer as trainer_module
from probseg.cli.arguments import Parser, add_verbs
from probseg.cli.help import ALL, EXAMPLES
from probseg.cli.invocation import FOLDER, ROLES
from probseg.paths import configs_dir, replacing
from support.fakes import write_folder
from support.rows import each
from support.runs import LAUNCHER, command


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory away from the checkout, with a folder of objects and no data sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "nowhere"))
    write_folder(tmp_path / "data", images=5, size=(24, 32))
    return tmp_path


def test_threads_wait_without_spinning_unless_asked_to(capsys, monkeypatch):
    for chosen in (None, "ACTIVE"):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if chosen is not None:
            monkeypatch.setenv("OMP_WAIT_POLICY", chosen)
        assert command("--help") == 0
        assert os.environ["OMP_WAIT_POLICY"] == (chosen or "PASSIVE")


def test_what_the_library_logs_is_printed_once(capsys):
    for _ in range(2):
        assert command("--version") == 0
    logging.getLogger("probseg.data").info("%d images have no mask", 3)
    assert capsys.readouterr().err == "probseg: 3 images have no mask\n"


@each("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_verb_in_order(number, tmp_path, monkeypatch):
    def verb(options):
        with replacing(tmp_path / "file") as draft:
            draft.touch()
            os.kill(os.getpid(), number)
            pytest.fail("goes on")

    before = signal.signal(number, signal.SIG_DFL)  # `nohup pytest` ignores SIGHUP
    monkeypatch.setattr(probseg.cli, "VERBS", {"data": verb})
    with pytest.raises(SystemExit, match="143"):
        command("data")
    assert not any(tmp_path.iterdir())
    assert signal.signal(number, before) is signal.SIG_DFL


OLD = "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"  # an encoding of 128 characters


@pytest.mark.process
@each(
    ("line", "status", "said"),
    [
        (f"{OLD} probseg zoo list", 0, r"\xb1"),
        ("probseg zoo list >&-", 0, ""),
        ("probseg zoo lisst 2>&-", 2, ""),
    ],
)
def test_any_terminal_takes_the_output(line, status, said):
    program = f"{sys.executable} -P {LAUNCHER}"
    command = ["sh", "-c", line.replace("probseg", program)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended
    assert said in ended.stdout
    assert ended.stderr == ""


PLAIN = """
from probseg.cli import main
main(["data", "list", "--megapixels", "108"])
from probseg.images import MAX_PIXELS
print(MAX_PIXELS)
from probseg.evaluation import get_protocol
from probseg.reports.report import render_options
print(render_options(get_protocol("ritm"), {}))
"""


@pytest.mark.process
def test_a_limit_of_pixels_and_options_of_a_report_without_docstrings(capsys):
    for wrong in (["--megapixels", "many"], ["--megapixels"]):
        with pytest.raises(SystemExit, match=r"^2$"):
            command("data", "list", *wrong)
        assert "--megapixels must be a whole number" in capsys.readouterr().err
    run = [sys.executable, "-OO", "-c", PLAIN]
    text = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert "\n108000000\n" in text
    assert "Corrective clicks per object" in text, "what the option max_clicks means"


@pytest.mark.parametrize("verb", list(EXAMPLES))
def test_short_help_names_options_that_exist(verb, here, capsys):
    assert command(verb, "--config", "nowhere.yaml", "--help") == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) < 100
    options = set(re.findall(r"--[a-z][a-z_.]*", text)) - {ALL, "--data.help", "--model.help"}
    assert len(options) > 15
    assert (FOLDER in options) == (verb in ROLES)
    options -= {FOLDER, "--minutes"}  # which become others before the parser
    config = {"fit": "folder", "validate": "folder", "test": "grabcut"}[verb]
    with pytest.raises(SystemExit, match=r"^0$"):
        command(
            *(verb, "--config", f"configs/experiment/{config}.yaml"),
            *("--semantic_evaluation.pictures=1", "--print_config"),
        )
    settings = yaml.safe_load(capsys.readouterr().out)
    for option in options - {"--config", "--print_config"}:
        found = settings
        for key in option.removeprefix("--").split("."):
            found = found["init_args"] if "init_args" in found and key not in found else found
            assert key in found, option
            found = found[key]


def help_of(verb):
    """Print the help of a verb; parsers exit after it, the short one returns."""
    try:
        status = command(verb, "--help")
    except SystemExit as end:
        status = end.code
    assert status == 0


def test_every_verb_explains_itself_by_examples_that_exist(capsys):
    assert command() == 0
    words = capsys.readouterr().out.split()
    for verb in probseg.cli.VERBS:
        help_of(verb)
        text = " ".join(capsys.readouterr().out.split())
        assert f"probseg {verb} " in text.split("example")[1]
        words += text.split()
    named = {word.rstrip("},") for word in words if word.startswith("configs/")}
    assert {"configs/experiment/folder.yaml", "configs/quickstart.yaml"} <= named
    for path in named:
        assert configs_dir().joinpath(*path.split("/")[1:]).is_file()


def test_ctrl_c_while_the_command_line_is_read(monkeypatch, capsys):
    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer_module, "ProbsegCLI", interrupted)
    assert command("fit", "--config", "configs/experiment/folder.yaml") == 130
    assert "Ctrl-C" in capsys.readouterr().err


@each(
    ("arguments", "added"),
    [
        (["one", "--help"], ["one"]),
        (["two", "one"], ["two"]),
        (["--help", "one"], ["one", "two"]),
        (["three"], ["one", "two"]),
        ([], ["one", "two"]),
    ],
)
def test_only_the_verb_that_is_called_is_added(arguments, added):
    names = []

    def add(name):
        return lambda verbs: names.append(name)

    add_verbs(Parser(prog="probseg data"), {"one": add("one"), "two": add("two")}, arguments)
    assert names == added
