"""Random calls with relative position embeddings, and what they should give by Eqs. 25 and 26."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log, pi
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from probseg.ops import (
    FactoredPosition,
    FullPosition,
    KeyAdaptation,
    RelativePosition,
    ValuePropagation,
    probabilistic_attention,
)
from support.ops_cases import draw

SIZES = [(1, 1), (1, 4), (5, 1), (2, 3), (3, 3), (3, 2)]
ALPHAS = ("default", "float", "scalar", "unit")


def draw_tables(
    kind: str,
    size: tuple[int, int],
    channels: int,
    *,
    heads: int | None = None,
    keys: bool = True,
    seed: int = 50,
) -> dict[str, Tensor]:
    """Draw the tables of a kind of position embeddings; without heads they are shared."""
    rows, columns = 2 * size[0] - 1, 2 * size[1] - 1
    shapes = {"query": (rows, columns), "key": (rows, columns)}
    if kind == "factored":
        shapes = {f"{of}_{axis}": (count,) for of in ("query", "key") for axis, count in
                  (("height", rows), ("width", columns))}  # fmt: skip
    own = () if heads is None else (heads,)
    return {
        name: 0.7 * draw(*own, *shape, channels, seed=seed + number)
        for number, (name, shape) in enumerate(shapes.items())
        if keys or name.startswith("query")
    }


def build(tables: Mapping[str, Tensor]) -> RelativePosition:
    """Make position embeddings of tables by their names."""
    return FullPosition(**tables) if "query" in tables else FactoredPosition(**tables)


def embedding(tables: Mapping[str, Tensor], of: str, down: int, right: int) -> Tensor:
    """Look up `r^q` or `r^k` of an offset in pixels, `(D,)` or `(G, D)`."""

    def middle(table: Tensor, dim: int) -> int:
        return table.shape[dim] // 2

    if of in tables:
        table = tables[of]
        return table[..., middle(table, -3) + down, middle(table, -2) + right, :]
    rows, columns = tables[f"{of}_height"], tables[f"{of}_width"]
    row = rows[..., middle(rows, -2) + down, :]
    return row + columns[..., middle(columns, -2) + right, :]


class Derived(NamedTuple):
    """What `probabilistic_attention` returns, and the gradients of all that it was given."""

    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor]


@dataclass(frozen=True)
class PositionCase:
    """A call of `probabilistic_attention` with position embeddings."""

    kind: str  # "factored" or "full"
    size: tuple[int, int] = (2, 3)  # (H, W)
    batch: int = 2
    heads: int = 2
    own: bool = True  # tables of each head
    key_tables: bool = True
    alpha: str = "default"  # one of `ALPHAS`
    beta: float = 0.0
    log_prior: str = "magnitude"  # or "key_magnitude"
    masked: bool = False  # some pairs, among them all of one query and all of one unit
    value_iterations: int = 1
    key_iterations: int = 0
    key_prior: float = 0.0
    propagations: int = 0  # iterations
    seed: int = 0

    channels = 3

    def tensors(self) -> dict[str, Tensor]:
        """Draw all that gradients can flow to."""
        tokens = (self.batch, self.heads, self.size[0] * self.size[1])
        tensors = {
            "queries": draw(*tokens, self.channels, seed=self.seed),
            "keys": draw(*tokens, self.channels, seed=self.seed + 1),
            "values": draw(*tokens, 2, seed=self.seed + 2),
        }
        if self.alpha == "scalar":
            tensors["alpha"] = torch.tensor(0.8, dtype=torch.float64)
        elif self.alpha == "unit":
            tensors["alpha"] = draw(*tokens, seed=self.seed + 3).mul(0.4).exp()
        if self.propagations:
            tensors["fixed"] = 2 * draw(*tokens, 2, seed=self.seed + 4)
        heads = self.heads if self.own else None
        return tensors | draw_tables(
            self.kind, self.size, self.channels, heads=heads, keys=self.key_tables, seed=self.seed
        )

    def clicked(self) -> Tensor:
        """Return where values are fixed: another number of tokens in each item."""
        count = self.size[0] * self.size[1]
        return draw(self.batch, count, seed=self.seed + 5) > 0.2

    def mask(self) -> Tensor:
        """Return a log mask `(N, M)`."""
        count = self.size[0] * self.size[1]
        hidden = draw(count, count, seed=self.seed + 6) > 0.8
        hidden = hidden & hidden.mT  # a causal one would be refused
        if count > 2:
            hidden[1] = hidden[:, 2] = True
        return torch.zeros(count, count, dtype=torch.float64).masked_fill(hidden, -inf)

    def run(
        self, backend: str, tensors: Mapping[str, Tensor], **changes: object
    ) -> dict[str, Tensor]:
        """Call `probabilistic_attention`."""
        names = [name for name in tensors if name.startswith(("query_", "key_"))]
        names += [name for name in ("query", "key") if name in tensors]
        options: dict[str, Any] = {
            "query_precision": self.precision(tensors),
            "value_precision": self.beta,
            "log_prior": self.log_prior,
            "log_mask": self.mask() if self.masked else None,
            "value_iterations": self.value_iterations,
            "key_adaptation": KeyAdaptation(self.key_iterations, self.key_prior),
            "position": build({name: tensors[name] for name in names}),
            "backend": backend,
        }
        if self.propagations:
            options["value_propagation"] = ValuePropagation(self.propagations, 0.3)
            options |= {"fixed_values": tensors["fixed"], "fixed_mask": self.clicked()}
        options |= changes
        result = probabilistic_attention(
            tensors["queries"], tensors["keys"], tensors["values"], **options
        )
        outputs = {"values": result.values, "keys": result.keys, "unit_values": result.unit_values}
        return outputs | {"log_evidence": result.log_evidence}

    def precision(self, tensors: Mapping[str, Tensor]) -> float | Tensor | None:
        """Return the argument `query_precision`."""
        return {"default": None, "float": 0.8}.get(self.alpha, tensors.get("alpha"))

    def oracle(self, _: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Follow the equations pixel by pixel."""
        queries, fixed = tensors["queries"], tensors.get("fixed")
        initial, values = tensors["keys"], tensors["values"]
        count = range(queries.shape[2])
        alpha = self.precision(tensors)
        alpha = self.channels**-0.5 if alpha is None else alpha
        alpha = torch.as_tensor(alpha, dtype=torch.float64).expand(queries.shape[:-1])
        mask = self.mask() if self.masked else torch.zeros(len(count), len(count))

        def norm(vectors: Tensor) -> Tensor:
            return vectors.square().sum(-1)

        def log_joint(keys: Tensor, mu: Tensor, i: int, seen: Tensor | None) -> Tensor:
            """Return `log p_i(q, [v,] u_j)`, `(B, G, M)`, with an unnormalised prior."""
            scores = []
            for j in count:
                down, right = (
                    (j // self.size[1] - i // self.size[1]),
                    (j % self.size[1] - i % self.size[1]),
                )
                rq = embedding(tensors, "query", down, right)
                rk = embedding(tensors, "key", down, right) if self.key_tables else 0 * rq
                q, xi, a = queries[:, :, i], keys[:, :, j], alpha[:, :, j]
                score = self.channels * torch.log(a / (2 * pi))  # two Gaussians, D/2 each
                score = score - a / 2 * norm(q - xi) - a / 2 * norm(q - rq)  # Eq. 25
                score = score - a / 2 * norm(xi - rk)  # Eq. 26
                if self.key_tables:
                    score = score + self.channels / 2 * torch.log(a)  # its normaliser
                score = score + a / 2 * (2 * norm(xi) + norm(rq) + norm(rk))
                if self.log_prior == "magnitude":
                    score = score + self.beta / 2 * norm(mu[:, :, j])
                if seen is not None and self.beta > 0:
                    score = score - self.beta / 2 * norm(seen[:, :, i] - mu[:, :, j])
                    score = score + seen.shape[-1] / 2 * log(self.beta / (2 * pi))
                scores.append(score + mask[i, j])
            return torch.stack(scores, dim=-1)

        def weights(keys: Tensor, mu: Tensor, i: int, seen: Tensor | None = None) -> Tensor:
            if (mask[i] == -inf).all():
                return torch.zeros(keys.shape[:-1], dtype=torch.float64)
            return log_joint(keys, mu, i, seen).softmax(-1)

        def fit(start: Tensor, precision: Any, prior: float, seen: Tensor, w: Tensor) -> Tensor:
            """Take Eq. 18 or 23 for `w` of shape (B, G, N, M); who sees nothing stays."""
            mass = (w.sum(-2) * precision).unsqueeze(-1)
            sums = (w * precision.unsqueeze(-2)).mT @ seen
            alive = mass > 0
            return torch.where(
                alive, (prior * start + sums) / (prior + mass).where(alive, 1.0), start
            )

        keys = initial
        for _ in range(self.key_iterations):
            w = torch.stack([weights(keys, values, i) for i in count], dim=-2)
            keys = fit(initial, alpha, self.key_prior, queries, w)
        mu = values
        for _ in range(self.propagations):
            assert fixed is not None
            w = torch.stack([weights(keys, mu, i, fixed) for i in count], dim=-2)
            w = w * self.clicked()[:, None, :, None]
            mu = fit(values, torch.full_like(alpha, self.beta), 0.3, fixed, w)
        seen = None
        for _ in range(self.value_iterations if self.beta > 0 else 1):
            before = seen
            rows = [(weights(keys, mu, i, before).unsqueeze(-1) * mu).sum(-2) for i in count]
            seen = torch.stack(rows, dim=-2)
        prior = alpha / 2 * norm(keys)
        if self.key_tables:
            prior = prior + self.channels / 2 * torch.log(alpha)
        if self.log_prior == "magnitude":
            prior = prior + self.beta / 2 * norm(mu)
        unseen = (mask == -inf).all(0)  # the prior is one of the units that any query sees
        prior = prior.masked_fill(unseen & ~unseen.all(), -inf)
        evidence = [
            torch.full(keys.shape[:2], -inf, dtype=torch.float64)
            if (mask[i] == -inf).all()
            else log_joint(keys, mu, i, before).logsumexp(-1)
            for i in count
        ]
        evidence = torch.stack(evidence, dim=-1) - prior.logsumexp(-1, keepdim=True)
        return {"values": seen, "keys": keys, "unit_values": mu, "log_evidence": evidence}

    def derive(self, backend: str) -> Derived:
        """Call and differentiate; the backend "oracle" is the one of this module."""
        leaves = {name: tensor.requires_grad_() for name, tensor in self.tensors().items()}
        outputs = (self.oracle if backend == "oracle" else self.run)(backend, leaves)
        total = torch.zeros((), dtype=torch.float64)
        for number, output in enumerate(outputs.values()):
            factors = draw(*output.shape, seed=self.seed + 90 + number)
            total = total + (output.where(output > -inf, 0.0) * factors).sum()
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        found = zip(leaves.items(), gradients, strict=True)
        return Derived(
            {name: output.detach() for name, output in outputs.items()},
            {n: torch.zeros_like(leaf) if g is None else g for (n, leaf), g in found},
        )


def assert_same(got: Derived, wanted: Derived) -> None:
    """Compare all outputs and gradients in float64."""
    torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-9)


@st.composite
def position_cases(draw_from: st.DrawFn, kind: str) -> PositionCase:
    """Cases of all sizes and options."""
    beta = draw_from(st.sampled_from((0.0, 0.4)))  # without it, nothing propagates
    return PositionCase(
        kind,
        draw_from(st.sampled_from(SIZES)),
        draw_from(st.integers(1, 2)),
        draw_from(st.integers(1, 2)),
        draw_from(st.booleans()),
        draw_from(st.booleans()),
        draw_from(st.sampled_from(ALPHAS)),
        beta,
        draw_from(st.sampled_from(("magnitude", "key_magnitude"))),
        draw_from(st.booleans()),
        draw_from(st.integers(1, 2)),
        draw_from(st.integers(0, 2)),
        draw_from(st.sampled_from((0.0, 0.5))),
        draw_from(st.integers(0, 2)) if beta > 0 else 0,
        draw_from(st.integers(0, 99)),
    )
