"""The verb export."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from probseg.attention import Adaptation
from probseg.cli.arguments import Parser, check_writable, count, positive
from probseg.errors import UsageError
from probseg.export import export_model
from probseg.export.folder import PRECISIONS
from probseg.export.targets import TARGETS
from probseg.models import Segmenter
from probseg.terminal import console
from probseg.texts import tell
from probseg.zoo.create import create_model

SETTINGS = ("key", "value", "click")

EXAMPLES = """\
examples:
  probseg export lite2_unet_prop --to onnx --output exported
  probseg export resnet16_csa --to onnx --output exported --size 256 --key-iterations 0
  probseg export runs/my_model/ --to torch --output exported
  probseg export lite2_unet_prop --to page --output demo
  probseg export lite0_unet_prop --to page --precision float16 --output small
  probseg export emanet_lite0 --to page --output classes
"""


def run(arguments: Sequence[str]) -> None:
    """Run `probseg export`."""
    options = _parser().parse_args(list(arguments))
    check_writable("--output", options.output)
    model = create_model(options.model, pretrained=True)
    settings = {
        f"{kind}_{what}": getattr(options, f"{kind}_{what}")
        for kind in SETTINGS
        for what in ("iterations", "prior")
    }
    if any(value is not None for value in settings.values()):
        if not isinstance(model, Segmenter):
            raise UsageError("iterations and priors are set in models for clicks alone")
        try:
            model.adapt(Adaptation(**settings))
        except ValueError as error:
            raise UsageError(str(error)) from error
    try:
        parity = export_model(
            model,
            options.output,
            options.to,
            options.size,
            options.fixed,
            options.model,
            None if options.classes is None else options.classes.split(","),
            options.cases,
            options.precision,
            tell=lambda step: tell(f"{step}\n", sys.stderr),
        )
    except UsageError as error:  # about an argument of the function
        names = "output|size|fixed|classes|precision"
        raise UsageError(re.sub(f"`({names})`", r"--\1", str(error))) from error
    console().print(
        f"{parity.answers} answers compared: logits differ by at most "
        f"{parity.logit_difference:.2g} (largest: {parity.largest_logit:.3g}), "
        f"{parity.differing_pixels} of {parity.pixels} pixels of the masks (mean IoU "
        f"{parity.mean_iou:.4f})\n"
        f"wrote {options.output}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="probseg export",
        description="Write a model as graphs for ONNX Runtime, PyTorch or a web page, after a "
        "check that they give the answers of the model.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("model", help="model of the zoo, or folder/ of one")
    add(
        "--to",
        choices=TARGETS,
        required=True,
        help="; ".join(f"{name}: {target.help}" for name, target in TARGETS.items()),
    )
    add("--output", type=Path, required=True, metavar="FOLDER", help="new folder")
    add(
        "--size",
        type=positive,
        metavar="N",
        help="longest side in pixels that the graphs work at (default: the model's)",
    )
    add("--fixed", action="store_true", help="one square for all images (default: any size)")
    add("--cases", action="store_true", help="also write answers to check another runner by")
    add(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="of weights in ONNX files; float16: half as large, if masks stay (default: float32)",
    )
    add("--classes", metavar="A,B,C", help="names of the classes (default: numbers)")
    for kind in SETTINGS:
        add(
            f"--{kind}-iterations",
            type=count,
            metavar="N",
            help=f"EM iterations of the {kind}s (default: the model's)",
        )
        add(
            f"--{kind}-prior",
            type=float,
            metavar="P",
            help="precision of their prior (default: the model's)",
        )
    return parser
