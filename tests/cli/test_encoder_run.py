"""A preset with a vision transformer from recipe to page: a network of two narrow blocks."""

import pytest
import torch

from probseg.annotate.answers import ModelHost
from probseg.export import export_model
from probseg.models import Segmenter
from probseg.zoo import create_model
from support.annotate_client import begin, draw_photographs
from support.fakes import write_folder
from support.runs import QUIET, SMALL, command, working_in

NARROW = "{embed_dim: 48, depth: 2, num_heads: 3, img_size: 64}"


@pytest.mark.slow
def test_a_transformer_trains_resumes_is_exported_and_clicked_with(tmp_path):
    root = write_folder(tmp_path / "data", images=5, size=(64, 96))
    training = [
        "fit",
        "--config=configs/experiment/vits_unet_prop.yaml",
        "--data=FolderDataModule",
        f"--data.root={root}",
        "--model.model.changes.backbone.pretrained=false",
        f"--model.model.changes.backbone.options={NARROW}",
        "--model.model.changes.working_size=64",
        "--data.samples_per_epoch=8",
        "--model.layer_decay=0.8",
        "--model.gradient_checkpointing=true",
        "--model.frozen=[]",
        "--model.annotators=1",
        "--evaluation.pictures=0",
        "--evaluation.protocols=[ritm]",
        "--trainer.check_val_every_n_epoch=1",
        "--trainer.accumulate_grad_batches=2",
        *QUIET,
        *SMALL,
    ]
    run = tmp_path / "runs" / "overnight" / "version_0"
    last = run / "checkpoints" / "last.ckpt"
    with working_in(tmp_path):
        assert command(*training, "--trainer.max_epochs=1") == 0
        first = torch.load(last, weights_only=True)
        assert command(*training, "--trainer.max_epochs=2", "--ckpt_path=last") == 0
    second = torch.load(last, weights_only=True)
    assert second["epoch"] == first["epoch"] + 1
    rates = {group["initial_lr"] for group in second["optimizer_states"][0]["param_groups"]}
    assert sorted(rates) == [7e-4 * 0.8**n for n in (2, 1, 0)]
    learnt = [name for name in first["state_dict"] if ".blocks.0.attn.qkv." in name]
    assert learnt
    for name in learnt:
        assert not torch.equal(first["state_dict"][name], second["state_dict"][name])

    model = create_model(f"{run}/", pretrained=True)
    assert isinstance(model, Segmenter)
    parity = export_model(model, tmp_path / "graphs", name="vits")
    assert parity.differing_pixels < 1e-5 * parity.pixels

    client = begin(draw_photographs(tmp_path / "photographs", 1), ModelHost(str(run)))
    client.act({"type": "click", "x": 64, "y": 48, "positive": True})
    mask = client.mask()
    assert mask.shape == (96, 128)
    client.sessions.close()
