"""Mistyped options and keys of configurations, at any depth: refused, with the nearest names."""

import yaml

from support.rows import each
from support.runs import usage_error

FIT = ("fit", "--config", "configs/experiment/folder.yaml", "--data.root", "objects")
TASK = "probseg.tasks.InteractiveSegmentation"
BACKBONE = {"class_path": "probseg.backbones.ResNet", "init_args": {"pretrainde": False}}
NETWORK = {"class_path": "probseg.models.Segmenter", "init_args": {"backbone": BACKBONE}}
CHECKPOINTS = {
    "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
    "init_args": {"monitr": "x"},
}
ADAM = {"class_path": "torch.optim.AdamW", "init_args": {"wieght_decay": 1}}


@each(
    ("settings", "meant"),
    [
        ({"modle": {"x": 3}}, "model"),
        ({"trainer": {"max_epoch": 3}}, "trainer.max_epochs"),
        ({"trainer": {"callbacks": [CHECKPOINTS]}}, "monitor"),
        ({"evaluation": {"adaptation": {"key_iteration": 1}}}, "key_iterations"),
        ({"data": {"init_args": {"batch_sise": 3}}}, "batch_size"),
        ({"model": {"class_path": TASK, "init_args": {"optimizer": ADAM}}}, "weight_decay"),
        ({"model": {"class_path": TASK, "init_args": {"model": NETWORK}}}, "pretrained"),
    ],
)
def test_keys_of_a_file(settings, meant, tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(settings))
    message = usage_error(capsys, *FIT, "--config", path)
    assert f"did you mean {meant!r}" in message


def test_keys_of_a_file_that_is_printed(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("trainer: {max_epoch: 3}")
    message = usage_error(capsys, *FIT, "--config", tmp_path / "mine.yaml", "--print_config")
    assert "did you mean 'trainer.max_epochs'" in message


@each(
    ("arguments", "meant"),
    [
        ((*FIT, "--conf=mine.yaml"), "config"),
        ((*FIT, "--trainer.max_epoch=3"), "trainer.max_epochs"),
        ((*FIT, "--data.bat=3"), "batch_size"),
        (("bench", "model", "micro_conv", "--siz=3"), "--size"),
        (("zoo", "verify", "--metric"), "--metrics"),
        (("predict", "photo.jpg", "--clicks=3,3", "--output=mask.png"), "--click"),
    ],
)
def test_options_and_their_abbreviations(arguments, meant, capsys):
    assert f"did you mean {meant!r}" in usage_error(capsys, *arguments)
