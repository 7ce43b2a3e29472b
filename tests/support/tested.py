"""Small networks with random weights, tested by `probseg test`, as a training leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from support.drawn_semantic import write_camvid
from support.fakes import write_grabcut
from support.runs import MICRO, MICRO_EMANET, QUIET, finished, working_in

FACTS = {
    "description": "A tiny network for tests.",
    "data": ["drawn ellipses (CC0)"],
    "license": "cc0-1.0",
    "hardware": "One core",
    "hours": 0.01,
    "limits": ["It knows ellipses only.", "It is bad at them."],
    "recipe": "probseg fit --config configs/experiment/folder.yaml",
    "seed": 0,
    "commit": "abcdef",
}
"""What a card says of them."""


class Tested(NamedTuple):
    """A network and where its files are."""

    model: nn.Module
    checkpoint: Path
    results: list[Path]
    data: Path


def network_for_clicks(place: Path, *more: object) -> Tested:
    """Test a network for clicks on a drawn GrabCut, three clicks under two protocols."""
    write_grabcut(place / "data" / "GrabCut")
    arguments = (
        *("test", "--config", "configs/experiment/grabcut.yaml", *MICRO, *QUIET),
        "--evaluation.trials=2",
        "--evaluation.max_clicks=3",
        "--evaluation.pictures=0",
        *more,
    )
    node = {"class_path": "probseg.models.variant", "init_args": {"of": "micro_csa"}}
    return _test(place, arguments, node)


def network_for_classes(place: Path) -> Tested:
    """Test a network for classes on a drawn CamVid."""
    write_camvid(place / "data" / "camvid")
    arguments = (
        *("test", "--config", "configs/experiment/emanet_camvid_cpu.yaml", *QUIET),
        *(*MICRO_EMANET, "--trainer.precision=32-true", "--semantic_evaluation.pictures=0"),
    )
    changes = {"head": {"num_classes": 11}}
    node = {
        "class_path": "probseg.semantic.semantic_variant",
        "init_args": {"of": "micro_emanet", "changes": changes},
    }
    return _test(place, arguments, node)


def _test(place: Path, arguments: Any, node: dict[str, Any]) -> Tested:
    with working_in(place), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBSEG_DATA", "data")
        cli = finished(*arguments)
    model = cli.model.model.eval()
    (run,) = (place / "runs").glob("*/version_0")
    checkpoint = run / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir()
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"hyper_parameters": {"model": node}, "state_dict": state}, checkpoint)
    return Tested(model, checkpoint, sorted(run.glob("test/*/results.json")), place / "data")
