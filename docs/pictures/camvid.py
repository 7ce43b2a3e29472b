"""Responsibilities of some bases of an EMANet on CamVid (after Li et al., 2019, Fig. 5).

`python docs/pictures/camvid.py RUN/checkpoints/last.ckpt`, with CamVid in
`$PROBSEG_DATA`. The frames themselves are not drawn: CamVid has no licence that lets others
publish them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from style import WEIGHTS, WIDTH, save, show
from torch import Tensor

from probseg.semantic import CamVid, semantic_variant
from probseg.semantic.pictures import class_colours, coloured

FRAMES = (20, 100, 180)
CLASSES = ("sky", "building", "tree", "road", "car")
STRIDE = 8


def main(checkpoint: Path) -> None:
    frames = CamVid("test")
    described = torch.load(checkpoint, weights_only=True, map_location="cpu")
    network = described["hyper_parameters"]["model"]["init_args"]
    model = semantic_variant(network["of"], network["changes"]).eval()
    weights = described["state_dict"].items()
    model.load_state_dict({name.removeprefix("model."): weight for name, weight in weights})
    images = [torch.from_numpy(frames[i].image).permute(2, 0, 1)[None] / 255 for i in FRAMES]
    with torch.inference_mode(), model.output_stride(STRIDE):
        predicted = [model(image).argmax(1)[0] for image in images]  # (H, W)
        maps = [model.responsibilities(image)[0] for image in images]  # (K, h, w)
    # The last row and column lie behind the frame.
    shares = [
        of_all[:, : -(-h // STRIDE), : -(-w // STRIDE)]
        for of_all, (h, w) in zip(maps, (labels.shape for labels in predicted), strict=True)
    ]
    numbers = [frames.classes.index(name) for name in CLASSES]
    bases = [_closest(number, predicted, shares) for number in numbers]
    colours = class_colours(frames.classes)
    figure, rows = plt.subplots(
        len(FRAMES), 1 + len(CLASSES), figsize=(WIDTH, 2.95), layout="constrained"
    )
    for i, (row, labels, of_bases) in enumerate(zip(rows, predicted, shares, strict=True)):
        first = i == 0
        show(row[0], coloured(labels.to(torch.uint8).numpy(), colours), "prediction" * first)
        for axes, name, base in zip(row[1:], CLASSES, bases, strict=True):
            heat = of_bases[base]
            title = f"basis {base}: {name}" if first else ""
            show(axes, heat, title, cmap=WEIGHTS, vmin=0, vmax=float(heat.max()))
    save(figure, "camvid")


def _closest(number: int, predicted: list[Tensor], shares: list[Tensor]) -> int:
    """Return the basis whose responsibilities go best with a predicted class."""
    seen = torch.cat([(labels[::STRIDE, ::STRIDE] == number).flatten() for labels in predicted])
    heat = torch.cat([maps.flatten(1) for maps in shares], dim=1)  # (K, N)
    correlation = torch.corrcoef(torch.cat([heat, seen.float()[None]]))[-1, :-1]
    return int(correlation.nan_to_num(-1.0).argmax())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
