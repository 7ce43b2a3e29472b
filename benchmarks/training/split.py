"""Writes the networks of a run of `probseg.tasks.SideBySide` as model folders, one for each.

    python benchmarks/training/split.py RUN OUT

OUT/heads.safetensors has all weights but the trunk's in half precision, from which another training
begins with `--model.heads`. Each folder OUT/NAME is a model of its own: for `probseg test`,
`probseg zoo publish` and `probseg.Predictor.from_pretrained`. The weights are those of the best
checkpoint.
"""

import sys
from pathlib import Path

from safetensors.torch import save_file

from probseg.models import build
from probseg.tasks.side_by_side import trained_weights
from probseg.zoo.store import save
from probseg.zoo.trained import best_checkpoint, network_of, read_checkpoint


def split(run: Path, out: Path) -> list[Path]:
    """Write the model folders, of the first network under the name of its preset."""
    path = best_checkpoint(run)
    stored = read_checkpoint(path)
    arguments, state = stored["hyper_parameters"], stored["state_dict"]
    networks = {"model.": arguments["model"]}
    networks |= {f"others.{name}.model.": of for name, of in arguments["others"].items()}
    folders = []
    for prefix, configured in networks.items():
        description, preset = network_of({"hyper_parameters": {"model": configured}}, path)
        model = build(description)
        weights = {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
        model.load_state_dict(weights)
        name = prefix.split(".")[1] or str(preset)
        folders.append(out / name)
        save(model, description, folders[-1])
    heads = {name: value.half().contiguous() for name, value in trained_weights(state).items()}
    save_file(heads, out / "heads.safetensors")
    return folders


if __name__ == "__main__":
    for folder in split(Path(sys.argv[1]), Path(sys.argv[2])):
        print(folder)
