"""Training of several networks on the features of one frozen trunk."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from probseg.attention import Adaptation, restored
from probseg.data.datamodule import TrainBatch
from probseg.evaluation import get_protocol, run_objects, summarise_records
from probseg.heads import Fusion
from probseg.models import Segmenter
from probseg.tasks.interactive import InteractiveSegmentation
from probseg.types import Prompts, Sample

TRUNK = ("backbone", "decoder")  # parts that the networks share, and that no training changes


class SideBySide(InteractiveSegmentation):
    """Trains networks that differ behind their decoders on the same crops, with the same draws.

    All share the backbone and the decoder of the first one, which are frozen and run once for a
    batch. Each is clicked on its own answers, and its gradients are clipped by their own norm: it
    becomes what it would become alone. All begin with the same weights where names and shapes
    agree.

    Callbacks and checkpoints take the first network for the one that is trained; a validation also
    logs `val/<data set>/<name>/miou@k` and `noc@90` of the others, and of the first one with each
    of its `drawn_iterations` switched off.

    Args:
        model: The first network.
        others: The others by name; their own backbones and decoders are replaced.
        val_protocol: Protocol of the validation of the others.
        val_clicks: Clicks in it, at least 5.
        heads: A safetensors file with the weights of an earlier training of the same networks, all
            but the trunk's, to begin with; `benchmarks/training/split.py` writes it.
        **settings: Of `InteractiveSegmentation`; `drawn_iterations` are those of the first network.
    """

    def __init__(
        self,
        model: Segmenter,
        others: Mapping[str, Segmenter],
        val_protocol: str = "ritm",
        val_clicks: int = 5,
        heads: str | None = None,
        **settings: Any,  # noqa: ANN401 (of the base class)
    ) -> None:
        frozen = [f"{part}.*" for part in TRUNK]
        super().__init__(model, frozen=frozen, every_round=True, **settings)
        self.others = nn.ModuleDict()
        for name, network in others.items():
            for each in (model, network):
                if each.fusion is None or type(each.fusion).prepare is not Fusion.prepare:
                    raise ValueError(
                        f"`others`: the features of {name} must not depend on prompts, and its "
                        "fusion must prepare nothing; choose prompts='head' and a PromptStage"
                    )
            for part in TRUNK:
                setattr(network, part, getattr(model, part))
            own = network.state_dict()
            for key, tensor in model.state_dict().items():
                if key in own and own[key].shape == tensor.shape:
                    own[key] = tensor
            network.load_state_dict(own)
            alike = {**settings, "drawn_iterations": None}
            self.others[name] = InteractiveSegmentation(network, every_round=True, **alike)
        self.protocol = dataclasses.replace(get_protocol(val_protocol), max_clicks=val_clicks)
        if heads is not None:
            weights = load_file(heads)
            if weights.keys() != trained_weights(self.state_dict()).keys():
                raise ValueError(f"`heads`: {heads} has not the weights of these networks")
            self.load_state_dict(weights, strict=False)

    @property
    def learners(self) -> dict[str, InteractiveSegmentation]:
        """The tasks of all networks by name; the first one, of no name, is this one."""
        others = cast("dict[str, InteractiveSegmentation]", dict(self.others.items()))
        return {"": self, **others}

    def setup(self, stage: str) -> None:
        """Train all but the trunk."""
        for learner in self.learners.values():
            InteractiveSegmentation.setup(learner, stage)
        for part in TRUNK:
            getattr(self.model, part).eval()

    def training_step(self, batch: TrainBatch, batch_idx: int) -> dict[str, Tensor | Prompts]:
        """Encode the crops once, and let each network learn from them."""
        with torch.no_grad():
            encoded = self.model.encode(batch.images.float() / 255)
        when = {"epoch": self.current_epoch, "batch_seed": self.batch_seed}
        learnt = {name: each.learn(batch, encoded, **when) for name, each in self.learners.items()}
        for name, (losses, _, _) in learnt.items():
            for of, value in losses.items():
                key = "/".join(filter(None, ["train", name, of]))
                self.log(key, value, prog_bar=of == "loss", batch_size=len(batch.images))
        total = torch.stack([each.total for each in learnt.values()]).sum()
        return {"loss": total, **learnt[""].answers}

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of each network by their own norm."""
        if gradient_clip_val:
            for learner in self.learners.values():
                clip_grad_norm_(learner.model.parameters(), gradient_clip_val)

    def validation_step(
        self, batch: Sequence[Sample], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Click through the objects with each network, and without the mechanisms of the first."""
        rows = {name: (each.model, Adaptation()) for name, each in self.learners.items() if name}
        for kind in self.drawn_iterations:
            off = Adaptation(**{f"{kind}_iterations": 0})
            rows[f"without {kind}s"] = (self.model, off)
        for name, (network, adaptation) in rows.items():
            with restored(network):
                network.adapt(adaptation)
                records = run_objects(network, batch, self.protocol, trials=[0], device=self.device)
            for dataset, summary in summarise_records(records, self.protocol).items():
                figures = {f"miou@{k}": summary.miou[k] for k in (1, 5)}
                for figure, value in {**figures, "noc@90": summary.noc[90]}.items():
                    self.log(
                        f"val/{dataset}/{name}/{figure}",
                        float(value),
                        batch_size=len(batch),
                        add_dataloader_idx=False,
                        sync_dist=True,
                    )


def trained_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a `SideBySide` without those of the trunk."""
    return {name: value for name, value in state.items() if not {*TRUNK} & {*name.split(".")}}
