"""The table of a network's parts."""

from fakes import FakeObjects, micro_model, write_folder
from lightning.pytorch.callbacks import RichModelSummary
from runs import folder_fit, only_made
from trainings import quiet_trainer

from probseg.callbacks.summary import NetworkSummary
from probseg.data import InteractiveDataModule
from probseg.tasks import InteractiveSegmentation


def test_it_counts_parameters_and_shows_no_zeros_for_what_nobody_counted(tmp_path, capsys):
    model = micro_model("micro_csa")
    total = sum(parameter.numel() for parameter in model.parameters())
    name, frozen = next(model.named_parameters())
    task = InteractiveSegmentation(model, frozen=[name])
    data = InteractiveDataModule(FakeObjects(2), batch_size=2, crop_size=32, num_workers=0)
    quiet_trainer(tmp_path, NetworkSummary(), max_steps=1, enable_model_summary=True).fit(
        task, data
    )
    text = capsys.readouterr().out
    assert "Segmenter" in text
    assert f"{total:,} parameters, {total - frozen.numel():,} of them trained" in text
    assert "FLOPs" not in text


def test_a_training_has_it_in_place_of_lightnings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "data", images=5, size=(24, 32))
    shown = only_made(*folder_fit("data", "--trainer.enable_model_summary=true")).trainer.callbacks
    assert sum(isinstance(callback, NetworkSummary) for callback in shown) == 1
    assert not any(isinstance(callback, RichModelSummary) for callback in shown)
