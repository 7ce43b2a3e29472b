"""Registries, and all that the wings register: no other file of the trunk names a wing.

The trunk is what a training, an evaluation and a click need. A wing is imported when somebody asks
for one of its names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeVar, cast

_Entry = TypeVar("_Entry")
_New = TypeVar("_New")

# packages of `probseg` that no file of the trunk and no other wing imports
WINGS = ("annotate", "convert", "export", "family", "lab", "peers", "release", "semantic")

KINDS: dict[str, dict[str, str]] = {
    "attention": {
        "additive": "probseg.family.kernels.AdditiveAttention2d",
        "block_slot": "probseg.family.slots.BlockSlotAttention2d",
        "double": "probseg.family.slots.DoubleAttention2d",
        "em": "probseg.family.slots.EMAttention2d",
        "hard": "probseg.family.hard.HardAttention2d",
        "hopfield": "probseg.family.energy.HopfieldAttention2d",
        "kernel_regression": "probseg.family.kernels.KernelRegressionAttention2d",
        "linformer": "probseg.family.low_rank.LinformerAttention2d",
        "perceiver": "probseg.family.low_rank.PerceiverAttention2d",
        "performer": "probseg.family.low_rank.PerformerAttention2d",
        "predictive_coding": "probseg.family.predictive_coding.PredictiveCodingAttention2d",
        "slot": "probseg.family.slots.SlotAttention2d",
        "slot_gru": "probseg.family.slots.GRUSlotAttention2d",
    },
    "verb": {
        "annotate": "probseg.annotate.verbs.run_annotate",
        "bench": "probseg.lab.benchmark.run",
        "export": "probseg.export.verb.run",
        "serve": "probseg.annotate.verbs.run_serve",
        "tune": "probseg.lab.tuning.run",
    },
    "data_verb": {"convert": "probseg.convert.verb.add_verb"},
    "annotation_export": {
        "file_names": "probseg.convert.EXPORTS",
        "write": "probseg.convert.export",
        "read": "probseg.convert.bring",
    },
    "data_comparison": {"against": "probseg.lab.leakage.compare"},
    "zoo_verb": {
        "import": "probseg.peers.verb.add_import",
        "publish": "probseg.release.verbs.add_publish",
        "push": "probseg.release.verbs.add_push",
        "table": "probseg.release.verbs.add_table",
        "verify": "probseg.release.verbs.add_verify",
    },
    "class": {
        "Baseline": "probseg.lab.baselines.Baseline",
        "BoxFilled": "probseg.lab.baselines.BoxFilled",
        "ColourMixture": "probseg.lab.baselines.ColourMixture",
        "OpenCVGrabCut": "probseg.lab.baselines.OpenCVGrabCut",
        "RandomWalker": "probseg.lab.baselines.RandomWalker",
        "SemanticSegmentation": "probseg.semantic.task.SemanticSegmentation",
        "SemanticVisualLog": "probseg.semantic.pictures.SemanticVisualLog",
    },
    "part": {
        "BareMaps": "probseg.peers.sam.BareMaps",
        "DeepLabV3Head": "probseg.semantic.heads.DeepLabV3Head",
        "EMAHead": "probseg.semantic.heads.EMAHead",
        "EnlargedLogits": "probseg.peers.sam.EnlargedLogits",
        "FCNHead": "probseg.semantic.heads.FCNHead",
        "Sam2Encoder": "probseg.peers.sam.Sam2Encoder",
        "Sam2MaskDecoder": "probseg.peers.sam.Sam2MaskDecoder",
        "Sam3Encoder": "probseg.peers.sam.Sam3Encoder",
        "Sam3MaskDecoder": "probseg.peers.sam.Sam3MaskDecoder",
        "SamEncoder": "probseg.peers.sam.SamEncoder",
        "SamMaskDecoder": "probseg.peers.sam.SamMaskDecoder",
        "SemanticSegmenter": "probseg.semantic.network.SemanticSegmenter",
        "SimpleClickDecoder": "probseg.peers.simpleclick.SimpleClickDecoder",
        "WindowedViT": "probseg.peers.simpleclick.WindowedViT",
    },
    "data_module": {"SemanticDataModule": "probseg.semantic.datamodule.SemanticDataModule"},
    "reevaluation": {"semantic": "probseg.semantic.task.evaluate"},
    "semantic_dataset": {
        "COCOObjects": "probseg.semantic.sets.COCOObjects",
        "COCOStuff10k": "probseg.semantic.sets.COCOStuff10k",
        "COCOStuff164k": "probseg.semantic.sets.COCOStuff164k",
        "CamVid": "probseg.semantic.sets.CamVid",
        "PascalContext": "probseg.semantic.sets.PascalContext",
        "VOCSegmentation": "probseg.semantic.sets.VOCSegmentation",
    },
}
"""Paths of all that the wings register: kind, then name.

| kind | read by |
|:--|:--|
| `attention` | `probseg.attention.ATTENTIONS` |
| `verb`, `data_verb`, `zoo_verb`, `data_comparison` | the command line |
| `annotation_export` | the wing `annotate` |
| `class` | the command line, for configurations that name them |
| `part` | `probseg.models.build`, for parts of networks |
| `data_module`, `reevaluation`, `semantic_dataset` | the command line, and the wing `release` |
"""

# task of a network: one object that an annotator means, or the classes of all pixels
TaskName = Literal["interactive", "semantic"]


class Task(NamedTuple):
    """A task of networks. All classes and functions are dotted paths."""

    presets: str  # folder in `configs` with the descriptions of its networks
    network: str  # class of its networks
    variant: str  # function that builds a changed preset, for configurations
    evaluation: str  # callback that evaluates its networks
    option: str  # option of `probseg fit`, `validate` and `test` with the arguments of `evaluation`
    prediction: str  # lightningModule of `probseg predict`
    training: str  # command that trains a preset, with `{}` for the name of the preset

    @property
    def package(self) -> str:
        """Path of the package with the class of its networks."""
        return self.network.rsplit(".", 2)[0]


TASKS: dict[TaskName, Task] = {
    "interactive": Task(
        presets="model",
        network="probseg.models.segmenter.Segmenter",
        variant="probseg.models.variant",
        evaluation="probseg.callbacks.evaluation.InteractiveEvaluation",
        option="evaluation",
        prediction="probseg.tasks.prediction.ObjectPrediction",
        training="probseg fit --config configs/experiment/folder.yaml --data.root FOLDER "
        "--model.model configs/model/{}.yaml",
    ),
    "semantic": Task(
        presets="semantic",
        network="probseg.semantic.network.SemanticSegmenter",
        variant="probseg.semantic.semantic_variant",
        evaluation="probseg.semantic.evaluation.SemanticEvaluation",
        option="semantic_evaluation",
        prediction="probseg.semantic.task.ClassPrediction",
        training="probseg fit --config configs/experiment/emanet_camvid_cpu.yaml "
        "--model.model configs/semantic/{}.yaml",
    ),
}
"""Tasks by name."""


def find(path: str) -> Any:  # noqa: ANN401 (any object of a module)
    """Import the object of a dotted path, `package.module.name`."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def lazy_getattr(package: str, paths: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports its public names on demand.

    They become names of the package for `dir`, and so for completion, too.
    """
    package_vars = vars(sys.modules[package])

    def __getattr__(name: str) -> Any:  # noqa: ANN401 (any object; becomes that of the package)
        if name in paths:
            return find(paths[name])
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    package_vars["__dir__"] = lambda: sorted({*package_vars, *paths})
    return __getattr__


class Registry(Mapping[str, _Entry]):
    """Objects of the trunk, the wings and other people by name, imported when they are looked up.

    Its names, length and `in` import nothing. `kind` is the key of the wings' objects in `KINDS`,
    where wings have any; `trunk` has objects by name, or their dotted paths. With a `base`, the
    dotted path of a class of your own is a name, too: of one that is derived from it, in a module
    that is imported. Names come from files of other people: none of them imports a module.
    """

    def __init__(
        self, kind: str, *trunk: Mapping[str, _Entry | str], base: type | None = None
    ) -> None:
        self._kind, self._base = kind, base
        self._own: dict[str, _Entry | str] = dict(KINDS.get(kind, {}))
        self._others: list[Registry[_Entry]] = []  # asked each time, as they may grow
        for table in trunk:
            if isinstance(table, Registry):
                self._others.append(table)
            else:
                self._own |= table

    def register(self, name: str | None = None) -> Callable[[_New], _New]:
        """Return a decorator that adds a class of your own, which configurations can then name.

        Args:
            name: None is that of the class. Parts of networks (backbones, heads, decoders, fusions)
                are looked up by it when a run is loaded: import your module before.

        Raises:
            ValueError: If the name is taken.
        """
        if isinstance(name, type):
            raise TypeError("a decorator is called: write `@register_...()` above the class")

        def add(entry: _New) -> _New:
            key: str = name or entry.__name__  # type: ignore[attr-defined]
            if key in self:
                raise ValueError(
                    f"`name` must be new, got {key!r}, which is taken: choose another {self._kind}"
                )
            self._own[key] = entry  # type: ignore[assignment]
            return entry

        return add

    def __getitem__(self, name: str) -> _Entry:
        """Return an object by its name."""
        for table in self._others:
            if name in table and name not in self._own:
                return table[name]
        if (imported := self._imported(name)) is not None:
            return imported
        entry = self._own[name]
        if isinstance(entry, str):
            found: _Entry = find(entry)
            return found
        return entry

    def _imported(self, path: object) -> _Entry | None:
        """Return the class of an imported module; None if the path is of nothing of this kind."""
        module, _, name = str(path).rpartition(".")
        entry = getattr(sys.modules.get(module), name, None)
        if self._base is None or not isinstance(entry, type) or not issubclass(entry, self._base):
            return None
        return cast("_Entry", entry)

    def __contains__(self, name: object) -> bool:
        """Return whether there is such a name; `Mapping` would import the object."""
        tables = (self._own, *self._others)
        return any(name in table for table in tables) or self._imported(name) is not None

    def __iter__(self) -> Iterator[str]:
        """Go through the names, sorted."""
        return iter(sorted({*self._own, *chain.from_iterable(self._others)}))

    def __len__(self) -> int:
        """Return the number of names."""
        return len(list(iter(self)))
