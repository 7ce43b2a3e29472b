"""The card of a model, `README.md` of its folder, in the format of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from probseg.release.evaluations import Evaluation
from probseg.zoo.figures import in_words, is_clicks
from probseg.zoo.index import WEIGHTS, Entry

TASKS = {"interactive": "Interactive segmentation", "semantic": "Semantic segmentation"}

_USE = {
    "interactive": """\
import probseg

predictor = probseg.Predictor.from_pretrained("{name}")
predictor.set_image(image)  # (H, W, 3) uint8 RGB
mask = predictor.predict(box=(x0, y0, x1, y1), clicks=[probseg.Click(x, y)])""",
    "semantic": """\
import probseg

model = probseg.create_model("{name}", pretrained=True)
classes = model(image).argmax(dim=1)  # image: (B, 3, H, W) float RGB in [0, 1]""",
}

_MEASURED = {
    "interactive": "Mean IoU in percent after k corrective clicks, and the mean number of clicks "
    "to reach an IoU (failures count as the most clicks), ± standard error over objects.",
    "semantic": "In percent, over all pixels of the data set.",
}


def render_card(
    entry: Entry,
    evaluations: Sequence[Evaluation],
    untrained: Sequence[Evaluation] = (),
) -> str:
    """Write the card of a model.

    Args:
        entry: Its line in the index.
        evaluations: Evaluations, in the order of the card.
        untrained: The same of the network before training, to compare with.

    Returns:
        Markdown, after a front matter in YAML.
    """
    use = _USE[entry.task].format(name=entry.name)
    megabytes = entry.files[WEIGHTS].bytes / 1e6
    lines = [
        "---",
        yaml.safe_dump(_front_matter(entry, evaluations), sort_keys=False, allow_unicode=True)
        + "---",
        "",
        f"# {entry.name}",
        "",
        entry.description,
        "",
        "## Use",
        "",
        "```python",
        use,
        "```",
        "",
        f"{entry.parameters / 1e6:.2f} M parameters, stored as float16 ({megabytes:.1f} MB). "
        f"{_input(entry)} sha256 of `{WEIGHTS}`: `{entry.files[WEIGHTS].sha256}`.",
        "",
        "## Data and licence",
        "",
        *(f"- {line}" for line in entry.data),
        "",
        f"Licence of the weights: {entry.license}.",
        "",
        "## Measured",
        "",
    ]
    if evaluations:
        lines += [_MEASURED[entry.task], ""]
    else:
        lines += ["Nothing was measured.", ""]
    for evaluation in evaluations:
        before = [other for other in untrained if other.key == evaluation.key]
        lines += [*_table(evaluation, before), "", _about(evaluation), ""]
    lines += [
        "## Limits",
        "",
        *(f"- {limit}" for limit in entry.limits),
        "",
        "## How to reproduce",
        "",
        "```bash",
        entry.recipe,
        "```",
        "",
        f"Seed {entry.seed}, commit `{entry.commit}`, {entry.hours:g} h. "
        f"{entry.hardware.removesuffix('.')}.",
        "",
        "The figures, from these weights:",
        "",
        "```bash",
        f"probseg zoo verify {entry.name} --metrics",
        "```",
        "",
    ]
    return "\n".join(lines)


def _front_matter(entry: Entry, evaluations: Iterable[Evaluation]) -> dict[str, Any]:
    """Return what the hub reads; its `model-index` is the table of results on the page."""
    kind = "interactive-segmentation" if entry.task == "interactive" else "semantic-segmentation"
    results = [
        {
            "task": {"type": "image-segmentation", "name": TASKS[entry.task]},
            "dataset": {
                "type": evaluation.dataset.lower(),
                "name": evaluation.dataset,
                "config": evaluation.key.removeprefix(evaluation.dataset).lstrip("/+") or "default",
            },
            "metrics": [
                {
                    "type": name.split("@")[0].replace("miou", "mean_iou"),
                    "name": label(name),
                    "value": round(figure.value, 4),
                }
                for name, figure in evaluation.figures.items()
            ],
        }
        for evaluation in evaluations
    ]
    front = {
        "license": entry.license,
        "library_name": "probseg",
        "pipeline_tag": "image-segmentation",
        "tags": [kind],
    }
    return front | ({"model-index": [{"name": entry.name, "results": results}]} if results else {})


def label(figure: str) -> str:
    """Return the title of a figure in tables: `mIoU@5`, `NoC@90`, `pixel accuracy`."""
    return figure.replace("miou", "mIoU").replace("noc", "NoC").replace("_", " ")


def _input(entry: Entry) -> str:
    if entry.task == "semantic":
        return f"{entry.input['num_classes']} classes."
    size = entry.input["working_size"]
    size_used = "Works at the size of the image"
    if size is not None:
        size_used = f"Works at {size} pixels on the longer side, whatever the size of the image"
    previous = "; the previous mask is an input, too" if entry.input["previous_mask"] else ""
    return f"{size_used}{previous}."


def _table(evaluation: Evaluation, untrained: Sequence[Evaluation]) -> list[str]:
    names = list(evaluation.figures)
    rows = [[evaluation.dataset, *_cells(evaluation, names)]]
    rows += [[f"{other.dataset}, untrained", *_cells(other, names)] for other in untrained]
    header = ["data", *map(label, names)]
    return [
        f"**{evaluation.key}**, {_count(evaluation)}:",
        "",
        f"| {' | '.join(header)} |",
        f"|:--|{'--:|' * len(names)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _cells(evaluation: Evaluation, names: Sequence[str]) -> list[str]:
    figures = evaluation.figures
    return [in_words(name, figures[name]) if name in figures else "" for name in names]


def _count(evaluation: Evaluation) -> str:
    count = evaluation.count
    if "photographs" in count:
        return f"{count['photographs']} photographs"
    trials = f" x {count['trials']} trials" if count["trials"] > 1 else ""
    return f"{count['objects']} objects{trials}"


def _about(evaluation: Evaluation) -> str:
    """Return the origin of the figures, and the effect of half precision."""
    protocol = evaluation.protocol
    method = "One pass over each photograph, at its own size."
    if protocol is not None:
        method = (
            f"Protocol `{protocol['name']}` (version {protocol['version']}): "
            f"{protocol['description']} Seed {evaluation.options['seed']}."
        )
    if evaluation.parity is None:
        return (
            f"{method} The figures are those of the weights in full precision: whether they hold "
            "for the float16 weights of this folder was not checked."
        )
    parts = []
    for unit, scale, digits, of_clicks in (("points", 100, 2, False), ("clicks", 1, 3, True)):
        moves = [
            abs(move) for name, move in evaluation.parity.items() if is_clicks(name) == of_clicks
        ]
        if moves:
            parts.append(f"{scale * max(moves):.{digits}f} {unit}")
    return (
        f"{method} Measured again with the float16 weights of this folder, no figure moved by more "
        f"than {' or '.join(parts)}."
    )
