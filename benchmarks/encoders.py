"""Which networks of timm work as encoders: encode, click and odd sizes, or refused when built.

Weights are random and nothing is downloaded. Writes benchmarks/results/encoders.csv, and prints
its rows. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import csv
from functools import partial

import torch
from measure import RESULTS

from probseg.backbones import TimmBackbone
from probseg.heads import ConvHead, FPNDecoder
from probseg.models import Segmenter
from probseg.types import Prompts

NAMES = """
resnet18 resnext50_32x4d regnety_002 densenet121 vgg11 dla34 hrnet_w18_small efficientnet_b0
tf_efficientnet_lite0 mobilenetv3_small_050 mobilenetv4_conv_small mobilenetv4_hybrid_medium
ghostnet_100 hgnetv2_b0 repvit_m0_9 starnet_s1 rdnet_tiny convnext_atto convnextv2_atto
inception_next_atto poolformer_s12 mambaout_femto edgenext_xx_small mobilevit_xxs mobilevitv2_050
fastvit_t8 efficientvit_b0 swiftformer_xs tiny_vit_5m_224 shvit_s1 caformer_s18 nextvit_small
davit_tiny pvt_v2_b0 twins_pcpvt_small focalnet_tiny_srf mvitv2_tiny maxvit_tiny_tf_224
swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 swinv2_cr_tiny_ns_224 hiera_tiny_224
sam2_hiera_tiny vit_tiny_patch16_224 deit_tiny_patch16_224 vit_base_patch16_siglip_224
vit_small_patch14_dinov2 vit_small_patch14_reg4_dinov2 vit_small_patch16_dinov3
eva02_tiny_patch14_224 samvit_base_patch16 naflexvit_base_patch16_gap xcit_nano_12_p16_224
beit_base_patch16_224 levit_128s efficientformer_l1 coat_lite_tiny crossvit_9_240 mixer_s32_224
gcvit_xxtiny
"""

SIZES = ((1, 1), (17, 33), (150, 211))


def main() -> None:
    """Try all networks, and write and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "names", nargs="*", default=NAMES.split(), help="of timm; 60 of them by default"
    )
    rows = []
    for name in parser.parse_args().names:
        rows.append(tried(name))
        print("| " + " | ".join(str(value) for value in rows[-1].values()) + " |", flush=True)
    with (RESULTS / "encoders.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    results = [row["result"] for row in rows]
    counts = {result: results.count(result) for result in ("works", "refused", "fails")}
    print(", ".join(f"{number} {result}" for result, number in counts.items()))


def tried(name: str) -> dict[str, str | int | float]:
    """Build a network with this encoder, and let it answer a click on images of odd sizes."""
    torch.manual_seed(0)
    row: dict[str, str | int | float] = {
        "name": name, "result": "works", "strides": "", "padding": "", "millions": "", "note": "",
    }  # fmt: skip
    try:
        backbone = TimmBackbone(name)
    except ValueError as error:
        return {**row, "result": "refused", "note": str(error).split("; choose")[0]}
    row["strides"] = " ".join(map(str, backbone.features.strides))
    row["padding"] = backbone.multiple
    row["millions"] = round(sum(own.numel() for own in backbone.parameters()) / 1e6, 1)
    decoder = partial(FPNDecoder, channels=8)
    model = Segmenter(backbone, decoder, ConvHead, prompts="head").eval()
    try:
        for size in SIZES:
            _answer(model, *size)
    except Exception as error:  # what the sweep looks for: errors that no user can understand
        return {**row, "result": "fails", "note": f"{type(error).__name__}: {error}"}
    return row


def _answer(model: Segmenter, height: int, width: int) -> None:
    points = torch.tensor([[[width // 2, height // 2]]]).float()
    prompts = Prompts(points, torch.ones(1, 1).long(), torch.full((1, 4), torch.nan))
    with torch.inference_mode():
        logits = model.decode(model.encode(torch.rand(1, 3, height, width)), prompts)
    if logits.shape != (1, 1, height, width) or not logits.isfinite().all():
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} for an image of {height} x {width} pixels"
        )


if __name__ == "__main__":
    main()
