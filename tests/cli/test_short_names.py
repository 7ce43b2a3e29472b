"""Data sets named by their class alone, in a process that has not imported them."""

import subprocess
import sys

PROGRAM = """
import sys
from probseg.cli.trainer import run

try:
    run(sys.argv[1], sys.argv[2:])
finally:
    readers = [name for name in sys.modules if name.startswith("probseg.data.sets.")]
    print("imported:", *sorted(readers))
"""


def printed_settings(*arguments):
    command = [sys.executable, "-c", PROGRAM, "test", *map(str, arguments), "--print_config"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    settings, _, readers = run.stdout.rpartition("imported:")
    return settings, readers.split()


def test_only_the_readers_that_a_run_names_are_imported(tmp_path):
    data = tmp_path / "data.yaml"
    data.write_text(
        "class_path: InteractiveDataModule\n"
        "init_args:\n  test: [{class_path: GrabCut}, {class_path: probseg.data.Berkeley}]\n"
    )
    config = tmp_path / "test.yaml"
    config.write_text("data: data.yaml\n# mine: test.yaml\n")
    recipe = ("--config", "configs/quickstart.yaml", "--config", config)
    settings, readers = printed_settings(*recipe, "--data.val", "DAVIS")
    for name in ("InteractiveDataModule", "GrabCut", "Berkeley", "DAVIS"):
        assert f"class_path: probseg.data.{name}\n" in settings
    names = ("berkeley", "davis", "grabcut")
    assert readers == [f"probseg.data.sets.{name}" for name in names]
