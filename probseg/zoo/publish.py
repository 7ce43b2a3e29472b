"""From a training checkpoint to a zoo model with its card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from probseg.metrics import REPORTED_CLICKS
from probseg.models import build, override, resolved, without_downloads
from probseg.models.build import Description
from probseg.zoo.create import describe
from probseg.zoo.store import CARD, WEIGHTS, Entry, check_fit, read_index, save, write_index


@dataclass(frozen=True)
class Facts:
    """What a card says that no file of the run knows.

    Args:
        description: One sentence on the model.
        data: What the weights were trained on, one line per data set, with its licence.
        license: Licence of the weights.
        recipe: Command that trains the model.
        commit: Commit of probseg that it was trained with.
        seed: Seed of the training.
        hardware: What it was trained on, and for how long.
        limits: What the model is not good at, one line each.
    """

    description: str
    data: list[str]
    license: str
    recipe: str
    commit: str
    seed: int
    hardware: str
    limits: list[str]


def publish(
    checkpoint: Path,
    name: str,
    root: Path,
    facts: Facts,
    results: Sequence[Path] = (),
    untrained: Sequence[Path] = (),
    changes: Mapping[str, Any] | None = None,
) -> Entry:
    """Write a model folder and its line in the index.

    Args:
        checkpoint: Lightning checkpoint of an `InteractiveSegmentation` started by ``probseg fit``.
        name: ``architecture.tag``.
        root: Folder of the zoo.
        facts: For the card.
        results: Files ``results.json`` of tests of this model; their figures go into the card, in
            this order, and into the index.
        untrained: Files ``results.json`` of tests of the same network before training, for
            comparison in the card.
        changes: Arguments of the network to change, as in `probseg.create_model`; for instance the
            working size chosen after training.

    Returns:
        The line in the index.

    Raises:
        ValueError: If the name has no tag, or the checkpoint does not describe its network.
    """
    if name.count(".") != 1:
        msg = f"name must be architecture.tag, for instance 'resnet16_csa.objects', got {name!r}"
        raise ValueError(msg)
    stored = torch.load(checkpoint, map_location="cpu", weights_only=True)
    description = override(network_of(stored, checkpoint), changes or {})
    description = without_downloads(description)
    model = build(description)
    weights = {
        key.removeprefix("model."): tensor
        for key, tensor in stored["state_dict"].items()
        if key.startswith("model.")
    }
    check_fit(model.state_dict(), weights, str(checkpoint))
    model.load_state_dict(weights)
    folder = root / name
    digest = save(model, description, folder)
    reports = _read(results)
    entry = Entry(
        name=name,
        sha256=digest,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        description=facts.description,
        license=facts.license,
        data=facts.data,
        metrics=_figures(reports),
    )
    size = (folder / WEIGHTS).stat().st_size
    (folder / CARD).write_text(
        _card(entry, facts, reports, _read(untrained), size), encoding="utf-8"
    )
    entries = read_index(root) if (root / "index.json").is_file() else {}
    write_index({**entries, name: entry}, root)
    return entry


def network_of(stored: Mapping[str, Any], source: Path) -> Description:
    """Return the description of the network that a checkpoint was trained with.

    Args:
        stored: The checkpoint's content.
        source: Named in the error.

    Raises:
        ValueError: If the training was not started from a configuration.
    """
    description = stored.get("hyper_parameters", {}).get("model")
    if not isinstance(description, dict) or "class_path" not in description:
        msg = (
            f"{source}: does not say what network it holds; only checkpoints written by "
            "`probseg fit` can be published"
        )
        raise ValueError(msg)
    if description["class_path"].endswith("create_model"):  # it was started from a model by name
        arguments = dict(description["init_args"])
        arguments |= description.get("dict_kwargs") or {}
        name, pretrained = arguments.pop("name"), arguments.pop("pretrained", False)
        return override(describe(name, pretrained)[1], arguments)
    return resolved(description)


def _figures(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    figures = {}
    for report in reports:
        for dataset, summary in report["datasets"].items():
            prefix = f"{dataset}/{report['protocol']['name']}"
            for k in REPORTED_CLICKS:
                if k < len(summary["miou"]):
                    figures[f"{prefix}/miou@{k}"] = round(summary["miou"][k], 4)
            for percent, clicks in summary["noc"].items():
                figures[f"{prefix}/noc@{percent}"] = round(clicks, 3)
    return figures


def _read(results: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in results]


def _card(
    entry: Entry,
    facts: Facts,
    reports: Sequence[Mapping[str, Any]],
    untrained: Sequence[Mapping[str, Any]],
    size: int,
) -> str:
    lines = [
        "---",
        f"license: {facts.license}",
        "library_name: probseg",
        "pipeline_tag: image-segmentation",
        "tags: [interactive-segmentation, probabilistic-attention]",
        "---",
        "",
        f"# {entry.name}",
        "",
        facts.description,
        "",
        "```python",
        "import probseg",
        "",
        f'predictor = probseg.Predictor.from_pretrained("{entry.name}")',
        "predictor.set_image(image)  # (H, W, 3) uint8 RGB",
        "mask = predictor.predict(box=(x0, y0, x1, y1), clicks=[probseg.Click(x, y)])",
        "```",
        "",
        f"{entry.parameters / 1e6:.2f} M parameters, stored as float16 ({size / 2**20:.1f} MiB). "
        f"sha256 `{entry.sha256}`.",
        "",
        "## Training",
        "",
        *(f"- Data: {line}" for line in facts.data),
        f"- Command: `{facts.recipe}`",
        f"- Seed {facts.seed}, commit `{facts.commit}`",
        f"- {facts.hardware}",
        "",
        "## Measured",
        "",
        "Mean IoU in percent after k corrective clicks, ± standard error over objects, and the "
        "mean number of clicks to reach an IoU (failures count as the most clicks). Made by "
        "`probseg test`.",
        "",
    ]
    for report in reports:
        before = [other for other in untrained if other["protocol"] == report["protocol"]]
        lines += _figure_table(report, before)
    lines += ["## Limits", "", *(f"- {limit}" for limit in facts.limits), ""]
    return "\n".join(lines)


def _figure_table(report: Mapping[str, Any], untrained: Sequence[Mapping[str, Any]]) -> list[str]:
    protocol = report["protocol"]
    first = 0 if protocol["box"] else 1
    clicks = [k for k in REPORTED_CLICKS if first <= k <= protocol["max_clicks"]]
    percents = list(next(iter(report["datasets"].values()))["noc"])
    header = [
        "data",
        "objects x trials",
        *(f"mIoU@{k}" for k in clicks),
        *(f"NoC@{percent}" for percent in percents),
    ]
    rows = []
    measured = list(report["datasets"].items())
    for other in untrained:
        known = other["datasets"].items()
        measured += [(f"{name}, untrained", scores) for name, scores in known]
    for name, summary in measured:
        errors = summary["se_objects"]
        rows.append(
            [
                name,
                f"{summary['n_objects']} x {summary['n_trials']}",
                *(
                    f"{100 * summary['miou'][k]:.1f}"
                    + (f" ± {100 * errors[k]:.1f}" if errors else "")  # none for one object
                    for k in clicks
                ),
                *(f"{summary['noc'][percent]:.2f}" for percent in percents),
            ]
        )
    return [
        f"Protocol `{protocol['name']}` (version {protocol['version']}), seed "
        f"{report['metadata'].get('seed')}:",
        "",
        f"| {' | '.join(header)} |",
        f"|:--|{'--:|' * (len(header) - 1)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
