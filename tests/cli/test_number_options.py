"""Numbers out of range for every numeric option of fit and test: refused in words, or harmless."""

import pytest
import yaml
from fakes import write_folder
from runs import MICRO, QUIET, command, folder_fit

import probseg.cli.trainer as trainer_module


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    write_folder(folder / "data", images=4, size=(24, 32))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(trainer_module.ProbsegCLI, "_run_subcommand", lambda *given: None)
        yield folder


def numbers(settings, path=()):
    """Options of all numbers in a configuration, but of the network, whose preset has them."""
    for key, value in settings.items():
        here = (*path, key)
        if isinstance(value, dict):
            inside = value.get("init_args") if "class_path" in value else value
            yield from numbers(inside or {}, here) if here != ("model", "model") else ()
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield ".".join(here), "-7" if isinstance(value, int) else "nan"


@pytest.mark.parametrize("verb", ["fit", "test"])
def test_numbers_out_of_range(verb, here, capsys):
    of_test = ("test", "--config", "configs/quickstart.yaml", *MICRO, *QUIET)
    given = folder_fit("data") if verb == "fit" else of_test
    with pytest.raises(SystemExit, match=r"^0$"):
        command(*given, "--print_config")
    settings = yaml.safe_load(capsys.readouterr().out)
    options = [
        option
        for part in ("trainer", "model", "data", "evaluation")
        for option in numbers(
            {part: settings[part]["init_args"]}
            if "init_args" in settings[part]
            else {part: settings[part]}
        )
    ]
    assert len(options) > (25 if verb == "fit" else 10)
    refused = set()
    for option, value in options:
        status = command(*given, f"--{option}={value}")
        message = capsys.readouterr().err
        assert status in (0, 2), option
        if status == 2:
            refused.add(option)
            assert "Traceback" not in message
            name = option.rpartition(".")[2]
            assert name in message or value in message, (option, message)
    assert refused >= {"evaluation.batch_size", "evaluation.val_clicks"}
    assert not (here / "runs").exists()
