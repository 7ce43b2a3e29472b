"""Seven attentions in the uses of other people's code: each works, or is refused in a sentence."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable

import numpy as np
import onnxruntime
import torch
from torch import Tensor, distributed, nn
from torch.ao.quantization import quantize_dynamic
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.export import Dim, export
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from probseg.attention import ProbabilisticAttention, ProbabilisticAttention2d, build_attention


class Propagated(ProbabilisticAttention2d):
    """Values spread from one pixel of each map."""

    def __init__(self) -> None:
        options = {"value_precision": 1.0, "log_prior": "key_magnitude", "key_iterations": 0}
        super().__init__(8, 8, num_heads=2, head_channels=4, propagation_iterations=2, **options)

    def forward(self, maps: Tensor | tuple[Tensor, ...]) -> Tensor:
        """Call the layer with values at one pixel."""
        x = maps if isinstance(maps, Tensor) else torch.cat(maps, 1)
        row, column = (torch.arange(side, device=x.device) == 1 for side in x.shape[-2:])
        known = (row[:, None] & column).expand(x.shape[0], -1, -1)
        return super().forward(maps, None, torch.ones_like(x), known)


def _map(name: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: build_attention(name, 8, 8, num_heads=2, head_channels=4, **options)


def positioned() -> nn.Module:
    """Build standard attention with all positions, those of the values as after training."""
    layer = _map("standard", position="full", position_size=(4, 5), position_values=True)()
    layer.value_position.std = 1.0
    layer.reset_parameters()
    return layer


ATTENTIONS: dict[str, Callable[[], nn.Module]] = {
    "standard": _map("standard"),
    "one axis, a span": _map("standard", axis="height", span=3),
    "all positions": positioned,
    "adapted keys": _map("probabilistic", key_iterations=1, key_prior=0.1),
    "spread values": Propagated,
    "EM": _map("em", num_bases=5),
    "tokens": lambda: ProbabilisticAttention(8, 2, key_iterations=1),
}
"""By the heads of the table's columns."""


def drawn(layer: nn.Module, batch: int = 2, height: int = 4, width: int = 5) -> Tensor:
    """Draw an input of a layer: maps, or as many tokens."""
    is_map = not isinstance(layer, ProbabilisticAttention)
    shape = (batch, 8, height, width) if is_map else (batch, height * width, 8)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-4) -> None:
    """Assert that two answers are equal but for rounding."""
    torch.testing.assert_close(found.float(), wanted.float(), rtol=tolerance, atol=tolerance)


def gradients(layer: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Tensor]:
    """Return the gradients of a loss for the parameters and the input."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    call(x).square().sum().backward()
    found = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return {"input": x.grad, **found}


def same_gradients(layer: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Assert that a call gives the gradients of the layer."""
    other = copy.deepcopy(layer)
    found, wanted = gradients(layer, call, x), gradients(other, other, x)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def float64(layer: nn.Module) -> None:
    x = drawn(layer)
    close(copy.deepcopy(layer).double()(x.double()), layer(x))


def half(dtype: torch.dtype) -> Callable[[nn.Module], None]:
    """Check weights and input of half precision."""

    def use(layer: nn.Module) -> None:
        x = drawn(layer)
        found = copy.deepcopy(layer).to(dtype)(x.to(dtype))
        assert found.dtype == dtype
        close(found, layer(x), 0.1)

    return use


def autocast(layer: nn.Module) -> None:
    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    assert all(found.isfinite().all() for found in gradients(layer, call, drawn(layer)).values())
    close(call(drawn(layer)), layer(drawn(layer)), 0.1)


def channels_last(layer: nn.Module) -> None:
    x = drawn(layer)
    strided = x.to(memory_format=torch.channels_last) if x.ndim == 4 else x.mT.contiguous().mT
    close(layer(strided), layer(x))


def copies(layer: nn.Module) -> None:
    x = drawn(layer)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))


def states(layer: nn.Module) -> None:
    other, file = copy.deepcopy(layer), io.BytesIO()
    other.reset_parameters() if hasattr(other, "reset_parameters") else None
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(other(drawn(layer)), layer(drawn(layer)))


def reset(layer: nn.Module) -> None:
    for every in (False, True):  # of a layer, or module by module as FSDP does
        other = copy.deepcopy(layer).to("meta").to_empty(device="cpu")
        for value in other.state_dict().values():
            value.fill_(torch.nan)
        for module in other.modules() if every else [other]:
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        assert other(drawn(layer)).isfinite().all()
        for found, wanted in zip(*(m.state_dict().values() for m in (other, layer)), strict=True):
            if wanted.std() == 0:
                assert torch.equal(found, wanted)
            else:
                assert 0.1 < found.std() / wanted.std() < 10


def meta(layer: nn.Module) -> None:
    x = drawn(layer)
    assert copy.deepcopy(layer).to("meta")(x.to("meta")).shape == layer(x).shape


def per_sample(layer: nn.Module) -> None:
    x, weights = drawn(layer), dict(layer.named_parameters())

    def loss(weights: dict[str, Tensor], one: Tensor) -> Tensor:
        return functional_call(layer, weights, (one[None],)).square().sum()

    found = vmap(grad(loss), (None, 0))(weights, x)
    for index, one in enumerate(x):
        wanted = gradients(layer, layer, one[None])
        for name, value in found.items():
            close(value[index], wanted.get(name, torch.zeros_like(value[index])), 1e-3)


def ensembles(layer: nn.Module) -> None:
    x, shift = drawn(layer), torch.tensor([0.0, 0.5])
    found = vmap(lambda by: layer(x + by))(shift)
    close(found, torch.stack([layer(x + by) for by in shift]))


def forward_mode(layer: nn.Module) -> None:
    layer.double()
    x, step = drawn(layer).double(), 1e-5
    _, found = jvp(layer, (x,), (x,))
    close(found, (layer(x + step * x) - layer(x - step * x)) / (2 * step))


def twice(layer: nn.Module) -> None:
    layer.double()
    x, step = drawn(layer).double(), 1e-5
    slope = grad(lambda x: layer(x).square().sum())
    _, found = jvp(slope, (x,), (x,))
    close(found, (slope(x + step * x) - slope(x - step * x)) / (2 * step))
    assert jacrev(lambda x: layer(x).sum())(x).isfinite().all()


def checkpointed(layer: nn.Module) -> None:
    same_gradients(layer.train(), lambda x: checkpoint(layer, x, use_reentrant=False), drawn(layer))


def compiled(backend: str) -> Callable[[nn.Module], None]:
    """Check a graph without breaks."""

    def use(layer: nn.Module) -> None:
        torch.compiler.reset()
        same_gradients(layer, torch.compile(layer, backend=backend, fullgraph=True), drawn(layer))

    return use


def any_size(layer: nn.Module) -> None:
    torch.compiler.reset()
    graphs: list[object] = []

    def keep(graph: torch.fx.GraphModule, example: object) -> Callable[..., object]:
        graphs.append(example)
        return graph.forward

    called = torch.compile(layer, backend=keep)
    for size in ((2, 4, 5), (3, 6, 7), (4, 9, 8), (2, 7, 6), (5, 8, 3)):
        close(called(drawn(layer, *size)), layer(drawn(layer, *size)))
        if len(graphs) > 3:
            raise NotImplementedError("the number of known values, read on the host, parts graphs")


DIMS = {"max": 64}


def exported(layer: nn.Module) -> None:
    program = export(layer, (drawn(layer, 3),), dynamic_shapes=({0: Dim("B", **DIMS)},)).module()
    for batch in (3, 5):
        close(program(drawn(layer, batch)), layer(drawn(layer, batch)))


def _sizes(x: Tensor) -> tuple[dict[int, object]]:
    sides = {2: Dim("H", min=3, **DIMS), 3: Dim("W", min=3, **DIMS)}
    return ({0: Dim("B", **DIMS), **(sides if x.ndim == 4 else {1: Dim("N", min=3)})},)


def exported_sizes(layer: nn.Module) -> None:
    x = drawn(layer, 3)
    program = export(layer, (x,), dynamic_shapes=_sizes(x)).module()
    for size in ((3, 4, 5), (5, 6, 3)):
        close(program(drawn(layer, *size)), layer(drawn(layer, *size)))


def onnx(layer: nn.Module) -> None:
    x = drawn(layer, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(layer, (x,), dynamic_shapes=_sizes(x), verbose=False)
    file = io.BytesIO()
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue())
    (entry,) = session.get_inputs()
    for size in ((3, 4, 5), (5, 6, 3)):
        (found,) = session.run(None, {entry.name: drawn(layer, *size).numpy()})
        np.testing.assert_allclose(found, layer(drawn(layer, *size)).detach(), atol=1e-4)


def traced(layer: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        close(torch.jit.trace(layer, drawn(layer))(drawn(layer)), layer(drawn(layer)))


def pruned(layer: nn.Module) -> None:
    wanted = layer(drawn(layer))
    nn.utils.parametrizations.weight_norm(layer.value)
    close(layer(drawn(layer)), wanted)
    prune.l1_unstructured(layer.query, "weight", 8)
    assert (layer(drawn(layer)) - wanted).abs().max() > 1e-3


class LowRank(nn.Module):
    """What peft puts in the place of a projection: its weights are those of the frozen layer."""

    def __init__(self, frozen: nn.Module) -> None:
        super().__init__()
        self.more, self.frozen = copy.deepcopy(frozen), frozen.requires_grad_(False)

    @property
    def weight(self) -> Tensor:
        """Return the frozen weights."""
        return self.frozen.weight

    def forward(self, x: Tensor) -> Tensor:
        """Add the two."""
        return self.frozen(x) + self.more(x)


def adapters(layer: nn.Module) -> None:
    x = drawn(layer)
    plain = layer(x)
    layer.value = LowRank(layer.value)
    learnt = gradients(layer, layer, x)
    assert {"value.more.weight"} <= {*learnt}
    assert "value.frozen.weight" not in learnt
    assert (layer(x) - plain).abs().max() > 1e-3
    if x.ndim == 4:  # several maps stand for their concatenation
        close(layer((x[:, :3], x[:, 3:])), layer(x))


def sharded(layer: nn.Module) -> None:
    x = drawn(layer)
    wanted = gradients(copy.deepcopy(layer), layer, x)["input"]
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        half_precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        found = gradients(fully_shard(layer, mp_policy=half_precision), layer, x)["input"]
    finally:
        distributed.destroy_process_group()
    close(found, wanted, 0.5)
    assert (found - wanted).norm() < 0.1 * wanted.norm()


def integers(layer: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = quantize_dynamic(copy.deepcopy(layer), {nn.Linear, nn.Conv2d})
    close(quantised(drawn(layer)), layer(drawn(layer)), 0.1)
    kinds = [type(module).__module__ for module in quantised.modules()]
    if not any("quantized" in kind for kind in kinds):
        raise NotImplementedError("PyTorch has no dynamic quantisation of convolutions")


USES: dict[str, Callable[[nn.Module], None]] = {
    "float64": float64,
    "bfloat16 weights": half(torch.bfloat16),
    "float16 weights": half(torch.float16),
    "autocast, with backward": autocast,
    "`channels_last`": channels_last,
    "deepcopy and pickle": copies,
    "strict state dict, `weights_only`": states,
    "`meta`, `to_empty`, `reset_parameters`": reset,
    "forward on `meta`": meta,
    "per-sample gradients, `vmap(grad)`": per_sample,
    "`vmap` over inputs": ensembles,
    "`jvp`": forward_mode,
    "second derivatives by `torch.func`": twice,
    "`torch.utils.checkpoint` in training": checkpointed,
    "`torch.compile(fullgraph=True)`": compiled("aot_eager"),
    "compiled by inductor": compiled("inductor"),
    "at most 3 graphs for 5 sizes": any_size,
    "`torch.export`, any batch": exported,
    "`torch.export`, any batch and size": exported_sizes,
    "ONNX, any batch and size": onnx,
    "`torch.jit.trace`": traced,
    "parametrisations: `weight_norm`, pruning": pruned,
    "projections wrapped as by peft": adapters,
    "FSDP2 in bfloat16": sharded,
    "dynamic quantisation to int8": integers,
}
"""By the first cells of the table's rows."""

SLOW = ("compiled by inductor", "ONNX, any batch and size")

REFUSED: dict[tuple[str, str], tuple[type[Exception], str]] = {
    (name, "dynamic quantisation to int8"): (
        NotImplementedError,
        "PyTorch has no dynamic quantisation of convolutions",
    )
    for name in ATTENTIONS
    if name != "tokens"
}
REFUSED["spread values", "at most 3 graphs for 5 sizes"] = (
    NotImplementedError,
    "the number of known values, read on the host, parts graphs",
)
"""By attention and use, with the error and its sentence."""


def table() -> list[list[str]]:
    """Return the rows of the table, the header first."""
    rows = [["", *ATTENTIONS]]
    for use in USES:
        refusals = [REFUSED.get((name, use)) for name in ATTENTIONS]
        rows.append([use, *("yes" if no is None else f"no: {no[1]}" for no in refusals)])
    return rows
