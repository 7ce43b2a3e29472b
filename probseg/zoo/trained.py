"""Reading of a finished training: network, weights and settings."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import yaml
from torch import Tensor

from probseg.descriptions import class_name, is_description
from probseg.errors import UsageError, WeightsError
from probseg.models.build import Description, override
from probseg.paths import run_of
from probseg.texts import read_text, read_yaml
from probseg.weight_files import read_pickled, read_safetensors
from probseg.zoo.index import CONFIG, WEIGHTS
from probseg.zoo.lookup import find_description, find_run
from probseg.zoo.store import check_folder, read_config

Which = Literal["best", "last", "ema"]

# checkpoint of a run from which its training resumes, see `probseg.callbacks.LastCheckpoint`
LAST = "last.ckpt"

# in the folder of a run: the mean of its first and its best network
# file in the folder of a run: what its training gained, see `probseg.callbacks.Gain`
GAIN = "gain.json"
# and the score of its start and of each validation: pairs of minutes and score
CURVE = "curve.json"

# names of presets and models; no path and no address
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")

# bytes of a run's `starts.jsonl`, of which each start takes about a thousand
LARGEST_STARTS = 1 << 24

# functions of configurations that take a network by its name
BY_NAME = ("create_model", "create_interactive")

# key of a checkpoint of which `state_dict` is an average; Lightning keeps the weights that were
# trained under this one
AVERAGED = "current_model_state"


if TYPE_CHECKING:
    _Path = Path
else:
    _Path = type(Path())  # before Python 3.12 there are no others of a class of one's own


class Saved(NamedTuple):
    """Clicks per object that a training saves, and their 95 % interval."""

    clicks: float
    low: float
    high: float


class Run(_Path):
    """The folder of a run, with what its training gained; also a name of its model.

    Both the network that the training began with and the one that it made click through the
    objects that were held out. Nothing was compared where the recipe has no
    `probseg.callbacks.Gain`, or the training began without trained weights.
    """

    @property
    def before(self) -> float | None:
        """Mean clicks to 90 % that the start takes; None if nothing was compared."""
        return self._gain().get("before")

    @property
    def after(self) -> float | None:
        """Mean clicks to 90 % that the trained network takes; None if nothing was compared."""
        return self._gain().get("after")

    @property
    def better(self) -> bool:
        """Whether the trained network takes fewer clicks; False if nothing was compared."""
        gain = self._gain()
        return bool(gain) and gain["after"] < gain["before"]

    @property
    def saved(self) -> Saved | None:
        """Clicks that are saved; None if nothing was compared, or on less than 20 photographs."""
        saved = self._gain().get("saved")
        return None if saved is None else Saved(*saved)

    @property
    def curve(self) -> list[tuple[float, float]]:
        """Minutes and score of each validation, after those of the start; empty without any."""
        path = self / CURVE
        points = json.loads(read_text(path)) if path.is_file() else []
        curve = [(float(minutes), float(score)) for minutes, score in points]
        if not all(map(isfinite, chain.from_iterable(curve))):
            raise ValueError(f"{path}: expected finite numbers")
        return curve

    @property
    def sentence(self) -> str:
        """What the run said of this at its end; empty if it said nothing."""
        return str(self._gain().get("sentence", ""))

    def _gain(self) -> dict[str, Any]:
        path = self / GAIN
        return json.loads(read_text(path)) if path.is_file() else {}


@dataclass(frozen=True)
class Trained:
    """A trained network; what is not known of its training is None."""

    source: Path  # where it was read from
    description: Description  # the network itself, no variant of another one
    preset: str | None  # that the training named
    weights: dict[str, Tensor]  # by their names in the network
    digests: frozenset[str]  # of the weights, as in `results.json`, in full and in half precision
    seed: int | None = None
    commit: str | None = None  # of the code that trained, each start of the training counting
    config: str | None = None  # all settings of the run as YAML


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """Return a checksum of weights, which no name or path can replace."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def read_trained(source: Path, which: Which | None = None) -> Trained:
    """Read what `probseg fit` has written, or a model folder; `source` is as `find_run` has it.

    Of a run, `which` is `"best"` (the default), the checkpoint that its validation prefers, as it
    was validated; `"last"`, the weights after the last step; or `"ema"`, their average. Of a
    checkpoint it is `"last"` or `"ema"`; by default what `probseg test` loads, which is the average
    where there is one.
    """
    if (source / CONFIG).is_file() and (source / WEIGHTS).is_file():
        if which is not None:
            raise UsageError(
                f"`weights` {which!r}: {source} is a model folder, which has one set; leave it out"
            )
        check_folder(source)
        weights = read_safetensors(source / WEIGHTS)
        return Trained(source, read_config(source), None, weights, _digests(weights, None))
    source = path = find_run(f"{source}/" if source.is_dir() else str(source)) or source
    if source.is_dir():
        path = source / "checkpoints" / LAST
        if which in (None, "best"):
            path = best_checkpoint(source)
    elif which == "best":
        raise UsageError(
            f"`weights` 'best': give the folder of a run to choose from, got the file {source}"
        )
    stored = read_checkpoint(path)
    description, preset = network_of(stored, path)
    state: Mapping[str, Tensor] = stored["state_dict"]
    if which == "ema" and AVERAGED not in stored:
        raise UsageError(
            f"`weights` 'ema': {path} has no average; train with the callback "
            "lightning.pytorch.callbacks.EMAWeightAveraging, or choose 'best' or 'last'"
        )
    if which == "last":
        state = stored.get(AVERAGED, state)
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in state.items()
        if name.startswith("model.")
    }
    run = source if source.is_dir() else run_of(path)
    return Trained(path, description, preset, weights, _digests(weights, state), *_history(run))


def description_for(name: str, pretrained: bool = True) -> Description:
    """Return the description of a model or a run of this name; no weights are read."""
    run = find_run(name)
    if run is None:
        return find_description(name, pretrained)[1]
    path = best_checkpoint(run) if run.is_dir() else run
    return network_of(read_checkpoint(path), path)[0]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint without running code; the tensors stay on the disk."""
    if not path.is_file():
        raise UsageError(
            f"{path}: no such file; expected a run folder, a checkpoint or a model folder"
        )
    content = read_pickled(path, "a checkpoint written by `probseg fit`")
    content = content if isinstance(content, dict) else {}
    sections = [content.get(name, {}) for name in ("hyper_parameters", "callbacks")]
    states = content.get("state_dict"), content.get(AVERAGED, {})
    if not all(isinstance(part, dict) for part in sections) or not all(map(_is_state, states)):
        raise WeightsError(
            f"{path}: holds no training state; expected a checkpoint written by `probseg fit`"
        )
    return content


def _is_state(content: object) -> bool:
    """Return whether these are tensors by name."""
    return isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    )


def network_of(stored: Mapping[str, Any], source: Path) -> tuple[Description, str | None]:
    """Return the network of a checkpoint itself, whatever function of configurations made it.

    And the name of the preset; None where it was described part by part.
    """
    description = stored.get("hyper_parameters", {}).get("model")
    if not is_description(description):
        raise WeightsError(
            f"{source}: does not say what network it holds; only checkpoints written by "
            "`probseg fit` can be published"
        )
    from probseg.models.schema import checked  # with pydantic, which presets do not need

    arguments = _arguments(description)
    maker = class_name(description)
    by_name = maker in BY_NAME
    name = arguments.pop("name" if by_name else "of", None)
    if not by_name and maker != "warm_start":
        return checked(description, str(source)), name if isinstance(name, str) else None
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise WeightsError(
            f"{source}: its training began with the network {short(name)}, and files do not say "
            "where else to read; `probseg test --config` with its config.yaml does, if it is yours"
        )
    pretrained = by_name and arguments.pop("pretrained", False) is True
    changes = arguments if by_name else arguments.get("changes")
    network = find_description(name, pretrained)[1]
    return checked(network, str(source), changes), name.split(".")[0]


def without_files(description: Description) -> Description:
    """Return a description of the network itself, even if it named a file or the hub.

    `network_of` reads it from a checkpoint, which may not name any.
    """
    arguments = _arguments(description)
    name = str(arguments.pop("name", None))
    of_zoo = NAME.fullmatch(name) and find_run(name) is None
    if class_name(description) not in BY_NAME or of_zoo:
        return description
    return override(description_for(name, arguments.pop("pretrained", False)), arguments)


def _arguments(description: Description) -> dict[str, Any]:
    """Return all arguments of a described network or function."""
    parts = [description.get(key) for key in ("init_args", "dict_kwargs")]
    return {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}


def _digests(weights: Mapping[str, Tensor], state: Mapping[str, Tensor] | None) -> frozenset[str]:
    half = {
        f"model.{name}": tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }
    return frozenset(weights_digest(tensors) for tensors in (half, state) if tensors is not None)


def best_checkpoint(run: Path) -> Path:
    """Return the checkpoint of a run that its validation prefers, as `ModelCheckpoint` recorded.

    Its name may have folders in it, and the folder may be another one than the run's. A run that
    was never validated has no best one; its `last.ckpt` is returned.
    """
    folder = run / "checkpoints"
    last = folder / LAST
    files = sorted(path for path in folder.rglob("*.ckpt") if path != last)
    newest = (
        last if last.is_file() else max(files, key=lambda file: file.stat().st_mtime, default=None)
    )
    states = () if newest is None else read_checkpoint(newest).get("callbacks", {}).values()
    for state in states:
        monitored = isinstance(state, dict) and state.get("monitor") is not None
        recorded = state.get("best_model_path") if monitored else None
        if not isinstance(recorded, str) or not recorded:
            continue
        best, place = Path(recorded), Path(str(state.get("dirpath")))
        inner = best.relative_to(place) if best.is_relative_to(place) else Path(best.name)
        for path in (folder / inner, run / best.name, best):  # the run may have been moved
            if path.is_file():
                return path
        raise UsageError(
            f"{run}: its best checkpoint, {best}, is missing; give the path of another file"
        )
    if last.is_file():
        return last
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise UsageError(
            f"{folder}: expected one best checkpoint, found {names}; give the path of the file"
        )
    return files[0]


def _history(run: Path) -> tuple[int | None, str | None, str | None]:
    """Return seed, commits and settings of a run; None for what its files do not say."""
    seed, config, commits = None, None, []
    settings_file, starts_file = run / "config.yaml", run / "starts.jsonl"
    try:
        if settings_file.is_file():
            settings = read_yaml(settings_file)
            settings.pop("ckpt_path", None)
            seed = settings.get("seed_everything")
            config = yaml.safe_dump(settings, sort_keys=False)
        lines = read_text(starts_file, most=LARGEST_STARTS) if starts_file.is_file() else ""
        for start in map(json.loads, lines.splitlines()):
            code = start["environment"]
            if start["verb"] == "fit" and code["commit"]:
                changed = " with uncommitted changes" if code["dirty"] else ""
                commits.append(code["commit"][:12] + changed)
    except (
        *(ValueError, TypeError, AttributeError, LookupError, RecursionError),
        yaml.YAMLError,
    ) as error:
        raise WeightsError(
            f"{run}: config.yaml or starts.jsonl is not what `probseg fit` writes ({error})"
        ) from error
    is_number = isinstance(seed, int) and not isinstance(seed, bool)
    return seed if is_number else None, ", then ".join(dict.fromkeys(commits)) or None, config
