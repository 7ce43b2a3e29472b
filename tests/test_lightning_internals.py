"""What probseg takes from Lightning beyond its documented interface, hold by hold."""

import errno
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.core import saving
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from probseg import lightning_internals as internals

MADE = []


class Watched(BoringModel):
    """Notes steps and positions, and whether a command line made it; may save after a step."""

    saves_at = path = None

    def __init__(self):
        super().__init__()
        MADE.append("model")
        self.by_command_line = internals.made_by_command_line()
        self.steps, self.began_at = [], None

    def on_train_start(self):
        self.began_at = internals.position(self.trainer)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.steps.append((self.trainer.global_step, internals.logged_step(self.trainer)))
        if self.trainer.global_step == self.saves_at:
            self.trainer.save_checkpoint(self.path)


def saved(place, step):
    """The checkpoint of a training of four batches an epoch after a step."""
    model = Watched()
    model.saves_at, model.path = step, place / "a.ckpt"
    trained(place, model, max_epochs=2)
    assert model.began_at == (0, 0)
    return model.path


def trained(place, model=None, checkpoint=None, **options):
    trainer = L.Trainer(
        default_root_dir=place,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_train_batches=4,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        **options,
    )
    trainer.fit(model or Watched(), BoringDataModule(), ckpt_path=checkpoint)
    return trainer


@pytest.mark.parametrize(("step", "position"), [(3, (0, 3)), (6, (1, 2))])
def test_a_training_resumes_at_its_position(tmp_path, step, position):
    path = saved(tmp_path, step)
    assert internals.finished_epochs(torch.load(path, weights_only=False)) == position[0]
    assert internals.finished_epochs({"state_dict": {}}) is None
    model = Watched()
    trained(tmp_path, model, path, max_epochs=3)
    assert model.began_at == position


def test_batches_are_recounted_for_another_size(tmp_path):
    class Recounted(Watched):
        def on_train_start(self):
            internals.recount_batches(self.trainer, 8, 4)
            super().on_train_start()

    model = Recounted()
    trained(tmp_path, model, saved(tmp_path, 1), max_epochs=1)
    assert model.began_at == (0, 2)


@pytest.mark.parametrize(("marks", "validations"), [(True, 2), (False, 1)])
def test_a_validation_marked_as_begun_is_repeated(tmp_path, marks, validations):
    class Interrupted(Watched):
        interrupts = True
        validations = 0

        def on_validation_start(self):
            self.validations += 1
            if self.interrupts:
                self.trainer.save_checkpoint(tmp_path / "a.ckpt")
                raise InterruptedError

        def on_save_checkpoint(self, checkpoint):
            if marks:
                internals.mark_validation_as_begun(checkpoint)

    halves = {"max_epochs": 1, "val_check_interval": 2}
    with pytest.raises(InterruptedError):
        trained(tmp_path, Interrupted(), **halves)
    second = Interrupted()
    second.interrupts = False
    trained(tmp_path, second, tmp_path / "a.ckpt", **halves)
    assert second.validations == validations


def test_steps_of_one_process(tmp_path):
    model = Watched()
    trainer = trained(tmp_path, model, max_epochs=1)
    assert model.steps == [(1, 0), (2, 1), (3, 2), (4, 3)]  # and the number that is logged
    assert internals.launched_processes(trainer) == []
    internals.end_readers(trainer)


class Data(BoringDataModule):
    def __init__(self):
        super().__init__()
        MADE.append("data")


def test_the_command_line_calls_its_hooks_and_makes_the_data_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["probseg"])  # Lightning warns of others beside `args`
    MADE.clear()

    class CLI(internals.VerbCLI):
        def prepare_parser(self, parser):
            assert isinstance(parser, LightningArgumentParser)
            MADE.append(f"parser of {self.verb}")

        def run_verb(self):
            assert "trainer.max_epochs" in self.option_names()
            MADE.append(self.verb)
            super().run_verb()

    parts = [
        f"--{part}={__name__}.{kind}" for part, kind in (("model", "Watched"), ("data", "Data"))
    ]
    cli = CLI(
        "fit",
        args=["fit", "--trainer.fast_dev_run=1", "--trainer.accelerator=cpu", *parts],
        seed_everything_default=1,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_callback=None,
        parser_class=internals.DataFirstParser,
    )
    assert cli.model.by_command_line
    assert MADE.count("parser of fit") == 1
    assert set(cli.subcommands()) == {"fit"}
    assert MADE[-3:] == ["data", "model", "fit"]
    assert not Watched().by_command_line
    assert cli.model.steps


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_hyperparameters_are_written_whole_or_not_at_all(kind, tmp_path, monkeypatch):
    def fails(path, *_):
        Path(path).write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    def log():
        logger.log_hyperparams({"lr": 0.1})
        logger.save()

    logger = kind(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(saving, "save_hparams_to_yaml", fails)
        with pytest.raises(OSError, match="No space left"):
            log()
    assert not [path for path in tmp_path.rglob("*") if "hparams" in path.name]
    log()
    (path,) = tmp_path.rglob("hparams.yaml")
    assert yaml.safe_load(path.read_text()) == {"lr": 0.1}


def test_the_summary_of_a_network_counts_no_operations(monkeypatch):
    said, modes = [], {"train": 1, "eval": 2}
    monkeypatch.setattr(internals.log, "info", lambda text, *words: said.append(text % words))
    columns = [("Name", ["model"]), ("FLOPs", [0])]
    internals.NetworkSummary.summarize(columns, 5, 3, 0.1, modes, total_flops=0)
    assert "Modules in eval mode" in said[0]
    assert "flops" not in said[0].lower()


@pytest.mark.parametrize("text", ["1e3", "4e567", "-10.E+7", "007", "2024-01-05", "trip", "yes"])
def test_a_text_is_saved_as_the_text_that_it_is(text, tmp_path):
    parser = internals.DataFirstParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--root", type=Path | str)
    saved = parser.dump(parser.parse_args([f"--root={text}"]))
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        (tmp_path / "mine.yaml").write_bytes(saved.encode(encoding))
        again = parser.parse_args([f"--config={tmp_path / 'mine.yaml'}"])
        assert str(again.root) == text
    assert yaml.safe_load(saved) == {"root": text}
