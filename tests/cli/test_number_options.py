"""Numbers out of range for every numeric setting of the verbs: refused in words, or harmless.

Validation has the settings of a training.
"""

import pytest

import probseg.cli.trainer as trainer_module
from probseg.errors import UsageError
from support.fakes import write_folder
from support.runs import MICRO, QUIET, finished, folder_fit

FOLDER = folder_fit("data")
ARGUMENTS = {
    "fit": FOLDER,
    "test": ["test", "--config", "configs/quickstart.yaml", *MICRO, *QUIET],
}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    write_folder(folder / "data", images=4, size=(24, 32))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(trainer_module.ProbsegCLI, "_run_subcommand", lambda *given: None)
        yield folder


def numbers(settings, path=()):
    """Keys of all numbers in a configuration, but of the network, whose preset has them."""
    for key, value in settings.items():
        here = (*path, key)
        if isinstance(value, dict):
            yield from numbers(value, here) if here != ("model", "init_args", "model") else ()
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield ".".join(here), -7 if isinstance(value, int) else float("nan")


@pytest.mark.parametrize("verb", ARGUMENTS)
def test_numbers_out_of_range(verb, here):
    """The command line is parsed once; parsing takes most of the time of a run."""
    cli = finished(*ARGUMENTS[verb])
    config = cli.config.clone()
    parts = ("trainer", "model", "data", "evaluation")
    settings = {part: config[verb][part].as_dict() for part in parts}
    keys = list(numbers(settings))
    assert len(keys) > (10 if verb == "test" else 25)
    refused = {}
    for key, value in keys:
        cli.config = config.clone()
        cli.config[verb][key] = value
        try:
            cli.instantiate_classes()
        except UsageError as error:
            refused[key] = str(error)
    expected = {"evaluation.batch_size", "evaluation.val_clicks"}
    if verb != "test":
        expected |= {"data.init_args.batch_size", "data.init_args.num_workers"}
    assert refused.keys() >= expected
    for key, message in refused.items():
        name = key.rpartition(".")[2]
        assert name in message or "-7" in message or "nan" in message, (key, message)
    assert not (here / "runs").exists()
